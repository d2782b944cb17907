package local_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/local"
)

// listener is one running Watch of the test's installation.
type listener struct {
	t *testing.T

	mu    sync.Mutex
	told  []provider.Change
	fresh chan struct{}
}

// listen watches until the end of the test. gate, when not nil, is called with
// each change, in Watch's goroutine.
func listen(t *testing.T, p *local.Provider, gate func()) *listener {
	t.Helper()
	l := &listener{t: t, fresh: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- p.Watch(ctx, installation, func(c provider.Change) {
			l.mu.Lock()
			l.told = append(l.told, c)
			l.mu.Unlock()
			select {
			case l.fresh <- struct{}{}:
			default:
			}
			if gate != nil {
				gate()
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Watch = %v; want no error", err)
		}
	})
	return l
}

// await waits until a change with that UID is told after the first from ones,
// and returns how many were told by then.
func (l *listener) await(from int, uid string) (upTo int) {
	l.t.Helper()
	limit := time.NewTimer(20 * time.Second)
	defer limit.Stop()
	for {
		l.mu.Lock()
		for i := from; i < len(l.told); i++ {
			if l.told[i] == (provider.Change{Host: local.Host, UID: uid}) {
				l.mu.Unlock()
				return i + 1
			}
		}
		seen := len(l.told)
		l.mu.Unlock()
		select {
		case <-l.fresh:
		case <-limit.C:
			l.t.Fatalf("no change with UID %q among the %d told since number %d", uid, seen-from, from)
		}
	}
}

func (l *listener) mark() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.told)
}

// A process that an earlier operator started is nobody's child any more: no
// signal tells of its end, and the watch does.
func TestWatchHearsTheEndOfAnEarlierOperatorsProcess(t *testing.T) {
	dir := t.TempDir()
	p := open(t, dir)
	spec := specOf(fresh("earlier"))
	t.Cleanup(func() { gone(t, p, spec.Owner) })
	const never = 1000
	operator(t, "create", dir, spec.Owner.UID, never)
	l := listen(t, p, nil)
	l.await(0, "")
	from := l.mark()
	pid, _ := only(t, dir)
	start := time.Now()
	kill(t, pid)
	l.await(from, spec.Owner.UID)
	t.Logf("told %v after the kill", time.Since(start))
	if in, err := p.Get(t.Context(), provider.Ref{Owner: spec.Owner}); err != nil || in.State != provider.Stopped {
		t.Errorf("Get once it is told = %+v, %v; want Stopped", in, err)
	}
}

// What happens to files is told: a state file that is removed or torn, a
// start, a removal by another operator.
func TestWatchHearsFiles(t *testing.T) {
	dir := t.TempDir()
	p, other := open(t, dir), reopen(t, dir)
	l := listen(t, p, nil)
	l.await(0, "")
	spec := specOf(fresh("files"))
	uid := spec.Owner.UID
	from := l.mark()
	create(t, other, spec)
	from = l.await(from, uid)
	t.Log("told that another operator made it")
	state := filepath.Join(dirOf(dir, spec.Owner), "state.json")
	for _, harm := range []struct {
		what string
		do   func() error
	}{
		{"its state was torn", func() error { return os.WriteFile(state, []byte("{"), 0o600) }},
		{"its state was moved away", func() error { return os.Rename(state, state+".away") }},
		{"its state was moved back", func() error { return os.Rename(state+".away", state) }},
		{"its state was removed", func() error { return os.Remove(state) }},
	} {
		// Each is told by itself, however many are told of what went before.
		from = l.settled(from)
		if err := harm.do(); err != nil {
			t.Fatal(err)
		}
		from = l.await(from, uid)
		t.Log("told that", harm.what)
	}
	from = l.settled(from)
	gone(t, other, spec.Owner)
	l.await(from, uid)
}

// settled waits until nothing has been told for a while, which only makes the
// next wait more to the point: it asserts nothing.
func (l *listener) settled(from int) int {
	for {
		limit := time.NewTimer(200 * time.Millisecond)
		select {
		case <-l.fresh:
			limit.Stop()
		case <-limit.C:
			return max(from, l.mark())
		}
	}
}

// Another installation's instance that was there before is not heard.
func TestWatchHearsNoOthers(t *testing.T) {
	dir := t.TempDir()
	p := reopen(t, dir)
	mine, theirs := ownerOf("mine"), ownerOf("theirs")
	theirs.Installation = "another"
	for _, o := range []provider.Owner{mine, theirs} {
		if err := os.Mkdir(dirOf(dir, o), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	l := listen(t, p, nil)
	from := l.await(0, "")
	write(t, dirOf(dir, theirs), "state.json", "{")
	write(t, dirOf(dir, mine), "state.json", "{")
	l.await(from, "mine")
	// A second one is told after all that the first round had to tell.
	from = l.mark()
	write(t, dirOf(dir, mine), "state.json", "{}")
	l.await(from, "mine")
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.told {
		if c.UID == "theirs" {
			t.Errorf("told %+v, which is another installation's", c)
		}
	}
}

// A thousand instances cost one goroutine and one descriptor, and each that
// goes is told.
func TestWatchOfAThousandInstances(t *testing.T) {
	dir := t.TempDir()
	p := reopen(t, dir)
	const n = 1000
	for i := range n {
		for _, in := range []string{installation, "another"} {
			o := ownerOf(fmt.Sprintf("many-%d", i))
			o.Installation = in
			if err := os.Mkdir(dirOf(dir, o), 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
	routines, files := runtime.NumGoroutine(), descriptors(t)
	l := listen(t, p, nil)
	l.await(0, "")
	// The descriptor of inotify, and the poller's two when this is its first.
	if r, f := runtime.NumGoroutine()-routines, descriptors(t)-files; r > 2 || f > 3 {
		t.Errorf("the watch of %d instances took %d goroutines and %d descriptors", n, r, f)
	}
	from := l.mark()
	for i := range n {
		if err := os.Remove(dirOf(dir, ownerOf(fmt.Sprintf("many-%d", i)))); err != nil {
			t.Fatal(err)
		}
	}
	for i := range n {
		l.await(from, fmt.Sprintf("many-%d", i))
	}
	if told := l.mark() - from; told > 2*n {
		t.Errorf("%d changes were told of %d removals", told, n)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

// A state directory that is not there, comes, goes and is another is watched
// whenever it is there.
func TestWatchOfAStateDirectoryThatComesAndGoes(t *testing.T) {
	base := t.TempDir()
	dir, away := filepath.Join(base, "state"), filepath.Join(base, "away")
	p := reopen(t, dir)
	move := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	folderIn := func(uid string) {
		t.Helper()
		if err := os.Mkdir(dirOf(dir, ownerOf(uid)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	move(dir, away)
	l := listen(t, p, nil)
	move(away, dir)
	from := l.await(0, "")
	folderIn("first")
	from = l.await(from, "first")
	move(dir, away)
	if err := os.MkdirAll(filepath.Join(dir, ".ops"), 0o700); err != nil {
		t.Fatal(err)
	}
	from = l.await(from, "")
	folderIn("second")
	l.await(from, "second")
}

// Its path may also lead elsewhere from now on, as a link or a mount does; or
// the directory was made anew, by chance with the number of the last one.
func TestWatchOfAStateDirectoryThatIsAnother(t *testing.T) {
	base := t.TempDir()
	link, next := filepath.Join(base, "link"), filepath.Join(base, "next")
	for _, d := range []string{"a", "b"} {
		if err := os.MkdirAll(filepath.Join(base, d, ".ops"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("a", link); err != nil {
		t.Fatal(err)
	}
	l := listen(t, reopen(t, link), nil)
	from := l.await(0, "")
	if err := os.Symlink("b", next); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, link); err != nil {
		t.Fatal(err)
	}
	from = l.await(from, "")
	if err := os.Mkdir(dirOf(link, ownerOf("first")), 0o700); err != nil {
		t.Fatal(err)
	}
	from = l.await(from, "first")
	b := filepath.Join(base, "b")
	if err := os.RemoveAll(b); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(b, ".ops"), 0o700); err != nil {
		t.Fatal(err)
	}
	from = l.await(from, "")
	if err := os.Mkdir(dirOf(link, ownerOf("second")), 0o700); err != nil {
		t.Fatal(err)
	}
	l.await(from, "second")
}

// When more happened than the kernel keeps, all is told at once.
func TestWatchLosesEvents(t *testing.T) {
	data, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil {
		t.Fatal(err)
	}
	var queue int
	if _, err := fmt.Sscan(string(data), &queue); err != nil || queue > 100_000 {
		t.Skipf("the kernel keeps %d events: too many to overflow in a test", queue)
	}
	dir := t.TempDir()
	p := reopen(t, dir)
	hold := make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	t.Cleanup(release)
	l := listen(t, p, func() { <-hold })
	from := l.await(0, "") // and Watch hangs there
	a, b := dirOf(dir, ownerOf("a")), dirOf(dir, ownerOf("b"))
	for range queue/4 + 100 {
		for _, d := range []string{a, b} {
			if err := os.Mkdir(d, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		for _, d := range []string{a, b} {
			if err := os.Remove(d); err != nil {
				t.Fatal(err)
			}
		}
	}
	release()
	from = l.await(from, "")
	if err := os.Mkdir(dirOf(dir, ownerOf("c")), 0o700); err != nil {
		t.Fatal(err)
	}
	l.await(from, "c")
}
