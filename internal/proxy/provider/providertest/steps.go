package providertest

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// maxSteps bounds the steps of one Create or Delete driven to its end.
const maxSteps = 200

func stepTests() []Subtest {
	remains := []string{"Remains"}
	reopen := []string{"Remains", "Reopen"}
	return []Subtest{
		{Clauses: []string{"P-CRE-3"}, Title: "failed at every step, repeating finishes", Needs: remains, run: func(e env) { createInterrupted(e, fail, false) }},
		{Clauses: []string{"P-CRE-4"}, Title: "cancelled at every step, repeating finishes", Needs: remains, run: func(e env) { createInterrupted(e, quit, false) }},
		{Clauses: []string{"P-CRE-5"}, Title: "the operator dies at every step, repeating finishes", Needs: reopen, run: func(e env) { createInterrupted(e, fail, true) }},
		{Clauses: []string{"P-CRE-8"}, Title: "what is half made carries the tag and is not called Running", Needs: remains, run: createTagged},
		{Clauses: []string{"P-DEL-5"}, Title: "failed or cancelled at every step, repeating finishes", Needs: remains, run: func(e env) {
			deleteInterrupted(e, fail, false)
			deleteInterrupted(e, quit, false)
		}},
		{Clauses: []string{"P-DEL-6"}, Title: "removes what a create left at every step", Needs: remains, run: deleteHalfMade},
		{Clauses: []string{"P-DEL-12"}, Title: "the operator dies at every step, repeating finishes", Needs: reopen, run: func(e env) { deleteInterrupted(e, fail, true) }},
		{Clauses: []string{"P-GEN-7"}, Title: "Create and Delete announce their steps, and end where the hook says", run: announcesSteps},
	}
}

// interruption is what happens to a call at the step chosen.
type interruption int

const (
	// fail ends the call by an error of the step.
	fail interruption = iota
	// quit cancels the call's context.
	quit
)

// wire is a hook that interrupts the call at step number at (from 0), counted
// over the calls of one drive.
type wire struct {
	at   int
	kind interruption

	mu     sync.Mutex
	n      int
	fired  bool
	step   string
	cancel context.CancelFunc
}

func (w *wire) arm(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	w.mu.Lock()
	w.cancel = cancel
	w.mu.Unlock()
	return provider.WithStepHook(ctx, w.hook), cancel
}

func (w *wire) hook(step string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fired {
		// The call goes on although it was told to end: it shall not get far.
		return fault.New(fault.Transient, "the suite ended this call at step "+w.step)
	}
	if w.n++; w.n-1 != w.at {
		return nil
	}
	w.fired, w.step = true, step
	if w.kind == quit {
		w.cancel()
		return nil
	}
	return fault.New(fault.Transient, "the suite ended this call here")
}

func (w *wire) hit() (string, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.step, w.fired
}

func (w *wire) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.n
}

// createUntil drives Create until the wire fires or the instance runs.
func (e env) createUntil(p provider.Provider, s provider.Spec, w *wire) {
	e.Helper()
	e.interrupted(w, "Create", func(ctx context.Context) (string, bool, error) {
		in, err := p.Create(ctx, s)
		return string(in.State), in.State == provider.Running, err
	})
}

// deleteUntil drives Delete until the wire fires or the instance is gone.
func (e env) deleteUntil(p provider.Provider, r provider.Ref, w *wire) {
	e.Helper()
	e.interrupted(w, "Delete", func(ctx context.Context) (string, bool, error) {
		st, err := p.Delete(ctx, r)
		return string(st), st == provider.Gone, err
	})
}

func (e env) interrupted(w *wire, method string, call func(context.Context) (state string, end bool, err error)) {
	e.Helper()
	err := e.rounds(func() (bool, error) {
		ctx, cancel := e.call()
		defer cancel()
		ctx, disarm := w.arm(ctx)
		defer disarm()
		state, end, err := call(ctx)
		if step, fired := w.hit(); fired {
			if err == nil {
				e.Errorf("%s went on (state %s) though it was ended at step %q: it must return that error", method, state, step)
			}
			return true, nil
		}
		if err != nil {
			return !slices.Contains(again, provider.Class(err)), err
		}
		if end {
			return true, nil
		}
		return false, fmt.Errorf("still %s", state)
	})
	if err != nil {
		e.Fatalf("driving %s: %v", method, err)
	}
}

// eachStep calls f with a wire for step 0, 1, … until one does not fire.
func (e env) eachStep(kind interruption, f func(w *wire) (step string, fired bool)) {
	e.Helper()
	for i := range maxSteps {
		step, fired := f(&wire{at: i, kind: kind})
		if e.Failed() {
			e.Fatalf("that was with an interruption at step %d %q", i, step)
		}
		if !fired {
			if i == 0 {
				e.Fatalf("no step was announced: call provider.Step before each write")
			}
			return
		}
	}
	e.Fatalf("more than %d steps", maxSteps)
}

func (e env) reopened(yes bool) provider.Provider {
	if !yes {
		return e.p
	}
	return e.watch(e.h.Reopen(e.T))
}

func createInterrupted(e env, kind interruption, crash bool) {
	e.wholeParts()
	e.eachStep(kind, func(w *wire) (string, bool) {
		s := e.spec(e.owner(), "")
		e.createUntil(e.p, s, w)
		_, fired := w.hit()
		p := e.reopened(crash && fired)
		in := e.running(p, s)
		e.single(p, in)
		e.gone(p, refOf(in))
		return w.hit()
	})
}

func deleteInterrupted(e env, kind interruption, crash bool) {
	e.eachStep(kind, func(w *wire) (string, bool) {
		_, in := e.made("")
		e.deleteUntil(e.p, refOf(in), w)
		_, fired := w.hit()
		p := e.reopened(crash && fired)
		e.gone(p, refOf(in))
		return w.hit()
	})
}

// deleteHalfMade deletes by UID, as the reconciler does when Create's answer
// never arrived; with the host known, and without.
func deleteHalfMade(e env) {
	e.eachStep(fail, func(w *wire) (string, bool) {
		s := e.spec(e.owner(), "")
		e.createUntil(e.p, s, w)
		host := s.Host
		if w.at%2 == 1 {
			host = ""
		}
		e.gone(e.p, provider.Ref{Owner: s.Owner, Host: host})
		return w.hit()
	})
}

func createTagged(e env) {
	e.eachStep(fail, func(w *wire) (string, bool) {
		s := e.spec(e.owner(), "")
		e.createUntil(e.p, s, w)
		listed := e.listed(e.p, s.Owner)
		got, err := e.get(e.p, provider.Ref{Owner: s.Owner, Host: s.Host})
		switch {
		case err != nil && provider.Class(err) != fault.NotFound:
			e.Errorf("Get of a half-made instance: %v", err)
		case err != nil && len(listed) != 0:
			e.Errorf("Get says NotFound of a half-made instance that is listed: %+v", listed)
		case err == nil && len(listed) != 1:
			e.Errorf("Get finds a half-made instance that is listed %d times: %+v", len(listed), got)
		}
		if err == nil {
			listed = append(listed, got)
		}
		for _, in := range listed {
			if in.Owner != s.Owner {
				e.Errorf("half made for %+v, it carries the tag %+v", s.Owner, in.Owner)
			}
		}
		if _, fired := w.hit(); fired && err == nil && got.State == provider.Running {
			// A step may come after the machine runs; then it must be whole.
			if again, err := e.create(e.p, s); err != nil || again.State != provider.Running || again.Address != got.Address {
				e.Errorf("Get called it Running at %q; Create then said %+v, %v", got.Address, again, err)
			}
		}
		e.gone(e.p, provider.Ref{Owner: s.Owner})
		return w.hit()
	})
}

func announcesSteps(e env) {
	s := e.spec(e.owner(), "")
	w := &wire{at: -1}
	e.createUntil(e.p, s, w)
	if w.count() == 0 {
		e.Errorf("Create announced no step: call provider.Step before each write")
	}
	w = &wire{at: -1}
	e.deleteUntil(e.p, provider.Ref{Owner: s.Owner, Host: s.Host}, w)
	if w.count() == 0 {
		e.Errorf("Delete announced no step: call provider.Step before each write")
	}
	// A hook that always refuses: nothing may come to be.
	s = e.spec(e.owner(), "")
	ctx, cancel := e.call()
	defer cancel()
	refuse := fault.New(fault.Quota, "the suite refuses every step")
	_, err := e.p.Create(provider.WithStepHook(ctx, func(string) error { return refuse }), s)
	e.wantClass("Create with every step refused", err, fault.Quota)
	e.nothing(s.Owner)
}
