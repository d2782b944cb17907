package poolcmd

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fleetdesk/client"
	"fleetdesk/internal/core/drift"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/qasight/cli/command"
	"fleetdesk/internal/qasight/config"
)

type whyOptions struct {
	f    *command.Factory
	pool string
	all  bool
}

func newWhy(f *command.Factory) *cobra.Command {
	o := &whyOptions{f: f}
	c := &cobra.Command{
		Use: "why POOL", Short: "Show why one waits for a key of a pool, and what could be done",
		Example: "  qasight pool why win-vms",
		Long: `Shows who holds what, since when and until when, why other keys are not free, who
waits in which order, and what a person could do. It changes nothing and runs no
command.`,
		Args:              command.Args(1, 1, "POOL"),
		ValidArgsFunction: completePool(f),
		RunE: func(c *cobra.Command, args []string) error {
			o.pool = args[0]
			return runWhy(c.Context(), o)
		},
	}
	c.Flags().BoolVar(&o.all, "all", false, "show all keys, free ones too")
	return c
}

// whyReport is what `pool why --json` prints.
type whyReport struct {
	Pool string `json:"pool"`
	// Account is one's own; "" when it could not be told.
	Account string      `json:"account,omitempty"`
	Free    int         `json:"free"`
	Keys    []whyKey    `json:"keys"`
	Waiters []whyWaiter `json:"waiters"`
	// Change is a person's change that is under way, without its id.
	Change *client.Change `json:"change,omitempty"`
	// Advice is what a person could do, the mildest first.
	Advice []string `json:"advice"`
}

type whyKey struct {
	client.Key
	// Why says why it is not free; "" when it is.
	Why string `json:"why,omitempty"`
	// Yours is whether one's own account holds it.
	Yours bool `json:"yours,omitempty"`
}

type whyWaiter struct {
	client.Waiter
	// Yours is whether one's own account waits.
	Yours bool `json:"yours,omitempty"`
}

func runWhy(ctx context.Context, o *whyOptions) error {
	cfg, err := o.f.Config()
	if err != nil {
		return err
	}
	p, err := cfg.Pool(o.pool)
	if err != nil {
		return err
	}
	ctx, stop := o.f.UntilSignal(ctx)
	defer stop()
	store := &storeLook{f: o.f, cfg: cfg}
	defer store.close()
	r, err := o.look(ctx, store, p)
	if err := interrupted(ctx); err != nil {
		return err
	}
	if err != nil {
		return command.Exit(storeExit(err), err)
	}
	if o.f.JSON {
		return o.f.PrintJSON(r)
	}
	return o.print(r, told{time.Now()})
}

func (o *whyOptions) look(ctx context.Context, store *storeLook, p *config.Pool) (*whyReport, error) {
	v, err := store.look(ctx, p.Name)
	if err != nil {
		return nil, err
	}
	l, err := store.open(ctx)
	if err != nil {
		return nil, err
	}
	r := &whyReport{Pool: p.Name, Account: o.f.Account(), Keys: []whyKey{}, Waiters: []whyWaiter{}}
	if !store.local() {
		r.Account = o.whoami(ctx, store.cfg)
	}
	view, known := v.views[p.Name]
	if known && view.Waiting > 0 {
		all, err := l.Waiters(ctx, p.Name)
		if err != nil && fault.Of(err) != fault.NotFound {
			return nil, err
		}
		for _, w := range all {
			r.Waiters = append(r.Waiters, whyWaiter{w, r.Account != "" && w.Account == r.Account})
		}
	}
	// What takers are handed is what was published; locally that follows the file.
	t := told{time.Now()}
	if known && view.Change != nil {
		change := *view.Change
		change.ID = ""
		r.Change = &change
	}
	look := poolLook{cfg: p, sight: v}
	for _, k := range look.whyKeys() {
		r.Keys = append(r.Keys, whyKey{k, t.why(k, p.Name), k.Lease != nil && r.Account != "" && k.Lease.Account == r.Account})
		if k.State == string(lease.Free) {
			r.Free++
		}
	}
	r.Advice = r.advise(t, known || store.local())
	return r, nil
}

// whyKeys are the keys that takers may get, and those that somebody holds yet.
func (l *poolLook) whyKeys() []client.Key {
	var out []client.Key
	report := poolReport{}
	for _, w := range drift.Compare(drift.Question{Wanted: l.cfg.Items}).Wanted {
		out = append(out, l.sight.key(l.cfg.Name, w.Name))
		report.Keys = append(report.Keys, keyReport{Name: w.Name})
	}
	n := len(report.Keys)
	l.besides(&report)
	for _, k := range report.Keys[n:] {
		out = append(out, k.key)
	}
	return out
}

// whoami asks the team server whose the token is; "" when it does not say: then
// nothing is marked.
func (o *whyOptions) whoami(ctx context.Context, cfg *config.File) string {
	token, err := o.f.Token(cfg.Server)
	if err != nil {
		return ""
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	c, err := client.New(client.Options{BaseURL: cfg.Server, Token: token, HTTPClient: &http.Client{Transport: transport, Timeout: whoamiTime}})
	if err != nil {
		return ""
	}
	me, err := c.Whoami(ctx)
	if err != nil {
		return ""
	}
	return me.Account
}

// whoamiTime bounds a question whose answer only marks lines.
const whoamiTime = 5 * time.Second

// advise says what a person could do, the mildest first.
func (r *whyReport) advise(t told, published bool) []string {
	out := []string{}
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if !published {
		add("an admin publishes the pool, so that its keys can be taken: `qasight pool publish %s`", r.Pool)
		return out
	}
	resets, unpublished := 0, 0
	var timed, disabled, held []whyKey
	for _, k := range r.Keys {
		switch {
		case k.State == string(lease.NeedsReset):
			resets++
		case k.State == stateUnpublished:
			unpublished++
		}
		if k.Lease != nil {
			held = append(held, k)
		}
		if k.Disabled != nil {
			disabled = append(disabled, k)
		} else if k.SecondsLeft > 0 && slices.Contains(k.Pools, r.Pool) {
			timed = append(timed, k)
		}
	}
	switch n := r.Free + resets; {
	case n > 0 && len(r.Waiters) == 0:
		add("take one: %s can be taken now (`qasight take %s`)", plural(n, "key", "keys"), r.Pool)
	case n > 0:
		add("wait a moment: %s can be taken now, and %s before whoever comes", plural(n, "key", "keys"), plural(len(r.Waiters), "request is", "requests are"))
	}
	slices.SortStableFunc(timed, func(a, b whyKey) int { return cmp.Compare(a.SecondsLeft, b.SecondsLeft) })
	place, mine := r.place()
	if i := place - 1 - r.Free - resets; i >= 0 && i < len(timed) {
		you := "whoever comes now is"
		if mine {
			you = "you are"
		}
		k := timed[i]
		unless := ""
		if k.Lease != nil {
			unless = " unless its lease is renewed"
		}
		add("wait until ≈ %s: %s number %d in line, and %s comes free then%s", t.until(k.SecondsLeft), you, place, k.Name, unless)
	} else if i >= len(timed) {
		add("time alone frees no key for number %d in line", place)
	}
	for i, k := range held {
		if i == maxAdvice {
			add("… and %s more are held", plural(len(held)-i, "key", "keys"))
			break
		}
		if k.Yours {
			add("release %s, which your own account holds, as %s", k.Name, cmp.Or(k.Lease.Holder, k.Lease.Account))
		} else {
			add("ask %s to release %s", who(k.Lease.Account, k.Lease.Holder), k.Name)
		}
	}
	out = append(out, r.adviseBars()...)
	for i, k := range disabled {
		if i == maxAdvice {
			add("… and %s more are disabled", plural(len(disabled)-i, "key", "keys"))
			break
		}
		add("an admin, once %s is mended (%s): `qasight pool enable %s %s`", k.Name, k.Disabled.Reason, r.Pool, k.Name)
	}
	if unpublished > 0 {
		add("an admin publishes the file, which has %s that the team server does not know: `qasight pool publish %s`", plural(unpublished, "key", "keys"), r.Pool)
	}
	if len(held) > 0 {
		add("an admin, when nobody can be asked: `qasight pool force-release %s KEY --reason \"…\"`", r.Pool)
	}
	return out
}

// maxAdvice bounds pieces of one kind.
const maxAdvice = 5

// mayRunYet is what to do about an action without an end whose change shows life.
const mayRunYet = "it may still run; if its program was killed, the lock ends within a minute"

// adviseBars says what ends the bars, once for each change and action.
func (r *whyReport) adviseBars() []string {
	var out []string
	seen := map[string]bool{}
	for _, k := range r.Keys {
		for _, b := range k.Bars {
			text := fmt.Sprintf("wait for the change of %s, or ask: it ends by itself", b.By)
			if b.Action != "" {
				text = fmt.Sprintf("see what became of %s after an action of %s without an end, then `qasight pool log --resolve %s --note TEXT`", k.Name, b.By, b.Action)
				if c := r.Change; c != nil && slices.Contains(c.Keys, k.Name) {
					text = "wait first: " + mayRunYet + "; then " + text
				}
			}
			if !seen[text] && len(seen) < maxAdvice {
				seen[text] = true
				out = append(out, text)
			}
		}
	}
	return out
}

// place is one's own first place in line, or that of whoever comes now.
func (r *whyReport) place() (n int, mine bool) {
	last := 0
	for _, w := range r.Waiters {
		last = max(last, w.Position)
		if w.Yours && w.Position > 0 {
			return w.Position, true
		}
	}
	return last + 1, false
}

func (o *whyOptions) print(r *whyReport, t told) error {
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s: %d of %s free, %d waiting\n", r.Pool, r.Free, plural(len(r.Keys), "key", "keys"), len(r.Waiters))
	rows, hidden := [][]string{{"KEY", "STATE", "WHY"}}, 0
	for _, k := range r.Keys {
		if !o.all && (k.State == string(lease.Free) || len(rows) > manyKeys) {
			hidden++
			continue
		}
		state := k.State
		if k.Yours {
			state += ", yours"
		}
		rows = append(rows, []string{k.Name, state, k.Why})
	}
	if len(rows) > 1 {
		if err := indented(&out, rows); err != nil {
			return err
		}
	}
	if hidden > 0 {
		fmt.Fprintf(&out, "  %s not shown: --all shows them\n", plural(hidden, "key", "keys"))
	}
	if c := r.Change; c != nil {
		fmt.Fprintln(&out, command.Plain(fmt.Sprintf("A change is under way: %s by %s since %s",
			strings.TrimSpace(c.Verb+" "+strings.Join(c.Keys, ", ")), who(c.Account, c.Holder), t.at(c.Began))))
	}
	if len(r.Waiters) > 0 {
		fmt.Fprintln(&out, "In line:")
		rows := [][]string{{"#", "WHO", "WAITS", ""}}
		for _, w := range r.Waiters {
			place, mark := fmt.Sprint(w.Position), ""
			if w.Lost {
				place = "-"
			}
			if w.Yours {
				mark = "<- yours"
			}
			if w.Lost {
				mark = strings.TrimSpace(mark + " its client is gone; the place is kept for some seconds")
			}
			if n := len(w.Constraints); n > 0 {
				mark = strings.TrimSpace(mark + fmt.Sprintf(" asks for %s", plural(n, "attribute", "attributes")))
			}
			rows = append(rows, []string{place, who(w.Account, w.Holder), command.Duration(w.Waits.Duration()), mark})
		}
		if err := indented(&out, rows); err != nil {
			return err
		}
	}
	if len(r.Advice) > 0 {
		fmt.Fprintln(&out, "What you could do:")
		for _, a := range r.Advice {
			fmt.Fprintln(&out, command.Plain("  - "+a))
		}
	}
	_, err := o.f.Out().Write(out.Bytes())
	return err
}
