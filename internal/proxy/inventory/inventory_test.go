package inventory_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/inventory"
	"fleetdesk/internal/proxy/provider"
)

const interval = 10 * time.Second

// lister is a provider that only lists; its answer is set by the test.
type lister struct {
	provider.Provider
	mu    sync.Mutex
	hosts []provider.HostList
	err   error
	calls int
	// hold, when set, keeps a listing waiting until it is closed.
	hold chan struct{}
}

func (l *lister) ListByTag(ctx context.Context, _ string) ([]provider.HostList, error) {
	l.mu.Lock()
	l.calls++
	hosts, err, hold := slices.Clone(l.hosts), l.err, l.hold
	l.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return hosts, err
}

func (l *lister) set(hosts ...provider.HostList) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hosts, l.err = hosts, nil
}

type one struct{ p *lister }

func (o one) Names() []string                          { return []string{"p"} }
func (o one) Lookup(string) (provider.Provider, error) { return o.p, nil }
func (o one) Epoch(string) uint64                      { return 1 }

type bench struct {
	*lister
	inv     *inventory.Inventory
	mu      sync.Mutex
	changed []string
	// recovered counts the calls of Recovered.
	recovered int
	stop      func()
}

func start(t *testing.T) *bench {
	b := &bench{lister: &lister{}}
	b.inv = inventory.New(inventory.Options{
		Providers: one{b.lister}, Installation: "i", Interval: interval,
		Changed: func(o provider.Owner) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.changed = append(b.changed, o.UID)
		},
		Recovered: func(string) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.recovered++
		},
		Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	b.stop = func() { cancel(); <-done }
	synctest.Wait()
	go func() { done <- b.inv.Run(ctx) }()
	return b
}

// next waits until one more listing has been taken over, and returns who was
// told of a change since the last call.
func (b *bench) next() []string {
	time.Sleep(interval)
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	told := slices.Compact(slices.Sorted(slices.Values(b.changed)))
	b.changed = nil
	return told
}

func instance(uid, host string, state provider.State) provider.Instance {
	return provider.Instance{ID: "id-" + uid, Owner: provider.Owner{UID: uid}, Host: host, State: state}
}

func whole(host string, in ...provider.Instance) provider.HostList {
	return provider.HostList{Host: host, Instances: in}
}

func down(host string) provider.HostList {
	return provider.HostList{Host: host, Err: fault.New(fault.Unavailable, "no route")}
}

func TestLook(t *testing.T) {
	running := instance("u", "h1", provider.Running)
	for name, tc := range map[string]struct {
		reason string
		lists  [][]provider.HostList
		then   func(*inventory.Inventory)
		want   inventory.Knowledge
	}{
		"never listed":       {"before a first answer nothing is known", nil, nil, inventory.Unlisted},
		"present":            {"", [][]provider.HostList{{whole("h1", running)}}, nil, inventory.Present},
		"absent":             {"whole list without it: ask Get", [][]provider.HostList{{whole("h1")}}, nil, inventory.Absent},
		"vanished":           {"it was there once", [][]provider.HostList{{whole("h1", running)}, {whole("h1")}}, nil, inventory.Absent},
		"host down":          {"a host that fails must not read as absence", [][]provider.HostList{{down("h1"), whole("h2")}}, nil, inventory.HostDown},
		"host goes down":     {"what was seen before is not reported as present", [][]provider.HostList{{whole("h1", running)}, {down("h1")}}, nil, inventory.HostDown},
		"host left config":   {"whether a host that is not listed any more means anything, Get must say", [][]provider.HostList{{whole("h1", running)}, {whole("h2")}}, nil, inventory.Absent},
		"twin elsewhere":     {"a clone on another host is not the instance", [][]provider.HostList{{whole("h1"), whole("h2", instance("u", "h2", provider.Running))}}, nil, inventory.Absent},
		"own call is newer":  {"what Create answered after the listing stands", [][]provider.HostList{{whole("h1")}}, func(i *inventory.Inventory) { i.Note("p", "u", running) }, inventory.Present},
		"own delete":         {"what Get found gone after the listing is gone", [][]provider.HostList{{whole("h1", running)}}, func(i *inventory.Inventory) { i.Drop("p", "h1", "u") }, inventory.Absent},
		"own call, host bad": {"a direct answer wins over a failed listing before it", [][]provider.HostList{{down("h1")}}, func(i *inventory.Inventory) { i.Note("p", "u", running) }, inventory.Present},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := start(t)
				defer b.stop()
				for _, l := range tc.lists {
					b.set(l...)
					b.next()
				}
				if tc.then != nil {
					time.Sleep(time.Millisecond)
					tc.then(b.inv)
				}
				if got := b.inv.Look("p", "h1", "u").Knowledge; got != tc.want {
					t.Errorf("%s: got %v, want %v", tc.reason, got, tc.want)
				}
			})
		})
	}
}

func TestKnowledgeAges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.set(whole("h1", instance("u", "h1", provider.Running)))
		b.next()
		b.stop()
		time.Sleep(10 * time.Minute)
		if got := b.inv.Look("p", "h1", "u").Knowledge; got != inventory.Unlisted {
			t.Errorf("ten minutes after the last listing it is still %v", got)
		}
	})
}

func TestChangesAreToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		defer b.stop()
		a, c := instance("a", "h1", provider.Running), instance("c", "h2", provider.Running)
		stopped := instance("a", "h1", provider.Stopped)
		for i, step := range []struct {
			reason string
			hosts  []provider.HostList
			want   []string
		}{
			{"new instances", []provider.HostList{whole("h1", a), whole("h2", c)}, []string{"a", "c"}},
			{"nothing new: the steady state wakes nobody", []provider.HostList{whole("h1", a), whole("h2", c)}, nil},
			{"another state", []provider.HostList{whole("h1", stopped), whole("h2", c)}, []string{"a"}},
			{"a host goes down: those on it", []provider.HostList{whole("h1", stopped), down("h2")}, []string{"c"}},
			{"still down: no news", []provider.HostList{whole("h1", stopped), down("h2")}, nil},
			{"and comes back", []provider.HostList{whole("h1", stopped), whole("h2", c)}, []string{"c"}},
			{"gone from a whole list", []provider.HostList{whole("h1"), whole("h2", c)}, []string{"a"}},
			{"and stays gone", []provider.HostList{whole("h1"), whole("h2", c)}, nil},
		} {
			b.set(step.hosts...)
			if diff := cmp.Diff(step.want, b.next()); diff != "" {
				t.Errorf("step %d, %s (-want +got):\n%s", i, step.reason, diff)
			}
		}
	})
}

// A listing that began before the operator's own call is older than that call,
// however late its answer comes.
func TestALateListingDoesNotOverwriteWhatIsNewer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		defer b.stop()
		b.set(whole("h1", instance("dead", "h1", provider.Running)))
		b.next()
		hold := make(chan struct{})
		b.lister.mu.Lock()
		b.hold = hold
		b.lister.mu.Unlock()
		time.Sleep(interval) // a listing is under way now, with "dead" and without "new"
		synctest.Wait()
		b.inv.Drop("p", "h1", "dead")
		b.inv.Note("p", "new", instance("new", "h1", provider.Running))
		time.Sleep(time.Second)
		close(hold)
		synctest.Wait()
		if got := b.inv.Look("p", "h1", "dead").Knowledge; got != inventory.Absent {
			t.Errorf("the late listing revived a deleted instance: %v", got)
		}
		if got := b.inv.Look("p", "h1", "new").Knowledge; got != inventory.Present {
			t.Errorf("the late listing took a new instance for gone: %v", got)
		}
	})
}

func TestAMuteProviderIsListedOnceAtATimeAndBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		defer b.stop()
		b.lister.mu.Lock()
		b.hold = make(chan struct{})
		calls := b.calls
		b.lister.mu.Unlock()
		for range 20 {
			b.inv.Refresh("p")
			time.Sleep(time.Second)
		}
		b.lister.mu.Lock()
		defer b.lister.mu.Unlock()
		if b.calls > calls+1 {
			t.Errorf("%d listings of a mute provider at once", b.calls-calls)
		}
	})
}

func TestRefreshIsBoundedToOneListingASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		defer b.stop()
		b.next()
		before := b.calls
		for range 1000 {
			b.inv.Refresh("p")
			time.Sleep(5 * time.Millisecond)
		}
		synctest.Wait()
		if n := b.calls - before; n < 3 || n > 7 {
			t.Errorf("%d listings in 5 s of constant asking, want about 5", n)
		}
	})
}

func TestAProviderWhoseHostsCannotBeNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		defer b.stop()
		b.set(whole("h1", instance("u", "h1", provider.Running)))
		b.next()
		b.lister.mu.Lock()
		b.err = fault.New(fault.Unavailable, "credentials")
		b.lister.mu.Unlock()
		if diff := cmp.Diff([]string{"u"}, b.next()); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
		if got := b.inv.Look("p", "h1", "u").Knowledge; got != inventory.HostDown {
			t.Errorf("got %v, want HostDown", got)
		}
		b.set(whole("h1", instance("u", "h1", provider.Running)))
		if diff := cmp.Diff([]string{"u"}, b.next()); diff != "" {
			t.Errorf("told of the recovery (-want +got):\n%s", diff)
		}
	})
}

func TestATwinIsNamedAndDoesNotTakeTheFirstOnesPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		defer b.stop()
		b.set(whole("h1", instance("u", "h1", provider.Running)), whole("h2", instance("u", "h2", provider.Stopped)))
		b.next()
		s := b.inv.Look("p", "h1", "u")
		if s.Instance.Host != "h1" || s.Instance.State != provider.Running {
			t.Errorf("the twin took the place: %+v", s.Instance)
		}
		if diff := cmp.Diff([]string{"h2"}, s.Elsewhere); diff != "" {
			t.Errorf("elsewhere (-want +got):\n%s", diff)
		}
		if told := b.next(); told != nil {
			t.Errorf("each listing wakes the Proxy again: %v", told)
		}
	})
}

func TestARecoveredHostIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		defer b.stop()
		b.set(down("h1"), whole("h2"))
		b.next()
		if n := b.inv.Recoveries("p"); n != 0 {
			t.Errorf("%d recoveries before any", n)
		}
		b.set(whole("h1"), whole("h2"))
		b.next()
		b.next()
		if n := b.inv.Recoveries("p"); n != 1 || b.recovered != 1 {
			t.Errorf("%d recoveries, told %d times; want once", n, b.recovered)
		}
	})
}
