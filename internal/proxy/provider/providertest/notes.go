package providertest

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// notes collects, over all calls of a run, what breaks a clause that holds for
// every call. The subtests of these clauses report them.
type notes struct {
	limit  time.Duration
	mu     sync.Mutex
	broken map[string][]string
	// canaries are secrets, as they would show in a text.
	canaries []string
}

func newNotes(h Harness) *notes {
	return &notes{limit: h.StepLimit + h.Slack, broken: map[string][]string{}}
}

// hide adds the secrets of s to those looked for.
func (n *notes) hide(s provider.Spec) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, secret := range []provider.Secret{s.UserData, s.Credentials.Password} {
		if len(secret) < minSecret || slices.Contains(n.canaries, string(secret)) {
			continue
		}
		n.canaries = append(n.canaries, string(secret), hex.EncodeToString(secret),
			base64.StdEncoding.EncodeToString(secret), fmt.Sprint([]byte(secret)))
	}
}

func (n *notes) add(clause, format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.broken[clause]) < 5 {
		n.broken[clause] = append(n.broken[clause], fmt.Sprintf(format, args...))
	}
}

// report fails t for all that was noted against the clause.
func (n *notes) report(t T, clause string) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.broken[clause] {
		t.Errorf("%s", s)
	}
}

// own reports whether err is the caller's own context ending, which needs no
// class: fault.Of knows it.
func own(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

func (n *notes) text(method, what, s string) {
	n.mu.Lock()
	canaries := n.canaries
	n.mu.Unlock()
	for _, c := range canaries {
		if strings.Contains(s, c) {
			n.add("P-GEN-5", "%s: a secret of the spec is in the %s", method, what)
			return
		}
	}
}

func (n *notes) err(method string, err error) {
	if err == nil {
		return
	}
	if !fault.Classed(err) && !own(err) {
		n.add("P-GEN-1", "%s: nobody classed this error: %v", method, err)
	} else if c := fault.Of(err); c.Meaning().Class != c {
		n.add("P-GEN-1", "%s: class %q is none of core/fault", method, c)
	}
	n.text(method, "error", err.Error())
}

func (n *notes) instance(method string, in provider.Instance) {
	n.text(method, "message", in.Message)
	switch in.State {
	case provider.Running:
		if in.Address == "" || in.Port <= 0 || in.Port > 65535 {
			n.add("P-GEN-8", "%s: Running with address %q and port %d", method, in.Address, in.Port)
		}
	case provider.Provisioning, provider.Stopped, provider.Impaired, provider.Deleting, provider.Unknown:
	default:
		n.add("P-GEN-8", "%s: state %q is none of those an instance may have here", method, in.State)
	}
	if in.ID == "" || in.Host == "" {
		n.add("P-GEN-8", "%s: instance without id or host: id %q, host %q", method, in.ID, in.Host)
	}
}

func (n *notes) time(method string, start time.Time) {
	if d := time.Since(start); d > n.limit {
		n.add("P-GEN-2", "%s took %v; at most %v is allowed", method, d.Round(time.Millisecond), n.limit)
	}
}

// watched passes calls on and takes notes.
type watched struct {
	p provider.Provider
	n *notes
}

func (s *suite) watch(p provider.Provider) provider.Provider { return &watched{p, s.seen} }

func (w *watched) Place(ctx context.Context, s provider.Spec) (string, error) {
	defer w.n.time("Place", time.Now())
	w.n.hide(s)
	host, err := w.p.Place(ctx, s)
	w.n.err("Place", err)
	return host, err
}

func (w *watched) Create(ctx context.Context, s provider.Spec) (provider.Instance, error) {
	defer w.n.time("Create", time.Now())
	w.n.hide(s)
	in, err := w.p.Create(ctx, s)
	w.n.err("Create", err)
	if err == nil {
		w.n.instance("Create", in)
	}
	return in, err
}

func (w *watched) Get(ctx context.Context, r provider.Ref) (provider.Instance, error) {
	defer w.n.time("Get", time.Now())
	in, err := w.p.Get(ctx, r)
	w.n.err("Get", err)
	if err == nil {
		w.n.instance("Get", in)
	}
	return in, err
}

func (w *watched) Delete(ctx context.Context, r provider.Ref) (provider.State, error) {
	defer w.n.time("Delete", time.Now())
	st, err := w.p.Delete(ctx, r)
	w.n.err("Delete", err)
	if err == nil && st != provider.Gone && st != provider.Deleting && st != provider.Abandoned {
		w.n.add("P-GEN-8", "Delete: state %q; only Gone, Deleting and Abandoned are its answers", st)
	}
	return st, err
}

func (w *watched) ListByTag(ctx context.Context, installation string) ([]provider.HostList, error) {
	defer w.n.time("ListByTag", time.Now())
	rows, err := w.p.ListByTag(ctx, installation)
	w.n.err("ListByTag", err)
	for _, r := range rows {
		w.n.err("ListByTag", r.Err)
		for _, in := range r.Instances {
			w.n.instance("ListByTag", in)
		}
	}
	return rows, err
}

// check calls Check of the provider under test; Needs has "Checker".
func (e env) check(ctx context.Context) ([]provider.HostHealth, error) {
	defer e.seen.time("Check", time.Now())
	c, _ := provider.As[provider.Checker](e.h.Provider)
	rows, err := c.Check(ctx)
	e.seen.err("Check", err)
	for _, r := range rows {
		e.seen.text("Check", "message", r.Message)
	}
	return rows, err
}
