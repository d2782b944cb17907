package brokertest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/pool"
)

func viewPages(r *run) {
	p := of("win", many(600)...)
	for { // one transaction, which may take longer than the server waits on a busy machine
		_, err := r.root().Publish(r.ctx, p, nil)
		if err == nil {
			break
		}
		r.fault("Publish", err, fault.Timeout, fault.CodeOf(err))
	}
	r.publish(of("one", "x"))
	r.readWhole(p, "one", 120)
}

// readWhole reads a pool with more keys than a page has, and another one of one
// key for which n wait.
func (r *run) readWhole(p pool.Pool, one string, n int) {
	r.Helper()
	v := r.view(p.Name)
	var names []string
	for _, k := range v.Members {
		names = append(names, k.Name)
	}
	if !slices.Equal(names, p.Items) || v.Keys != len(p.Items) {
		r.Errorf("%d keys were read of %d, in order: %t", len(names), len(p.Items), slices.IsSorted(names))
	}
	r.take(r.ann(), one, client.TakeOptions{})
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	brokers := []broker.Broker{r.ann(), r.bob()}
	var all []*taking
	for i := range n {
		all = append(all, r.start(ctx, brokers[i%2], one, client.TakeOptions{Holder: fmt.Sprint("job ", i), Wait: time.Minute}))
	}
	r.waiting(one, n)
	waiters, err := r.bob().Waiters(r.ctx, one)
	r.must("Waiters", err)
	jobs := map[string]bool{}
	for i, w := range waiters {
		if w.Position != i+1 || w.Lost || w.Account != "ann" && w.Account != "bob" {
			r.Fatalf("waiter %d is shown as %+v", i, w)
		}
		jobs[w.Holder] = true
	}
	if len(waiters) != n || len(jobs) != n {
		r.Errorf("%d waiters and %d jobs are shown of %d", len(waiters), len(jobs), n)
	}
	cancel()
	for _, t := range all {
		if r.ended(t).err == nil {
			r.Errorf("a key came to %s, which is held", t.lease)
		}
	}
}

func viewPublished(r *run) {
	for name, p := range map[string]pool.Pool{
		"least":    {TTL: 5 * time.Second},
		"usual":    {Items: []string{"win-01"}, TTL: 10 * time.Minute, Cooldown: 30 * time.Second},
		"parts":    {Items: []string{"b", "a"}, TTL: 7500 * time.Millisecond, Cooldown: 1250 * time.Millisecond},
		"most":     {Items: many(50), TTL: 24 * time.Hour, Cooldown: 30 * 24 * time.Hour, Check: true, Reset: true},
		"check":    {Items: []string{"a"}, TTL: time.Minute, Check: true},
		"reset":    {Items: []string{"a"}, TTL: time.Minute, Reset: true},
		"A.odd_-1": {Items: []string{"A.odd_-1", "0"}, TTL: time.Minute},
	} {
		p.Name = name
		before := time.Now().Add(-5 * time.Second)
		done := r.publish(p)
		got := r.view(name).Published()
		if d := p.Differences(got.Pool); len(d) > 0 || got.Pool.Name != name {
			r.Errorf("%s: it differs from what was published: %v", name, d)
		}
		if got.Revision != 1 || done.Revision != 1 || got.By != "root" || got.At.Before(before) || got.At.After(time.Now().Add(5*time.Second)) {
			r.Errorf("%s: published as %d by %s at %v", name, got.Revision, got.By, got.At)
		}
	}
	all, err := r.ann().Pools(r.ctx)
	r.must("Pools", err)
	var names []string
	for _, p := range all {
		names = append(names, p.Name)
	}
	if want := []string{"A.odd_-1", "check", "least", "most", "parts", "reset", "usual"}; !slices.Equal(names, want) {
		r.Errorf("the pools are %v, want %v", names, want)
	}
}

func viewLeaving(r *run) {
	r.publish(of("win", "a"))
	l := r.take(r.ann(), "win", client.TakeOptions{})
	r.publish(of("win", "b"))
	k := r.key("win", "a")
	if len(k.Pools) != 0 || !slices.Equal(k.Leaving, []string{"win"}) || k.State != client.StateHeld {
		r.Errorf("a key that leaves is shown as %+v", k)
	}
	if got := r.view("win").Published().Pool.Items; !slices.Equal(got, []string{"b"}) {
		r.Errorf("the published list is %v", got)
	}
	// A key on another pool's list is on that one's alone.
	r.publish(of("mac", "a", "c"))
	if got := r.view("win").Published().Pool.Items; !slices.Equal(got, []string{"b"}) {
		r.Errorf("the published list is %v", got)
	}
	r.publish(of("mac", "c"))
	r.release(l, client.ReleaseRequest{})
	if k := r.key("win", "a"); k.Name != "" {
		r.Errorf("a key that left is still shown: %+v", k)
	}
}

func viewUnknown(r *run) {
	v, err := r.ann().Pool(r.ctx, "none")
	r.fault("Pool", err, fault.NotFound, "pool")
	w, err := r.ann().Waiters(r.ctx, "none")
	r.fault("Waiters", err, fault.NotFound, "pool")
	if len(v.Members) > 0 || len(w) > 0 {
		r.Error("something was returned besides the error")
	}
	if all, err := r.ann().Pools(r.ctx); err != nil || len(all) > 0 {
		r.Errorf("the pools of an empty database: %+v, %v", all, err)
	}
	r.publish(of("empty"))
	if w, err := r.ann().Waiters(r.ctx, "empty"); err != nil || len(w) > 0 {
		r.Errorf("nobody waits: %+v, %v", w, err)
	}
	r.noneFree(r.ann(), "empty", client.TakeOptions{})
}

func keepPublish(r *run) {
	zero, one := int64(0), int64(1)
	p := of("win", "a")
	done, err := r.root().Publish(r.ctx, p, &zero)
	if err != nil || done.Revision != 1 || done.Name != "win" || done.PublishedBy != "root" {
		r.Fatalf("a new pool: %+v, %v", done, err)
	}
	p.Items = []string{"b"}
	_, err = r.root().Publish(r.ctx, p, &zero)
	r.fault("as a new pool", err, fault.Conflict, "revision")
	if done, err := r.root().Publish(r.ctx, p, &one); err != nil || done.Revision != 2 {
		r.Fatalf("the next list: %+v, %v", done, err)
	}
	_, err = r.root().Publish(r.ctx, of("win", "c"), &one)
	r.fault("a stale revision", err, fault.Conflict, "revision")
	if got := r.view("win").Published(); !slices.Equal(got.Pool.Items, []string{"b"}) || got.Revision != 2 {
		r.Errorf("after a refusal the list is %+v", got)
	}
	for name, tc := range map[string]struct {
		p    pool.Pool
		code string
	}{
		"key":   {of("win", "a b"), "key"},
		"twice": {of("win", "a", "a"), "key"},
		"ttl":   {pool.Pool{Name: "win", Items: []string{"a"}, TTL: 25 * time.Hour}, "ttl"},
	} {
		_, err := r.root().Publish(r.ctx, tc.p, nil)
		r.fault(name, err, fault.Invalid, tc.code)
	}
}

func keepKeys(r *run) {
	r.publish(of("win", "a"))
	_, err := r.root().Disable(r.ctx, "win", "none", "x")
	r.fault("Disable an unknown key", err, fault.NotFound, "key")
	_, err = r.root().Enable(r.ctx, "none", "a")
	r.fault("Enable a key of no such pool", err, fault.NotFound, "pool")
	_, err = r.root().Force(r.ctx, "win", "a", client.ForceRequest{})
	r.fault("Force a free key", err, fault.Conflict, "not_held")

	l := r.take(r.ann(), "win", client.TakeOptions{})
	k, err := r.root().Disable(r.ctx, "win", "a", "boots into rescue mode")
	r.must("Disable", err)
	if k.Disabled == nil || k.Disabled.Reason != "boots into rescue mode" || k.Disabled.By != "root" || k.State != client.StateHeld {
		r.Errorf("disabled while it is held: %+v with %+v", k, k.Disabled)
	}
	_, err = r.root().Force(r.ctx, "win", "a", client.ForceRequest{Fence: l.Fence() + 1, Reason: "it hangs"})
	r.fault("Force another's lease", err, fault.Conflict, "fence")
	k, err = r.root().Force(r.ctx, "win", "a", client.ForceRequest{Fence: l.Fence(), Reason: "it hangs"})
	if err != nil || k.State != client.StateDisabled || k.Lease != nil {
		r.Errorf("Force: %+v, %v", k, err)
	}
	r.fault("its holder's renewal", l.Renew(r.ctx, client.RenewRequest{}), fault.Conflict, "lease_forced")
	_, err = l.Release(r.ctx, client.ReleaseRequest{})
	r.fault("its holder's release", err, fault.Conflict, "lease_forced")
	r.noneFree(r.ann(), "win", client.TakeOptions{})
	if k, err = r.root().Enable(r.ctx, "win", "a"); err != nil || k.State != client.StateFree || k.Disabled != nil {
		r.Errorf("Enable: %+v, %v", k, err)
	}
	l = r.take(r.ann(), "win", client.TakeOptions{})
	_, err = r.root().Force(r.ctx, "win", "a", client.ForceRequest{Reason: strings.Repeat("x", 513)})
	r.fault("too long a reason", err, fault.Invalid, "")
	if _, err = r.root().Force(r.ctx, "win", "a", client.ForceRequest{}); err != nil {
		r.Errorf("Force without a fence: %v", err)
	}
	r.fault("its holder's renewal", l.Renew(r.ctx, client.RenewRequest{}), fault.Conflict, "lease_forced")
}

func keepRole(r *run) {
	r.publish(of("win", "a"))
	r.take(r.ann(), "win", client.TakeOptions{})
	_, publish := r.ann().Publish(r.ctx, of("win", "b"), nil)
	_, disable := r.ann().Disable(r.ctx, "win", "a", "x")
	_, enable := r.ann().Enable(r.ctx, "win", "a")
	_, force := r.ann().Force(r.ctx, "win", "a", client.ForceRequest{})
	for what, err := range map[string]error{"Publish": publish, "Disable": disable, "Enable": enable, "Force": force} {
		if r.local {
			r.must(what, err)
			continue
		}
		r.fault(what, err, fault.Denied, "role")
	}
	if !r.local {
		r.state("win", "a", client.StateHeld)
	}
}
