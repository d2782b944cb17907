package local_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/local"
	"fleetdesk/internal/proxy/provider/providertest"
)

// The test binary is also the proxy process, and an operator that dies.
const (
	childArg    = "test-local-proxy"
	operatorArg = "test-operator"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case childArg:
			// Not os.Exit: with the race detector it sleeps for a second.
			_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(childMain(os.Args[2:])), 0, 0)
		case operatorArg:
			os.Exit(operatorMain(os.Args[2:]))
		}
	}
	goleak.VerifyTestMain(m)
}

// childMain is <pid of the test> and then Serve's arguments. However the test
// ends, no proxy outlives it.
func childMain(args []string) int {
	root, err := strconv.Atoi(args[0])
	if err != nil {
		return 2
	}
	test, err := unix.PidfdOpen(root, 0)
	if err != nil {
		fmt.Fprintln(os.Stderr, "the test has ended:", err)
		return 2
	}
	go func() {
		for {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(test), Events: unix.POLLIN}}, -1)
			if n == 1 || err != nil && err != syscall.EINTR {
				os.Exit(3)
			}
		}
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := local.Serve(ctx, args[1:], os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// operatorMain is <create|delete> <state dir> <uid> <n> <pid of the test>: it kills itself at
// step n (from 0) of the call, by SIGKILL, and exits 0 when the call has fewer.
func operatorMain(args []string) int {
	dir, uid := args[1], args[2]
	at, err := strconv.Atoi(args[3])
	if err != nil {
		return 2
	}
	p, err := local.New(local.Options{Name: "home", StateDir: dir, Command: []string{os.Args[0], childArg, args[4]}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	n := 0
	ctx := provider.WithStepHook(context.Background(), func(string) error {
		if n++; n-1 == at {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // not one step further
		}
		return nil
	})
	spec := specOf(uid)
	switch args[0] {
	case "create":
		_, err = p.Create(ctx, spec)
	case "delete":
		_, err = p.Delete(ctx, provider.Ref{Owner: spec.Owner})
	default:
		err = errors.New("create or delete")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

const installation = "test-installation"

func ownerOf(uid string) provider.Owner {
	return provider.Owner{Installation: installation, Namespace: "crawl", Name: "home-" + uid, UID: uid}
}

func specOf(uid string) provider.Spec {
	return provider.Spec{Owner: ownerOf(uid), Host: local.Host, Port: testPort}
}

// fresh makes a UID that no other run of these tests has at the same time: the
// address is derived from it.
func fresh(uid string) string { return uid + "-" + rand.Text() }

// testPort keeps clear of a proxy that this machine may really run.
const testPort = 43128

// open returns a provider over dir. In the end no process may be left there.
func open(t *testing.T, dir string) *local.Provider {
	t.Helper()
	p := reopen(t, dir)
	t.Cleanup(func() {
		for _, pid := range processes(t, dir) {
			t.Errorf("process %d was left", pid)
			kill(t, pid)
		}
	})
	return p
}

// reopen returns one more provider over dir.
func reopen(t *testing.T, dir string) *local.Provider {
	t.Helper()
	p, err := local.New(local.Options{Name: "home", StateDir: dir, Command: command(t)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func command(t providertest.T) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatalf("%v", err)
	}
	return []string{self, childArg, strconv.Itoa(os.Getpid())}
}

// create makes an instance that the end of the test deletes.
func create(t *testing.T, p *local.Provider, spec provider.Spec) provider.Instance {
	t.Helper()
	t.Cleanup(func() { gone(t, p, spec.Owner) })
	in, err := p.Create(t.Context(), spec)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	if in.State != provider.Running {
		t.Fatalf("Create = %+v; want Running", in)
	}
	return in
}

func gone(t *testing.T, p *local.Provider, o provider.Owner) {
	t.Helper()
	st, err := p.Delete(context.Background(), provider.Ref{Owner: o})
	if err != nil || st != provider.Gone {
		t.Errorf("Delete of %s = %q, %v; want Gone", o.UID, st, err)
	}
}
