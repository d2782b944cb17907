package sweep_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/fake"
	"fleetdesk/internal/proxy/sweep"
)

// until sweeps until the item has left Waiting.
func (b *bench) until(id string) sweep.Item {
	b.t.Helper()
	for range 2 * int(grace/time.Second) {
		pass(time.Second)
		if v := b.item(id).Verdict; v != "" && v != sweep.Waiting {
			return b.item(id)
		}
	}
	b.t.Fatalf("it goes on waiting: %+v", b.item(id))
	return sweep.Item{}
}

// TestLastLook: what Get says before a removal decides.
func TestLastLook(t *testing.T) {
	for name, tc := range map[string]struct {
		get     func(in provider.Instance, err error) (provider.Instance, error)
		verdict sweep.Verdict
		message string
	}{
		"as listed": {func(in provider.Instance, err error) (provider.Instance, error) { return in, err }, sweep.Removed, ""},
		"gone already": {func(provider.Instance, error) (provider.Instance, error) {
			return provider.Instance{}, fault.New(fault.NotFound, "none")
		}, sweep.Removed, "gone already"},
		"no answer": {func(provider.Instance, error) (provider.Instance, error) {
			return provider.Instance{}, fault.New(fault.Timeout, "mute")
		}, sweep.Failed, "mute"},
		"no answer to anybody": {func(provider.Instance, error) (provider.Instance, error) {
			return provider.Instance{}, fault.New(fault.Permanent, "not in the configuration")
		}, sweep.Failed, "not in the configuration"},
		"unreadable": {func(in provider.Instance, err error) (provider.Instance, error) {
			in.State = provider.Unknown
			return in, err
		}, sweep.Unreadable, "cannot be read"},
		"another's": {func(in provider.Instance, err error) (provider.Instance, error) {
			in.Owner.UID = "another"
			return in, err
		}, sweep.Failed, "something else"},
		"another installation's": {func(in provider.Instance, err error) (provider.Instance, error) {
			in.Owner.Installation = "another"
			return in, err
		}, sweep.Failed, "something else"},
		"another id": {func(in provider.Instance, err error) (provider.Instance, error) {
			in.ID = "fake://h2/ffffffff"
			return in, err
		}, sweep.Failed, "something else"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				l := &logged{swapGet: tc.get}
				b := begin(t, newFake(), setup{wrap: l.around})
				b.fleet(5)
				b.fake.Plant("h2", owner("lost"))
				it := b.until("lost")
				if it.Verdict != tc.verdict || !strings.Contains(it.Message, tc.message) {
					t.Errorf("%+v; want %s %q", it, tc.verdict, tc.message)
				}
				deleted := slices.Contains(l.log(), "Delete")
				if deleted != (name == "as listed") || len(b.goneUIDs()) != len(b.told("OrphanRemoved")) || (len(b.goneUIDs()) == 1) != (tc.verdict == sweep.Removed) {
					t.Errorf("deleted %v, gone %q, events %q", deleted, b.goneUIDs(), b.allEvents())
				}
			})
		})
	}
}

// TestAnswersOfDelete and what becomes of each.
func TestAnswersOfDelete(t *testing.T) {
	for name, tc := range map[string]struct {
		state   provider.State
		err     error
		verdict sweep.Verdict
		message string
		calls   int
	}{
		"slow":     {provider.Deleting, nil, sweep.Removing, "next sweep", 3},
		"refused":  {"", fault.New(fault.Denied, "no"), sweep.Failed, "no", 1},
		"left":     {provider.Abandoned, nil, sweep.Failed, "left the configuration", 1},
		"nonsense": {provider.Running, nil, sweep.Failed, "Running", 1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var mended atomic.Bool
				l := &logged{swapDelete: func(provider.State, error) (provider.State, error) {
					if !mended.Load() {
						return tc.state, tc.err
					}
					return "", nil
				}}
				b := begin(t, newFake(), setup{wrap: l.around})
				b.fleet(5)
				b.fake.Plant("h2", owner("lost"))
				it := b.until("lost")
				n := 0
				for _, c := range l.log() {
					if c == "Delete" {
						n++
					}
				}
				if it.Verdict != tc.verdict || !strings.Contains(it.Message, tc.message) || n != tc.calls {
					t.Errorf("%+v after %d calls; want %s %q after %d", it, n, tc.verdict, tc.message, tc.calls)
				}
				if b.report().Orphans() != 1 || len(b.allEvents()) != 0 {
					t.Errorf("%d orphans, events %q", b.report().Orphans(), b.allEvents())
				}
				mended.Store(true)
				pass(interval + 20*time.Second)
				if b.has("lost") || len(b.told("OrphanRemoved")) != 1 {
					t.Errorf("the next sweep did not go on: %+v", b.report())
				}
			})
		})
	}
}

// TestBounds: four at once and a hundred a sweep, the oldest first.
func TestBounds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := &logged{before: map[string]func(int){"Get": func(int) { time.Sleep(time.Second) }}}
		b := begin(t, newFake(), setup{wrap: l.around})
		b.fleet(600)
		for i := range 105 {
			b.fake.Plant("h2", owner(fmt.Sprintf("lost-%03d", i)))
		}
		it := b.until("lost-104")
		r := b.report()
		if it.Verdict != sweep.Due || r.Count(true, sweep.Removed) != 100 || r.Count(true, sweep.Due) != 5 || l.mostOf("Get") != 4 {
			t.Errorf("%d removed, %d due, %d at once; %+v", r.Count(true, sweep.Removed), r.Count(true, sweep.Due), l.mostOf("Get"), it)
		}
		pass(2 * interval)
		if n := len(b.fake.Machines()); n != 600 {
			t.Errorf("%d machines are left", n)
		}
	})
}

// TestLongSweepEnds: removals that take for ever are cut, so that the claims
// are renewed within the time that they promise.
func TestLongSweepEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := &logged{before: map[string]func(int){"Get": func(int) { time.Sleep(25 * time.Second) }}}
		var claims []time.Time
		l.before["Claim"] = func(int) { claims = append(claims, time.Now()) }
		b := begin(t, newFake(), setup{wrap: l.around})
		b.fleet(200)
		for i := range 30 {
			b.fake.Plant("h2", owner(fmt.Sprintf("lost-%03d", i)))
		}
		pass(2 * grace)
		longest := time.Duration(0)
		for i := range claims[1:] {
			longest = max(longest, claims[i+1].Sub(claims[i]))
		}
		if longest <= interval || longest > 3*interval {
			t.Errorf("the longest time between two claims was %v; it is promised to be at most %v, and the test wants a long one", longest, 3*interval)
		}
		if n := len(b.fake.Machines()); n != 200 {
			t.Errorf("%d machines are left", n)
		}
	})
}

// TestLeftovers go after their grace, one after another, told together; one
// that is taken in use meanwhile stays and waits anew.
func TestLeftovers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := begin(t, newFake(), setup{})
		b.fleet(1)
		for i := range 12 {
			b.fake.Litter("h1", "image", fmt.Sprintf("img-%02d", i), owner(""))
		}
		b.fake.Litter("h1", "disk", "kept", owner("own-00"))
		b.fake.Litter("h2", "disk", "left", owner("left"))
		b.fake.Litter("h2", "disk", "used", owner(""))
		b.do(func() { b.abandoned["left"] = sweep.AbandonedInstance{ProviderID: "fake://h2/0000000f", Host: "h9"} })
		b.fake.FailNext("RemoveLeftover", fault.New(fault.Conflict, "in use"))
		b.fake.FailNext("RemoveLeftover", fault.New(fault.Denied, "read-only"))
		pass(grace - interval)
		if n := len(b.fake.Litters()); n != 15 {
			t.Fatalf("within the grace %d are left", n)
		}
		b.until("img-02")
		if n := len(b.fake.Litters()); n != 4 {
			t.Errorf("%d are left: %+v", n, b.fake.Litters())
		}
		verdicts := map[sweep.Verdict]int{}
		for _, it := range b.report().Items {
			if it.What != sweep.Instance {
				verdicts[it.Verdict]++
			}
		}
		if verdicts[sweep.Removed] != 11 || verdicts[sweep.Waiting] != 1 || verdicts[sweep.Failed] != 1 {
			t.Errorf("verdicts %v", verdicts)
		}
		told := b.told("LeftoversRemoved")
		if len(told) != 1 || !strings.Contains(told[0], "11 removed") || !strings.HasSuffix(told[0], " and 1 more") || strings.Count(told[0], " on h") != 10 {
			t.Errorf("events %q", told)
		}
		if got, _ := b.metric("proxy_operator_sweep_removed_total"); got["fake,image"]+got["disk,fake"] != 11 {
			t.Errorf("removed %v", got)
		}
		pass(2 * interval)
		if n := len(b.fake.Litters()); n != 3 {
			t.Errorf("after the next sweep %d are left", n)
		}
		pass(grace)
		if n := len(b.fake.Litters()); n != 2 {
			t.Errorf("after another grace %d are left: %+v", n, b.report().Items)
		}
	})
}

// TestAbandonedAskedFor goes at once when a person names it, is told, and its
// record with it; nothing else goes early.
func TestAbandonedAskedFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := begin(t, newFake(), setup{})
		b.fleet(1)
		for _, uid := range []string{"left-1", "left-2", "lost"} {
			b.fake.Plant("h2", owner(uid))
		}
		b.do(func() {
			b.abandoned["left-1"], b.abandoned["left-2"] = sweep.AbandonedInstance{Host: "h2"}, sweep.AbandonedInstance{Host: "h2"}
		})
		pass(3 * grace)
		if !b.has("left-1") || b.report().AbandonedCount() != 2 {
			t.Fatalf("report %+v", b.report())
		}
		b.fake.Plant("h2", owner("lost-too"))
		b.do(func() { b.remove = []string{"left-1", "lost-too", "nobody"} })
		b.s.Kick("fake")
		pass(20 * time.Second)
		if b.has("left-1") || !b.has("left-2") || !b.has("lost-too") {
			t.Errorf("report %+v", b.report())
		}
		if !slices.Equal(b.struckUIDs(), []string{"left-1"}) || len(b.told("AbandonedRemoved")) != 1 {
			t.Errorf("struck %q, events %q", b.struckUIDs(), b.allEvents())
		}
	})
}

// TestStrike takes records away that a person named and of which nothing is
// there: Get must say so. One that nobody named stays, and says what to do.
func TestStrike(t *testing.T) {
	for name, tc := range map[string]struct {
		get    error
		asked  bool
		struck bool
	}{
		"gone":             {nil, false, false},
		"asked":            {nil, true, true},
		"no answer":        {fault.New(fault.Timeout, "mute"), false, false},
		"asked, no answer": {fault.New(fault.Timeout, "mute"), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				l := &logged{}
				if tc.get != nil {
					l.swapGet = func(in provider.Instance, _ error) (provider.Instance, error) { return in, tc.get }
				}
				b := begin(t, newFake(), setup{wrap: l.around})
				b.do(func() {
					b.abandoned["left"] = sweep.AbandonedInstance{ProviderID: "fake://h2/0000000f", Host: "h2"}
					if tc.asked {
						b.remove = []string{"left"}
					}
				})
				if pass(grace - interval); (len(b.struckUIDs()) > 0) != (tc.asked && tc.struck) {
					t.Errorf("within the grace %q were struck", b.struckUIDs())
				}
				pass(4 * grace)
				if (len(b.struckUIDs()) == 1) != tc.struck || (len(b.told("AbandonedRemoved")) == 1) != tc.struck {
					t.Errorf("struck %q, events %q: %+v", b.struckUIDs(), b.allEvents(), b.report().Items)
				}
				if it := b.item("left"); !tc.asked && !strings.HasSuffix(it.Message, ": kubectl annotate proxyprovider fake "+v1alpha1.RemoveAbandonedAnnotation+"=left --overwrite") {
					t.Errorf("%+v", it)
				}
				if slices.Contains(l.log(), "Delete") {
					t.Error("something was deleted")
				}
			})
		})
	}
}

// TestStrikeFails and is done by a later sweep.
func TestStrikeFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := begin(t, newFake(), setup{})
		b.fleet(1)
		b.fake.Plant("h2", owner("left"))
		b.do(func() {
			b.abandoned["left"], b.remove = sweep.AbandonedInstance{Host: "h2"}, []string{"left"}
			b.fail["Strike"] = errors.New("conflict")
		})
		pass(3 * interval)
		if b.has("left") || len(b.struckUIDs()) != 0 {
			t.Fatalf("report %+v", b.report())
		}
		b.do(func() { b.fail["Strike"] = nil })
		pass(2 * interval)
		if !slices.Equal(b.struckUIDs(), []string{"left"}) {
			t.Errorf("struck %q", b.struckUIDs())
		}
	})
}

// TestKilledAtEveryStep of Delete, a new operator over the same back end goes
// on, and nothing but the orphan is touched.
func TestKilledAtEveryStep(t *testing.T) {
	for k := 1; ; k++ {
		steps := 0
		bubble(t, func(t *testing.T) {
			p := newFake()
			bk := newBook()
			killed := make(chan struct{})
			first := begin(t, p, setup{holder: "a", book: bk, hook: func(step string) error {
				if step == "claim" || step == "unclaim" {
					return nil
				}
				if steps++; steps >= k {
					if steps == k {
						close(killed)
					}
					return context.Canceled
				}
				return nil
			}})
			go func() {
				select {
				case <-killed:
					first.cancel()
				case <-t.Context().Done():
				}
			}()
			first.fleet(5)
			p.Plant("h2", owner("lost"))
			p.Litter("h2", "image", "img", owner(""))
			pass(2 * grace)
			first.stop()
			second := begin(t, p.Reopen(), setup{holder: "b", book: bk})
			pass(3*grace + 9*interval)
			if second.has("lost") || len(p.Machines()) != 5 || len(p.Litters()) != 0 || len(p.Parts(owner("lost"))) != 0 {
				t.Errorf("killed at step %d: %+v, left %q", k, second.report(), p.Parts(owner("lost")))
			}
			if others := p.Claims("h1", ours); len(others) != 1 {
				t.Errorf("killed at step %d: the claims are %+v", k, others)
			}
		})
		if steps < k {
			if k < 7 {
				t.Errorf("only %d steps were met", steps)
			}
			return
		}
	}
}

// TestTwoOperators with one identity, each with Proxies of its own, notice each
// other before either removes anything, and go on when one of them is gone: soon
// after one that stopped, since it takes its claims back, and when its claims are
// old after one that was killed.
func TestTwoOperators(t *testing.T) {
	for name, tc := range map[string]struct {
		lag  time.Duration
		kill bool
	}{
		"at once":        {0, true},
		"a second later": {time.Second, false},
		"between":        {interval / 2, true},
		"later":          {3 * interval, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p := newFake()
				none := func(o *sweep.Options) { o.Grace = 0 }
				a := begin(t, p, setup{holder: "a", options: none})
				time.Sleep(tc.lag)
				var killed atomic.Bool
				c := begin(t, p.Reopen(), setup{holder: "b", options: none, hook: func(string) error {
					if killed.Load() {
						return errors.New("killed")
					}
					return nil
				}})
				for i, side := range []*bench{a, c} {
					for n := range 5 {
						uid := fmt.Sprintf("side-%d-%d", i, n)
						p.Plant([]string{"h1", "h2"}[n%2], owner(uid))
						side.do(func() { side.owners[uid] = true })
					}
				}
				// Three of the other's are within each one's fuse.
				for i, side := range []*bench{a, c} {
					for n := range 2 {
						side.do(func() { side.owners[fmt.Sprintf("side-%d-%d", 1-i, n)] = true })
					}
				}
				pass(20 * interval)
				if n := len(p.Machines()); n != 10 {
					t.Fatalf("%d of 10 machines are left", n)
				}
				for _, side := range []*bench{a, c} {
					r := side.report()
					if told := side.told("IdentityConflict"); len(told) != 1 || !strings.HasPrefix(told[0], "fake Warning ") || len(r.Conflicts) != 2 || !r.Conflicts[0].Alive {
						t.Errorf("events %q, conflicts %+v", side.allEvents(), r.Conflicts)
					}
					if r.Count(true, sweep.Held) != 3 {
						t.Errorf("items %+v", r.Items)
					}
					if got, _ := side.metric("proxy_operator_identity_conflicts"); got["fake"] != 1 {
						t.Errorf("conflicts %v", got)
					}
				}
				killed.Store(tc.kill)
				c.stop()
				if tc.kill {
					pass(8 * interval)
					if n := len(p.Machines()); n != 10 {
						t.Errorf("%d of 10 machines are left while the other may be alive", n)
					}
					pass(2 * interval)
				}
				pass(2 * interval)
				if n := len(p.Machines()); n != 7 {
					t.Errorf("%d machines are left after the other's death", n)
				}
				if len(a.report().Conflicts) != 0 || len(p.Claims("h1", ours)) != 1 {
					t.Errorf("conflicts %+v, claims %+v", a.report().Conflicts, p.Claims("h1", ours))
				}
			})
		})
	}
}

// TestClaimFails: without a claim nothing is removed.
func TestClaimFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := begin(t, newFake(), setup{options: func(o *sweep.Options) { o.Grace = 0 }})
		b.fleet(5)
		for range 10 {
			b.fake.FailNext("Claim", fault.New(fault.Quota, "the pool is full"))
		}
		b.fake.Plant("h2", owner("lost"))
		pass(5 * interval)
		if it := b.item("lost"); it.Verdict != sweep.Held || !strings.Contains(it.Message, "the pool is full") {
			t.Errorf("%+v", it)
		}
	})
}

// claimless is a provider whose hosts know no claims and no leftovers.
type claimless struct{ provider.Provider }

// TestWithoutClaims nothing waits for any.
func TestWithoutClaims(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := begin(t, newFake(), setup{
			wrap:    func(p provider.Provider) provider.Provider { return claimless{p} },
			options: func(o *sweep.Options) { o.Grace = 0 },
		})
		b.fleet(5)
		b.fake.Plant("h2", owner("lost"))
		pass(3 * interval)
		if b.has("lost") || b.fake.Calls()["Claim"] != 0 {
			t.Errorf("report %+v", b.report())
		}
	})
}

// TestPromise: the claim's period covers what the last sweep took.
func TestPromise(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := fake.New(fake.Options{Hosts: []string{"h1"}})
		begin(t, p, setup{options: func(o *sweep.Options) { o.Interval = time.Second + 1 }})
		pass(2 * time.Second)
		if got := p.Claims("h1", ours)[0].Period; got != 3001*time.Millisecond {
			t.Errorf("promised %v", got)
		}
		p.SetLatency("h1", 2*time.Second)
		pass(30 * time.Second)
		if got := p.Claims("h1", ours)[0].Period; got != 18*time.Second {
			t.Errorf("promised %v with sweeps of 6 s", got)
		}
	})
}

// TestOldClaimRemovesNothing: no removal begins later after the claim than the
// claim promised to be renewed.
func TestOldClaimRemovesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var claimed, late atomic.Int64
		l := &logged{before: map[string]func(int){
			"Claim": func(int) { claimed.Store(time.Now().UnixNano()) },
			"Get": func(int) {
				// The first sweep that removes has promised three intervals.
				if time.Duration(time.Now().UnixNano()-claimed.Load()) > 3*2*time.Second {
					late.Add(1)
				}
				time.Sleep(5 * time.Second)
			},
		}}
		b := begin(t, newFake(), setup{wrap: l.around, options: func(o *sweep.Options) { o.Interval = 2 * time.Second }})
		b.fleet(100)
		for i := range 20 {
			b.fake.Plant("h2", owner(fmt.Sprintf("lost-%03d", i)))
		}
		it := b.until("lost-019")
		if r := b.report(); late.Load() != 0 || it.Verdict != sweep.Due || r.Count(true, sweep.Removed) == 20 {
			t.Errorf("%d began late; %+v", late.Load(), it)
		}
	})
}

// TestDisabledProviderClaimsAnew: while it was, another operator may have come.
func TestDisabledProviderClaimsAnew(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := begin(t, newFake(), setup{options: func(o *sweep.Options) { o.Grace = 0 }})
		b.fleet(5)
		pass(3 * interval)
		b.fake.Plant("h2", owner("lost"))
		b.s.Kick("fake")
		set := func(err error) {
			b.in.mu.Lock()
			defer b.in.mu.Unlock()
			b.in.err = err
		}
		pass(2 * time.Second)
		set(fault.New(fault.Unavailable, "disabled"))
		b.s.Kick("fake")
		pass(2 * time.Second)
		set(nil)
		b.s.Kick("fake")
		pass(2 * time.Second)
		if it := b.item("lost"); it.Verdict != sweep.Held || !b.has("lost") {
			t.Errorf("%+v", it)
		}
	})
}

// TestUndecidedIsNoConflict in the gauge and the events.
func TestUndecidedIsNoConflict(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newFake()
		p.PlantClaim("h1", provider.Claim{Installation: ours, Holder: "other000", Beat: 1, Period: time.Hour})
		b := begin(t, p, setup{})
		pass(3 * interval)
		got, _ := b.metric("proxy_operator_identity_conflicts")
		if r := b.report(); got["fake"] != 0 || len(b.allEvents()) != 0 || len(r.Conflicts) != 1 || r.Conflicts[0].Alive {
			t.Errorf("gauge %v, events %q, conflicts %+v", got, b.allEvents(), r.Conflicts)
		}
	})
}

// TestTwinKeepsTheRecord: a UID's record stays while another instance of it is
// there, or may be on a host that did not answer.
func TestTwinKeepsTheRecord(t *testing.T) {
	for name, spoil := range map[string]func(p *fake.Provider, twin provider.Instance){
		"mute":       func(p *fake.Provider, _ provider.Instance) { p.Break("h1", nil) },
		"unreadable": func(p *fake.Provider, twin provider.Instance) { p.Impair(twin.ID) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p, l := newFake(), &logged{}
				twin := p.Plant("h1", owner("left"))
				p.Plant("h2", owner("left"))
				l.swapGet = func(in provider.Instance, err error) (provider.Instance, error) {
					if in.ID == twin.ID {
						in.State = provider.Unknown
					}
					return in, err
				}
				b := begin(t, p, setup{wrap: l.around})
				b.fleet(1)
				b.do(func() { b.abandoned["left"] = sweep.AbandonedInstance{Host: "h1"} })
				pass(3 * interval)
				spoil(p, twin)
				b.do(func() { b.remove = []string{"left"} })
				pass(3 * interval)
				if n := len(p.Machines()); n != 2 || len(b.struckUIDs()) != 0 {
					t.Errorf("%d machines, struck %q: %+v", n, b.struckUIDs(), b.report().Items)
				}
			})
		})
	}
}

// TestWithdrawn: a person takes a request back while others are removed.
func TestWithdrawn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, bk := newFake(), newBook()
		l := &logged{before: map[string]func(int){"Get": func(n int) {
			if n <= 4 {
				time.Sleep(29 * time.Second)
				bk.do(func() { bk.remove = nil })
			}
		}}}
		for i := range 5 {
			uid := fmt.Sprint("left-", i)
			p.Plant("h2", owner(uid))
			bk.abandoned[uid] = sweep.AbandonedInstance{Host: "h2"}
		}
		b := begin(t, p, setup{wrap: l.around, book: bk})
		b.fleet(1)
		pass(2 * interval)
		bk.do(func() { bk.remove = []string{"left-0", "left-1", "left-2", "left-3", "left-4"} })
		pass(3 * interval)
		if n := len(p.Machines()); n != 2 || !b.has("left-4") {
			t.Errorf("%d machines are left: %+v", n, b.report().Items)
		}
	})
}
