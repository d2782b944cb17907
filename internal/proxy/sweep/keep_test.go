package sweep_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/fake"
	"fleetdesk/internal/proxy/sweep"
)

// pages gives each provider a page of its own, as the real book does.
type pages struct{ *book }

func (p pages) Page(ctx context.Context, name string) (sweep.Page, error) {
	page, err := p.book.Page(ctx, name)
	if name == "fake" {
		return page, err
	}
	page.Elsewhere = map[string]string{}
	for uid := range page.Abandoned {
		page.Elsewhere[uid] = "fake"
	}
	page.Abandoned, page.Remove = nil, nil
	return page, err
}

// TestAbandonedUnderAnotherName: two providers reach one back end, and what one
// of them has written down is no orphan of the other.
func TestAbandonedUnderAnotherName(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newFake()
		b := begin(t, p, setup{options: func(o *sweep.Options) { o.Book = pages{o.Book.(*book)} }})
		b.in.put("other", p)
		b.fleet(6)
		p.Plant("h1", owner("left"))
		p.Litter("h1", "disk", "of-left", owner("left"))
		b.do(func() { b.abandoned["left"] = sweep.AbandonedInstance{Host: "h1"} })
		pass(3 * grace)
		if !b.has("left") || len(p.Litters()) != 1 {
			t.Fatalf("it is gone: %q", b.allEvents())
		}
		r, _ := b.s.Report("other")
		if len(r.Items) != 1 || r.Items[0].Verdict != sweep.Abandoned || !strings.HasSuffix(r.Items[0].Message, "written down in ProxyProvider fake") {
			t.Errorf("%+v", r.Items)
		}
	})
}

// TestHostThatLeadsElsewhere: a provider that was built anew is claimed and
// looked at anew, since its hosts' names may lead to other machines.
func TestHostThatLeadsElsewhere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		old, next := newFake(), newFake()
		b := begin(t, old, setup{})
		b.fleet(6)
		for _, in := range old.Machines() {
			next.Plant(in.Host, in.Owner)
		}
		old.Plant("h1", owner("lost"))
		next.Plant("h1", owner("lost"))
		pass(grace - 10*time.Second)
		b.in.put("fake", next)
		for range 300 {
			if pass(time.Second); len(next.Machines()) < 7 {
				break
			}
		}
		if n := next.Calls()["Claim"]; n < 2 || len(next.Machines()) != 6 {
			t.Errorf("%d machines are left after %d claims", len(next.Machines()), n)
		}
	})
}

// TestRecordOutlivesAWrongMachine: while a host's name leads elsewhere nothing
// is found there, and the record stays.
func TestRecordOutlivesAWrongMachine(t *testing.T) {
	bubble(t, func(t *testing.T) {
		old, wrong := newFake(), newFake()
		b := begin(t, old, setup{})
		b.fleet(6)
		for _, in := range old.Machines() {
			wrong.Plant(in.Host, in.Owner)
		}
		old.Plant("h1", owner("left"))
		b.do(func() { b.abandoned["left"] = sweep.AbandonedInstance{Host: "h1"} })
		pass(5 * interval)
		b.in.put("fake", wrong)
		pass(3 * grace)
		b.in.put("fake", old)
		pass(3 * grace)
		if !b.has("left") || len(b.struckUIDs()) != 0 {
			t.Errorf("struck %q, events %q", b.struckUIDs(), b.allEvents())
		}
	})
}

// trickle has each host answer some time after the one before.
type trickle struct {
	provider.Provider
	from time.Time
	step time.Duration
}

func (s trickle) ListByTag(ctx context.Context, installation string) ([]provider.HostList, error) {
	rows, err := s.Provider.ListByTag(ctx, installation)
	for r := range rows {
		if time.Since(s.from) < time.Duration(r)*s.step {
			rows[r].Instances, rows[r].Err = nil, context.DeadlineExceeded
		}
	}
	return rows, err
}

// TestFleetDoesNotTrickleAway: a cluster restored from an old backup has lost
// most Proxies, and its hosts come back one after the other. No host alone trips
// the fuse, and all of them do.
func TestFleetDoesNotTrickleAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var hosts []string
		for n := range 10 {
			hosts = append(hosts, fmt.Sprintf("h%02d", n))
		}
		f := fake.New(fake.Options{Hosts: hosts})
		b := begin(t, f, setup{wrap: func(p provider.Provider) provider.Provider { return trickle{p, time.Now(), 90 * time.Second} }})
		for n := range 100 {
			uid := fmt.Sprintf("own-%02d", n)
			f.Plant(hosts[n%10], owner(uid))
			if n%10 == 9 || n%10 == 0 && n < 80 {
				b.do(func() { b.owners[uid] = true })
			}
		}
		pass(2 * time.Hour)
		if n := len(f.Machines()); n < 80 || len(b.told("SweepHeld")) == 0 {
			t.Errorf("%d machines of 100 are left; held: %q", n, b.told("SweepHeld"))
		}
	})
}

// TestReleaseIsHeardWhenTakenBack in the middle of a sweep.
func TestReleaseIsHeardWhenTakenBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		bk := newBook()
		l := &logged{before: map[string]func(int){"Get": func(n int) {
			time.Sleep(2 * time.Second)
			if n == 8 {
				bk.do(func() { bk.release = "" })
			}
		}}}
		b := begin(t, newFake(), setup{wrap: l.around, book: bk})
		for n := range 60 {
			b.fake.Plant("h1", owner(fmt.Sprintf("lost-%03d", n)))
		}
		b.do(func() { b.owners["somebody"] = true })
		pass(grace + 5*interval)
		b.do(func() { b.release = b.report().Hash })
		pass(3 * grace)
		// Four at once, each two seconds long, and a page of at most five.
		if n := len(b.fake.Machines()); n < 60-8-4*4 || n == 60 || b.report().Hash == "" {
			t.Errorf("%d of 60 are left, hash %q", n, b.report().Hash)
		}
	})
}

// TestFailedSweepForgetsNothing of what the one before it found.
func TestFailedSweepForgetsNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := begin(t, newFake(), setup{})
		b.fleet(6)
		for n := range 5 {
			b.fake.Plant("h1", owner(fmt.Sprintf("lost-%03d", n)))
		}
		pass(grace + 5*interval)
		before := b.report()
		b.do(func() { b.fail["Owners"] = errors.New("away") })
		pass(5 * interval)
		after := b.report()
		if after.Err == nil || before.Hash == "" || after.Hash != before.Hash || after.Fuse != before.Fuse ||
			after.Orphans() != 5 || after.Instances != 11 || !after.Time.After(before.Time) {
			t.Errorf("%+v became %+v", before, after)
		}
	})
}

// TestRemovedIsToldOnce also when the next sweep fails.
func TestRemovedIsToldOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := begin(t, newFake(), setup{})
		b.fleet(6)
		b.fake.Plant("h1", owner("lost"))
		if it := b.until("lost"); it.Verdict != sweep.Removed {
			t.Fatalf("%+v", it)
		}
		b.do(func() { b.fail["Owners"] = errors.New("away") })
		b.s.Kick("fake")
		pass(2 * time.Second)
		if r := b.report(); r.Err == nil || len(r.Items) != 0 {
			t.Errorf("%+v", r)
		}
	})
}

// TestReleasedOnesAreNoTrickle: what a person let go does not hold back others.
func TestReleasedOnesAreNoTrickle(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newFake()
		b := begin(t, p, setup{})
		b.fleet(6)
		for i := range 8 {
			p.Plant("h2", owner(fmt.Sprint("lost-", i)))
		}
		pass(grace - interval)
		p.Plant("h2", owner("young"))
		pass(5 * interval)
		b.do(func() { b.release = b.report().Hash })
		pass(grace)
		if len(p.Machines()) != 6 || len(b.told("SweepHeld")) != 1 {
			t.Errorf("%d machines are left; %q", len(p.Machines()), b.allEvents())
		}
	})
}

// TestWrittenDownWhileLeftoversGo: the parts of an instance that is written down
// after they were taken for leftovers stay.
func TestWrittenDownWhileLeftoversGo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		bk := newBook()
		l := &logged{before: map[string]func(int){"Get": func(int) {
			time.Sleep(10 * time.Second)
			bk.do(func() { bk.elsewhere["late"] = "other" })
		}}}
		p := newFake()
		b := begin(t, p, setup{wrap: l.around, book: bk})
		b.fleet(6)
		p.Plant("h2", owner("lost"))
		p.Litter("h2", "disk", "of-late", owner("late"))
		p.Litter("h2", "image", "img", owner(""))
		pass(3 * grace)
		if b.has("lost") || len(p.Litters()) != 1 {
			t.Errorf("left are %v: %+v", p.Litters(), b.report().Items)
		}
	})
}

// TestMuteHostIsNotForgotten: what it had stays in the report, with a note that
// does not grow, and comes back as it is.
func TestMuteHostIsNotForgotten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newFake()
		b := begin(t, p, setup{})
		b.fleet(6)
		p.Plant("h2", owner("lost"))
		p.Plant("h2", owner("owned-later"))
		p.Plant("h2", owner("left"))
		p.Plant("h2", owner("asked"))
		p.Plant("h2", owner("forgotten"))
		p.Litter("h2", "image", "img", owner(""))
		b.do(func() {
			for _, uid := range []string{"left", "asked", "forgotten"} {
				b.abandoned[uid] = sweep.AbandonedInstance{}
			}
		})
		pass(3 * interval)
		b.do(func() { b.remove = []string{"asked"} })
		for b.has("asked") {
			pass(time.Second)
		}
		p.Break("h2", nil)
		b.do(func() { delete(b.abandoned, "forgotten") })
		b.do(func() { b.owners["owned-later"] = true })
		pass(4 * interval)
		const note = "its host did not answer"
		for id, want := range map[string]sweep.Verdict{"lost": sweep.Waiting, "img": sweep.Waiting, "owned-later": "", "left": sweep.Abandoned, "forgotten": sweep.Waiting, "asked": ""} {
			it := b.item(id)
			if it.Verdict != want || want == sweep.Waiting && strings.Count(it.Message, note) != 1 {
				t.Errorf("%s: %+v", id, it)
			}
		}
		if r := b.report(); r.Orphans() != 2 || r.Leftovers() != 1 || r.AbandonedCount() != 1 ||
			!slices.IsSortedFunc(r.Items, func(a, b sweep.Item) int { return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.What, b.What)) }) {
			t.Errorf("%+v", r)
		}
	})
}

// TestClaimsAreTakenBack at the end, and one host that says nothing keeps nobody
// for long.
func TestClaimsAreTakenBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newFake()
		b := begin(t, p, setup{})
		pass(2 * interval)
		if len(p.Claims("h1", ours)) != 1 || len(p.Claims("h2", ours)) != 1 {
			t.Fatal("there are no claims")
		}
		p.SetLatency("h2", time.Hour)
		before := time.Now()
		b.stop()
		if n := len(p.Claims("h1", ours)); n != 0 || time.Since(before) > 6*time.Second {
			t.Errorf("%d claims are left on h1 after %v", n, time.Since(before))
		}
	})
}

// TestFailuresKeepNobodyFromATurn: more than one sweep may take on fail for ever,
// and are the oldest.
func TestFailuresKeepNobodyFromATurn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := &logged{}
		p := newFake()
		for i := range 110 {
			p.Plant("h2", owner(fmt.Sprintf("stuck-%03d", i)))
		}
		l.swapGet = func(in provider.Instance, err error) (provider.Instance, error) {
			if strings.HasPrefix(in.Owner.UID, "stuck") {
				return in, fault.New(fault.Denied, "not yours")
			}
			return in, err
		}
		b := begin(t, p, setup{wrap: l.around})
		b.fleet(600)
		pass(2 * interval)
		for i := range 5 {
			p.Plant("h2", owner(fmt.Sprintf("young-%d", i)))
		}
		pass(grace + 5*interval)
		for i := range 5 {
			if uid := fmt.Sprintf("young-%d", i); b.has(uid) {
				t.Errorf("%s had no turn: %+v", uid, b.item(uid))
			}
		}
	})
}

// TestSleptThroughItsClaim: while the machine slept its claim grew old, and what
// it had read as well.
func TestSleptThroughItsClaim(t *testing.T) {
	for name, tc := range map[string]struct {
		slept time.Duration
		reads bool
		left  int
	}{
		"longer than its claim":    {time.Hour, false, 3},
		"longer than what it read": {time.Minute, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var slept, read atomic.Int64
				var once sync.Once
				bk := newBook()
				l := &logged{before: map[string]func(int){"Get": func(int) {
					once.Do(func() { slept.Store(int64(tc.slept)) })
				}}}
				clock := bubbleClock()
				b := begin(t, newFake(), setup{wrap: l.around, book: bk, options: func(o *sweep.Options) {
					o.Elapsed = func() time.Duration { return clock() + time.Duration(slept.Load()) }
				}})
				bk.before["Owners"] = func() {
					if slept.Load() > 0 {
						read.Add(1)
					}
				}
				b.fleet(60)
				for i := range 7 {
					b.fake.Plant("h2", owner(fmt.Sprintf("lost-%03d", i)))
				}
				for l.mostOf("Get") == 0 {
					pass(time.Second)
				}
				pass(10 * time.Second)
				if n := len(b.fake.Machines()) - 60; n < tc.left || tc.left == 0 && n > 0 || (read.Load() > 0) != tc.reads {
					t.Errorf("%d of 7 are left, the Proxies were read %d times again", n, read.Load())
				}
			})
		})
	}
}

// TestLogOfAHeldSet has all of it, once, in lines of at most a hundred; and an
// error that goes on is logged once.
func TestLogOfAHeldSet(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var mu sync.Mutex
		var text bytes.Buffer
		b := begin(t, newFake(), setup{options: func(o *sweep.Options) {
			o.Log = slog.New(slog.NewTextHandler(lockedWriter{&mu, &text}, nil))
		}})
		b.fleet(6)
		for i := range 250 {
			b.fake.Plant("h2", owner(fmt.Sprintf("lost-%03d", i)))
		}
		pass(grace + 10*interval)
		b.do(func() { b.fail["Page"] = errors.New("away") })
		pass(5 * interval)
		b.do(func() { b.fail["Page"] = errors.New("forbidden") })
		pass(5 * interval)
		b.do(func() { b.fail["Page"] = errors.New("away") })
		pass(5 * interval)
		b.do(func() { b.fail["Page"] = nil })
		pass(2 * interval)
		b.do(func() { b.fail["Page"] = errors.New("away") })
		pass(5 * interval)
		mu.Lock()
		defer mu.Unlock()
		lines, ids := 0, 0
		for line := range strings.Lines(text.String()) {
			if strings.Contains(line, "the fuse holds orphans back") {
				lines++
				ids += strings.Count(line, "fake://")
				if n := strings.Count(line, "fake://"); n > 100 || !strings.Contains(line, "of=250") || !strings.Contains(line, "hash="+b.report().Hash) {
					t.Errorf("%d in %s", n, line)
				}
			}
		}
		if lines != 3 || ids != 250 {
			t.Errorf("%d lines with %d instances", lines, ids)
		}
		if n := strings.Count(text.String(), "a sweep could not look"); n != 3 {
			t.Errorf("two errors, of which one came back after all was well, were logged %d times", n)
		}
	})
}

type lockedWriter struct {
	mu *sync.Mutex
	to *bytes.Buffer
}

func (w lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(p)
}
