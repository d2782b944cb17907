package guard

import (
	"context"
	"log/slog"
	"time"

	"fleetdesk/internal/proxy/provider"
)

// LevelAddress is the level below debug at which a trace also has addresses.
const LevelAddress = slog.Level(-8)

// Trace returns inner with one line at debug level for each call, under the
// keys provider, method, instance, host, proxy, class and duration; at
// [LevelAddress] also address and port. The text of an error is left to the
// one who handles it; user-data and credentials are at no level.
func Trace(inner provider.Provider, name string, log *slog.Logger) provider.Provider {
	return &trace{inner: inner, name: name, log: log.With(slog.String("provider", name))}
}

type trace struct {
	inner provider.Provider
	name  string
	log   *slog.Logger
}

// line writes the call's line, when anybody reads it.
func (t *trace) line(ctx context.Context, method string, start time.Time, err error, attrs ...slog.Attr) {
	if !t.log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	class := "ok"
	if err != nil {
		class = string(provider.Class(err))
	}
	all := []slog.Attr{slog.String("method", method)}
	for _, a := range attrs {
		if !a.Equal(slog.Attr{}) {
			all = append(all, a)
		}
	}
	all = append(all, slog.String("class", class), slog.Duration("duration", time.Since(start)))
	t.log.LogAttrs(ctx, slog.LevelDebug, "provider call", all...)
}

// text is the attribute, or none for an empty value.
func text(key, value string) slog.Attr {
	if value == "" {
		return slog.Attr{}
	}
	return slog.String(key, value)
}

// proxy names the Proxy of an owner.
func proxy(o provider.Owner) slog.Attr {
	if o.Name == "" {
		return slog.Attr{}
	}
	return slog.String("proxy", o.Namespace+"/"+o.Name)
}

// place is the address attributes, where the level asks for them.
func (t *trace) place(ctx context.Context, in provider.Instance) (address, port slog.Attr) {
	if in.Address == "" || !t.log.Enabled(ctx, LevelAddress) {
		return slog.Attr{}, slog.Attr{}
	}
	return slog.String("address", in.Address), slog.Int("port", in.Port)
}

func (t *trace) Place(ctx context.Context, spec provider.Spec) (string, error) {
	start := time.Now()
	host, err := t.inner.Place(ctx, spec)
	t.line(ctx, "Place", start, err, text("host", host), proxy(spec.Owner))
	return host, err
}

func (t *trace) Create(ctx context.Context, spec provider.Spec) (provider.Instance, error) {
	start := time.Now()
	in, err := t.inner.Create(ctx, spec)
	address, port := t.place(ctx, in)
	t.line(ctx, "Create", start, err, text("instance", in.ID), text("host", spec.Host), proxy(spec.Owner), text("state", string(in.State)), address, port)
	return in, err
}

func (t *trace) Get(ctx context.Context, ref provider.Ref) (provider.Instance, error) {
	start := time.Now()
	in, err := t.inner.Get(ctx, ref)
	address, port := t.place(ctx, in)
	t.line(ctx, "Get", start, err, text("instance", either(in.ID, ref.ID)), text("host", either(in.Host, ref.Host)), proxy(ref.Owner), text("state", string(in.State)), address, port)
	return in, err
}

func (t *trace) Delete(ctx context.Context, ref provider.Ref) (provider.State, error) {
	start := time.Now()
	state, err := t.inner.Delete(ctx, ref)
	t.line(ctx, "Delete", start, err, text("instance", ref.ID), text("host", ref.Host), proxy(ref.Owner), text("state", string(state)))
	return state, err
}

func (t *trace) ListByTag(ctx context.Context, installation string) ([]provider.HostList, error) {
	start := time.Now()
	rows, err := t.inner.ListByTag(ctx, installation)
	instances, silent := 0, 0
	for _, r := range rows {
		instances += len(r.Instances)
		if r.Err != nil {
			silent++
		}
	}
	t.line(ctx, "ListByTag", start, err, slog.Int("hosts", len(rows)), slog.Int("failed", silent), slog.Int("instances", instances))
	return rows, err
}

func (t *trace) Check(ctx context.Context) ([]provider.HostHealth, error) {
	c, ok := provider.As[provider.Checker](t.inner)
	if !ok {
		return nil, unsupported(t.name, "Check")
	}
	start := time.Now()
	rows, err := c.Check(ctx)
	t.line(ctx, "Check", start, err, slog.Int("hosts", len(rows)))
	return rows, err
}

func (t *trace) Watch(ctx context.Context, installation string, changed func(provider.Change)) error {
	w, ok := provider.As[provider.Watcher](t.inner)
	if !ok {
		return unsupported(t.name, "Watch")
	}
	start := time.Now()
	err := w.Watch(ctx, installation, func(c provider.Change) {
		if t.log.Enabled(ctx, slog.LevelDebug) {
			t.log.LogAttrs(ctx, slog.LevelDebug, "provider change", slog.String("host", c.Host), slog.String("uid", c.UID))
		}
		changed(c)
	})
	t.line(ctx, "Watch", start, err)
	return err
}

func (t *trace) Claim(ctx context.Context, c provider.Claim) ([]provider.HostClaims, error) {
	inner, ok := provider.As[provider.Claimer](t.inner)
	if !ok {
		return nil, unsupported(t.name, "Claim")
	}
	start := time.Now()
	rows, err := inner.Claim(ctx, c)
	others := 0
	for _, r := range rows {
		others += len(r.Others)
	}
	t.line(ctx, "Claim", start, err, slog.Int("hosts", len(rows)), slog.Int("others", others))
	return rows, err
}

func (t *trace) Leftovers(ctx context.Context, installation string, keep []string) ([]provider.HostLeftovers, error) {
	c, ok := provider.As[provider.Cleaner](t.inner)
	if !ok {
		return nil, unsupported(t.name, "Leftovers")
	}
	start := time.Now()
	rows, err := c.Leftovers(ctx, installation, keep)
	n := 0
	for _, r := range rows {
		n += len(r.Leftovers)
	}
	t.line(ctx, "Leftovers", start, err, slog.Int("hosts", len(rows)), slog.Int("leftovers", n))
	return rows, err
}

func (t *trace) RemoveLeftover(ctx context.Context, installation string, l provider.Leftover) error {
	c, ok := provider.As[provider.Cleaner](t.inner)
	if !ok {
		return unsupported(t.name, "RemoveLeftover")
	}
	start := time.Now()
	err := c.RemoveLeftover(ctx, installation, l)
	t.line(ctx, "RemoveLeftover", start, err, slog.String("host", l.Host), slog.String("leftover", l.ID))
	return err
}

func (t *trace) Unwrap() provider.Provider { return t.inner }

func (t *trace) Close() error { return closed(t.inner) }

func either(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
