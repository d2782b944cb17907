package link

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// Defaults of [Options].
const (
	DefaultMaxCalls    = 8
	DefaultDialTimeout = 20 * time.Second
)

// RedialPause is how long a failed dial answers for the host in place of
// another one, so that many callers of a dead host do not dial in a hot loop.
// It does not hold for a failure at [StageMaterial], which costs nothing, nor
// when the dialer's [Stamper] says that something changed.
const RedialPause = time.Second

// Options of a [Pool].
type Options struct {
	// Hosts are the names that the pool knows; another one is Permanent.
	Hosts []string
	// Dialer opens the links.
	Dialer Dialer
	// MaxCalls is how many Calls may run or wait on one host at once; 0 for
	// [DefaultMaxCalls].
	MaxCalls int
	// DialTimeout bounds a whole dial; 0 for [DefaultDialTimeout].
	DialTimeout time.Duration
	// Log gets a line for each connect, each drop, and each dial failure that
	// says something new; nil for none.
	Log *slog.Logger
}

// Stamper is what a [Dialer] may be besides. Stamp changes when something here
// on which a dial depends changed, such as the file of a Secret; a failure from
// before is then not answered again. It must not block.
type Stamper interface{ Stamp() string }

// Pool keeps one link for each host, dialled when it is first needed, and
// shares it. All methods may be called concurrently.
//
// A link is never closed for what a caller met on it: a cancelled call, a
// failed one and a probe that gave up all leave it as it is. It ends by itself
// ([Link.Done]), and by [Pool.Close]; the next caller then dials a new one.
//
// Callers of a host without a link share one dial. It goes on when they give
// up, within its own time limit, so that a check with a short context does not
// end the dial that a reconcile waits for, and finds the link there the next
// time. Nobody waits longer than its own context.
type Pool struct {
	o     Options
	hosts map[string]*host
	// running counts the goroutines of all hosts.
	running sync.WaitGroup
}

// New returns a pool. Nothing is dialled before the first call.
func New(o Options) *Pool {
	if o.MaxCalls <= 0 {
		o.MaxCalls = DefaultMaxCalls
	}
	if o.DialTimeout <= 0 {
		o.DialTimeout = DefaultDialTimeout
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	p := &Pool{o: o, hosts: make(map[string]*host, len(o.Hosts))}
	for _, name := range o.Hosts {
		p.hosts[name] = newHost(name, p)
	}
	return p
}

// Call runs fn with the host's link, in the caller's goroutine, and returns
// fn's error as it is. It waits for a link that is being dialled until ctx
// ends, and no longer; a link that is there is given to fn however short ctx
// is. When ctx ends while fn runs, the RPCs of c return; the link stays.
//
// Failures of its own: a host that is not configured is Permanent; more than
// MaxCalls on the host is Transient, at once; a failed dial is a [*DialError]
// with its own class; a wait that ctx ended is Timeout (Transient when ctx was
// cancelled), with the last dial's failure inside if there is one; a closed
// pool is Unavailable.
func (p *Pool) Call(ctx context.Context, host string, fn func(ctx context.Context, c virt.Conn) error) error {
	h, err := p.host(host)
	if err != nil {
		return err
	}
	if n := h.calls.Add(1); n > int64(p.o.MaxCalls) {
		h.calls.Add(-1)
		return fault.Errorf(fault.Transient, "host %q: %d calls run already, which is its limit; trying again later", host, p.o.MaxCalls)
	}
	defer h.calls.Add(-1)
	l, err := h.take(ctx)
	if err != nil {
		return err
	}
	return fn(ctx, l)
}

// Use is Call for what must not fail for want of a slot: a host's one listing
// and its one upload. It does not count.
func (p *Pool) Use(ctx context.Context, host string, fn func(ctx context.Context, c virt.Conn) error) error {
	h, err := p.host(host)
	if err != nil {
		return err
	}
	l, err := h.take(ctx)
	if err != nil {
		return err
	}
	return fn(ctx, l)
}

// Generation changes with each new link of a host: what was cached of the
// daemon may be old. It is 0 before the first one and for an unknown host.
func (p *Pool) Generation(host string) uint64 {
	h, ok := p.hosts[host]
	if !ok {
		return 0
	}
	h.lock()
	defer h.unlock()
	return h.generation
}

// Await waits until the host has had another link than that of a generation, or
// ctx ends. It dials nothing: it is for who wants to go along when others do.
func (p *Pool) Await(ctx context.Context, host string, generation uint64) {
	h, ok := p.hosts[host]
	if !ok {
		<-ctx.Done()
		return
	}
	h.lock()
	now, news := h.generation, h.news
	h.unlock()
	if now != generation {
		return
	}
	select {
	case <-news:
	case <-ctx.Done():
	}
}

// Close ends all links, dials and probes, and waits for their goroutines. Later
// calls are Unavailable. It may be called again, and never from within a fn of
// [Pool.Probe]. It returns nil.
func (p *Pool) Close() error {
	for _, h := range p.hosts {
		h.close()
	}
	p.running.Wait()
	return nil
}

func (p *Pool) host(name string) (*host, error) {
	if h, ok := p.hosts[name]; ok {
		return h, nil
	}
	names := slices.Sorted(slices.Values(p.o.Hosts))
	more := ""
	if len(names) > 10 {
		names, more = names[:10], ", …"
	}
	return nil, fault.Errorf(fault.Permanent, "host %q is not in the configuration (it has: %s%s)", name, strings.Join(names, ", "), more)
}

// ended is the error of a wait that ctx ended. last is an error that explains
// more, or nil.
func ended(ctx context.Context, last error, format string, args ...any) error {
	class := fault.Transient
	if ctx.Err() == context.DeadlineExceeded {
		class = fault.Timeout
	}
	text := fmt.Sprintf(format, args...)
	if last != nil {
		return fault.Errorf(class, "%s: %w; the last try failed: %w", text, ctx.Err(), last)
	}
	return fault.Errorf(class, "%s: %w", text, ctx.Err())
}
