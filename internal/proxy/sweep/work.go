package sweep

import (
	"context"
	"fmt"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

const (
	// shortest is the interval below which the time of one sweep does not sink:
	// two of it. A host that says nothing takes a good part of that.
	shortest = 10 * time.Second
	// freshFor is how long the Proxies, once read, are good enough to remove
	// by; then they are read again.
	freshFor = 30 * time.Second
)

// work is one sweep of one provider.
type work struct {
	s    *Sweeper
	name string
	sh   *sheet

	p provider.Provider
	// claimedAt is when the claims were renewed, for period; zero without.
	claimedAt time.Time
	period    time.Duration
	fresh     fresh
	plan      plan
	report    Report
	// newcomers are live operators that nobody was told of.
	newcomers []string
	alive     int
}

// run reads, judges and removes; the report is whole afterwards.
func (w *work) run(ctx context.Context) {
	if err := w.look(ctx); err != nil {
		w.report.Err = err
		return
	}
	w.remove(ctx)
	w.report.Instances, w.report.Unlisted = w.plan.instances, w.plan.unlisted
	w.report.Hash, w.report.Fuse = w.plan.hash, w.plan.fuse
	w.report.Items = make([]Item, 0, len(w.plan.findings))
	for _, f := range w.plan.findings {
		w.report.Items = append(w.report.Items, f.Item)
	}
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
	v := view{installation: w.s.o.Installation, grace: w.s.o.Grace, dryRun: w.s.o.DryRun}
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
		v.leftovers, v.leftoversErr = c.Leftovers(call, w.s.o.Installation, v.kept())
		cancel()
		if v.leftoversErr != nil {
			w.s.o.Log.Warn("a provider's leftovers could not be listed", "provider", w.name,
				"class", string(fault.Of(v.leftoversErr)), "error", v.leftoversErr)
		}
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
	w.claimedAt = time.Now()
	call, cancel := context.WithTimeout(ctx, w.limit())
	defer cancel()
	rows, err := c.Claim(call, provider.Claim{
		Installation: w.s.o.Installation, Holder: w.s.o.Holder,
		Beat: w.sh.beat, Period: w.period, Dead: w.sh.dead,
	})
	if err != nil {
		w.s.o.Log.Warn("a provider's hosts could not be claimed", "provider", w.name, "class", string(fault.Of(err)), "error", err)
	}
	return w.claimed(rows, err)
}

// claimed takes the answer of Claim over; err also stands for a claim that
// could not be asked for.
func (w *work) claimed(rows []provider.HostClaims, err error) bars {
	next, s := w.sh.claims.look(time.Now(), rows, err)
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

// fresh is what the book said last, and when the reading began.
type fresh struct {
	at     time.Time
	owners map[string]bool
	page   Page
	// err says why it could not be read again; it then stays so for this sweep.
	err error
}

// read reads the Proxies, and after them what is written down.
func (w *work) read(ctx context.Context) error {
	at := time.Now()
	call, cancel := context.WithTimeout(ctx, w.limit())
	owners, err := w.s.o.Book.Owners(call)
	cancel()
	if err != nil {
		return fmt.Errorf("list the Proxies: %w", err)
	}
	call, cancel = context.WithTimeout(ctx, w.limit())
	defer cancel()
	page, err := w.s.o.Book.Page(call, w.name)
	if err != nil {
		return fmt.Errorf("read what is written down of the provider: %w", err)
	}
	w.fresh = fresh{at: at, owners: owners, page: page}
	return nil
}
