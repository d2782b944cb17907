package leasecmd_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/qasight/cli"
)

// inside runs the program in this process, with an error stream that counts as a
// terminal, until it ends. It returns its code and what it said.
func (p *project) inside(signals <-chan os.Signal, args ...string) (code int, out, errs string) {
	p.t.Helper()
	open := func(name string) *os.File {
		f, err := os.Create(p.path(name))
		if err != nil {
			p.t.Fatal(err)
		}
		return f
	}
	in, stdout, stderr := open("in"), open("out"), open("err")
	defer in.Close()
	defer stdout.Close()
	defer stderr.Close()
	code = cli.Main(context.Background(), cli.Program{
		Args: append([]string{"--file", p.path("qasight.yaml")}, args...), Environ: p.env,
		Executable: "/proc/self/exe", Name: "qasight", Signals: signals,
		Streams: cli.Streams{In: in, Out: stdout, Err: stderr, ErrTerminal: true},
	})
	return code, p.read("out"), p.read("err")
}

// On a terminal a wait is told after two seconds, with who is in the way and the
// place in line, and not again within half a minute.
func TestWaitingIsTold(t *testing.T) {
	t.Parallel()
	p := newProject(t, strings.Replace(oneKey, "6s", "10m", 1))
	signals := make(chan os.Signal, 4)
	if code, _, errs := p.inside(signals, "take", "vms", "--holder", "nightly"); code != 0 {
		t.Fatalf("take ended with %d: %s", code, errs)
	}
	began := time.Now()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		eventually(t, "it is told", func() bool { return strings.Contains(p.read("err"), "waiting") })
		if told := time.Since(began); told < 2*time.Second {
			t.Errorf("it was told after %s", told)
		}
		eventually(t, "some time has passed", func() bool { return time.Since(began) > 4*time.Second })
		signals <- syscall.SIGUSR1 // asks for nothing
		signals <- syscall.SIGINT
	}()
	code, _, errs := p.inside(signals, "exec", "vms", "--", "touch", p.path("ran"))
	<-ended
	if code != 130 || p.exists("ran") {
		t.Errorf("it ended with %d", code)
	}
	line := regexp.MustCompile(`(?m)^qasight: waiting for a key of vms: 1 held, next due in (10m00s|9m5\ds) \(place 1\)$`)
	if n := len(line.FindAllString(errs, -1)); n != 1 || strings.Count(errs, "waiting") != 1 {
		t.Errorf("it was told %d times: %s", n, errs)
	}
	if !strings.Contains(errs, "qasight: ended by interrupt while it waited for a key of vms: no key is held") {
		t.Errorf("in the end it said %q", errs)
	}
}

// The secret of a lease that take took is in one file, and in nothing that anybody
// is shown, whatever happens to the lease; nor in the database.
func TestSecretStaysInItsFile(t *testing.T) {
	t.Parallel()
	p := newProject(t, `project: shop
pools:
  vms: {items: [vm-1], on_check: env, on_reset: env}
  none: {items: [n-1]}
`)
	shown := ""
	do := func(want int, args ...string) {
		t.Helper()
		code, out, errs := p.inside(nil, append([]string{"--verbose"}, args...)...)
		shown += out + errs
		if code != want {
			t.Errorf("%v ended with %d: %s", args, code, errs)
		}
	}
	do(0, "take", "vms")
	files, err := filepath.Glob(p.path("state/qasight/shop/leases/*.json"))
	if err != nil || len(files) != 1 {
		t.Fatalf("the files are %v, %v", files, err)
	}
	raw, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	secret := regexp.MustCompile(`"secret":"([^"]{20,})"`).FindStringSubmatch(string(raw))
	if secret == nil {
		t.Fatalf("the file is %s", raw)
	}
	in := func(text string) bool { return strings.Contains(text, secret[1]) }
	do(0, "renew", "vm-1")
	do(0, "renew", "vm-1", "--json")
	do(75, "take", "vms")
	do(2, "renew", "vm-1", "--ttl", "1s")
	do(2, "release", "vm-1", "--outcome", "x")
	do(75, "exec", "vms", "--wait", "0", "--", "true")
	if b := p.broker(); b != nil {
		if _, err := b.Force(t.Context(), "vms", "vm-1", client.ForceRequest{Reason: "needed"}); err != nil {
			t.Fatal(err)
		}
	}
	do(76, "renew", "vm-1", "--json")
	do(0, "take", "vms", "--json")
	do(0, "release", "vm-1", "--json")
	do(0, "take", "none")
	if _, err := p.broker().Force(t.Context(), "none", "n-1", client.ForceRequest{Reason: "needed"}); err != nil {
		t.Fatal(err)
	}
	do(76, "release", "n-1")
	if len(glob(t, p.path("state/qasight/shop/leases/*"))) != 0 {
		t.Errorf("files of lost leases are left: %v", glob(t, p.path("state/qasight/shop/leases/*")))
	}
	if in(shown) || !strings.Contains(shown, "QASIGHT_LEASE=vm-1~") {
		t.Errorf("the secret was shown, or no hook ran: %s", shown)
	}
	err = filepath.WalkDir(p.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		if err == nil && in(string(raw)) {
			t.Errorf("the secret is in %s", path)
		}
		if errors.Is(err, fs.ErrNotExist) { // the database's own side files come and go
			err = nil
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// A lease that cannot be written down is given back at once, and is not told.
func TestTakeCannotWrite(t *testing.T) {
	t.Parallel()
	p := newProject(t, oneKey)
	if err := os.MkdirAll(p.path("state/qasight/shop"), 0o700); err != nil {
		t.Fatal(err)
	}
	p.write("state/qasight/shop/leases", "in the way")
	code, out, errs := p.inside(nil, "take", "vms")
	if code != 69 || out != "" || !strings.Contains(errs, "the lease cannot be kept in") {
		t.Errorf("it ended with %d, printed %q and said %q", code, out, errs)
	}
	if k := key(t, p.broker(), "vms", "vm-1"); k.State != "free" || p.exists("reset") {
		t.Errorf("the key is %s, and was reset: %v", k.State, p.exists("reset"))
	}
}

// Release keeps the lease alive while on_reset runs, however long that takes.
func TestReleaseHoldsTheKey(t *testing.T) {
	t.Parallel()
	p := newProject(t, `project: shop
pools:
  vms: {items: [vm-1], lease_ttl: 5s, hook_timeout: 1m, on_reset: touch resetting; while ! test -e go; do sleep 0.02; done}
`)
	if code, _, errs := p.inside(nil, "take", "vms"); code != 0 {
		t.Fatal(errs)
	}
	began := time.Now()
	r := p.start("release", "vm-1")
	eventually(t, "it resets", func() bool { return p.exists("resetting") })
	b := p.broker()
	eventually(t, "the lease's time is over", func() bool { return time.Since(began) > 5500*time.Millisecond })
	if k := key(t, b, "vms", "vm-1"); k.State != "resetting" {
		t.Errorf("the key is %s", k.State)
	}
	p.write("go", "")
	r.ends(0)
	if k := key(t, b, "vms", "vm-1"); k.State != "free" {
		t.Errorf("the key is %s", k.State)
	}
}
