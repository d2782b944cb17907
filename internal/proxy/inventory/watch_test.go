package inventory_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/inventory"
	"fleetdesk/internal/proxy/provider"
)

// teller is a provider that lists and tells of changes.
type teller struct {
	*lister
	mu sync.Mutex
	// tell is the running watch's; nil while none runs.
	tell func(provider.Change)
	// watches counts how many began, running how many run.
	watches, running int
	// watch, when set, is what Watch does instead.
	watch func(ctx context.Context, n int) error
}

func (w *teller) Watch(ctx context.Context, installation string, changed func(provider.Change)) error {
	w.mu.Lock()
	w.watches++
	w.running++
	w.tell = changed
	n, watch := w.watches, w.watch
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.running--
	}()
	if installation != "i" {
		return fmt.Errorf("watched for installation %q", installation)
	}
	if watch != nil {
		return watch(ctx, n)
	}
	<-ctx.Done()
	return nil
}

// says tells of changes of UIDs on a host; of the host as a whole without any.
func (w *teller) says(host string, uids ...string) {
	w.mu.Lock()
	tell := w.tell
	w.mu.Unlock()
	if len(uids) == 0 {
		tell(provider.Change{Host: host})
	}
	for _, uid := range uids {
		tell(provider.Change{Host: host, UID: uid})
	}
}

func (w *teller) counts() (watches, running int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.watches, w.running
}

func (l *lister) listings() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls
}

// wait keeps listings that begin from now on waiting until the returned function
// is called.
func (l *lister) wait() (release func()) {
	hold := make(chan struct{})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hold = hold
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.hold == hold {
			l.hold = nil
		}
		close(hold)
	}
}

// several are providers in force.
type several struct {
	mu     sync.Mutex
	of     map[string]provider.Provider
	epochs map[string]uint64
}

func (s *several) Names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.of))
}

func (s *several) Lookup(name string) (provider.Provider, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.of[name]; p != nil {
		return p, nil
	}
	return nil, fault.New(fault.Unavailable, "broken")
}

func (s *several) Epoch(name string) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epochs[name]
}

func (s *several) put(name string, p provider.Provider) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[name] = p
	s.epochs[name]++
}

func (s *several) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, name)
}

// watched is an inventory over providers in force, the first one a teller.
type watched struct {
	*teller
	providers *several
	inv       *inventory.Inventory
	stop      func()

	mu      sync.Mutex
	changed []string
	log     strings.Builder
}

// watchAll starts an inventory whose provider p has the hosts, and lets it list
// once.
func watchAll(t *testing.T, hosts ...provider.HostList) *watched {
	t.Helper()
	w := &watched{teller: &teller{lister: &lister{}}, providers: &several{of: map[string]provider.Provider{}, epochs: map[string]uint64{}}}
	w.set(hosts...)
	w.providers.put("p", w.teller)
	w.run(t)
	return w
}

func (w *watched) run(t *testing.T) {
	w.inv = inventory.New(inventory.Options{
		Providers: w.providers, Installation: "i", Interval: interval,
		Changed: func(o provider.Owner) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.changed = append(w.changed, o.UID)
		},
		Log: slog.New(slog.NewTextHandler(lockedLog{w}, nil)),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.inv.Run(ctx) }()
	w.stop = func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("it ended with %v", err)
		}
	}
	// Off the second, so that nothing falls together with a listing.
	time.Sleep(1300 * time.Millisecond)
	w.heard()
}

type lockedLog struct{ w *watched }

func (l lockedLog) Write(b []byte) (int, error) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	return l.w.log.Write(b)
}

// heard returns whose change was told since the last call, in order.
func (w *watched) heard() []string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	told := w.changed
	w.changed = nil
	return told
}

func (w *watched) looks(t *testing.T, reason string, want inventory.Knowledge) {
	t.Helper()
	if got := w.inv.Look("p", "h1", "u").Knowledge; got != want {
		t.Errorf("%s: got %v, want %v", reason, got, want)
	}
}

func TestAWatchMakesKnowledgeStale(t *testing.T) {
	running := instance("u", "h1", provider.Running)
	for name, tc := range map[string]struct {
		reason string
		hosts  []provider.HostList
		do     func(w *watched)
		want   inventory.Knowledge
	}{
		"changed": {
			"whoever asks is sent to Get",
			[]provider.HostList{whole("h1", running)},
			func(w *watched) { w.says("h1", "u") }, inventory.Absent,
		},
		"another": {
			"the others are as they were",
			[]provider.HostList{whole("h1", running, instance("v", "h1", provider.Running))},
			func(w *watched) { w.says("h1", "v") }, inventory.Present,
		},
		"elsewhere": {
			"the same UID on another host is another instance",
			[]provider.HostList{whole("h1", running), whole("h2", instance("u", "h2", provider.Running))},
			func(w *watched) { w.says("h2", "u") }, inventory.Present,
		},
		"host as a whole": {
			"a listing will tell; until then it is as seen",
			[]provider.HostList{whole("h1", running)},
			func(w *watched) { w.wait(); w.says("h1") }, inventory.Present,
		},
		"host down": {
			"a host that did not answer the listing is not asked by each of its Proxies",
			[]provider.HostList{down("h1")},
			func(w *watched) { w.wait(); w.says("h1", "u") }, inventory.HostDown,
		},
		"host down, own call since": {
			"who answered a call since the listing can be asked",
			[]provider.HostList{down("h1")},
			func(w *watched) { w.wait(); w.inv.Note("p", "u", running); w.says("h1", "u") }, inventory.Absent,
		},
		"asked": {
			"the answer to a Get that began after the change counts",
			[]provider.HostList{whole("h1", running)},
			func(w *watched) { w.says("h1", "u"); w.inv.Look("p", "h1", "u"); w.inv.Note("p", "u", running) }, inventory.Present,
		},
		"not asked": {
			"an answer that was on its way when the change came may be older",
			[]provider.HostList{whole("h1", running)},
			func(w *watched) { w.inv.Look("p", "h1", "u"); w.says("h1", "u"); w.inv.Note("p", "u", running) }, inventory.Absent,
		},
		"changed again": {
			"and so may one to a question from before the second change",
			[]provider.HostList{whole("h1", running)},
			func(w *watched) {
				w.says("h1", "u")
				w.inv.Look("p", "h1", "u")
				w.says("h1", "u")
				w.inv.Note("p", "u", running)
			}, inventory.Absent,
		},
		"found gone": {
			"what Get found gone is gone",
			[]provider.HostList{whole("h1", running)},
			func(w *watched) { w.says("h1", "u"); w.inv.Drop("p", "h1", "u") }, inventory.Absent,
		},
		"made again": {
			"and what was made again is there",
			[]provider.HostList{whole("h1", running)},
			func(w *watched) {
				w.says("h1", "u")
				w.inv.Drop("p", "h1", "u")
				w.says("h1", "u")
				w.inv.Note("p", "u", running)
			}, inventory.Present,
		},
		"next listing": {
			"a listing that began after the change has seen it",
			[]provider.HostList{whole("h1", running)},
			func(w *watched) { w.says("h1", "u"); time.Sleep(interval); synctest.Wait() }, inventory.Present,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := watchAll(t, tc.hosts...)
				defer w.stop()
				tc.do(w)
				w.looks(t, tc.reason, tc.want)
			})
		})
	}
}

func TestStaleOnesNameTheirTwins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchAll(t, whole("h1", instance("u", "h1", provider.Running)), whole("h2", instance("u", "h2", provider.Running)))
		defer w.stop()
		w.says("h1", "u")
		if got := w.inv.Look("p", "h1", "u"); got.Knowledge != inventory.Absent || !cmp.Equal(got.Elsewhere, []string{"h2"}) {
			t.Errorf("got %+v; want Absent, with h2", got)
		}
	})
}

// TestAWatchWakesOrLists looks who is woken, and whether a listing comes ahead
// of its time, within a second of each thing that a watch may tell.
func TestAWatchWakesOrLists(t *testing.T) {
	u := instance("u", "h1", provider.Running)
	for name, tc := range map[string]struct {
		reason string
		hosts  []provider.HostList
		do     func(w *watched)
		woken  []string
		lists  int
	}{
		"known":         {"its Proxy looks for itself; a listing would cost all hosts", []provider.HostList{whole("h1", u)}, func(w *watched) { w.says("h1", "u") }, []string{"u"}, 0},
		"unknown":       {"whose it is only a listing can say", []provider.HostList{whole("h1", u)}, func(w *watched) { w.says("h1", "x") }, nil, 1},
		"other host":    {"the instance on that host is not known", []provider.HostList{whole("h1", u)}, func(w *watched) { w.says("h2", "u") }, nil, 1},
		"dropped":       {"it was gone, and something is there", []provider.HostList{whole("h1", u)}, func(w *watched) { w.inv.Drop("p", "h1", "u"); w.says("h1", "u") }, []string{"u"}, 1},
		"whole host":    {"anything may have changed", []provider.HostList{whole("h1", u)}, func(w *watched) { w.says("h1") }, nil, 1},
		"host was down": {"it speaks, so it may answer again", []provider.HostList{whole("h1", u), down("h2")}, func(w *watched) { w.inv.Note("p", "v", instance("v", "h2", provider.Running)); w.says("h2", "v") }, []string{"v"}, 1},
		"twins":         {"nobody asks Get for the second one", []provider.HostList{whole("h1", u), whole("h2", instance("u", "h2", provider.Running))}, func(w *watched) { w.says("h2", "u") }, []string{"u"}, 1},
		"hosts unnamed": {"one of them speaks", []provider.HostList{whole("h1", u)}, func(w *watched) {
			w.lister.mu.Lock()
			w.err = fault.New(fault.Unavailable, "credentials")
			w.lister.mu.Unlock()
			time.Sleep(interval)
			w.inv.Note("p", "v", instance("v", "h1", provider.Running))
			w.says("h1", "v")
		}, []string{"u", "v"}, 2},
		"many at once":   {"one round", []provider.HostList{whole("h1", u)}, func(w *watched) { w.says("h1", "x", "u", "y", "u", "z", "u") }, []string{"u"}, 1},
		"none, no names": {"a UID is not made up for a host", []provider.HostList{whole("h1", instance("", "h1", provider.Unknown))}, func(w *watched) { w.says("h1") }, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := watchAll(t, tc.hosts...)
				defer w.stop()
				before := w.listings()
				tc.do(w)
				time.Sleep(time.Second)
				woken := w.heard()
				slices.Sort(woken)
				if diff := cmp.Diff(tc.woken, slices.Compact(woken)); diff != "" {
					t.Errorf("%s: woken (-want +got):\n%s", tc.reason, diff)
				}
				if got := w.listings() - before; got != tc.lists {
					t.Errorf("%s: %d listings, want %d", tc.reason, got, tc.lists)
				}
			})
		})
	}
}

func TestNobodyIsWokenForAnothersChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchAll(t, whole("h1", instance("u", "h1", provider.Running), instance("v", "h1", provider.Running)))
		defer w.stop()
		for _, uid := range []string{"u", "v", "u"} {
			w.says("h1", uid)
			time.Sleep(time.Second)
			if told := w.heard(); !cmp.Equal(told, []string{uid}) {
				t.Errorf("woken %q for a change of %s", told, uid)
			}
		}
	})
}

// A listing that is under way when a change comes may have looked before: it
// does not hide the change, and another one follows it.
func TestAChangeDuringAListing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := instance("u", "h1", provider.Running)
		w := watchAll(t, whole("h1", u))
		defer w.stop()
		release := w.wait()
		w.inv.Refresh("p")
		synctest.Wait()
		before := w.listings() // one waits
		time.Sleep(3 * time.Second)
		w.says("h1", "u")
		time.Sleep(time.Millisecond)
		second := w.wait()
		release()
		synctest.Wait()
		w.looks(t, "the listing began before the change", inventory.Absent)
		if told := w.heard(); !cmp.Equal(told, []string{"u"}) {
			t.Errorf("told %q", told)
		}
		second()
		time.Sleep(time.Second)
		synctest.Wait()
		if n := w.listings() - before; n != 1 {
			t.Errorf("%d listings after the one that was under way; want one", n)
		}
		w.looks(t, "the next one has seen it", inventory.Present)
	})
}

// A flood of events wakes a Proxy five times a second at the most, lists once a
// second, and is kept nowhere.
func TestAFloodIsGatheredAndBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchAll(t, whole("h1", instance("u", "h1", provider.Running), instance("v", "h1", provider.Running)))
		defer w.stop()
		before := w.listings()
		var was, is runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&was)
		const seconds, each = 5, 10_000
		for n := range seconds * 100 {
			for m := range each / 100 {
				w.says("h1", "u", fmt.Sprintf("stranger-%d-%d", n, m))
			}
			time.Sleep(10 * time.Millisecond)
		}
		runtime.GC()
		runtime.ReadMemStats(&is)
		if grown := int64(is.HeapAlloc) - int64(was.HeapAlloc); grown > 4<<20 {
			t.Errorf("%d bytes are kept of the flood", grown)
		}
		told := w.heard()
		// The listings change nothing; each wake is the watch's.
		if n := len(told); n < 3*seconds || n > 5*seconds+1 || slices.Contains(told, "v") {
			t.Errorf("%d wakes in %d s of flood: %q", n, seconds, slices.Compact(told))
		}
		if n := w.listings() - before; n < seconds-1 || n > seconds+1 {
			t.Errorf("%d listings in %d s of flood", n, seconds)
		}
	})
}

// One watch runs for each provider in force that has one, as long as that one
// is in force.
func TestWatchesFollowTheProvidersInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchAll(t, whole("h1", instance("u", "h1", provider.Running)))
		defer func() { w.stop() }()
		expect := func(reason string, of *teller, watches, running int) {
			t.Helper()
			w.inv.Refresh("p") // as the registry's Changed does
			synctest.Wait()
			if gotWatches, gotRunning := of.counts(); gotWatches != watches || gotRunning != running {
				t.Errorf("%s: %d began, %d run; want %d and %d", reason, gotWatches, gotRunning, watches, running)
			}
		}
		expect("from the start", w.teller, 1, 1)
		next := &teller{lister: &lister{}}
		next.set(whole("h1", instance("u", "h1", provider.Running)))
		w.providers.put("p", next)
		expect("the one before, replaced", w.teller, 1, 0)
		expect("the one in force", next, 1, 1)
		time.Sleep(2 * time.Second)
		w.heard()
		w.says("h1", "u")
		time.Sleep(2 * time.Second)
		if told := w.heard(); told != nil {
			t.Errorf("a watch that has ended tells of %q", told)
		}
		w.looks(t, "a watch that has ended makes nothing stale", inventory.Present)
		next.says("h1", "u")
		if told := w.heard(); !cmp.Equal(told, []string{"u"}) {
			t.Errorf("the one in force tells of %q", told)
		}
		w.providers.put("p", nil) // broken
		expect("broken", next, 1, 0)
		w.providers.put("p", next)
		expect("healed", next, 2, 1)
		w.providers.put("q", w.teller)
		w.providers.put("r", &lister{}) // has no watch
		expect("a second one", w.teller, 2, 1)
		w.providers.remove("p")
		expect("taken out", next, 2, 0)
		expect("the second one goes on", w.teller, 2, 1)
		next.says("h1", "u") // to nobody
		w.stop()
		if _, running := w.counts(); running != 0 {
			t.Error("a watch outlived the inventory")
		}
		w.stop = func() {}
	})
}

// A watch that ends, fails or panics is started again, ever more seldom, and
// takes nothing else with it; listings go on, and one makes up for what nobody
// told meanwhile.
func TestAWatchThatEndsIsStartedAgain(t *testing.T) {
	for name, watch := range map[string]func() error{
		"ends":               func() error { return nil },
		"fails":              func() error { return errors.New("odd") },
		"panics":             func() error { panic("odd") },
		"ends its goroutine": func() error { runtime.Goexit(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var mu sync.Mutex
				var at []time.Duration
				w := &watched{teller: &teller{lister: &lister{}}, providers: &several{of: map[string]provider.Provider{}, epochs: map[string]uint64{}}}
				w.watch = func(ctx context.Context, n int) error {
					mu.Lock()
					at = append(at, time.Since(began).Round(time.Second))
					mu.Unlock()
					if n == 10 {
						<-ctx.Done() // this one holds
						return nil
					}
					if n == 9 {
						time.Sleep(2 * time.Minute) // held for a while, so the pauses begin anew
					}
					return watch()
				}
				w.set(whole("h1"))
				w.providers.put("p", w.teller)
				w.run(t)
				defer w.stop()
				time.Sleep(30 * time.Minute)
				synctest.Wait()
				mu.Lock()
				defer mu.Unlock()
				var want []time.Duration
				for _, s := range []int{0, 1, 3, 7, 15, 31, 63, 123, 183, 304} {
					want = append(want, time.Duration(s)*time.Second)
				}
				if diff := cmp.Diff(want, at); diff != "" {
					t.Errorf("started at (-want +got):\n%s", diff)
				}
				if n := w.listings(); n < 180 || n > 210 {
					t.Errorf("%d listings in 30 min at one in 10 s", n)
				}
				w.mu.Lock()
				defer w.mu.Unlock()
				if n := strings.Count(w.log.String(), "level=WARN"); n != 2 {
					t.Errorf("%d warnings; want one for each time that it began to end:\n%s", n, w.log.String())
				}
			})
		})
	}
}

func TestAWatchThatCameBackIsFollowedByAListing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		w := &watched{teller: &teller{lister: &lister{}}, providers: &several{of: map[string]provider.Provider{}, epochs: map[string]uint64{}}}
		w.watch = func(ctx context.Context, n int) error {
			if n == 1 {
				<-end
				return errors.New("cut off")
			}
			<-ctx.Done()
			return nil
		}
		w.set(whole("h1"))
		w.providers.put("p", w.teller)
		w.run(t)
		defer w.stop()
		before := w.listings()
		close(end)
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		if watches, _ := w.counts(); watches != 2 || w.listings() != before+1 {
			t.Errorf("%d watches began, and %d listings came after the second; want 2 and 1", watches, w.listings()-before)
		}
	})
}

// A watch ends when its provider is closed because another one is in force:
// that is no news, and it is not started again.
func TestAWatchOfAReplacedProviderEndsInSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closed := make(chan struct{})
		w := &watched{teller: &teller{lister: &lister{}}, providers: &several{of: map[string]provider.Provider{}, epochs: map[string]uint64{}}}
		w.watch = func(context.Context, int) error { <-closed; return nil }
		w.set(whole("h1"))
		w.providers.put("p", w.teller)
		w.run(t)
		defer w.stop()
		w.providers.put("p", &lister{})
		close(closed)
		time.Sleep(3 * time.Second) // nobody has told the inventory
		synctest.Wait()
		if watches, _ := w.counts(); watches != 1 {
			t.Errorf("%d watches began", watches)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if strings.Contains(w.log.String(), "WARN") {
			t.Errorf("it is in the log:\n%s", w.log.String())
		}
	})
}

// A watch that does not heed its context holds neither the inventory's end nor
// the provider that has taken its provider's place.
func TestAWatchThatDoesNotEndHoldsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		w := &watched{teller: &teller{lister: &lister{}}, providers: &several{of: map[string]provider.Provider{}, epochs: map[string]uint64{}}}
		w.watch = func(context.Context, int) error { <-hold; return nil }
		w.set(whole("h1", instance("u", "h1", provider.Running)))
		w.providers.put("p", w.teller)
		w.run(t)
		w.providers.put("p", w.teller)
		w.inv.Refresh("p")
		synctest.Wait()
		if watches, _ := w.counts(); watches != 2 {
			t.Errorf("%d watches began; want the second beside the first", watches)
		}
		began := time.Now()
		w.stop()
		if took := time.Since(began); took > time.Second {
			t.Errorf("the inventory ended after %v", took)
		}
		w.says("h1", "u") // to nobody, and it does not block
		close(hold)
		synctest.Wait()
	})
}

// A listing of a provider that was replaced while it ran is of the hosts of
// that one: it is not kept, and the one in force is listed at once.
func TestAListingOfAReplacedProviderIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := instance("u", "h1", provider.Running)
		w := watchAll(t, whole("h1", u))
		defer w.stop()
		w.set(down("h1"))
		release := w.wait()
		w.inv.Refresh("p")
		synctest.Wait()
		next := &lister{}
		next.set(whole("h1", u))
		hold := next.wait()
		w.providers.put("p", next)
		release()
		synctest.Wait()
		w.looks(t, "the one before does not speak for the one in force", inventory.Present)
		if next.listings() != 1 {
			t.Errorf("%d listings of the one in force", next.listings())
		}
		hold()
		if told := w.heard(); told != nil {
			t.Errorf("told %q", told)
		}
	})
}
