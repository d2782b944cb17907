package hooks_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/proc"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/broker/brokertest"
	"fleetdesk/internal/qasight/hooks"
	"fleetdesk/internal/qasight/pool"
)

// TestMain makes the test binary its own supervisor.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "supervise" {
		code := proc.Supervise(os.Stderr)
		syscall.Exit(code) // the race detector would sleep a second at the end of each
	}
	if err := flag.Set("test.parallel", "8"); err != nil { // they mostly wait
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// bench is a pool in memory with a runner on it, whose folder has the files that
// hooks look at and write.
type bench struct {
	t      *testing.T
	memory *brokertest.Memory
	broker broker.Broker
	runner *hooks.Runner
	dir    string

	mu     sync.Mutex
	said   []string
	output bytes.Buffer
}

func (b *bench) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.output.Write(p)
}

func (b *bench) words() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.said, "\n")
}

// printed is what hooks printed.
func (b *bench) printed() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.output.String()
}

func newBench(t *testing.T, check, reset string, items ...string) *bench {
	t.Helper()
	b := &bench{t: t, memory: brokertest.NewMemory(), dir: t.TempDir()}
	b.broker = b.memory.Harness().Open(t, "ann")
	t.Cleanup(func() { _ = b.broker.Close() })
	b.runner = &hooks.Runner{
		Broker: b.broker, Where: "qasight.yaml:3:3",
		Pool:  pool.Pool{Name: "vms", Items: items, TTL: 30 * time.Second, Check: check != "", Reset: reset != ""},
		Check: check, Reset: reset, Timeout: 10 * time.Second, Dir: b.dir, Env: []string{"PATH=" + os.Getenv("PATH")},
		Guard:  proc.Guard{Program: "/proc/self/exe", Args: []string{"hooks.test", "supervise"}},
		Output: b, Look: 30 * time.Millisecond,
		Say: func(text string) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.said = append(b.said, text)
		},
	}
	return b
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) acquire() *hooks.Session {
	b.t.Helper()
	s, err := b.runner.Acquire(b.t.Context(), hooks.TakeOptions{Holder: "test"})
	b.must(err)
	return s
}

func (b *bench) giveBack(s *hooks.Session) hooks.Returned {
	b.t.Helper()
	back, err := s.Return(b.t.Context(), hooks.Use{})
	b.must(err)
	return back
}

// soil makes keys need a reset, as an admin's end of a lease does.
func (b *bench) soil(keys ...string) {
	b.t.Helper()
	b.must(b.broker.Prepare(b.t.Context(), b.runner.Pool))
	for range keys { // the first of the pool that nobody holds, in turn
		l, err := b.broker.Take(b.t.Context(), "vms", client.TakeOptions{RunsHooks: true})
		b.must(err)
		_, err = b.broker.Force(b.t.Context(), "vms", l.Key(), client.ForceRequest{Reason: "hung"})
		b.must(err)
	}
}

func (b *bench) key(name string) client.Key {
	b.t.Helper()
	v, err := b.broker.Pool(b.t.Context(), "vms")
	b.must(err)
	for _, k := range v.Members {
		if k.Name == name {
			return k
		}
	}
	b.t.Fatalf("there is no key %s", name)
	return client.Key{}
}

// state is a key's state, with the reason when it is disabled.
func (b *bench) state(name string) string {
	b.t.Helper()
	k := b.key(name)
	if k.Disabled != nil {
		return k.State + ": " + k.Disabled.Reason
	}
	return k.State
}

// file is a file of the bench's folder; "" while there is none.
func (b *bench) file(name string) string {
	b.t.Helper()
	raw, err := os.ReadFile(filepath.Join(b.dir, name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		b.t.Fatal(err)
	}
	return string(raw)
}

func (b *bench) exists(name string) bool {
	_, err := os.Stat(filepath.Join(b.dir, name))
	return err == nil
}

func (b *bench) touch(name string) {
	b.t.Helper()
	b.must(os.WriteFile(filepath.Join(b.dir, name), nil, 0o600))
}

// shell is a command on a key.
func (b *bench) shell(text string) proc.Command {
	return proc.Command{Shell: text, Dir: b.dir, Env: b.runner.Env}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in vain: waited for %s", what)
		}
	}
}

// has checks an error's class and code.
func has(t *testing.T, err error, class fault.Class, code string) {
	t.Helper()
	if fault.Of(err) != class || fault.CodeOf(err) != code {
		t.Errorf("the error is %v (%s, %s), want %s, %s", err, fault.Of(err), fault.CodeOf(err), class, code)
	}
}

// until is a context that ends by itself, with a cause, once the file is there.
func (b *bench) until(file string, cause error) context.Context {
	b.t.Helper()
	ctx, cancel := context.WithCancelCause(b.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			if b.exists(file) {
				cancel(cause)
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	b.t.Cleanup(func() { cancel(nil); <-done })
	return ctx
}
