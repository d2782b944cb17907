package providertest

import (
	"strings"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

func createTests() []Subtest {
	return []Subtest{
		{Clauses: []string{"P-CRE-1"}, Title: "idempotent by UID", run: createTwice},
		{Clauses: []string{"P-CRE-2"}, Title: "concurrent calls for one UID make one instance", run: createTogether},
		{Clauses: []string{"P-CRE-6"}, Title: "starts a stopped instance with the same id", Needs: []string{"Stop"}, run: createStopped},
		{Clauses: []string{"P-CRE-7"}, Title: "makes a vanished instance again", Needs: []string{"Vanish"}, run: createVanished},
		{Clauses: []string{"P-CRE-9"}, Title: "a running instance is complete and carries its owner", run: createComplete},
		{Clauses: []string{"P-CRE-10"}, Title: "a host that is not configured is Permanent or Invalid and nothing is made", run: createNowhere},
		{Clauses: []string{"P-CRE-11"}, Title: "any legal name, also of the greatest length", run: createLongNames},
		{Clauses: []string{"P-CRE-12"}, Title: "an unreadable instance gets no second beside it", Needs: []string{"Corrupt"}, run: createUnreadable},
		{Clauses: []string{"P-CRE-13"}, Title: "a broken host fails for now and converges once it answers", Needs: []string{"BreakHost"}, run: createBroken},
		{Clauses: []string{"P-CRE-14"}, Title: "an impaired instance is shown and left alone", Needs: []string{"Impair"}, run: createImpaired},
	}
}

func createTwice(e env) {
	s, in := e.made("")
	for range 3 {
		again, err := e.create(e.p, s)
		if err != nil {
			e.Fatalf("Create of a running instance: %v", err)
		}
		if again.ID != in.ID || again.State != provider.Running || again.Address != in.Address || again.Port != in.Port {
			e.Errorf("Create again = %+v; the first said %+v", again, in)
		}
	}
	e.single(e.p, in)
}

func createTogether(e env) {
	s := e.spec(e.owner(), "")
	ins := make([]provider.Instance, e.h.Many)
	errs := make([]error, e.h.Many)
	together := meeting(e.h.Many)
	var wg sync.WaitGroup
	for i := range ins {
		wg.Go(func() {
			ctx, cancel := e.call()
			_, _ = e.p.Create(provider.WithStepHook(ctx, together()), s)
			cancel()
			ins[i], errs[i] = e.tryRunning(e.p, s)
		})
	}
	wg.Wait()
	for i := range ins {
		if errs[i] != nil {
			e.Errorf("caller %d: %v", i, errs[i])
		} else if ins[i].ID != ins[0].ID {
			e.Errorf("caller %d got id %q, caller 0 %q", i, ins[i].ID, ins[0].ID)
		}
	}
	if !e.Failed() {
		e.single(e.p, ins[0])
	}
}

// meeting returns hooks for n callers: each waits at its first step until all
// have come there, or for a moment, since a provider may let in one at a time.
// So calls overlap that would otherwise run one after another.
func meeting(n int) func() func(string) error {
	var mu sync.Mutex
	came, all := 0, make(chan struct{})
	return func() func(string) error {
		once := sync.OnceFunc(func() {
			mu.Lock()
			if came++; came == n {
				close(all)
			}
			mu.Unlock()
			select {
			case <-all:
			case <-time.After(20 * time.Millisecond):
			}
		})
		return func(string) error { once(); return nil }
	}
}

func createStopped(e env) {
	s, in := e.made("")
	e.h.Stop(e.T, in)
	again := e.running(e.p, s)
	if again.ID != in.ID {
		e.Errorf("started again as %q; it was %q", again.ID, in.ID)
	}
	if got, err := e.get(e.p, refOf(again)); err != nil || got.State != provider.Running {
		e.Errorf("Get after the start = %+v, %v; want Running", got, err)
	}
	e.single(e.p, again)
}

func createVanished(e env) {
	s, in := e.made("")
	e.h.Vanish(e.T, in)
	e.single(e.p, e.running(e.p, s))
}

func createComplete(e env) {
	for _, host := range e.h.Hosts {
		s, in := e.made(host)
		if in.Owner != s.Owner {
			e.Errorf("owner %+v came back as %+v", s.Owner, in.Owner)
		}
		if in.Host != s.Host {
			e.Errorf("asked for on host %q, made on %q", s.Host, in.Host)
		}
		if in.ID == "" || in.Address == "" || in.Port <= 0 {
			e.Errorf("Running and incomplete: id %q, address %q, port %d", in.ID, in.Address, in.Port)
		}
		e.gone(e.p, refOf(in))
	}
}

func createNowhere(e env) {
	s := e.h.Spec(e.owner())
	s.Host = nowhere
	_, err := e.create(e.p, s)
	e.wantClass("Create on a host that is not configured", err, fault.Permanent, fault.Invalid)
	e.nothing(s.Owner)
}

// createLongNames uses names as long as Kubernetes allows that differ only at
// their ends, where a provider may have to shorten them.
func createLongNames(e env) {
	label := strings.Repeat("n", 63)
	long := strings.Repeat("a", 63) + "." + strings.Repeat("b.", 62) + strings.Repeat("c", 64)
	var ins []provider.Instance
	for _, end := range []string{"1", "2"} {
		o := provider.Owner{Installation: e.h.Installation, Namespace: label, Name: long + end, UID: uuid()}
		ins = append(ins, e.running(e.p, e.spec(e.adopt(o), "")))
		if got := ins[len(ins)-1].Owner; got != o {
			e.Errorf("owner %+v came back as %+v", o, got)
		}
	}
	if ins[0].ID == ins[1].ID {
		e.Errorf("two long names got one id %q", ins[0].ID)
	}
	e.gone(e.p, refOf(ins[0]))
	e.single(e.p, ins[1])
}

func createUnreadable(e env) {
	s, in := e.made("")
	mend := e.until(e.h.Corrupt(e.T, in))
	for range 3 {
		if got, err := e.create(e.p, s); err == nil && got.ID != in.ID {
			e.Errorf("Create beside an unreadable instance answers id %q; it is %q", got.ID, in.ID)
		}
	}
	mend()
	e.single(e.p, e.running(e.p, s))
}

func createBroken(e env) {
	for _, host := range e.h.Hosts {
		s := e.spec(e.owner(), host)
		mend := e.until(e.h.BreakHost(e.T, host))
		_, err := e.create(e.p, s)
		e.wantClass("Create on broken host "+host, err, unreachable...)
		mend()
		in := e.running(e.p, s)
		e.single(e.p, in)
		e.gone(e.p, refOf(in))
	}
}

func createImpaired(e env) {
	s, in := e.made("")
	e.until(e.h.Impair(e.T, in))
	for range 2 {
		got, err := e.create(e.p, s)
		if err != nil || got.State != provider.Impaired || got.ID != in.ID {
			e.Errorf("Create of an impaired instance = %+v, %v; want Impaired and id %q", got, err, in.ID)
		}
	}
	if got, err := e.get(e.p, refOf(in)); err != nil || got.State != provider.Impaired {
		e.Errorf("Get of an impaired instance = %+v, %v; want Impaired", got, err)
	}
	if got := e.listed(e.p, s.Owner); len(got) != 1 || got[0].State != provider.Impaired {
		e.Errorf("an impaired instance is listed as %+v; want Impaired", got)
	}
	e.gone(e.p, refOf(in))
}
