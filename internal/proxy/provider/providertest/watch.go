package providertest

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

func watchTests() []Subtest {
	needs := func(more ...string) []string { return append([]string{"Watcher"}, more...) }
	return []Subtest{
		{Clauses: []string{"P-WAT-1"}, Title: "a stopped instance is told", Needs: needs("Stop"), run: watchStop},
		{Clauses: []string{"P-WAT-2"}, Title: "a vanished instance is told", Needs: needs("Vanish"), run: watchVanish},
		{Clauses: []string{"P-WAT-3"}, Title: "another installation's are not told", Needs: needs("Stop", "Foreign"), run: watchForeign},
		{Clauses: []string{"P-WAT-4"}, Title: "a host that begins to be heard is told as a whole", Needs: needs(), run: watchBegins},
		{Clauses: []string{"P-WAT-5"}, Title: "ends with its context, and tells nothing afterwards", Needs: needs("Stop"), run: watchEnds},
		{Clauses: []string{"P-WAT-6"}, Title: "ends when the provider is closed", Needs: needs("Closer", "Reopen"), run: watchClosed},
		{Clauses: []string{"P-WAT-7"}, Title: "a host that does not answer ends no watch and delays no other host", Needs: needs("Stop", "BreakHost"), run: watchBroken},
		{Clauses: []string{"P-WAT-8"}, Title: "what happened while a host did not answer is told when it does", Needs: needs("Stop", "BreakHost"), run: watchReturns},
	}
}

// sentry is one running Watch.
type sentry struct {
	e    env
	stop context.CancelFunc
	done chan struct{}

	mu   sync.Mutex
	told []provider.Change
	over bool
	// late are changes that were told after Watch had returned.
	late []provider.Change
	err  error
}

// watching runs a Watch until the end of the subtest, and returns when each
// of the hosts is heard.
func (e env) watching(p provider.Provider, hosts ...string) *sentry {
	e.Helper()
	w, ok := provider.As[provider.Watcher](p)
	if !ok {
		e.Fatalf("the provider has no Watch any more")
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &sentry{e: e, stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		err := w.Watch(ctx, e.h.Installation, s.hear)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.over, s.err = true, err
	}()
	e.Cleanup(func() {
		cancel()
		if !s.ended(e.h.Patience) {
			e.Errorf("Watch did not return within %v of its context's end", e.h.Patience)
		}
	})
	for _, h := range hosts {
		s.await("that host "+h+" is heard", 0, func(c provider.Change) bool { return c.Host == h && c.UID == "" })
	}
	return s
}

func (s *sentry) hear(c provider.Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, c)
	if s.over {
		s.late = append(s.late, c)
	}
}

// mark is the number of changes told so far.
func (s *sentry) mark() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.told)
}

// await waits for a change of that kind from number from on, and ends the
// subtest when none comes or Watch returns before.
func (s *sentry) await(what string, from int, is func(provider.Change) bool) {
	s.e.Helper()
	start := time.Now()
	err := s.e.rounds(func() (bool, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if slices.ContainsFunc(s.told[from:], is) {
			return true, nil
		}
		if s.over {
			return true, fmt.Errorf("it returned %w", errOr(s.err))
		}
		return false, fmt.Errorf("told so far: %+v", s.told[from:])
	})
	if err != nil {
		s.e.Fatalf("Watch did not tell %s: %v", what, err)
	}
	s.e.Logf("Watch told %s after %v", what, time.Since(start).Round(time.Millisecond))
}

func errOr(err error) error {
	if err == nil {
		return fault.New(fault.Permanent, "without an error")
	}
	return err
}

// ended waits for Watch to return.
func (s *sentry) ended(most time.Duration) bool {
	limit := time.NewTimer(most)
	defer limit.Stop()
	select {
	case <-s.done:
		return true
	case <-limit.C:
		return false
	}
}

// of is a change of that instance.
func of(in provider.Instance) func(provider.Change) bool {
	return func(c provider.Change) bool { return c.Host == in.Host && c.UID == in.Owner.UID }
}

// covers is a change that makes the caller look at the instance.
func covers(in provider.Instance) func(provider.Change) bool {
	return func(c provider.Change) bool {
		return c.Host == in.Host && (c.UID == in.Owner.UID || c.UID == "")
	}
}

// misfits fails for changes that no reader could use.
func (s *sentry) misfits() {
	s.e.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.told {
		if !slices.Contains(s.e.h.Hosts, c.Host) {
			s.e.Errorf("Watch told %+v; hosts are %q", c, s.e.h.Hosts)
		}
	}
}

func watchStop(e env) {
	s := e.watching(e.h.Provider, e.h.Hosts...)
	for _, host := range e.h.Hosts {
		_, in := e.made(host)
		from := s.mark()
		e.h.Stop(e.T, in)
		s.await("the stop", from, of(in))
		if got, err := e.get(e.p, refOf(in)); err != nil || got.State != provider.Stopped {
			e.Errorf("Get once the stop is told = %+v, %v; want Stopped", got, err)
		}
	}
	s.misfits()
}

func watchVanish(e env) {
	s := e.watching(e.h.Provider, e.h.Hosts...)
	for _, host := range e.h.Hosts {
		_, in := e.made(host)
		from := s.mark()
		e.h.Vanish(e.T, in)
		s.await("that it vanished", from, of(in))
		_, err := e.get(e.p, refOf(in))
		e.wantClass("Get once it is told", err, fault.NotFound)
	}
}

func watchForeign(e env) {
	s := e.watching(e.h.Provider, e.h.Hosts...)
	for _, host := range e.h.Hosts {
		o := provider.Owner{Installation: e.otherInstallation(), Namespace: "suite", Name: "foreign", UID: uuid()}
		ref, _ := e.h.Foreign(e.T, host, o)
		// What happens to ours later is told later.
		_, in := e.made(host)
		from := s.mark()
		e.h.Stop(e.T, in)
		s.await("the stop of ours", from, of(in))
		s.mu.Lock()
		for _, c := range s.told {
			if c.UID == ref.Owner.UID {
				e.Errorf("Watch told %+v, which is another installation's", c)
			}
		}
		s.mu.Unlock()
	}
}

func watchBegins(e env) {
	// Two at once: one must not take the other's events.
	a, b := e.watching(e.h.Provider, e.h.Hosts...), e.watching(e.h.Provider, e.h.Hosts...)
	a.misfits()
	b.misfits()
	if e.h.Stop == nil {
		return
	}
	_, in := e.made("")
	from, too := a.mark(), b.mark()
	e.h.Stop(e.T, in)
	a.await("the stop to the first", from, of(in))
	b.await("the stop to the second", too, of(in))
}

func watchEnds(e env) {
	s := e.watching(e.h.Provider, e.h.Hosts...)
	_, in := e.made("")
	_, other := e.made("")
	s.stop()
	if !s.ended(e.h.Slack) {
		e.Errorf("Watch did not return within %v of its context's end", e.h.Slack)
	}
	if s.ended(e.h.Patience); s.err != nil {
		e.Errorf("Watch returned %v; the end of its context is no error", s.err)
	}
	// Another one hears these: by then the first would have.
	w := e.watching(e.h.Provider, e.h.Hosts...)
	for _, i := range []provider.Instance{in, other} {
		from := w.mark()
		e.h.Stop(e.T, i)
		w.await("the stop", from, of(i))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.late) > 0 {
		e.Errorf("after it had returned Watch told %+v", s.late)
	}
}

func watchClosed(e env) {
	p := e.h.Reopen(e.T)
	closer, ok := provider.As[io.Closer](p)
	if !ok {
		e.Fatalf("the provider of Reopen cannot be closed; the one under test can")
	}
	s := e.watching(p, e.h.Hosts...)
	if err := closer.Close(); err != nil {
		e.Errorf("Close: %v", err)
	}
	if !s.ended(e.h.Slack) {
		e.Fatalf("Watch did not return within %v of Close", e.h.Slack)
	}
	if s.err != nil {
		e.Errorf("Watch returned %v; that the provider was closed is no error", s.err)
	}
}

func watchBroken(e env) {
	out, rest := e.h.Hosts[0], e.h.Hosts[1:]
	s := e.watching(e.h.Provider, e.h.Hosts...)
	harms := map[string]func(T, string) func(){"broken": e.h.BreakHost}
	if e.h.MuteHost != nil {
		harms["mute"] = e.h.MuteHost
	}
	for what, harm := range harms {
		mend := e.until(harm(e.T, out))
		// One that begins while the host is out, as at the operator's start.
		late := e.watching(e.h.Provider, rest...)
		for _, host := range rest {
			_, in := e.made(host)
			from, too := s.mark(), late.mark()
			e.h.Stop(e.T, in)
			s.await("the stop on "+host+" while "+out+" is "+what, from, of(in))
			late.await("the stop on "+host+" while "+out+" is "+what+", to one that began then", too, of(in))
		}
		if s.ended(shortDeadline) || late.ended(shortDeadline) {
			e.Fatalf("Watch returned because %s is %s: %v, %v", out, what, s.err, late.err)
		}
		mend()
		late.await("that "+out+" is heard", 0, func(c provider.Change) bool { return c.Host == out && c.UID == "" })
	}
}

func watchReturns(e env) {
	for _, out := range e.h.Hosts {
		s := e.watching(e.h.Provider, e.h.Hosts...)
		_, in := e.made(out)
		mend := e.until(e.h.BreakHost(e.T, out))
		from := s.mark()
		e.h.Stop(e.T, in)
		mend()
		s.await("what happened on "+out+" meanwhile", from, covers(in))
		// And it is heard as before.
		_, in = e.made(out)
		from = s.mark()
		e.h.Stop(e.T, in)
		s.await("a stop on "+out+" after it came back", from, of(in))
		s.stop()
	}
}
