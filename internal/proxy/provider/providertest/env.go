package providertest

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// env is one subtest's surroundings: its T, and the suite.
type env struct {
	T
	*suite
}

// unreachable are the classes that say a host did not answer.
var unreachable = []fault.Class{fault.Transient, fault.Timeout, fault.Unavailable}

// again are the classes after which the reconciler repeats a call soon.
var again = append([]fault.Class{fault.Conflict}, unreachable...)

func uuid() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// owner returns an owner that nobody else has. What is made for it is removed
// at the end of the subtest.
func (e env) owner() provider.Owner {
	uid := uuid()
	return e.adopt(provider.Owner{Installation: e.h.Installation, Namespace: "suite", Name: "p-" + uid[:8], UID: uid})
}

// adopt arranges the removal of what is made for o.
func (e env) adopt(o provider.Owner) provider.Owner {
	e.Cleanup(func() {
		if err := e.tryGone(e.p, provider.Ref{Owner: o}); err != nil {
			e.Errorf("clean-up: deleting what the subtest made for %s: %v", o.UID, err)
		}
	})
	return o
}

// spec returns a spec for o on the host that Place chose; wish narrows it.
func (e env) spec(o provider.Owner, wish string) provider.Spec {
	e.Helper()
	s := e.h.Spec(o)
	s.Host = wish
	host, err := e.place(e.p, s)
	if err != nil {
		e.Fatalf("Place(host %q): %v", wish, err)
	}
	s.Host = host
	return s
}

// call bounds one call of the provider as the reconciler does.
func (e env) call() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), e.h.StepLimit+e.h.Slack)
}

func (e env) place(p provider.Provider, s provider.Spec) (string, error) {
	ctx, cancel := e.call()
	defer cancel()
	return p.Place(ctx, s)
}

func (e env) create(p provider.Provider, s provider.Spec) (provider.Instance, error) {
	ctx, cancel := e.call()
	defer cancel()
	return p.Create(ctx, s)
}

func (e env) get(p provider.Provider, r provider.Ref) (provider.Instance, error) {
	ctx, cancel := e.call()
	defer cancel()
	return p.Get(ctx, r)
}

func (e env) remove(p provider.Provider, r provider.Ref) (provider.State, error) {
	ctx, cancel := e.call()
	defer cancel()
	return p.Delete(ctx, r)
}

func (e env) list(p provider.Provider) ([]provider.HostList, error) {
	ctx, cancel := e.call()
	defer cancel()
	return p.ListByTag(ctx, e.h.Installation)
}

// rounds repeats f until it reports done, with pauses from 1 ms up to 100 ms,
// for at most Patience; then it returns f's last word.
func (e env) rounds(f func() (done bool, err error)) error {
	end := time.Now().Add(e.h.Patience)
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		done, err := f()
		if done {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("not within %v: %w", e.h.Patience, err)
		}
		time.Sleep(pause)
	}
}

// tryRunning repeats Create until Running.
func (e env) tryRunning(p provider.Provider, s provider.Spec) (in provider.Instance, err error) {
	err = e.rounds(func() (bool, error) {
		var err error
		in, err = e.create(p, s)
		switch {
		case err != nil:
			return !slices.Contains(again, provider.Class(err)), err
		case in.State == provider.Running:
			return true, nil
		case in.State == provider.Provisioning, in.State == provider.Stopped, in.State == provider.Deleting:
			return false, fmt.Errorf("still %s (%s)", in.State, in.Message)
		}
		return true, fmt.Errorf("Create returned state %q (%s)", in.State, in.Message)
	})
	return in, err
}

// running repeats Create until Running, or ends the subtest.
func (e env) running(p provider.Provider, s provider.Spec) provider.Instance {
	e.Helper()
	in, err := e.tryRunning(p, s)
	if err != nil {
		e.Fatalf("driving Create to Running: %v", err)
	}
	return in
}

// made makes an instance on the wished host, any for "".
func (e env) made(wish string) (provider.Spec, provider.Instance) {
	e.Helper()
	s := e.spec(e.owner(), wish)
	return s, e.running(e.p, s)
}

// tryGone repeats Delete until Gone.
func (e env) tryGone(p provider.Provider, r provider.Ref) error {
	return e.rounds(func() (bool, error) {
		st, err := e.remove(p, r)
		switch {
		case err != nil:
			return !slices.Contains(again, provider.Class(err)), err
		case st == provider.Gone:
			return true, nil
		case st == provider.Deleting:
			return false, fmt.Errorf("still %s", st)
		}
		return true, fmt.Errorf("Delete returned state %q; only Gone and Deleting are its answers", st)
	})
}

// gone repeats Delete until Gone and looks that nothing is left.
func (e env) gone(p provider.Provider, r provider.Ref) {
	e.Helper()
	if err := e.tryGone(p, r); err != nil {
		e.Fatalf("driving Delete to Gone: %v", err)
	}
	e.nothing(r.Owner)
}

// nothing fails unless the back end and the list hold nothing of o.
func (e env) nothing(o provider.Owner) {
	e.Helper()
	if left := e.remains(o); len(left) > 0 {
		e.Errorf("left in the back end for %s: %s", o.UID, strings.Join(left, ", "))
	}
	if got := e.listed(e.p, o); len(got) > 0 {
		e.Errorf("still listed for %s: %+v", o.UID, got)
	}
}

func (e env) remains(o provider.Owner) []string {
	e.Helper()
	if e.h.Remains == nil {
		return nil
	}
	return e.h.Remains(e.T, o)
}

// whole lists, and ends the subtest unless each host has one whole row.
func (e env) whole(p provider.Provider) map[string][]provider.Instance {
	e.Helper()
	rows, err := e.list(p)
	if err != nil {
		e.Fatalf("ListByTag: %v", err)
	}
	hosts := e.rows(rows)
	all := map[string][]provider.Instance{}
	for h, row := range hosts {
		if row.Err != nil {
			e.Fatalf("ListByTag: host %s: %v", h, row.Err)
		}
		all[h] = row.Instances
	}
	return all
}

// rows fails unless there is exactly one row for each host.
func (e env) rows(rows []provider.HostList) map[string]provider.HostList {
	e.Helper()
	hosts := map[string]provider.HostList{}
	for _, r := range rows {
		if _, twice := hosts[r.Host]; twice {
			e.Errorf("ListByTag: host %q has two rows", r.Host)
		}
		if !slices.Contains(e.h.Hosts, r.Host) {
			e.Errorf("ListByTag: row for host %q, which the provider does not have", r.Host)
		}
		if r.Err != nil && len(r.Instances) > 0 {
			e.Errorf("ListByTag: host %q has an error and %d instances; a list is whole or an error", r.Host, len(r.Instances))
		}
		hosts[r.Host] = r
	}
	for _, h := range e.h.Hosts {
		if _, ok := hosts[h]; !ok {
			e.Errorf("ListByTag: no row for host %q", h)
		}
	}
	return hosts
}

// listed returns what the list shows for o's UID.
func (e env) listed(p provider.Provider, o provider.Owner) []provider.Instance {
	e.Helper()
	var got []provider.Instance
	for _, ins := range e.whole(p) {
		for _, in := range ins {
			if in.Owner.UID == o.UID {
				got = append(got, in)
			}
		}
	}
	return got
}

// single fails unless in is the one instance of its owner: in the list, and in
// the back end, which holds no more parts than an undisturbed one has.
func (e env) single(p provider.Provider, in provider.Instance) {
	e.Helper()
	got := e.listed(p, in.Owner)
	if len(got) != 1 {
		e.Errorf("%d instances are listed for %s; want one: %+v", len(got), in.Owner.UID, got)
	} else if got[0].ID != in.ID {
		e.Errorf("the list shows id %q; Create said %q", got[0].ID, in.ID)
	}
	if e.h.Remains == nil {
		return
	}
	want := e.wholeParts()
	if parts := e.remains(in.Owner); len(parts) != want {
		e.Errorf("the back end holds %d things for %s; an undisturbed instance has %d: %s",
			len(parts), in.Owner.UID, want, strings.Join(parts, ", "))
	}
}

// wholeParts measures once how many things a running instance consists of.
func (e env) wholeParts() int {
	e.Helper()
	if e.parts == 0 {
		s, in := e.made("")
		e.parts = len(e.remains(s.Owner))
		if e.parts == 0 {
			e.Fatalf("Remains names nothing for a running instance: the harness would notice no leftover")
		}
		e.gone(e.p, provider.Ref{ID: in.ID, Owner: s.Owner})
	}
	return e.parts
}

// until registers mend for the end of the subtest and returns it; it may be
// called twice.
func (e env) until(mend func()) func() {
	once := sync.OnceFunc(mend)
	e.Cleanup(once)
	return once
}

// wantClass fails unless err has one of the classes.
func (e env) wantClass(what string, err error, want ...fault.Class) {
	e.Helper()
	switch {
	case err == nil:
		e.Errorf("%s: no error; want class %v", what, want)
	case !slices.Contains(want, provider.Class(err)):
		e.Errorf("%s: class %s; want %v: %v", what, provider.Class(err), want, err)
	case len(want) > 0 && !fault.Classed(err) && !own(err):
		e.Errorf("%s: nobody classed this error: %v", what, err)
	}
}

// refOf is the reference by ID.
func refOf(in provider.Instance) provider.Ref {
	return provider.Ref{ID: in.ID, Owner: in.Owner, Host: in.Host}
}
