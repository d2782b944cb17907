package brokertest

import (
	"slices"
	"strings"
	"sync"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/pool"
)

func placeSays(r *run) {
	p := r.ann().Place()
	if (p.Server == "") == (p.Path == "") {
		r.Errorf("it is at %+v: want a server or a path", p)
	}
	if want := map[bool]string{true: "ann"}[r.local]; p.Account != want {
		r.Errorf("the account is %q, want %q", p.Account, want)
	}
	if text := p.String(); !strings.Contains(text, p.Server+p.Path) || text == p.Server+p.Path {
		r.Errorf("for people it is %q", text)
	}
}

func prepareFirst(r *run) {
	p := of("win", "win-01", "win-02")
	p.Cooldown, p.Check, p.Reset = 1500*time.Millisecond, true, true
	err := r.ann().Prepare(r.ctx, p)
	if !r.local {
		r.fault("Prepare", err, fault.NotFound, "pool")
		for _, want := range []string{"pool win ", r.ann().Place().Server, "qasight pool publish win"} {
			if !strings.Contains(err.Error(), want) {
				r.Errorf("the text does not say %q: %v", want, err)
			}
		}
		// An admin is told the same: what is published is a decision.
		r.fault("an admin's Prepare", r.root().Prepare(r.ctx, p), fault.NotFound, "pool")
		if all, err := r.root().Pools(r.ctx); err != nil || len(all) > 0 {
			r.Errorf("something was published: %+v, %v", all, err)
		}
		r.publish(p)
		r.must("Prepare of a published pool", r.ann().Prepare(r.ctx, p))
	} else {
		r.must("Prepare", err)
	}
	v := r.view("win")
	if d := p.Differences(v.Published().Pool); len(d) > 0 || v.Revision != 1 || v.Kind != "fixed" {
		r.Errorf("it was prepared otherwise: %v, %+v", d, v.PoolStatus)
	}
	if l := r.take(r.ann(), "win", client.TakeOptions{RunsHooks: true}); l.Info().TTL.Duration() != p.TTL {
		r.Errorf("a lease is for %v, want %v", l.Info().TTL.Duration(), p.TTL)
	}
}

func prepareSame(r *run) {
	p := of("win", "win-02", "win-01", "win-03")
	r.publish(p)
	slices.Sort(p.Items) // the order is none
	for range 3 {
		r.must("Prepare", r.ann().Prepare(r.ctx, p))
		r.must("Prepare", r.bob().Prepare(r.ctx, p))
	}
	if v := r.view("win"); v.Revision != 1 || v.PublishedBy != "root" {
		r.Errorf("the same list was published again: revision %d by %s", v.Revision, v.PublishedBy)
	}
}

func prepareDiffers(r *run) {
	was := of("win", "win-01", "win-02")
	was.Reset, was.Cooldown = true, time.Second
	changes := map[string]func(p *pool.Pool){
		"one more": func(p *pool.Pool) { p.Items = append(p.Items, "win-03") },
		"one less": func(p *pool.Pool) { p.Items = p.Items[:1] },
		"others":   func(p *pool.Pool) { p.Items = []string{"win-08", "win-09"} },
		"none":     func(p *pool.Pool) { p.Items = nil },
		"ttl":      func(p *pool.Pool) { p.TTL = time.Hour },
		"cooldown": func(p *pool.Pool) { p.Cooldown = 0 },
		"check":    func(p *pool.Pool) { p.Check = true },
	}
	for name, change := range changes {
		r.publish(was)
		before := r.view("win").Revision
		p := was
		p.Items = slices.Clone(was.Items)
		change(&p)
		r.must(name, r.ann().Prepare(r.ctx, p))
		v := r.view("win")
		want, revision := was, before
		if r.local {
			want, revision = p, before+1
		}
		if d := want.Differences(v.Published().Pool); len(d) > 0 || v.Revision != revision {
			r.Errorf("%s: revision %d, want %d: %v", name, v.Revision, revision, d)
		}
	}
}

func prepareHooks(r *run) {
	for name, tc := range map[string]struct {
		check, reset bool // of the file
		lacks        string
	}{
		"neither": {false, false, "on_check"},
		"check":   {true, false, "on_reset"},
		"reset":   {false, true, "on_check"},
		"both":    {true, true, ""},
	} {
		published := of(name, "a")
		published.Check, published.Reset = true, true
		r.publish(published)
		file := of(name, "a")
		file.Check, file.Reset = tc.check, tc.reset
		err := r.ann().Prepare(r.ctx, file)
		if r.local || tc.lacks == "" {
			r.must(name, err)
			continue
		}
		r.fault(name, err, fault.Conflict, "hooks")
		if text := err.Error(); !strings.Contains(text, tc.lacks) || !strings.Contains(text, name) {
			r.Errorf("%s: the text does not name the pool and %s: %s", name, tc.lacks, text)
		}
		if d := published.Differences(r.view(name).Published().Pool); len(d) > 0 {
			r.Errorf("%s: something was published: %v", name, d)
		}
	}
}

func prepareTogether(r *run) {
	one, two := of("win", "win-01", "win-02"), of("win", "win-02", "win-03")
	two.TTL = time.Minute
	if !r.local { // there they meet an admin's list, which stays
		r.publish(one)
	}
	var all sync.WaitGroup
	errs := make(chan error, 80)
	for i, b := range []broker.Broker{r.ann(), r.bob(), r.root(), r.open("ann")} {
		file := []pool.Pool{one, two}[i%2]
		all.Go(func() {
			for range 20 {
				if err := b.Prepare(r.ctx, file); err != nil {
					errs <- err
				}
			}
		})
	}
	all.Wait()
	close(errs)
	for err := range errs {
		r.Errorf("Prepare: %v", err)
	}
	got := r.view("win").Published().Pool
	if len(one.Differences(got)) > 0 && (!r.local || len(two.Differences(got)) > 0) {
		r.Errorf("in the end neither list is there: %+v", got)
	}
}
