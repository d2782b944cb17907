package sweep

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"fleetdesk/internal/proxy/provider"
)

const (
	// shortest is the interval below which the time of one sweep does not sink:
	// two of it. A host that says nothing takes a good part of that.
	shortest = 10 * time.Second
	// freshFor is how long the Proxies, once read, are good enough to remove
	// by; then they are read again.
	freshFor = 30 * time.Second
	// pageFreshFor is the same of what is written down: it is little to read, and
	// a person who takes a word back expects to be heard.
	pageFreshFor = 5 * time.Second
)

// work is one sweep of one provider.
type work struct {
	s    *Sweeper
	name string
	sh   *sheet
	// last is the report of the sweep before; nil if there is none.
	last *Report

	p provider.Provider
	// claimedAt is when the claims were renewed, by the clock Elapsed, for
	// period, which is zero without.
	claimedAt, period time.Duration
	fresh             fresh
	// keep are the UIDs of which nothing was taken for a leftover.
	keep   []string
	plan   plan
	report Report
	// newcomers are live operators that nobody was told of.
	newcomers []string
	alive     int
}

// run reads, judges and removes; the report is whole afterwards.
func (w *work) run(ctx context.Context) {
	if err := w.look(ctx); err != nil {
		w.report.Err = err
		w.carry()
		return
	}
	w.remove(ctx)
	w.report.Instances, w.report.Unlisted = w.plan.instances, w.plan.unlisted
	w.report.Hash, w.report.Fuse = w.plan.hash, w.plan.fuse
	w.report.Items = make([]Item, 0, len(w.plan.findings))
	for _, f := range w.plan.findings {
		w.report.Items = append(w.report.Items, f.Item)
	}
	w.recall()
}

// carry takes over what the last sweep found: one that could not look says
// nothing of it, and it is not gone.
func (w *work) carry() {
	last := w.last
	if last == nil {
		return
	}
	w.report.Instances, w.report.Unlisted = last.Instances, last.Unlisted
	w.report.Hash, w.report.Fuse = last.Hash, last.Fuse
	for _, it := range last.Items {
		if it.Verdict != Removed {
			w.report.Items = append(w.report.Items, it)
		}
	}
}

// mute is what is said first of an item whose host did not answer.
const mute = "its host did not answer, and this is what was known"

// recall takes over what the last sweep found on hosts that did not answer now.
func (w *work) recall() {
	if w.last == nil {
		return
	}
	here, left := map[thing]bool{}, map[string]bool{}
	for i := range w.plan.findings {
		f := &w.plan.findings[i]
		here[f.thing()] = true
		if f.Left {
			left[f.UID] = true
		}
	}
	for _, it := range w.last.Items {
		_, written := w.fresh.page.Abandoned[it.UID]
		_, other := w.fresh.page.Elsewhere[it.UID]
		if it.Verdict == Removed || !w.plan.silent[silence{it.Host, it.What == Instance}] ||
			here[thing{it.Host, it.What, it.ID, it.UID}] || w.fresh.owners[it.UID] || left[it.UID] {
			continue
		}
		if it.Left = it.Left && (written || other); !it.Left && it.Verdict != Unreadable && it.Verdict != Failed {
			// Nobody judged it now.
			it.Verdict = Waiting
		}
		if !strings.HasPrefix(it.Message, mute) {
			it.Message = strings.TrimSuffix(mute+": "+it.Message, ": ")
		}
		w.report.Items = append(w.report.Items, it)
	}
	slices.SortStableFunc(w.report.Items, byPlace)
}

// limit bounds one call that looks: a host that says nothing must leave time
// for the others.
func (w *work) limit() time.Duration {
	return min(provider.StepLimit, max(w.s.o.Interval, shortest)/2)
}

// look reads all that the rules need, in the order that the package comment
// explains, and makes the plan.
func (w *work) look(ctx context.Context) error {
	var err error
	w.p, err = w.s.o.Providers.Lookup(w.name)
	if err != nil {
		w.claimed(nil, err)
		return err
	}
	// After Lookup: one that was replaced in between answers nothing any more.
	if epoch := w.s.o.Providers.Epoch(w.name); epoch != w.sh.epoch {
		// Its hosts' names may lead to other machines now, where nothing was
		// claimed yet and nobody seen.
		w.sh.epoch, w.sh.claims, w.sh.dead = epoch, claims{told: w.sh.claims.told}, nil
	}
	v := view{provider: w.name, installation: w.s.o.Installation, grace: w.s.o.Grace, dryRun: w.s.o.DryRun}
	v.bars = w.claim(ctx)
	call, cancel := context.WithTimeout(ctx, w.limit())
	v.hosts, err = w.p.ListByTag(call, w.s.o.Installation)
	cancel()
	if err != nil {
		return fmt.Errorf("list the instances: %w", err)
	}
	if err := w.read(ctx); err != nil {
		return err
	}
	v.owners, v.page = w.fresh.owners, w.fresh.page
	if c, ok := provider.As[provider.Cleaner](w.p); ok {
		call, cancel := context.WithTimeout(ctx, w.limit())
		w.keep = v.kept()
		v.leftovers, v.leftoversErr = c.Leftovers(call, w.s.o.Installation, w.keep)
		cancel()
		w.warn("a provider's leftovers could not be listed", v.leftoversErr)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("the sweep took too long to look: %w", err)
	}
	// Only now: nothing in the view is younger, so a grace counted from here is
	// never too short.
	v.now = time.Now()
	w.plan, w.sh.memory = judge(v, w.sh.memory)
	return nil
}

// claim renews the operator's own claims and returns where those of others, or
// the lack of its own, forbid removals.
func (w *work) claim(ctx context.Context) bars {
	c, ok := provider.As[provider.Claimer](w.p)
	if !ok {
		return bars{}
	}
	w.sh.beat++
	// A sweep that waits for mute hosts makes the next renewal late: what the
	// last one took is promised as well.
	w.period = (3*max(w.s.o.Interval, w.sh.lasted) + time.Millisecond - 1).Truncate(time.Millisecond)
	w.claimedAt = w.s.o.Elapsed()
	call, cancel := context.WithTimeout(ctx, w.limit())
	defer cancel()
	rows, err := c.Claim(call, provider.Claim{
		Installation: w.s.o.Installation, Holder: w.s.o.Holder,
		Beat: w.sh.beat, Period: w.period, Dead: w.sh.dead,
	})
	w.warn("a provider's hosts could not be claimed", err)
	return w.claimed(rows, err)
}

// claimed takes the answer of Claim over; err also stands for a claim that
// could not be asked for.
func (w *work) claimed(rows []provider.HostClaims, err error) bars {
	next, s := w.sh.claims.look(time.Now(), w.period, rows, err)
	w.sh.claims, w.sh.dead = next, s.dead
	w.report.Conflicts, w.newcomers = s.conflicts, s.fresh
	holders := map[string]bool{}
	for _, c := range s.conflicts {
		if c.Alive {
			holders[c.Holder] = true
		}
	}
	w.alive = len(holders)
	return s.bars
}

// fresh is what the book said last, and when the readings began, by the clock
// Elapsed.
type fresh struct {
	at     time.Duration
	pageAt time.Duration
	owners map[string]bool
	page   Page
	// err says why it could not be read again; it then stays so for this sweep.
	err error
}

// read reads the Proxies, and after them what is written down.
func (w *work) read(ctx context.Context) error {
	at := w.s.o.Elapsed()
	call, cancel := context.WithTimeout(ctx, w.limit())
	owners, err := w.s.o.Book.Owners(call)
	cancel()
	if err != nil {
		return fmt.Errorf("list the Proxies: %w", err)
	}
	if err := w.readPage(ctx); err != nil {
		return err
	}
	w.fresh.at, w.fresh.owners = at, owners
	return nil
}

// readPage reads what is written down alone.
func (w *work) readPage(ctx context.Context) error {
	at := w.s.o.Elapsed()
	call, cancel := context.WithTimeout(ctx, w.limit())
	defer cancel()
	page, err := w.s.o.Book.Page(call, w.name)
	if err != nil {
		return fmt.Errorf("read what is written down of the provider: %w", err)
	}
	w.fresh.pageAt, w.fresh.page = at, page
	return nil
}
