package local_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/local"
)

func TestFileFault(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		err    error
		class  fault.Class
		remedy string
	}{
		"read-only": {"only a person mounts it writable", unix.EROFS, fault.Permanent, "writable"},
		"denied":    {"only a person gives rights", unix.EACCES, fault.Permanent, "let user"},
		"full":      {"space comes back", unix.ENOSPC, fault.Transient, "free space"},
		"quota":     {"space comes back", unix.EDQUOT, fault.Transient, "free space"},
		"a file":    {"only a person moves it away", unix.ENOTDIR, fault.Permanent, "remove it"},
		"disk":      {"nobody knows", unix.EIO, fault.Transient, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := local.FileFault("write", "/some/path", &fs.PathError{Op: "open", Path: "/some/path", Err: tc.err})
			if fault.Of(err) != tc.class || !strings.Contains(err.Error(), "/some/path") || !strings.Contains(err.Error(), tc.remedy) || !errors.Is(err, tc.err) {
				t.Errorf("%s: %s: %v", tc.reason, fault.Of(err), err)
			}
		})
	}
}

// mounted gives the test a small file system of its own, in a mount namespace
// that ends with the test's thread. The returned function mounts it again with
// other flags.
func mounted(t *testing.T) (dir string, remount func(flags uintptr)) {
	t.Helper()
	runtime.LockOSThread() // and never unlock: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		t.Skipf("a file system of its own needs root: %v", err)
	}
	dir = t.TempDir()
	for _, err := range []error{
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("tmpfs", dir, "tmpfs", 0, "size=32m"),
	} {
		if err != nil {
			t.Skipf("cannot mount here: %v", err)
		}
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir, func(flags uintptr) {
		t.Helper()
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|flags, "size=32m"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReadOnlyStateDir(t *testing.T) {
	dir, remount := mounted(t)
	p := reopen(t, dir)
	remount(unix.MS_RDONLY)
	_, err := p.Create(t.Context(), specOf("disk"))
	if fault.Of(err) != fault.Permanent || !strings.Contains(err.Error(), dir) {
		t.Errorf("Create on a read-only file system: %s: %v; want permanent, with the path", fault.Of(err), err)
	}
	if _, err := local.New(local.Options{Name: "home", StateDir: filepath.Join(dir, "more"), Command: command(t)}); fault.Of(err) != fault.Permanent {
		t.Errorf("New there: %s: %v; want permanent", fault.Of(err), err)
	}
	reason(t, p, local.ReasonStateDirReadOnly)
	// What needs no writing works.
	if _, err := p.Get(t.Context(), provider.Ref{Owner: ownerOf("disk")}); fault.Of(err) != fault.NotFound {
		t.Errorf("Get: %v; want NotFound", err)
	}
	if st, err := p.Delete(t.Context(), provider.Ref{Owner: ownerOf("disk")}); err != nil || st != provider.Gone {
		t.Errorf("Delete of what never was = %q, %v; want Gone", st, err)
	}
}

func TestFullStateDir(t *testing.T) {
	dir, _ := mounted(t)
	p := reopen(t, dir)
	reason(t, p, local.ReasonOK)
	filler := filepath.Join(dir, "filler")
	f, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(f, io.LimitReader(zero{}, 64<<20))
	_ = f.Close()
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filling: %v", err)
	}
	_, err = p.Create(t.Context(), specOf("disk"))
	if fault.Of(err) != fault.Transient || !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), dir) {
		t.Errorf("Create on a full file system: %s: %v; want transient, with the path", fault.Of(err), err)
	}
	reason(t, p, local.ReasonStateDirFull)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	create(t, p, specOf("disk")) // it went over by itself
	gone(t, p, ownerOf("disk"))
	empty(t, dir)
}

type zero struct{}

func (zero) Read(p []byte) (int, error) { return len(p), nil }

func reason(t *testing.T, p *local.Provider, want string) {
	t.Helper()
	rows, err := p.Check(t.Context())
	if err != nil || len(rows) != 1 || rows[0].Host != local.Host || rows[0].Reason != want {
		t.Errorf("Check = %+v, %v; want reason %s", rows, err, want)
	}
}

func TestCheckReasons(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	p := reopen(t, dir)
	reason(t, p, local.ReasonOK)
	if rows, _ := p.Check(t.Context()); rows[0].FreeBytes <= 0 {
		t.Errorf("free bytes %d", rows[0].FreeBytes)
	}
	q, err := local.New(local.Options{Name: "home", StateDir: dir, Command: []string{filepath.Join(dir, "no-such-program")}})
	if err != nil {
		t.Fatal(err)
	}
	reason(t, q, local.ReasonCommandMissing)
	if _, err := q.Create(t.Context(), specOf("a")); fault.Of(err) != fault.Permanent {
		t.Errorf("Create without a program: %s: %v; want permanent", fault.Of(err), err)
	}
	full, err := local.New(local.Options{Name: "home", StateDir: dir, Command: command(t), MaxInstances: 1})
	if err != nil {
		t.Fatal(err)
	}
	reason(t, full, local.ReasonInstanceLimit) // the one that could not start
	if _, err := full.Create(t.Context(), specOf("b")); fault.Of(err) != fault.Quota {
		t.Errorf("Create over the limit: %s: %v; want quota", fault.Of(err), err)
	}
	gone(t, p, ownerOf("a"))
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	reason(t, p, local.ReasonStateDirMissing)
	for what, err := range map[string]error{
		"Get":    second(p.Get(t.Context(), provider.Ref{Owner: ownerOf("a")})),
		"Create": second(p.Create(t.Context(), specOf("a"))),
		"Delete": second(p.Delete(t.Context(), provider.Ref{Owner: ownerOf("a")})),
	} {
		if fault.Of(err) != fault.Unavailable {
			t.Errorf("%s without a state directory: %s: %v; want unavailable, never NotFound or Gone", what, fault.Of(err), err)
		}
	}
}

// What is mounted at the state directory went away, and its mount point is empty:
// that says nothing about what is in it. Nothing is written there, and all is as
// it was when it is back.
func TestAnEmptyMountPointIsNoStateDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	p := open(t, dir)
	in := create(t, p, specOf("a"))
	ref := provider.Ref{ID: in.ID, Owner: in.Owner}
	others(t, p, claimOf("operatora", 1))
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	list, err := p.ListByTag(t.Context(), installation)
	if err != nil || len(list) != 1 {
		t.Fatalf("ListByTag = %+v, %v", list, err)
	}
	lying, err := p.Leftovers(t.Context(), installation, nil)
	if err != nil || len(lying) != 1 {
		t.Fatalf("Leftovers = %+v, %v", lying, err)
	}
	claimed, err := p.Claim(t.Context(), claimOf("operatora", 2))
	if err != nil || len(claimed) != 1 {
		t.Fatalf("Claim = %+v, %v", claimed, err)
	}
	for what, err := range map[string]error{
		"Get":       second(p.Get(t.Context(), ref)),
		"Create":    second(p.Create(t.Context(), specOf("a"))),
		"Delete":    second(p.Delete(t.Context(), ref)),
		"Place":     second(p.Place(t.Context(), specOf("b"))),
		"Halt":      second(p.Halt(t.Context(), installation)),
		"ListByTag": list[0].Err,
		"Leftovers": lying[0].Err,
		"Claim":     claimed[0].Err,
		"RemoveLeftover": p.RemoveLeftover(t.Context(), installation, provider.Leftover{
			Host: local.Host, ID: ".gone~" + folder(ownerOf("u")) + "~RUN",
		}),
	} {
		if fault.Of(err) != fault.Unavailable || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s at an empty mount point: %s: %v; want unavailable, and never what is there", what, fault.Of(err), err)
		}
	}
	reason(t, p, local.ReasonStateDirMissing)
	if err := os.Remove(dir); err != nil { // fails unless it is empty still
		t.Fatal(err)
	}
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	if got, err := p.Get(t.Context(), ref); err != nil || got.State != provider.Running {
		t.Errorf("Get once it is back: %+v, %v; want Running", got, err)
	}
	want(t, "the claim in it", others(t, p, claimOf("operatorb", 1)), claimOf("operatora", 1))
}

func second[T any](_ T, err error) error { return err }

func TestNewRefuses(t *testing.T) {
	good := local.Options{Name: "home", StateDir: t.TempDir(), Command: []string{"/bin/true"}}
	for name, tc := range map[string]struct {
		reason string
		change func(*local.Options)
	}{
		"name":     {"it becomes part of ids", func(o *local.Options) { o.Name = "a/b" }},
		"relative": {"a child has another working directory", func(o *local.Options) { o.StateDir = "state" }},
		"command":  {"a child has another working directory", func(o *local.Options) { o.Command = []string{"proxy-operator"} }},
		"none":     {"there is nothing to start", func(o *local.Options) { o.Command = nil }},
		"limit":    {"below zero is no limit", func(o *local.Options) { o.MaxInstances = -1 }},
	} {
		t.Run(name, func(t *testing.T) {
			o := good
			tc.change(&o)
			if _, err := local.New(o); fault.Of(err) != fault.Invalid {
				t.Errorf("%s: %v; want invalid", tc.reason, err)
			}
		})
	}
}

func TestServeRefuses(t *testing.T) {
	for name, args := range map[string][]string{
		"nothing":          nil,
		"no descriptors":   {"--state", "/a/state.json"},
		"standard streams": {"--state", "/a/state.json", "--lock-fd", "1", "--listen-fd", "2"},
		"relative":         {"--state", "state.json", "--lock-fd", "3", "--listen-fd", "4"},
		"unknown flag":     {"--port", "1"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := local.Serve(t.Context(), args, io.Discard); fault.Of(err) != fault.Invalid {
				t.Errorf("Serve(%q) = %v; want invalid", args, err)
			}
		})
	}
}

func TestLogIsBounded(t *testing.T) {
	var out bytes.Buffer
	w := local.BoundedLog(&out)
	line := []byte(strings.Repeat("x", 999) + "\n")
	for range 1000 {
		if n, err := w.Write(line); n != len(line) || err != nil {
			t.Fatalf("Write = %d, %v", n, err)
		}
	}
	if out.Len() < local.MaxLog-1000 || out.Len() > local.MaxLog+2000 || !strings.HasSuffix(out.String(), "next start]\n") {
		t.Errorf("%d bytes were written; want about %d and a last line that says so", out.Len(), local.MaxLog)
	}
}

// A log of an earlier run is emptied at the start of the next.
func TestLogStartsEmpty(t *testing.T) {
	dir := t.TempDir()
	p := open(t, dir)
	spec := specOf("log")
	create(t, p, spec)
	pid, _ := only(t, dirOf(dir, spec.Owner))
	kill(t, pid)
	path := filepath.Join(dirOf(dir, spec.Owner), "log")
	write(t, filepath.Dir(path), "log", strings.Repeat("old ", 1000))
	if in, err := p.Create(t.Context(), spec); err != nil || in.State != provider.Running {
		t.Fatalf("Create = %+v, %v", in, err)
	}
	text, err := os.ReadFile(path)
	if err != nil || strings.Contains(string(text), "old ") || !strings.Contains(string(text), "serving") {
		t.Errorf("the log is %q, %v", text, err)
	}
}

// The lock's file comes and goes with each holder; two callers never hold it
// at once.
func TestAcquireExcludes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	var inside atomic.Int32
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 200 {
				release, err := local.Acquire(t.Context(), path)
				if err != nil {
					t.Errorf("acquire: %v", err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d callers hold the lock", n)
				}
				runtime.Gosched()
				inside.Add(-1)
				release()
			}
		})
	}
	group.Wait()
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the lock's file is left: %v", err)
	}
	hold, err := local.Acquire(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer hold()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := local.Acquire(ctx, path); fault.Of(err) != fault.Timeout {
		t.Errorf("waiting for a held lock past the deadline: %v; want timeout", err)
	}
}
