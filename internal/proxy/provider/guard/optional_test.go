package guard_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/fake"
	"fleetdesk/internal/proxy/provider/guard"
)

var claim = provider.Claim{Installation: "i", Holder: "operatora", Beat: 1, Period: time.Second}

// optionals calls each method of the optional interfaces once, beside a claim
// of another operator and a leftover on h1, and has the owner's instance there
// break while it watches; h2 is broken.
func optionals(t *testing.T, d provider.Provider, o provider.Owner, p *fake.Provider) {
	t.Helper()
	p.PlantClaim("h1", provider.Claim{Installation: "i", Holder: "operatorb", Beat: 1, Period: time.Second})
	l := p.Litter("h1", "disk", "disk-1", owner("w"))
	checker, checks := provider.As[provider.Checker](d)
	claimer, claims := provider.As[provider.Claimer](d)
	cleaner, cleans := provider.As[provider.Cleaner](d)
	watcher, watches := provider.As[provider.Watcher](d)
	if !checks || !claims || !cleans || !watches {
		t.Fatal("an optional interface of the fake is lost")
	}
	_, _ = checker.Check(t.Context())
	_, _ = claimer.Claim(t.Context(), claim)
	_, _ = cleaner.Leftovers(t.Context(), "i", nil)
	_ = cleaner.RemoveLeftover(t.Context(), "i", l)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	_ = watcher.Watch(ctx, "i", func(provider.Change) {
		if n++; n == 1 {
			for _, in := range p.Machines() {
				p.Impair(in.ID)
			}
			return
		}
		cancel()
	})
}

// The inner providers: each with one optional interface, or none, or all.
type (
	bare     struct{ provider.Provider }
	closable struct {
		provider.Provider
		io.Closer
	}
	checkable struct {
		provider.Provider
		provider.Checker
	}
	watchable struct {
		provider.Provider
		provider.Watcher
	}
	claimable struct {
		provider.Provider
		provider.Claimer
	}
	cleanable struct {
		provider.Provider
		provider.Cleaner
	}
)

// closes counts its Closes.
type closes struct{ n int }

func (c *closes) Close() error { c.n++; return nil }

// TestOptionalInterfaces: a decorated provider has, through provider.As, what
// the inner one has, no more and no less, and calls of it reach the inner one.
func TestOptionalInterfaces(t *testing.T) {
	all := decorators(t)
	all["stack"] = func(p provider.Provider) provider.Provider {
		return all["trace"](all["metrics"](all["deadline"](all["readonly"](p))))
	}
	for dname, wrap := range all {
		for iname, of := range map[string]func(p *fake.Provider, c io.Closer) provider.Provider{
			"none":    func(p *fake.Provider, _ io.Closer) provider.Provider { return bare{p} },
			"Closer":  func(p *fake.Provider, c io.Closer) provider.Provider { return closable{p, c} },
			"Checker": func(p *fake.Provider, _ io.Closer) provider.Provider { return checkable{p, p} },
			"Watcher": func(p *fake.Provider, _ io.Closer) provider.Provider { return watchable{p, p} },
			"Claimer": func(p *fake.Provider, _ io.Closer) provider.Provider { return claimable{p, p} },
			"Cleaner": func(p *fake.Provider, _ io.Closer) provider.Provider { return cleanable{p, p} },
			"all":     func(p *fake.Provider, _ io.Closer) provider.Provider { return p },
		} {
			t.Run(dname+"/"+iname, func(t *testing.T) {
				p, closer := fake.New(fake.Options{}), &closes{}
				d := wrap(of(p, closer))
				readonly := dname == "readonly" || dname == "stack"
				want := func(name string) bool { return iname == name || iname == "all" }
				if c, ok := provider.As[io.Closer](d); ok != want("Closer") {
					t.Errorf("Closer: %v", ok)
				} else if ok {
					if err := c.Close(); err != nil || iname == "Closer" && closer.n != 1 {
						t.Errorf("Close = %v, and the inner was closed %d times", err, closer.n)
					}
				}
				if c, ok := provider.As[provider.Checker](d); ok != want("Checker") {
					t.Errorf("Checker: %v", ok)
				} else if ok {
					if rows, err := c.Check(t.Context()); err != nil || len(rows) != 1 {
						t.Errorf("Check = %v, %v; want the inner's one row", rows, err)
					}
				}
				if w, ok := provider.As[provider.Watcher](d); ok != want("Watcher") {
					t.Errorf("Watcher: %v", ok)
				} else if ok {
					// For "all" the fake was closed above, and so ends it at once.
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					if err := w.Watch(ctx, "i", func(provider.Change) { cancel() }); err != nil || p.Calls()["Watch"] != 1 {
						t.Errorf("Watch = %v, and the inner was called %d times", err, p.Calls()["Watch"])
					}
				}
				if c, ok := provider.As[provider.Claimer](d); ok != want("Claimer") {
					t.Errorf("Claimer: %v", ok)
				} else if ok && !readonly {
					if rows, err := c.Claim(t.Context(), claim); err != nil || len(rows) != 1 || len(p.Claims("fake-1", "i")) != 1 {
						t.Errorf("Claim = %v, %v; want the inner's one row, and the claim there", rows, err)
					}
				}
				if c, ok := provider.As[provider.Cleaner](d); ok != want("Cleaner") {
					t.Errorf("Cleaner: %v", ok)
				} else if ok {
					l := p.Litter("fake-1", "disk", "disk-1", owner("u"))
					if rows, err := c.Leftovers(t.Context(), "i", []string{"u"}); err != nil || len(rows) != 1 || len(rows[0].Leftovers) != 0 {
						t.Errorf("Leftovers that keep u = %v, %v; want one row, of nothing", rows, err)
					}
					if rows, err := c.Leftovers(t.Context(), "i", nil); err != nil || len(rows) != 1 || len(rows[0].Leftovers) != 1 {
						t.Errorf("Leftovers = %v, %v; want one row, of one", rows, err)
					}
					if err := c.RemoveLeftover(t.Context(), "i", l); !readonly && (err != nil || len(p.Litters()) != 0) {
						t.Errorf("RemoveLeftover = %v; left: %v", err, p.Litters())
					}
				}
			})
		}
	}
}

// TestWhatTheInnerLacks: who asserts instead of asking provider.As gets an
// answer that says so, and Close of what cannot be closed does nothing.
func TestWhatTheInnerLacks(t *testing.T) {
	for name, wrap := range decorators(t) {
		d := wrap(bare{fake.New(fake.Options{})})
		_, check := d.(provider.Checker).Check(t.Context())
		watch := d.(provider.Watcher).Watch(t.Context(), "i", func(provider.Change) {})
		_, claims := d.(provider.Claimer).Claim(t.Context(), claim)
		_, lying := d.(provider.Cleaner).Leftovers(t.Context(), "i", nil)
		remove := d.(provider.Cleaner).RemoveLeftover(t.Context(), "i", provider.Leftover{})
		for method, err := range map[string]error{"Check": check, "Watch": watch, "Claim": claims, "Leftovers": lying, "RemoveLeftover": remove} {
			class := fault.Unsupported
			if name == "readonly" && (method == "Claim" || method == "RemoveLeftover") {
				class = fault.Denied // it forbids before it looks
			}
			if fault.Of(err) != class || !strings.Contains(err.Error(), "fake") || !strings.Contains(err.Error(), method) {
				t.Errorf("%s: %s: %v; want %s, with the provider's name and the method", name, method, err, class)
			}
		}
		if err := d.(io.Closer).Close(); err != nil {
			t.Errorf("%s: Close: %v", name, err)
		}
	}
}

// TestUnwrap: the inner one is found through each decorator.
func TestUnwrap(t *testing.T) {
	p := fake.New(fake.Options{})
	for name, wrap := range decorators(t) {
		w, ok := wrap(p).(provider.Unwrapper)
		if !ok || w.Unwrap() != provider.Provider(p) {
			t.Errorf("%s does not unwrap to the inner provider", name)
		}
	}
}

// scriptedAll answers each method of the optional interfaces by f.
type scriptedAll struct {
	provider.Provider
	f func(ctx context.Context) error
}

func (s scriptedAll) Check(ctx context.Context) ([]provider.HostHealth, error) {
	return nil, s.f(ctx)
}

func (s scriptedAll) Watch(ctx context.Context, _ string, _ func(provider.Change)) error {
	return s.f(ctx)
}

func (s scriptedAll) Claim(ctx context.Context, _ provider.Claim) ([]provider.HostClaims, error) {
	return []provider.HostClaims{{Host: "h", Err: errors.New("odd")}}, s.f(ctx)
}

func (s scriptedAll) Leftovers(ctx context.Context, _ string, _ []string) ([]provider.HostLeftovers, error) {
	return []provider.HostLeftovers{{Host: "h", Err: errors.New("odd")}}, s.f(ctx)
}

func (s scriptedAll) RemoveLeftover(ctx context.Context, _ string, _ provider.Leftover) error {
	return s.f(ctx)
}

// each calls the methods of the optional interfaces that are calls, by name.
func each(d provider.Provider) map[string]func(ctx context.Context) error {
	return map[string]func(ctx context.Context) error{
		"Check": func(ctx context.Context) error { _, err := d.(provider.Checker).Check(ctx); return err },
		"Claim": func(ctx context.Context) error { _, err := d.(provider.Claimer).Claim(ctx, claim); return err },
		"Leftovers": func(ctx context.Context) error {
			_, err := d.(provider.Cleaner).Leftovers(ctx, "i", nil)
			return err
		},
		"RemoveLeftover": func(ctx context.Context) error {
			return d.(provider.Cleaner).RemoveLeftover(ctx, "i", provider.Leftover{})
		},
	}
}

// TestDeadlineOfOptionalCalls: they are held as the five methods are.
func TestDeadlineOfOptionalCalls(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		f      func(ctx context.Context) error
		class  fault.Class
		after  time.Duration
	}{
		"an answer":           {"it passes", func(context.Context) error { return nil }, "", 0},
		"a class":             {"the nearest layer knew better", func(context.Context) error { return fault.New(fault.Quota, "full") }, fault.Quota, 0},
		"nobody classed it":   {"the sweep acts by the class", func(context.Context) error { return errors.New("odd") }, fault.Transient, 0},
		"heeds its context":   {"the limit is a deadline", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, fault.Timeout, 30 * time.Second},
		"ignores its context": {"the sweep of the others goes on", func(context.Context) error { time.Sleep(time.Hour); return nil }, fault.Timeout, 31 * time.Second},
		"panics":              {"one defect must not end the operator", func(context.Context) error { panic("canary") }, fault.Permanent, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := guard.Deadline(scriptedAll{fake.New(fake.Options{}), tc.f}, guard.DeadlineOptions{Name: "home"})
				for method, call := range each(d) {
					start := time.Now()
					err := call(t.Context())
					if fault.Of(err) != tc.class || err != nil && !fault.Classed(err) {
						t.Errorf("%s: %s: class %q (%v); want %q", tc.reason, method, fault.Of(err), err, tc.class)
					}
					if took := time.Since(start); took != tc.after {
						t.Errorf("%s: %s returned after %v; want %v", tc.reason, method, took, tc.after)
					}
				}
				time.Sleep(2 * time.Hour) // let what was given up end
			})
		})
	}
}

// TestRowsAreClassed: also the rows' errors have a class, and the inner's own
// rows are left as they are.
func TestRowsAreClassed(t *testing.T) {
	d := guard.Deadline(scriptedAll{fake.New(fake.Options{}), func(context.Context) error { return nil }}, guard.DeadlineOptions{Name: "home"})
	claims, err := d.(provider.Claimer).Claim(t.Context(), claim)
	if err != nil || len(claims) != 1 || !fault.Classed(claims[0].Err) {
		t.Errorf("Claim = %+v, %v; want a classed row", claims, err)
	}
	lying, err := d.(provider.Cleaner).Leftovers(t.Context(), "i", nil)
	if err != nil || len(lying) != 1 || !fault.Classed(lying[0].Err) {
		t.Errorf("Leftovers = %+v, %v; want a classed row", lying, err)
	}
}

// TestWatchHasNoDeadline: it goes on as long as its context, beside calls that
// hang, takes no place among these, and its panic is an error.
func TestWatchHasNoDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		p := fake.New(fake.Options{})
		d := guard.Deadline(p, guard.DeadlineOptions{Name: "home", MaxAbandoned: 1, Log: slog.New(slog.NewTextHandler(&log, nil))})
		ctx, cancel := context.WithCancel(t.Context())
		told := 0
		done := make(chan error)
		go func() {
			done <- d.(provider.Watcher).Watch(ctx, "i", func(provider.Change) { told++ })
		}()
		synctest.Wait()
		time.Sleep(24 * time.Hour)
		in := p.Plant("fake-1", owner("u"))
		synctest.Wait()
		if told != 2 {
			t.Errorf("a day later %d changes were told; want the beginning and the instance's", told)
		}
		if got, err := d.Get(t.Context(), provider.Ref{ID: in.ID}); err != nil || got.ID != in.ID {
			t.Errorf("Get beside it = %+v, %v", got, err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Watch = %v", err)
		}

		for name, tc := range map[string]struct {
			f     func(context.Context) error
			class fault.Class
		}{
			"panic":     {func(context.Context) error { panic("canary") }, fault.Permanent},
			"unclassed": {func(context.Context) error { return errors.New("odd") }, fault.Transient},
		} {
			d := guard.Deadline(scriptedAll{p, tc.f}, guard.DeadlineOptions{Name: "home", Log: slog.New(slog.NewTextHandler(&log, nil))})
			err := d.(provider.Watcher).Watch(t.Context(), "i", func(provider.Change) {})
			if fault.Of(err) != tc.class || !fault.Classed(err) || strings.Contains(err.Error(), "canary") {
				t.Errorf("Watch after a %s: %v; want %s, without the panic's value", name, err, tc.class)
			}
		}
		if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "method=Watch") || strings.Contains(got, "canary") {
			t.Errorf("log: %s; want one line of the panic, with the method", got)
		}
		// A panic in what it tells is caught as well: it is not the provider's, but
		// it must not end the operator.
		err := guard.Deadline(p, guard.DeadlineOptions{Name: "home"}).(provider.Watcher).Watch(t.Context(), "i", func(provider.Change) { panic("reader") })
		if fault.Of(err) != fault.Permanent {
			t.Errorf("Watch whose reader panics: %v; want Permanent", err)
		}
	})
}
