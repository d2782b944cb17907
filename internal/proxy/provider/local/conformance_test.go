package local_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/local"
	"fleetdesk/internal/proxy/provider/providertest"
)

func TestConformance(t *testing.T) {
	base := t.TempDir()
	b := &backEnd{link: filepath.Join(base, "state"), real: filepath.Join(base, "real")}
	if err := os.Mkdir(b.real, 0o700); err != nil {
		t.Fatal(err)
	}
	b.mendLink(t)
	b.p = b.open(t)

	const silent = "the only host is this machine's file system: a system call on a dead disk cannot be given a deadline, and nothing else is asked"
	providertest.Run(t, providertest.Harness{
		Provider:     b.p,
		Installation: installation,
		Hosts:        []string{local.Host},
		Spec: func(o provider.Owner) provider.Spec {
			return provider.Spec{
				Owner: o, Port: testPort, Protocol: provider.HTTP,
				Credentials: provider.Credentials{User: "crawler", Password: provider.Secret("p:a@s$s%wörd-7Qx")},
			}
		},
		Reopen:    func(t providertest.T) provider.Provider { return b.open(t) },
		Remains:   b.remains,
		Foreign:   b.foreign,
		Stop:      b.stop,
		Vanish:    b.vanish,
		Corrupt:   b.corrupt,
		BreakHost: b.breakHost,
		Fill:      b.fill,
		Litter:    b.litter,
		Use:       b.use,
		UnknownIDs: []string{
			"local://home/never-made~" + local.TagOf(installation),
			"local://home/never-made~0000000000000000",
		},
		MalformedIDs: []string{"local://home", "local://home/", "local://home/..~0000000000000000", "kvm://home/a", "x", "local://home/a~b"},
		StrayIDs:     []string{"local://elsewhere/never-made~" + local.TagOf(installation)},
		Absent: map[string]string{
			"P-CRE-14": "a process runs or does not; there is nothing between that starting would not mend",
			"P-LST-5":  silent, "P-CHK-3": silent, "P-GEN-2": silent, "P-GEN-3": silent, "P-GEN-10": silent,
			"P-CLM-6": silent, "P-CLN-8": silent,
			"P-WAT-6": "the provider holds nothing that a Close would let go",
		},
	})
}

// backEnd is the state directory under test, seen past the provider. The
// provider knows it by a symbolic link, so that breaking the link takes the
// directory away from the provider and not from the children.
type backEnd struct {
	link, real string
	p          *local.Provider
}

const most = 40

func (b *backEnd) open(t providertest.T) *local.Provider {
	t.Helper()
	p, err := local.New(local.Options{Name: "home", StateDir: b.link, Command: command(t), MaxInstances: most})
	if err != nil {
		t.Fatalf("%v", err)
	}
	return p
}

func (b *backEnd) mendLink(t providertest.T) {
	_ = os.Remove(b.link)
	if err := os.Symlink(b.real, b.link); err != nil {
		t.Errorf("%v", err)
	}
}

func (b *backEnd) breakHost(t providertest.T, _ string) func() {
	_ = os.Remove(b.link)
	if err := os.Symlink(b.real+"-unmounted", b.link); err != nil {
		t.Fatalf("%v", err)
	}
	return func() { b.mendLink(t) }
}

func folder(o provider.Owner) string { return o.UID + "~" + local.TagOf(o.Installation) }

func (b *backEnd) dir(o provider.Owner) string { return filepath.Join(b.real, folder(o)) }

// remains names the files of the owner under any name in the state directory,
// and its processes.
func (b *backEnd) remains(t providertest.T, o provider.Owner) []string {
	t.Helper()
	var found []string
	err := filepath.Walk(b.real, func(path string, fi os.FileInfo, err error) error {
		if err == nil && strings.Contains(strings.TrimPrefix(path, b.real), folder(o)) {
			found = append(found, path)
		}
		return nil
	})
	if err != nil {
		t.Errorf("%v", err)
	}
	for _, pid := range processes(t, b.dir(o)) {
		found = append(found, fmt.Sprintf("process %d", pid))
	}
	return found
}

// processes returns the processes whose command line names the path dir.
func processes(t providertest.T, dir string) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatalf("%v", err)
	}
	var pids []int
	for _, f := range files {
		line, _ := os.ReadFile(f)
		var pid int
		if strings.Contains(string(line), childArg+"\x00") && strings.Contains(string(line), dir+"/") {
			_, _ = fmt.Sscanf(f, "/proc/%d/", &pid)
			pids = append(pids, pid)
		}
	}
	return pids
}

func (b *backEnd) stop(t providertest.T, in provider.Instance) {
	t.Helper()
	pids := processes(t, b.dir(in.Owner))
	if len(pids) != 1 {
		t.Fatalf("%d processes for %s; want one", len(pids), in.ID)
	}
	kill(t, pids[0])
}

// kill ends the process and waits until it has ended.
func kill(t providertest.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, syscall.SIGKILL, nil, 0); err != nil {
		t.Fatalf("%v", err)
	}
	awaitExit(t, fd)
}

func awaitExit(t providertest.T, pidfd int) {
	t.Helper()
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 5000)
	if err != nil || n != 1 {
		t.Fatalf("the process did not end within 5 s: %d, %v", n, err)
	}
}

func (b *backEnd) vanish(t providertest.T, in provider.Instance) {
	t.Helper()
	b.stop(t, in)
	if err := os.RemoveAll(b.dir(in.Owner)); err != nil {
		t.Fatalf("%v", err)
	}
}

// corrupt tears the state file, as a disk may.
func (b *backEnd) corrupt(t providertest.T, in provider.Instance) func() {
	t.Helper()
	path := filepath.Join(b.dir(in.Owner), "state.json")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v", err)
	}
	if err := os.WriteFile(path, whole[:len(whole)/2], 0o600); err != nil {
		t.Fatalf("%v", err)
	}
	return func() {
		if _, err := os.Stat(path); err == nil {
			_ = os.WriteFile(path, whole, 0o600)
		}
	}
}

func (b *backEnd) fill(t providertest.T) func() {
	t.Helper()
	for n := range most {
		o := provider.Owner{Installation: "another", UID: fmt.Sprintf("filler-%d", n)}
		if err := os.Mkdir(b.dir(o), 0o700); err != nil {
			t.Fatalf("%v", err)
		}
	}
	return func() {
		for n := range most {
			_ = os.Remove(b.dir(provider.Owner{Installation: "another", UID: fmt.Sprintf("filler-%d", n)}))
		}
	}
}

// litter leaves what an operator leaves that is killed between taking a folder's
// name away and clearing it.
func (b *backEnd) litter(t providertest.T, _ string, o provider.Owner) (provider.Leftover, func(providertest.T) bool) {
	t.Helper()
	id := ".gone~" + folder(o) + "~" + rand.Text()
	path := filepath.Join(b.real, id)
	if err := errors.Join(os.Mkdir(path, 0o700), os.WriteFile(filepath.Join(path, "log"), []byte("gone"), 0o600)); err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(path) })
	return provider.Leftover{Host: local.Host, ID: id, What: local.WhatFolder}, func(providertest.T) bool {
		_, err := os.Lstat(path)
		return err == nil
	}
}

// use holds the lock that a Create or Delete holds while it is at work there.
func (b *backEnd) use(t providertest.T, l provider.Leftover) func() {
	t.Helper()
	parts := strings.Split(l.ID, "~")
	release, err := local.Acquire(contextOf(t), filepath.Join(b.real, ".ops", parts[1]+"~"+parts[2]))
	if err != nil {
		t.Fatalf("%v", err)
	}
	return release
}

// foreign has another installation's operator make an instance over the same
// state directory.
func (b *backEnd) foreign(t providertest.T, _ string, o provider.Owner) (provider.Ref, func(providertest.T)) {
	t.Helper()
	other := b.open(t)
	ctx := contextOf(t)
	in, err := other.Create(ctx, provider.Spec{Owner: o, Host: local.Host, Port: testPort})
	if err != nil || in.State != provider.Running {
		t.Fatalf("another installation's Create = %+v, %v", in, err)
	}
	t.Cleanup(func() {
		if st, err := other.Delete(contextOf(t), provider.Ref{Owner: o}); err != nil || st != provider.Gone {
			t.Errorf("another installation's Delete = %q, %v", st, err)
		}
	})
	before := b.snapshot(t, o)
	return provider.Ref{ID: in.ID, Owner: o, Host: in.Host}, func(t providertest.T) {
		t.Helper()
		if after := b.snapshot(t, o); !reflect.DeepEqual(before, after) {
			t.Errorf("another installation's instance %s was touched: before %v, after %v", in.ID, before, after)
		}
	}
}

// snapshot is the content and process of an instance.
func (b *backEnd) snapshot(t providertest.T, o provider.Owner) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(b.dir(o), "*"))
	if err != nil {
		t.Fatalf("%v", err)
	}
	seen := map[string]string{"processes": fmt.Sprint(processes(t, b.dir(o)))}
	for _, f := range files {
		if filepath.Base(f) == "log" {
			continue
		}
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatalf("%v", err)
		}
		seen[filepath.Base(f)] = string(data)
	}
	return seen
}

// stateOf reads an instance's state file into a neutral shape.
func stateOf(t *testing.T, path string) map[string]any {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// contextOf bounds a call of a harness.
func contextOf(t providertest.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), provider.StepLimit)
	t.Cleanup(cancel)
	return ctx
}
