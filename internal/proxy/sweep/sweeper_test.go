package sweep_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/sweep"
)

// bubble runs f with a fake clock.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// TestOrphanGoes after its grace, and is told everywhere; whoever has an owner,
// was abandoned, is foreign or cannot be read stays.
func TestOrphanGoes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := begin(t, newFake(), setup{})
		b.fleet(5)
		in := b.fake.Plant("h2", owner("lost"))
		b.fake.Plant("h2", owner("left"))
		b.do(func() { b.abandoned["left"] = sweep.AbandonedInstance{} })
		foreign := owner("foreign")
		foreign.Installation = "other"
		b.fake.Plant("h2", foreign)
		b.fake.Corrupt(b.fake.Plant("h2", owner("torn")).ID)
		pass(grace - interval)
		if !b.has("lost") || b.item("lost").Verdict != sweep.Waiting {
			t.Fatalf("within its grace: %+v", b.item("lost"))
		}
		pass(3 * interval)
		if b.has("lost") {
			t.Fatalf("it is still there: %+v", b.report())
		}
		if n := len(b.fake.Machines()); n != 8 {
			t.Errorf("%d machines are left, want 8", n)
		}
		r := b.report()
		if r.Instances != 7 || r.Orphans() != 0 || r.AbandonedCount() != 1 || r.Count(true, sweep.Unreadable) != 1 || r.Time.IsZero() || r.Err != nil {
			t.Errorf("report %+v", r)
		}
		want := []string{"fake Normal OrphanRemoved " + in.ID + " on host h2 is removed: its Proxy ns/n-lost (lost) does not exist"}
		if diff := cmp.Diff(want, b.allEvents()); diff != "" {
			t.Errorf("events:\n%s", diff)
		}
		if !slices.Equal(b.goneUIDs(), []string{"lost"}) || b.changes() == 0 {
			t.Errorf("gone %q, changed %d", b.goneUIDs(), b.changes())
		}
		for name, want := range map[string]map[string]float64{
			"proxy_operator_sweep_removed_total": {"fake,instance": 1},
			"proxy_operator_orphans":             {"fake": 0},
			"proxy_operator_abandoned":           {"fake": 1},
			"proxy_operator_leftovers":           {"fake": 0},
			"proxy_operator_sweep_held":          {"fake": 0},
			"proxy_operator_identity_conflicts":  {"fake": 0},
		} {
			if got, _ := b.metric(name); !cmp.Equal(got, want) {
				t.Errorf("%s: %v, want %v", name, got, want)
			}
		}
		if got, _ := b.metric("proxy_operator_sweep_last_success_timestamp_seconds"); got["fake"] != float64(r.Time.UnixNano())/1e9 {
			t.Errorf("last success %v, report %v", got, r.Time)
		}
		b.in.mu.Lock()
		b.in.set = nil
		b.in.mu.Unlock()
		pass(2 * interval)
		if _, ok := b.s.Report("fake"); ok {
			t.Error("a provider that left still has a report")
		}
		for _, name := range []string{"runs_total", "removed_total", "held", "last_success_timestamp_seconds"} {
			if got, there := b.metric("proxy_operator_sweep_" + name); there {
				t.Errorf("%s of a provider that left: %v", name, got)
			}
		}
		if got, there := b.metric("proxy_operator_orphans"); there {
			t.Errorf("orphans of a provider that left: %v", got)
		}
	})
}

// TestDryRun reports, claims, and changes nothing.
func TestDryRun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := begin(t, newFake(), setup{options: func(o *sweep.Options) { o.DryRun = true }})
		b.fleet(1)
		for i := range 6 {
			b.fake.Plant("h2", owner(fmt.Sprint("lost-", i)))
		}
		b.fake.Plant("h2", owner("left"))
		b.fake.Litter("h1", "image", "img", owner(""))
		b.do(func() {
			b.abandoned["left"], b.abandoned["gone"] = sweep.AbandonedInstance{}, sweep.AbandonedInstance{}
			b.remove = []string{"left", "gone"}
		})
		pass(3 * grace)
		calls := b.fake.Calls()
		if calls["Delete"]+calls["RemoveLeftover"]+calls["Create"] != 0 || b.readsOf("Strike") != 0 || calls["Claim"] == 0 {
			t.Errorf("calls %v, book %v", calls, b.readsOf("Strike"))
		}
		r := b.report()
		if !r.DryRun || r.Count(true, sweep.Due) != 7 || r.Count(false, sweep.Due) != 1 || r.Hash != "" || len(b.allEvents()) != 0 {
			t.Errorf("report %+v, events %q", r, b.allEvents())
		}
		if it := b.item("lost-1"); !strings.Contains(it.Message, "the fuse would hold it") {
			t.Errorf("%+v", it)
		}
	})
}

// TestFuseAndRelease holds back too many, says how to let them go, once, and
// lets them go.
func TestFuseAndRelease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := begin(t, newFake(), setup{})
		b.fleet(2)
		for i := range 6 {
			b.fake.Plant("h2", owner(fmt.Sprint("lost-", i)))
		}
		b.fake.Plant("h2", owner("left"))
		b.do(func() { b.abandoned["left"], b.remove = sweep.AbandonedInstance{}, []string{"left"} })
		pass(3 * grace)
		r := b.report()
		if b.has("left") {
			t.Error("what a person named was held by the fuse")
		}
		if r.Hash == "" || r.Count(true, sweep.Held) != 6 || len(b.fake.Machines()) != 8 {
			t.Fatalf("nothing was held: %+v", r)
		}
		held := b.told("SweepHeld")
		line := "kubectl annotate proxyprovider fake " + v1alpha1.ReleaseSweepAnnotation + "=" + r.Hash + " --overwrite"
		if len(held) != 1 || !strings.HasSuffix(held[0], line) || !strings.HasPrefix(held[0], "fake Warning SweepHeld ") {
			t.Errorf("events %q", held)
		}
		if got, _ := b.metric("proxy_operator_sweep_held"); got["fake"] != 1 {
			t.Errorf("held gauge %v", got)
		}
		if got, _ := b.metric("proxy_operator_sweep_runs_total"); got["fake,held"] == 0 {
			t.Errorf("runs %v", got)
		}
		b.do(func() { b.release = r.Hash })
		b.s.Kick("fake")
		pass(2 * time.Second)
		pass(20 * time.Second)
		if n := len(b.fake.Machines()); n != 2 {
			t.Errorf("%d machines are left after the release: %+v", n, b.report())
		}
	})
}

// TestOrderOfReads: the claims, the instances, the Proxies, the page, and then
// the leftovers.
func TestOrderOfReads(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := &logged{}
		bk := newBook()
		bk.before["Owners"] = func() { l.enter("Owners")() }
		bk.before["Page"] = func() { l.enter("Page")() }
		begin(t, newFake(), setup{wrap: l.around, book: bk})
		pass(time.Second)
		want := []string{"Claim", "ListByTag", "Owners", "Page", "Leftovers"}
		if diff := cmp.Diff(want, l.log()); diff != "" {
			t.Errorf("order (-want +got):\n%s", diff)
		}
	})
}

// TestAbandonedBetweenReads: a Proxy is abandoned and gone at any one moment of
// a sweep; its instance is an orphan in no report. Likewise one that is made.
func TestAbandonedBetweenReads(t *testing.T) {
	for _, moment := range []string{"before Claim", "before ListByTag", "before Owners", "after Owners", "before Page", "after Page", "before Leftovers"} {
		for _, what := range []string{"abandoned", "made"} {
			t.Run(what+" "+moment, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					p, bk, l := newFake(), newBook(), &logged{}
					done := false
					act := func() {
						if done {
							return
						}
						done = true
						bk.do(func() {
							if what == "made" {
								bk.owners["x"] = true
								return
							}
							bk.abandoned["x"] = sweep.AbandonedInstance{}
							delete(bk.owners, "x")
						})
						if what == "made" {
							p.Plant("h1", owner("x"))
						}
					}
					switch when, method, _ := strings.Cut(moment, " "); {
					case method == "Owners" || method == "Page":
						map[string]map[string]func(){"before": bk.before, "after": bk.after}[when][method] = act
					default:
						l.before = map[string]func(int){method: func(int) { act() }}
					}
					if what == "abandoned" {
						p.Plant("h1", owner("x"))
						bk.owners["x"] = true
					}
					b := begin(t, p, setup{wrap: l.around, book: bk})
					pass(time.Second)
					if !done {
						t.Fatal("the moment never came")
					}
					if r := b.report(); r.Orphans() != 0 || r.Err != nil {
						t.Errorf("it became an orphan: %+v", r)
					}
				})
			})
		}
	}
}

// TestOwnersAreReadAgain when the removals before it took long: four workers
// take 31 s for the first four, and the fifth is looked at anew.
func TestOwnersAreReadAgain(t *testing.T) {
	away := fault.New(fault.Unavailable, "away")
	for name, tc := range map[string]struct {
		turn    func(b *book)
		verdict sweep.Verdict
	}{
		"still lost":              {func(*book) {}, sweep.Removed},
		"has an owner":            {func(b *book) { b.owners["z"] = true }, sweep.Waiting},
		"was abandoned":           {func(b *book) { b.abandoned["z"] = sweep.AbandonedInstance{} }, sweep.Abandoned},
		"was abandoned elsewhere": {func(b *book) { b.elsewhere["z"] = "other" }, sweep.Abandoned},
		"API is away":             {func(b *book) { b.fail["Owners"] = away }, sweep.Due},
		"page is away":            {func(b *book) { b.fail["Page"] = away }, sweep.Due},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				l := &logged{}
				bk := newBook()
				l.before = map[string]func(int){"Get": func(n int) {
					if n <= 4 {
						time.Sleep(29 * time.Second)
						bk.do(func() { tc.turn(bk) })
					}
				}}
				p := newFake()
				for i := range 4 {
					p.Plant("h2", owner(fmt.Sprint("a-", i)))
				}
				p.Plant("h2", owner("z"))
				b := begin(t, p, setup{wrap: l.around, book: bk})
				b.fleet(25)
				if got := b.until("a-0"); got.Verdict != sweep.Removed {
					t.Fatalf("the first one: %+v", got)
				}
				it := b.item("z")
				if it.Verdict != tc.verdict || b.has("z") != (tc.verdict != sweep.Removed) {
					t.Errorf("%+v, want %s", it, tc.verdict)
				}
			})
		})
	}
}

// TestOneReportEachSweep also when it could not look.
func TestOneReportEachSweep(t *testing.T) {
	away := fault.New(fault.Unavailable, "away")
	for name, breaks := range map[string]func(b *bench){
		"Lookup":    func(b *bench) { b.in.mu.Lock(); b.in.err = away; b.in.mu.Unlock() },
		"ListByTag": func(b *bench) { b.fake.FailNext("ListByTag", away) },
		"Owners":    func(b *bench) { b.do(func() { b.fail["Owners"] = away }) },
		"Page":      func(b *bench) { b.do(func() { b.fail["Page"] = away }) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := begin(t, newFake(), setup{})
				pass(time.Second)
				first := b.report()
				breaks(b)
				b.s.Kick("fake")
				pass(2 * time.Second)
				r := b.report()
				if fault.Of(r.Err) != fault.Unavailable || !r.Time.After(first.Time) || b.changes() != 2 {
					t.Errorf("report %+v after %v, changed %d", r, first.Time, b.changes())
				}
				if got, _ := b.metric("proxy_operator_sweep_runs_total"); got["failed,fake"] != 1 || got["clean,fake"] != 1 {
					t.Errorf("runs %v", got)
				}
				if got, _ := b.metric("proxy_operator_sweep_last_success_timestamp_seconds"); got["fake"] != float64(first.Time.UnixNano())/1e9 {
					t.Errorf("last success %v", got)
				}
			})
		})
	}
}

// TestFailedSweepKeepsTheGrace: an orphan's time goes on over sweeps that could
// not look.
func TestFailedSweepKeepsTheGrace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := begin(t, newFake(), setup{})
		b.fleet(5)
		b.fake.Plant("h2", owner("lost"))
		pass(2 * interval)
		b.do(func() { b.fail["Owners"] = errors.New("away") })
		pass(grace)
		if !b.has("lost") {
			t.Fatal("it went while the Proxies could not be listed")
		}
		b.do(func() { b.fail["Owners"] = nil })
		b.s.Kick("fake")
		pass(20 * time.Second)
		if b.has("lost") {
			t.Errorf("it waits anew: %+v", b.item("lost"))
		}
	})
}

// TestMuteHost: nothing there is judged, and the other host's orphans go.
func TestMuteHost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := begin(t, newFake(), setup{})
		b.fleet(5)
		b.fake.Plant("h1", owner("lost-1"))
		b.fake.Plant("h2", owner("lost-2"))
		b.fake.Litter("h2", "image", "img", owner(""))
		pass(2 * interval)
		mend := b.fake.Mute("h2")
		pass(2 * grace)
		r := b.report()
		if b.has("lost-1") || !b.has("lost-2") || len(b.fake.Litters()) != 1 {
			t.Errorf("lost-1 there %v, lost-2 there %v", b.has("lost-1"), b.has("lost-2"))
		}
		if len(r.Unlisted) != 1 || r.Unlisted[0].Host != "h2" || r.Err != nil {
			t.Errorf("unlisted %+v, %v", r.Unlisted, r.Err)
		}
		mend()
		pass(4 * interval)
		if b.has("lost-2") || len(b.fake.Litters()) != 0 {
			t.Errorf("after it speaks again: %+v", b.report().Items)
		}
	})
}

// TestMuteProviderDelaysNone of the others, and is swept once at a time.
func TestMuteProviderDelaysNone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		slow, l := newFake(), &logged{}
		b := begin(t, newFake(), setup{})
		b.in.mu.Lock()
		b.in.set["slow"] = l.around(slow)
		b.in.mu.Unlock()
		slow.Mute("h1")
		pass(interval)
		before := b.fake.Calls()["ListByTag"]
		for range 40 {
			b.s.Kick("slow")
			pass(interval / 4)
		}
		if n := b.fake.Calls()["ListByTag"] - before; n < 9 {
			t.Errorf("the quick one was listed %d times in 10 intervals", n)
		}
		if l.mostOf("ListByTag") > 1 {
			t.Errorf("the slow one was in %d listings at once", l.mostOf("ListByTag"))
		}
	})
}

// TestKick is soon, and at most once a second.
func TestKick(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := begin(t, newFake(), setup{})
		pass(time.Second)
		b.s.Kick("unknown")
		for range 100 {
			b.s.Kick("fake")
			pass(50 * time.Millisecond)
		}
		if n := b.fake.Calls()["ListByTag"]; n < 5 || n > 7 {
			t.Errorf("%d sweeps in 5 s of kicks", n)
		}
	})
}

// TestInterval has a jitter of at most a tenth.
func TestInterval(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := begin(t, newFake(), setup{})
		pass(100 * interval)
		if n := b.fake.Calls()["ListByTag"]; n < 101 || n > 112 {
			t.Errorf("%d sweeps in 100 intervals", n)
		}
	})
}

func TestNewRefuses(t *testing.T) {
	good := sweep.Options{Providers: &providers{}, Book: newBook(), Installation: ours, Holder: "abcdefgh", Interval: 1}
	if _, err := sweep.New(good); err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string]func(o *sweep.Options){
		"no providers":    func(o *sweep.Options) { o.Providers = nil },
		"no book":         func(o *sweep.Options) { o.Book = nil },
		"no installation": func(o *sweep.Options) { o.Installation = "" },
		"short holder":    func(o *sweep.Options) { o.Holder = "abcdefg" },
		"long holder":     func(o *sweep.Options) { o.Holder = strings.Repeat("a", 33) },
		"loud holder":     func(o *sweep.Options) { o.Holder = "Abcdefgh" },
		"no interval":     func(o *sweep.Options) { o.Interval = 0 },
		"negative grace":  func(o *sweep.Options) { o.Grace = -1 },
	} {
		o := good
		edit(&o)
		if _, err := sweep.New(o); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

// TestStopKeepsQuiet: the end of the operator is no failed sweep.
func TestStopKeepsQuiet(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := begin(t, newFake(), setup{})
		pass(time.Second)
		b.fake.Mute("h1")
		b.s.Kick("fake")
		pass(5 * time.Second)
		b.stop()
		if r := b.report(); r.Err != nil || b.changes() != 1 {
			t.Errorf("report %+v, changed %d", r, b.changes())
		}
	})
}

var _ provider.Provider = (*logged)(nil)
