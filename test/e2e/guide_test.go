package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write what the guides' commands print into the guides")

// block is one fenced block of a document.
type block struct {
	// info is what stands behind the fence: a language, and words for this test.
	info string
	// text is between the fences; begin and end are where it is in the document.
	text       string
	begin, end int
}

func (b block) language() string {
	language, _, _ := strings.Cut(b.info, " ")
	return language
}

// file is the name in an info string such as "sh file=vms.sh".
func (b block) file() string {
	for _, w := range strings.Fields(b.info) {
		if name, ok := strings.CutPrefix(w, "file="); ok {
			return name
		}
	}
	return ""
}

var fenced = regexp.MustCompile("(?ms)^```([^\n`]*)\n(.*?)^```$")

func blocks(text string) []block {
	var out []block
	for _, m := range fenced.FindAllStringSubmatchIndex(text, -1) {
		out = append(out, block{text[m[2]:m[3]], text[m[4]:m[5]], m[4], m[5]})
	}
	return out
}

// A guide is run as it stands: each block with "file=NAME" is written to that
// file, and each line of a console block that begins with "$ " is typed into one
// shell, in the document's order. What it prints must be what the block shows, but
// for times, numbers of leases and names of machines. `-update` writes it anew.
func TestGuide(t *testing.T) {
	t.Parallel()
	guide := filepath.Join("..", "..", "docs", "qasight.md")
	data, err := os.ReadFile(guide)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	sh := newShell(t)
	var b strings.Builder
	at, typed := 0, 0
	for _, k := range blocks(text) {
		b.WriteString(text[at:k.begin])
		at = k.end
		switch {
		case k.file() != "":
			sh.write(k.file(), k.text)
			b.WriteString(k.text)
		case k.language() == "console":
			shown := sh.session(k.text)
			typed += strings.Count(k.text, "\n$ ") + 1
			if diff := cmp.Diff(steady(k.text), steady(shown)); diff != "" && !*update {
				t.Errorf("docs/qasight.md shows something else than what is printed (-shown +printed), rewrite it with -update when that is meant:\n%s", diff)
			}
			if steady(k.text) == steady(shown) {
				shown = k.text // the document's own times stay
			}
			b.WriteString(shown)
		case strings.HasPrefix(k.text, "#!/bin/sh"):
			if out := sh.run("sh -n <<'SAMPLE'\n" + k.text + "SAMPLE"); out != "" {
				t.Errorf("a sample script is no shell script: %s", out)
			}
			b.WriteString(k.text)
		default:
			b.WriteString(k.text)
		}
	}
	b.WriteString(text[at:])
	if typed < 10 {
		t.Errorf("only %d commands of the guide were typed", typed)
	}
	if *update && b.String() != text {
		if err := os.WriteFile(guide, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// The first steps of the README are typed as they stand, but for what builds the
// program and finds it.
func TestReadmeOfQasight(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	sh := newShell(t)
	typed := 0
	for _, k := range blocks(string(data)) {
		if k.info != "sh" || !strings.Contains(k.text, "qasight init") {
			continue
		}
		for line := range strings.Lines(k.text) {
			if strings.HasPrefix(line, "make ") || strings.HasPrefix(line, "export PATH=") {
				continue
			}
			line = strings.TrimSpace(line)
			out := sh.run(line + "\n[ $? = 0 ] || echo FAILED")
			if typed++; strings.Contains(out, "FAILED") {
				t.Errorf("%s:\n%s", line, out)
			}
		}
	}
	if typed < 4 {
		t.Errorf("only %d lines were typed", typed)
	}
}

// volatile is what differs from run to run.
var volatile = []struct {
	is  *regexp.Regexp
	now string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d+)?)?Z?`), "TIME"},
	{regexp.MustCompile(`\b\d\d:\d\d:\d\d\b`), "TIME"},
	{regexp.MustCompile(`\b(\d+h)?(\d+m)?\d+(\.\d+)?(ms|µs|s)\b`), "SPAN"},
	{regexp.MustCompile(`\b\d+h\d+m\b`), "SPAN"},
	{regexp.MustCompile(`\b[A-Z2-7]{26}\b`), "ID"},
	{regexp.MustCompile(`~\d+`), "~N"},
	{regexp.MustCompile(`ann@laptop pid \d+`), "ann@laptop pid N"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "ADDRESS"},
	// Which worker of a stage gets which key, and is first, is theirs to find out.
	{regexp.MustCompile(`\[ui \d qa-win-\d\d\] worker \d`), "[ui N KEY] worker N"},
	{regexp.MustCompile(`(?m)^\d +qa-win-\d\d`), "N KEY"},
	{regexp.MustCompile(`testing on qa-win-\d\d`), "testing on KEY"}, // they go out as the stage gave them back
	{regexp.MustCompile(` +`), " "},                                  // columns are as wide as what is in them
	{regexp.MustCompile(`(?m) +$`), ""},
}

func steady(s string) string {
	for _, v := range volatile {
		s = v.is.ReplaceAllString(s, v.now)
	}
	return s
}

// shell is one bash in a folder of its own, in which qasight is a command.
type shell struct {
	t   *testing.T
	dir string
	in  io.WriteCloser
	out *bufio.Reader
	// people has ann at her laptop do what this user does here.
	people *strings.Replacer
}

func newShell(t *testing.T) *shell {
	t.Helper()
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	here, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	s := &shell{t: t, dir: filepath.Join(t.TempDir(), "shop-tests")}
	s.people = strings.NewReplacer(me.Username+"@"+here, "ann@laptop", "by "+me.Username, "by ann", "in "+me.Username+"'s name", "in ann's name", filepath.Dir(s.dir), "/home/ann")
	home := filepath.Join(filepath.Dir(s.dir), "home")
	bin := filepath.Join(filepath.Dir(s.dir), "bin")
	for _, d := range []string{s.dir, home, bin} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(binary(t, "qasight"), filepath.Join(bin, "qasight")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	c := exec.CommandContext(ctx, "bash", "--noprofile", "--norc")
	c.Dir = s.dir
	c.Env = []string{
		"PATH=" + bin + ":/usr/local/bin:/usr/bin:/bin", "HOME=" + home, "USER=ann", "LC_ALL=C.UTF-8",
		"XDG_STATE_HOME=" + filepath.Join(home, "state"), "XDG_CONFIG_HOME=" + filepath.Join(home, "config"),
	}
	// What the guide leaves running in the background ends with its group.
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	if s.in, err = c.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stdout, c.Stderr = w, w
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	s.out = bufio.NewReader(r)
	t.Cleanup(func() {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGTERM)
		s.in.Close()
		cancel()
		_ = c.Wait()
		r.Close()
	})
	return s
}

func (s *shell) write(name, text string) {
	s.t.Helper()
	mode := os.FileMode(0o644)
	if strings.HasPrefix(text, "#!") {
		mode = 0o755
	}
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), mode); err != nil {
		s.t.Fatal(err)
	}
}

// session types the commands of a console block, and returns it with what they
// print. A line that ends with \ goes on in the next one, after "> ".
func (s *shell) session(text string) string {
	s.t.Helper()
	var b strings.Builder
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		command, ok := strings.CutPrefix(lines[i], "$ ")
		if !ok {
			continue // what an earlier one printed
		}
		fmt.Fprintln(&b, lines[i])
		for strings.HasSuffix(command, `\`) && i+1 < len(lines) {
			i++
			more := strings.TrimPrefix(lines[i], "> ")
			fmt.Fprintln(&b, lines[i])
			command += "\n" + more
		}
		b.WriteString(s.run(command))
	}
	return b.String()
}

// run types one command and returns what is printed until it has ended. Its exit
// code is what $? is for the next one.
func (s *shell) run(command string) string {
	s.t.Helper()
	const end = "\x00end\x00"
	// The first echo's line break is taken off again: output may lack its last one.
	typed := "(exit ${code:-0})\n" + command + " </dev/null\ncode=$?; printf '" + `\0end\0%d\n` + "' $code\n"
	if strings.ContainsAny(command, "\n|&;<") || strings.HasPrefix(command, "cd ") {
		typed = "(exit ${code:-0})\n" + command + "\ncode=$?; printf '" + `\0end\0%d\n` + "' $code\n"
	}
	if _, err := io.WriteString(s.in, typed); err != nil {
		s.t.Fatal(err)
	}
	var out bytes.Buffer
	for {
		line, err := s.out.ReadString('\n')
		if before, code, ended := strings.Cut(line, end); ended {
			out.WriteString(before)
			if _, err := strconv.Atoi(strings.TrimSpace(code)); err != nil {
				s.t.Fatalf("%s: %q", command, code)
			}
			break
		}
		out.WriteString(line)
		if err != nil {
			s.t.Fatalf("%s: the shell ended: %v\n%s", command, err, out.String())
		}
	}
	text := s.people.Replace(out.String())
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text
}
