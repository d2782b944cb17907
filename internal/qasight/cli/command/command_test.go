package command_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/cli/command"
)

type syscallSignal = syscall.Signal

// relay makes signals as the process gets them.
func relay(t *testing.T, from <-chan syscall.Signal) <-chan os.Signal {
	t.Helper()
	to := make(chan os.Signal)
	go func() {
		for {
			select {
			case s := <-from:
				select {
				case to <- s:
				case <-t.Context().Done():
					return
				}
			case <-t.Context().Done():
				return
			}
		}
	}()
	return to
}

func with(environ ...string) *command.Factory {
	return &command.Factory{Program: command.Program{Environ: environ}}
}

func TestGetenv(t *testing.T) {
	t.Parallel()
	f := with("A=1", "AB=2", "A=3", "EMPTY=", "ODD")
	got := []string{f.Getenv("A"), f.Getenv("AB"), f.Getenv("EMPTY"), f.Getenv("ODD"), f.Getenv("NONE")}
	if diff := cmp.Diff([]string{"3", "2", "", "", ""}, got); diff != "" {
		t.Error(diff)
	}
}

func TestStateDir(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason  string
		environ []string
		want    string
	}{
		"named":    {"where the person wants state", []string{"HOME=/h", "XDG_STATE_HOME=/s"}, "/s/qasight/shop"},
		"usual":    {"where it is by default", []string{"HOME=/h"}, "/h/.local/state/qasight/shop"},
		"empty":    {"an empty variable is none", []string{"HOME=/h", "XDG_STATE_HOME="}, "/h/.local/state/qasight/shop"},
		"relative": {"its specification has relative ones ignored", []string{"HOME=/h", "XDG_STATE_HOME=s"}, "/h/.local/state/qasight/shop"},
	} {
		if got := with(tc.environ...).StateDir("shop"); got != tc.want {
			t.Errorf("%s: %s: got %s", name, tc.reason, got)
		}
	}
	if got := with("HOME=/h").Database("shop"); got != "/h/.local/state/qasight/shop/leases.db" {
		t.Errorf("the lease database is %s", got)
	}
}

// Without HOME, or with one that is none, files do not land in the working folder.
func TestStateDirWithoutHome(t *testing.T) {
	t.Parallel()
	for _, f := range []*command.Factory{with(), with("HOME="), with("HOME=here")} {
		if got := f.StateDir("shop"); !filepath.IsAbs(got) {
			t.Errorf("%v: %s", f.Environ, got)
		}
	}
}

// The account is a name that the desk accepts, whatever the machine calls people.
func TestAccount(t *testing.T) {
	t.Parallel()
	got := with("USER=ann").Account()
	if got == "" || len(got) > 128 || strings.ContainsAny(got, " /\n") {
		t.Errorf("account %q", got)
	}
	if h := with().Holder("me"); h != "me" {
		t.Errorf("a holder that was given became %q", h)
	}
	if h := with("USER=ann").Holder(""); !strings.HasPrefix(h, got+"@") || !strings.Contains(h, " pid ") {
		t.Errorf("holder %q", h)
	}
}

func TestToken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	named, empty := write("named", " fdt_named\n"), write("empty", " \n")
	write("config/qasight/qasight.example:8443.token", "fdt_kept\n")
	write("config/qasight/qasight.example.token", "fdt_usual\n")
	config := "XDG_CONFIG_HOME=" + filepath.Join(dir, "config")
	for name, tc := range map[string]struct {
		reason  string
		server  string
		environ []string
		want    client.Token
		text    string
	}{
		"variable":   {"the variable comes first", "https://qasight.example:8443", []string{config, "QASIGHT_TOKEN= fdt_v ", "QASIGHT_TOKEN_FILE=" + named}, "fdt_v", ""},
		"blank":      {"a blank variable is none", "https://qasight.example:8443", []string{config, "QASIGHT_TOKEN= ", "QASIGHT_TOKEN_FILE=" + named}, "fdt_named", ""},
		"kept":       {"the file that login writes", "https://qasight.example:8443", []string{config}, "fdt_kept", ""},
		"case":       {"hosts have no case", "https://QASIGHT.example:8443/", []string{config}, "fdt_kept", ""},
		"usual port": {"443 need not be said", "https://qasight.example:443", []string{config}, "fdt_usual", ""},
		"no port":    {"another server on the same host has a token of its own", "https://qasight.example", []string{config}, "fdt_usual", ""},
		"none":       {"it says where a token may be", "https://other.example", []string{config}, "", "log in with `qasight login`, or set QASIGHT_TOKEN or QASIGHT_TOKEN_FILE (no token is in " + filepath.Join(dir, "config/qasight/other.example.token")},
		"named gone": {"a file that was named must be there", "https://qasight.example", []string{config, "QASIGHT_TOKEN_FILE=" + dir + "/gone"}, "", "cannot be read"},
		"empty":      {"an empty file is no token", "https://qasight.example", []string{"QASIGHT_TOKEN_FILE=" + empty}, "", "holds no token"},
		"blanks":     {"two words are no token", "https://qasight.example", []string{"QASIGHT_TOKEN_FILE=" + write("two", "Bearer fdt_x\n")}, "", filepath.Join(dir, "two") + " holds no token: a blank is inside"},
		"lines":      {"nor are two lines", "https://qasight.example", []string{"QASIGHT_TOKEN_FILE=" + write("lines", "fdt_x\nfdt_y\n")}, "", filepath.Join(dir, "lines") + " holds no token: it has several lines"},
		"control":    {"nor is a picture", "https://qasight.example", []string{"QASIGHT_TOKEN_FILE=" + write("raw", "\x89PNG")}, "", filepath.Join(dir, "raw") + " holds no token: it has a character that no token has"},
		"letters":    {"nor is a word of another language", "https://qasight.example", []string{"QASIGHT_TOKEN=fdt_é"}, "", "QASIGHT_TOKEN holds no token: it has a character that no token has"},
		"a folder":   {"a folder is no token", "https://qasight.example", []string{"QASIGHT_TOKEN_FILE=" + dir}, "", "holds no token"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := with(tc.environ...).Token(tc.server)
			if tc.text == "" {
				if err != nil || got != tc.want {
					t.Errorf("%s: got %q, %v", tc.reason, string(got), err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.text) || fault.CodeOf(err) != "no_token" || command.ExitCode(err) != 77 {
				t.Errorf("%s: got %v", tc.reason, err)
			}
		})
	}
}

// No URL, however odd, leads out of the folder of tokens.
func TestTokenFileStaysInItsFolder(t *testing.T) {
	t.Parallel()
	f := with("XDG_CONFIG_HOME=/c")
	for _, server := range []string{"", "::", "https://", "https://a/../../b", "https://[fe80::1%25a%2f..%2f..%2fb]:1", "https://..", "https://.", "http://[::1]:8443"} {
		if got := f.TokenFile(server); filepath.Dir(got) != "/c/qasight" || !strings.HasSuffix(got, ".token") {
			t.Errorf("%q: %s", server, got)
		}
	}
	if got := with("HOME=/h", "XDG_CONFIG_HOME=c").TokenFile("http://127.0.0.1:8443"); got != "/h/.config/qasight/127.0.0.1:8443.token" {
		t.Error(got)
	}
	if a, b := f.TokenFile("https://a.example"), f.TokenFile("https://b.example"); a == b {
		t.Error("two servers share a token")
	}
}

func TestSaveToken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := with("XDG_CONFIG_HOME=" + dir)
	const server = "https://qasight.example"
	for _, text := range []client.Token{"fdt_one", "fdt_two"} {
		if err := f.SaveToken(server, text); err != nil {
			t.Fatal(err)
		}
		if got, err := f.Token(server); err != nil || got != text {
			t.Fatalf("kept %q: %v", string(got), err)
		}
	}
	info, err := os.Stat(f.TokenFile(server))
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	// Others could read what was there before: what is kept now is a new file.
	if err := os.Chmod(f.TokenFile(server), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := f.SaveToken(server, "fdt_three"); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(f.TokenFile(server)); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	files, err := os.ReadDir(filepath.Join(dir, "qasight"))
	if err != nil || len(files) != 1 {
		t.Errorf("something is left beside the token: %v, %v", files, err)
	}

	blocked := filepath.Join(dir, "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err = with("XDG_CONFIG_HOME="+blocked).SaveToken(server, "fdt_x")
	if fault.Of(err) != fault.Invalid || !strings.Contains(err.Error(), "QASIGHT_TOKEN") || strings.Contains(err.Error(), "fdt_x") {
		t.Errorf("a folder that cannot be: %v", err)
	}
}

func TestTokenVariable(t *testing.T) {
	t.Parallel()
	got := []string{with().TokenVariable(), with("QASIGHT_TOKEN_FILE=f").TokenVariable(), with("QASIGHT_TOKEN_FILE=f", "QASIGHT_TOKEN=t").TokenVariable()}
	if diff := cmp.Diff([]string{"", "QASIGHT_TOKEN_FILE", "QASIGHT_TOKEN"}, got); diff != "" {
		t.Error(diff)
	}
}

// Hooks are the owner's commands, and qasight's own token is none of their business.
func TestHookEnv(t *testing.T) {
	t.Parallel()
	f := with("PATH=/bin", "QASIGHT_TOKEN=fdt_x", "QASIGHT_TOKEN_FILE=/f", "QASIGHT_TOKENS=3", "CLOUD_TOKEN=c")
	want := []string{"PATH=/bin", "QASIGHT_TOKENS=3", "CLOUD_TOKEN=c", "QASIGHT_KEY=k"}
	if diff := cmp.Diff(want, f.HookEnv("QASIGHT_KEY=k")); diff != "" {
		t.Error(diff)
	}
	if got := f.Getenv("QASIGHT_TOKEN"); got != "fdt_x" {
		t.Errorf("the program's own environment changed: %q", got)
	}
}

func TestSecrets(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason string
		secret bool
	}{
		"CLOUD_TOKEN":       {"a token", true},
		"cloud_token":       {"names have any case", true},
		"TOKEN":             {"the word alone", true},
		"AWS_SECRET_KEY":    {"a secret", true},
		"DB_PASSWORD":       {"a password", true},
		"PGPASSWD":          {"a password", true},
		"SSH_PASSPHRASE":    {"a password of a key", true},
		"GCP_CREDENTIALS":   {"what opens a cloud", true},
		"MAPS_API_KEY":      {"a key of an API", true},
		"APIKEY":            {"another spelling", true},
		"AWS_ACCESS_KEY_ID": {"half of a pair", true},
		"PRIVATE_KEY":       {"a key", true},
		"SMTP_PASS":         {"a short word, at the end only", true},
		"ADMIN_PWD":         {"a short word, at the end only", true},
		"PWD":               {"the working folder is no secret", false},
		"COMPASS":           {"a word that ends alike", false},
		"PASS_COUNT":        {"a number", false},
		"PATH":              {"no secret", false},
		"QASIGHT_KEY":       {"a key of a pool is no secret", false},
	} {
		got := with(name + "=some value").Secrets()
		if (len(got) == 1 && got[0] == "some value") != tc.secret || len(got) > 1 {
			t.Errorf("%s: %s: got %q", name, tc.reason, got)
		}
	}
	// A text of a letter or three would be found everywhere.
	if got := with("TOKEN=", "MAX_TOKENS=4", "TOKEN_TYPE=jwt", "A_TOKEN=abcd").Secrets(); !cmp.Equal(got, []string{"abcd"}) {
		t.Errorf("short values: %q", got)
	}
}

func TestPlain(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ reason, in, want string }{
		"plain":   {"nothing to do", "qa-1 von Jürgen", "qa-1 von Jürgen"},
		"colour":  {"a terminal's colours are not others' to choose", "a\x1b[31mb", "a�[31mb"},
		"lines":   {"it stays a line", "a\r\nb\tc", "a  b c"},
		"c1":      {"8-bit controls too", "a\u009bb", "a�b"},
		"bidi":    {"text that reads backwards hides what it says", "a\u202eb", "a�b"},
		"invalid": {"broken bytes", "a\xffb", "a�b"},
	} {
		if got := command.Plain(tc.in); got != tc.want {
			t.Errorf("%s: %s: got %q", name, tc.reason, got)
		}
	}
}

func TestDuration(t *testing.T) {
	t.Parallel()
	for in, want := range map[time.Duration]string{
		0: "0s", 400 * time.Millisecond: "0s", 1600 * time.Millisecond: "2s", 42 * time.Second: "42s",
		59*time.Second + 600*time.Millisecond: "1m00s", 190 * time.Second: "3m10s", time.Hour: "1h00m", 65 * time.Minute: "1h05m",
		26 * time.Hour: "26h00m",
	} {
		if got := command.Duration(in); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	rows := [][]string{{"KEY", "STATE", "HOLDER"}, {"qa-1", "held", "ann\x1b[2J"}, {"a-longer-key", "free", ""}}
	if err := command.Table(&b, rows); err != nil {
		t.Fatal(err)
	}
	want := "KEY           STATE  HOLDER\nqa-1          held   ann�[2J\na-longer-key  free\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
}

// A pipe is a file like others, and one that nobody writes to is waited for by
// nobody.
func TestTokenOfAPipe(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := with("QASIGHT_TOKEN_FILE=" + fifo).Token("https://desk.example.com"); fault.CodeOf(err) != "no_token" {
		t.Errorf("got %q, %v", string(got), err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	go func() {
		time.Sleep(20 * time.Millisecond) // as a password manager takes its time
		_, _ = w.WriteString("fdt_x\n")
		w.Close()
	}()
	if got, err := with(fmt.Sprintf("QASIGHT_TOKEN_FILE=/dev/fd/%d", r.Fd())).Token("https://desk.example.com"); err != nil || string(got) != "fdt_x" {
		t.Errorf("got %q, %v", string(got), err)
	}
}
