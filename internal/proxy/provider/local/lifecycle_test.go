package local_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/local"
)

func dirOf(dir string, o provider.Owner) string { return filepath.Join(dir, folder(o)) }

// only returns the one process of an instance, pinned.
func only(t *testing.T, dir string) (pid, pidfd int) {
	t.Helper()
	pids := processes(t, dir)
	if len(pids) != 1 {
		t.Fatalf("processes %v in %s; want one", pids, dir)
	}
	fd, err := unix.PidfdOpen(pids[0], 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return pids[0], fd
}

// An operator that is killed -9 at any step of Create leaves what the next one
// finishes or adopts: one process, one folder.
func TestOperatorKilledDuringCreate(t *testing.T) {
	for step := 0; ; step++ {
		dir := t.TempDir()
		p := open(t, dir)
		spec := specOf("killed")
		killed := operator(t, "create", dir, spec.Owner.UID, step)
		before := processes(t, dirOf(dir, spec.Owner))
		listed, err := p.Get(t.Context(), provider.Ref{Owner: spec.Owner})
		if err != nil && provider.Class(err) != fault.NotFound {
			t.Errorf("step %d: Get after the kill: %v", step, err)
		}
		in := create(t, p, spec)
		pid, _ := only(t, dirOf(dir, spec.Owner))
		if len(before) == 1 && before[0] != pid {
			t.Errorf("step %d: process %d was running and %d is now: not adopted", step, before[0], pid)
		}
		if err == nil && (in.ID != listed.ID || in.Address != listed.Address || !in.Created.Equal(listed.Created)) {
			t.Errorf("step %d: it was %+v and is %+v", step, listed, in)
		}
		gone(t, p, spec.Owner)
		empty(t, dir)
		if !killed {
			if step < 4 {
				t.Errorf("the operator was killed at %d steps; want all four of Create", step)
			}
			return
		}
	}
}

func TestOperatorKilledDuringDelete(t *testing.T) {
	for step := 0; ; step++ {
		dir := t.TempDir()
		p := open(t, dir)
		spec := specOf("killed")
		create(t, p, spec)
		killed := operator(t, "delete", dir, spec.Owner.UID, step)
		gone(t, p, spec.Owner)
		empty(t, dir)
		if !killed {
			if step < 4 {
				t.Errorf("the operator was killed at %d steps; want those of Delete", step)
			}
			return
		}
	}
}

// operator runs one call in a process of its own and reports whether it was
// killed on the way.
func operator(t *testing.T, call, dir, uid string, step int) (killed bool) {
	t.Helper()
	self := command(t)[0]
	cmd := exec.Command(self, operatorArg, call, dir, uid, strconv.Itoa(step), strconv.Itoa(os.Getpid()))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return true
	}
	if err != nil {
		t.Fatalf("operator %s at step %d: %v: %s", call, step, err, out)
	}
	return false
}

// empty fails unless only the provider's own folders are left.
func empty(t *testing.T, dir string) {
	t.Helper()
	var left []string
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && path != dir && e.Name() != ".ops" {
			left = append(left, path)
		}
		return nil
	})
	// A killed operator leaves the file of its lock, which the next call takes
	// and removes; a lock of nothing is nothing.
	if len(left) > 0 {
		t.Errorf("left in the state directory: %q", left)
	}
}

// Two processes and two provider objects make one child.
func TestConcurrentCreatesAcrossProcesses(t *testing.T) {
	dir := t.TempDir()
	spec := specOf("many")
	a, b := open(t, dir), open(t, dir)
	var wg sync.WaitGroup
	const never = 1000
	for range 2 {
		wg.Go(func() { operator(t, "create", dir, spec.Owner.UID, never) })
		for _, p := range []*local.Provider{a, b} {
			wg.Go(func() {
				if in, err := p.Create(t.Context(), spec); err != nil || in.State != provider.Running {
					t.Errorf("Create = %+v, %v", in, err)
				}
			})
		}
	}
	wg.Wait()
	only(t, dirOf(dir, spec.Owner))
	gone(t, a, spec.Owner)
	empty(t, dir)
}

func TestChildEndsByItself(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		do     func(t *testing.T, dir string)
	}{
		"state vanishes": {"a removed data directory leaves no process", func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, "state.json")); err != nil {
				t.Fatal(err)
			}
		}},
		"folder vanishes": {"a removed data directory leaves no process", func(t *testing.T, dir string) {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}},
		"another run": {"a successor was started in its place", func(t *testing.T, dir string) {
			path := filepath.Join(dir, "state.json")
			m := stateOf(t, path)
			m["run"] = "ANOTHER"
			put(t, path, m)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			p := open(t, dir)
			spec := specOf("ends")
			create(t, p, spec)
			_, pidfd := only(t, dirOf(dir, spec.Owner))
			start := time.Now()
			tc.do(t, dirOf(dir, spec.Owner))
			awaitExit(t, pidfd)
			if took := time.Since(start); took > 2*time.Second {
				t.Errorf("%s: it took %v", tc.reason, took)
			}
		})
	}
}

// put replaces a file as the provider does: by another one.
func put(t *testing.T, path string, v any) {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".test", data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".test", path); err != nil {
		t.Fatal(err)
	}
}

// A child survives its operator, and SIGTERM ends it in bounded time.
func TestChildOnSIGTERM(t *testing.T) {
	dir := t.TempDir()
	spec := specOf("term")
	const never = 1000
	operator(t, "create", dir, spec.Owner.UID, never)
	p := open(t, dir)
	in, err := p.Get(t.Context(), provider.Ref{Owner: spec.Owner})
	if err != nil || in.State != provider.Running {
		t.Fatalf("Get after the operator's end = %+v, %v; want Running", in, err)
	}
	t.Cleanup(func() { gone(t, p, spec.Owner) })
	pid, pidfd := only(t, dirOf(dir, spec.Owner))
	if sid, err := unix.Getsid(pid); err != nil || sid != pid {
		t.Errorf("session %d, %v; want its own, %d", sid, err, pid)
	}
	if err := unix.PidfdSendSignal(pidfd, syscall.SIGTERM, nil, 0); err != nil {
		t.Fatal(err)
	}
	awaitExit(t, pidfd)
	if in, err := p.Get(t.Context(), provider.Ref{Owner: spec.Owner}); err != nil || in.State != provider.Stopped {
		t.Errorf("Get = %+v, %v; want Stopped", in, err)
	}
}

// A child that does not react is killed.
func TestDeleteKillsFrozenChild(t *testing.T) {
	dir := t.TempDir()
	p := open(t, dir)
	spec := specOf("frozen")
	create(t, p, spec)
	_, pidfd := only(t, dirOf(dir, spec.Owner))
	if err := unix.PidfdSendSignal(pidfd, syscall.SIGSTOP, nil, 0); err != nil {
		t.Fatal(err)
	}
	gone(t, p, spec.Owner)
	awaitExit(t, pidfd)
	empty(t, dir)
}

// What child.json says is not believed: another process is never signalled,
// neither with its own start time nor when it holds a lock file open.
func TestPidReuse(t *testing.T) {
	bystander := exec.Command("/bin/sleep", "60")
	if err := bystander.Start(); err != nil {
		t.Skipf("no bystander to start: %v", err)
	}
	t.Cleanup(func() { _ = bystander.Process.Kill(); _ = bystander.Wait() })
	other := bystander.Process.Pid
	for name, tc := range map[string]struct {
		reason string
		stop   bool
		change func(m map[string]any)
	}{
		"dead child":           {"the pid was given to another process", true, func(m map[string]any) { m["pid"] = other }},
		"dead child, ticks":    {"also when the start time fits", true, func(m map[string]any) { m["pid"] = other; m["startTicks"] = ticks(t, other) }},
		"live child":           {"the child lives under another pid than written", false, func(m map[string]any) { m["pid"] = other }},
		"live child, ticks":    {"also when the start time fits", false, func(m map[string]any) { m["pid"] = other; m["startTicks"] = ticks(t, other) }},
		"live child, bad pid":  {"a pid that nothing has", false, func(m map[string]any) { m["pid"] = 1 << 22 }},
		"live child, pid init": {"never init", false, func(m map[string]any) { m["pid"] = 1 }},
		"live child, pid 0":    {"never a process group", false, func(m map[string]any) { m["pid"] = 0 }},
		"live child, pid -1":   {"never all processes", false, func(m map[string]any) { m["pid"] = -1 }},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			p := open(t, dir)
			spec := specOf("reuse")
			create(t, p, spec)
			pid, pidfd := only(t, dirOf(dir, spec.Owner))
			if tc.stop {
				kill(t, pid)
			}
			path := filepath.Join(dirOf(dir, spec.Owner), "child.json")
			m := stateOf(t, path)
			tc.change(m)
			put(t, path, m)
			gone(t, p, spec.Owner)
			awaitExit(t, pidfd)
			if err := bystander.Process.Signal(syscall.Signal(0)); err != nil || state(t, other) == "Z" {
				t.Fatalf("%s: the bystander was ended", tc.reason)
			}
		})
	}
}

// procStat returns the fields of /proc/<pid>/stat from the third on.
func procStat(t *testing.T, pid int) []string {
	t.Helper()
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
}

func state(t *testing.T, pid int) string { return procStat(t, pid)[0] }

func ticks(t *testing.T, pid int) uint64 {
	n, err := strconv.ParseUint(procStat(t, pid)[19], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// An operator on a copy of the state directory (a restored backup) sees its
// instances as stopped and cannot end the original's process.
func TestCopiedStateDirectory(t *testing.T) {
	dir, copied := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	p := open(t, dir)
	spec := specOf("copy")
	in := create(t, p, spec)
	if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	q := open(t, copied)
	if got, err := q.Get(t.Context(), provider.Ref{Owner: spec.Owner}); err != nil || got.State != provider.Stopped {
		t.Errorf("in the copy: %+v, %v; want Stopped", got, err)
	}
	if twin := create(t, q, spec); twin.Address == in.Address {
		t.Errorf("the copy's process has the original's address %s", in.Address)
	}
	gone(t, q, spec.Owner)
	if got, err := p.Get(t.Context(), provider.Ref{Owner: spec.Owner}); err != nil || got.State != provider.Running {
		t.Errorf("the original after the copy's Delete: %+v, %v; want Running", got, err)
	}
}

// A stopped instance starts at the port that it was made with and with the spec's
// credentials as they are now; a running one keeps what it has.
func TestRestartKeepsThePortAndTakesNewCredentials(t *testing.T) {
	dir := t.TempDir()
	p := open(t, dir)
	spec := specOf("restart")
	first := create(t, p, spec)
	spec.Port = testPort + 1
	spec.Credentials = provider.Credentials{User: "u", Password: provider.Secret("p")}
	if in, err := p.Create(t.Context(), spec); err != nil || in.Port != first.Port {
		t.Errorf("Create of the running one = %+v, %v; want port %d as before", in, err, first.Port)
	}
	pid, _ := only(t, dirOf(dir, spec.Owner))
	kill(t, pid)
	in, err := p.Create(t.Context(), spec)
	if err != nil || in.Port != first.Port || in.Address != first.Address || in.ID != first.ID || !in.Created.Equal(first.Created) {
		t.Fatalf("Create of the stopped one = %+v, %v; want %+v", in, err, first)
	}
	status, _, _ := answer(t, say(t, in.Address+":"+strconv.Itoa(in.Port), "GET http://192.0.2.1/ HTTP/1.1\r\nHost: x\r\n\r\n"))
	if status != 407 {
		t.Errorf("without the new credentials: status %d; want 407", status)
	}
	if err := os.Remove(filepath.Join(dirOf(dir, spec.Owner), "auth.json")); err != nil {
		t.Fatal(err)
	}
}

// Neither the password nor a plain hash of it is on disk, in the arguments or
// in the environment; files are for the owner alone.
func TestSecretsStay(t *testing.T) {
	t.Setenv("SECRET_OF_THE_OPERATOR", "operator-secret-17")
	dir := t.TempDir()
	p := open(t, dir)
	spec := specOf("secrets")
	spec.Credentials = provider.Credentials{User: "crawler-name", Password: provider.Secret("correct-horse-17")}
	create(t, p, spec)
	pid, _ := only(t, dirOf(dir, spec.Owner))
	texts := map[string][]byte{}
	for _, name := range []string{"cmdline", "environ"} {
		data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		texts[name] = data
	}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		fi, err := e.Info()
		if err != nil {
			return err
		}
		if fi.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v; want 0600", path, fi.Mode())
		}
		texts[path], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(texts) < 7 {
		t.Errorf("looked at %d texts only", len(texts))
	}
	for where, data := range texts {
		for _, secret := range []string{"correct-horse-17", "crawler-name", "operator-secret-17"} {
			if bytes.Contains(data, []byte(secret)) {
				t.Errorf("%s holds %q", where, secret)
			}
		}
	}
	if fi, err := os.Stat(dirOf(dir, spec.Owner)); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("the folder has mode %v, %v; want 0700", fi.Mode(), err)
	}
}

// A damaged instance is listed as Unknown with its owner's UID, whatever the
// damage, and goes by Delete.
func TestDamaged(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		damage func(t *testing.T, dir string)
	}{
		"empty file":      {"a full disk leaves one", func(t *testing.T, dir string) { write(t, dir, "state.json", "") }},
		"torn file":       {"a power cut leaves one", func(t *testing.T, dir string) { write(t, dir, "state.json", `{"format":1,"own`) }},
		"two values":      {"an interleaved write", func(t *testing.T, dir string) { write(t, dir, "state.json", `{}{}`) }},
		"other owner":     {"a folder copied under another name", func(t *testing.T, dir string) { rewrite(t, dir, "owner", map[string]any{"uid": "x"}) }},
		"foreign address": {"an address outside our block is not handed out", func(t *testing.T, dir string) { rewrite(t, dir, "address", "192.0.2.1") }},
		"later format":    {"a newer version's file is not guessed at", func(t *testing.T, dir string) { rewrite(t, dir, "format", 2) }},
		"no state":        {"the file was removed by hand", func(t *testing.T, dir string) { _ = os.Remove(filepath.Join(dir, "state.json")) }},
		"nothing at all": {"an empty folder", func(t *testing.T, dir string) {
			_, pidfd := only(t, dir)
			_ = os.RemoveAll(dir)
			awaitExit(t, pidfd) // its lock went with the folder
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
		}},
		"a folder in its place": {"a hand that went wrong", func(t *testing.T, dir string) {
			_ = os.Remove(filepath.Join(dir, "state.json"))
			if err := os.Mkdir(filepath.Join(dir, "state.json"), 0o700); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			p := open(t, dir)
			spec := specOf("damaged")
			in := create(t, p, spec)
			tc.damage(t, dirOf(dir, spec.Owner))
			got, err := p.Get(t.Context(), provider.Ref{ID: in.ID, Owner: spec.Owner})
			if err != nil || got.State != provider.Unknown || got.ID != in.ID {
				t.Errorf("%s: Get = %+v, %v; want Unknown", tc.reason, got, err)
			}
			rows, err := p.ListByTag(t.Context(), installation)
			if err != nil || len(rows) != 1 || len(rows[0].Instances) != 1 || rows[0].Instances[0].State != provider.Unknown ||
				rows[0].Instances[0].Owner.UID != spec.Owner.UID || rows[0].Instances[0].Owner.Installation != installation {
				t.Errorf("%s: ListByTag = %+v, %v; want it as Unknown, with its owner", tc.reason, rows, err)
			}
			if rows, _ := p.ListByTag(t.Context(), "another"); len(rows) != 1 || len(rows[0].Instances) != 0 {
				t.Errorf("%s: another installation's list shows %+v", tc.reason, rows)
			}
			gone(t, p, spec.Owner)
			empty(t, dir)
		})
	}
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func rewrite(t *testing.T, dir, field string, value any) {
	t.Helper()
	path := filepath.Join(dir, "state.json")
	m := maps.Clone(stateOf(t, path))
	m[field] = value
	put(t, path, m)
}
