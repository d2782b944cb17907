package providertest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// shortDeadline is a caller's deadline well below any limit of a provider.
const shortDeadline = 150 * time.Millisecond

func generalTests() []Subtest {
	return []Subtest{
		{Clauses: []string{"P-GEN-3"}, Title: "a call on a mute host ends with its context", Needs: []string{"MuteHost"}, run: honoursDeadline},
		{Clauses: []string{"P-GEN-4"}, Title: "an ended context: an error, and no effect", run: endedContext},
		{Clauses: []string{"P-GEN-6"}, Title: "many at once are all distinct", run: manyAtOnce},
		{Clauses: []string{"P-GEN-9"}, Title: "a new operator sees what the old one made", Needs: []string{"Reopen"}, run: survives},
		{Clauses: []string{"P-GEN-10"}, Title: "one host's outage does not stop the others", Needs: []string{"BreakHost", "MuteHost"}, run: othersGoOn},
		// Over all calls of the run, and after some that provoke.
		{Clauses: []string{"P-GEN-1"}, Title: "every error has a class", run: errorsClassed},
		{Clauses: []string{"P-GEN-2"}, Title: "every call is bounded, also on a mute host", Needs: []string{"MuteHost"}, run: bounded},
		{Clauses: []string{"P-GEN-5"}, Title: "no secret in a message or an error", Needs: []string{"Secrets"}, run: keepsSecrets},
		{Clauses: []string{"P-GEN-8"}, Title: "answers are well formed", run: wellFormed},
	}
}

// onHost calls every method that needs the host of in, concurrently, and
// returns their errors by name.
func (e env) onHost(ctx context.Context, s provider.Spec, in provider.Instance) map[string]error {
	fresh := s
	fresh.Owner = e.owner()
	calls := map[string]func() error{
		"Create of a new one":     func() error { _, err := e.p.Create(ctx, fresh); return err },
		"Create of an old one":    func() error { _, err := e.p.Create(ctx, s); return err },
		"Get by id":               func() error { _, err := e.p.Get(ctx, refOf(in)); return err },
		"Get by UID":              func() error { _, err := e.p.Get(ctx, provider.Ref{Owner: in.Owner}); return err },
		"Delete by UID":           func() error { _, err := e.p.Delete(ctx, provider.Ref{Owner: fresh.Owner}); return err },
		"Delete by UID and host":  func() error { _, err := e.p.Delete(ctx, provider.Ref{Owner: fresh.Owner, Host: s.Host}); return err },
		"ListByTag, or its rows":  func() error { return e.rowErr(ctx, s.Host) },
		"Delete by id, once more": func() error { _, err := e.p.Delete(ctx, refOf(in)); return err },
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	errs := map[string]error{}
	for name, call := range calls {
		wg.Go(func() {
			err := call()
			mu.Lock()
			defer mu.Unlock()
			errs[name] = err
		})
	}
	wg.Wait()
	return errs
}

// rowErr is the error of a listing, or of the host's row in it.
func (e env) rowErr(ctx context.Context, host string) error {
	rows, err := e.p.ListByTag(ctx, e.h.Installation)
	for _, r := range rows {
		if r.Host == host && err == nil {
			err = r.Err
		}
	}
	return err
}

func honoursDeadline(e env) {
	s, in := e.made(e.h.Hosts[0])
	mend := e.until(e.h.MuteHost(e.T, in.Host))
	for what, end := range map[string]func() (context.Context, context.CancelFunc){
		"deadline": func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(context.Background(), shortDeadline)
		},
		"cancel": func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(shortDeadline, cancel)
			return ctx, cancel
		},
	} {
		ctx, cancel := end()
		start := time.Now()
		errs := e.onHost(ctx, s, in)
		took := time.Since(start)
		cancel()
		if took > shortDeadline+e.h.Slack {
			e.Errorf("calls ended by %s after %v returned after %v", what, shortDeadline, took)
		}
		for name, err := range errs {
			e.wantClass(name+" on a mute host, ended by "+what, err, unreachable...)
		}
	}
	mend()
	if got, err := e.get(e.p, refOf(in)); err != nil || got.ID != in.ID {
		e.Errorf("Get once the host speaks again = %+v, %v", got, err)
	}
}

func endedContext(e env) {
	s, in := e.made("")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	start := time.Now()
	for name, err := range e.onHost(ctx, s, in) {
		if err == nil {
			e.Errorf("%s with an ended context gave no error", name)
		}
	}
	fresh := s
	fresh.Owner = e.owner()
	if _, err := e.p.Create(ctx, fresh); err == nil {
		e.Errorf("Create with an ended context gave no error")
	}
	if took := time.Since(start); took > e.h.Slack {
		e.Errorf("calls with an ended context took %v", took)
	}
	e.nothing(fresh.Owner)
	got, err := e.get(e.p, refOf(in))
	if err != nil {
		e.Fatalf("Get afterwards: %v", err)
	}
	e.equal("afterwards", got, in)
}

func manyAtOnce(e env) {
	specs := make([]provider.Spec, e.h.Many)
	for i := range specs {
		specs[i] = e.spec(e.owner(), "")
	}
	ins := make([]provider.Instance, len(specs))
	errs := make([]error, len(specs))
	var wg sync.WaitGroup
	for i, s := range specs {
		wg.Go(func() { ins[i], errs[i] = e.tryRunning(e.p, s) })
	}
	wg.Wait()
	ids, addresses := map[string]int{}, map[string]int{}
	for i, in := range ins {
		if errs[i] != nil {
			e.Fatalf("instance %d: %v", i, errs[i])
		}
		if in.Owner != specs[i].Owner {
			e.Errorf("instance %d carries %+v; want %+v", i, in.Owner, specs[i].Owner)
		}
		address := fmt.Sprintf("%s %d", in.Address, in.Port)
		if other, ok := ids[in.ID]; ok {
			e.Errorf("instances %d and %d have one id %q", other, i, in.ID)
		}
		if other, ok := addresses[address]; ok {
			e.Errorf("instances %d and %d have one address %s", other, i, address)
		}
		ids[in.ID], addresses[address] = i, i
	}
	for _, in := range ins {
		wg.Go(func() {
			if err := e.tryGone(e.p, refOf(in)); err != nil {
				e.Errorf("Delete of %s: %v", in.ID, err)
			}
		})
	}
	wg.Wait()
	for _, s := range specs {
		e.nothing(s.Owner)
	}
}

func survives(e env) {
	s, in := e.made("")
	p := e.reopened(true)
	got, err := e.get(p, refOf(in))
	if err != nil {
		e.Fatalf("Get by a new operator: %v", err)
	}
	e.equal("Get by a new operator", got, in)
	e.equal("Create by a new operator", e.running(p, s), in)
	e.single(p, in)
	e.gone(p, provider.Ref{Owner: s.Owner})
	if _, err := e.get(e.p, refOf(in)); provider.Class(err) != fault.NotFound {
		e.Errorf("the old one's Get after the new one's Delete: %v; want NotFound", err)
	}
}

func othersGoOn(e env) {
	if len(e.h.Hosts) < 2 {
		e.Logf("only one host; there are no others")
	}
	out, rest := e.h.Hosts[0], e.h.Hosts[1:]
	for what, harm := range map[string]func(T, string) func(){"broken": e.h.BreakHost, "mute": e.h.MuteHost} {
		mend := e.until(harm(e.T, out))
		for _, host := range rest {
			s := e.spec(e.owner(), host)
			in := e.running(e.p, s)
			if got, err := e.get(e.p, refOf(in)); err != nil || got.State != provider.Running {
				e.Errorf("Get on %s while %s is %s = %+v, %v", host, out, what, got, err)
			}
			if err := e.tryGone(e.p, refOf(in)); err != nil {
				e.Errorf("Delete on %s while %s is %s: %v", host, out, what, err)
			}
		}
		mend()
	}
}

// errorsClassed provokes the errors that any back end has; the rest were
// noted on the way here.
func errorsClassed(e env) {
	s := e.h.Spec(e.owner())
	s.Host = nowhere
	_, _ = e.place(e.p, s)
	_, _ = e.create(e.p, s)
	_, _ = e.get(e.p, provider.Ref{Owner: s.Owner})
	_, _ = e.get(e.p, provider.Ref{Owner: s.Owner, Host: nowhere})
	_, _ = e.remove(e.p, provider.Ref{Owner: s.Owner, Host: nowhere})
	for _, id := range append(e.h.UnknownIDs, e.h.MalformedIDs...) {
		_, _ = e.get(e.p, provider.Ref{ID: id, Owner: s.Owner})
	}
	if e.h.BreakHost != nil {
		good, in := e.made(e.h.Hosts[0])
		mend := e.until(e.h.BreakHost(e.T, in.Host))
		ctx, cancel := e.call()
		e.onHost(ctx, good, in)
		cancel()
		mend()
	}
	e.seen.report(e.T, "P-GEN-1")
}

func bounded(e env) {
	s, in := e.made(e.h.Hosts[0])
	mend := e.until(e.h.MuteHost(e.T, in.Host))
	// No deadline: the provider's own must hold.
	for name, err := range e.onHost(context.Background(), s, in) {
		e.wantClass(name+" on a mute host", err, unreachable...)
	}
	mend()
	e.seen.report(e.T, "P-GEN-2")
}

func keepsSecrets(e env) {
	s := e.spec(e.owner(), "")
	for i := range maxSteps {
		w := &wire{at: i}
		e.createUntil(e.p, s, w)
		if _, fired := w.hit(); !fired {
			break
		}
	}
	bad := s
	bad.Owner, bad.Host = e.owner(), nowhere
	_, _ = e.create(e.p, bad)
	_, _ = e.place(e.p, bad)
	in := e.running(e.p, s)
	_, _ = e.get(e.p, refOf(in))
	_, _ = e.list(e.p)
	if e.h.BreakHost != nil {
		mend := e.until(e.h.BreakHost(e.T, in.Host))
		_, _ = e.create(e.p, s)
		mend()
	}
	e.gone(e.p, refOf(in))
	e.seen.report(e.T, "P-GEN-5")
}

func wellFormed(e env) {
	s, in := e.made("")
	if _, err := e.get(e.p, refOf(in)); err != nil {
		e.Errorf("Get: %v", err)
	}
	e.listed(e.p, s.Owner)
	e.gone(e.p, refOf(in))
	e.seen.report(e.T, "P-GEN-8")
}
