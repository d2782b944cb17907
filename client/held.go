package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Lease is a key that this program holds. Its methods may be called
// concurrently. Printed, it shows its public id.
type Lease struct {
	client *Client
	// secret is in a closure, where no printing reaches it.
	secret func() Secret
	proxy  func() *ProxyAccess
	// turn lets one renewal run at a time: the last one's answer counts.
	turn chan struct{}
	// released is closed once the key was given back from here.
	released chan struct{}
	replayed bool

	mu   sync.Mutex
	info LeaseInfo
	// deadline is when it ends, and due when it is renewed, by Client.clock.
	deadline, due time.Duration
	// ending is set once a release was sent.
	ending bool
}

// newLease is the lease of a grant whose request was sent at that time.
func newLease(c *Client, g Grant, secret Secret, sent time.Duration) *Lease {
	l := &Lease{
		client: c, secret: func() Secret { return secret }, proxy: func() *ProxyAccess { return g.Proxy },
		turn: make(chan struct{}, 1), released: make(chan struct{}),
	}
	// The request arrived after it was sent, and then waited: the lease began
	// later than that.
	l.renewed(g.LeaseInfo, sent+g.Waited.Duration())
	return l
}

// renewed takes over an answer about the lease as it was at that time or later.
func (l *Lease) renewed(info LeaseInfo, at time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := info.SecondsLeft.Duration()
	l.info, l.deadline, l.due = info, at+left, at+left/3
}

// Resume returns a lease that was taken before, maybe by another process, and
// renews it for the time that it was taken for. Errors: see [Lease.Renew].
func (c *Client) Resume(ctx context.Context, id string, secret Secret) (*Lease, error) {
	l := newLease(c, Grant{LeaseInfo: LeaseInfo{ID: id}}, secret, c.clock())
	return l, l.Renew(ctx, RenewRequest{})
}

// Info is the lease as the server described it last.
func (l *Lease) Info() LeaseInfo {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.info
}

// ID is the lease's public id.
func (l *Lease) ID() string { return l.Info().ID }

// Key is the key that it is a right to.
func (l *Lease) Key() string { return l.Info().Key }

// Fence is the number by which a target tells it from older leases of the key.
func (l *Lease) Fence() int64 { return l.Info().Fence }

// Secret renews and releases the lease, for handing it to another process.
func (l *Lease) Secret() Secret { return l.secret() }

// Proxy is how to reach a leased proxy; ok is false for a key that is none.
func (l *Lease) Proxy() (access ProxyAccess, ok bool) {
	if p := l.proxy(); p != nil {
		return *p, true
	}
	return ProxyAccess{}, false
}

// Replayed is whether an earlier request with the same Idempotency-Key got it.
func (l *Lease) Replayed() bool { return l.replayed }

// Left is how long the key may be used unless the lease is renewed; 0 once it
// may not. It is counted from before the request was sent that the server
// answered, by a clock that goes on while the machine is suspended (on Linux).
func (l *Lease) Left() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(0, l.deadline-l.client.clock())
}

// Format writes the public id for every verb.
func (l *Lease) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "lease "+l.Info().ID) }

// LogValue shows the public id in a log.
func (l *Lease) LogValue() slog.Value { return slog.StringValue(l.Info().ID) }

// Renew extends the lease. Errors: Conflict (codes lease_expired, lease_lost,
// lease_forced, lease_replaced, lease_removed, lease_released) and NotFound
// (code lease) when the key is lost: stop using it; Denied (codes secret,
// not_owner); Invalid (codes ttl, reset).
func (l *Lease) Renew(ctx context.Context, r RenewRequest) error {
	return l.renew(ctx, r, true)
}

func (l *Lease) renew(ctx context.Context, r RenewRequest, repeat bool) error {
	op := "renew lease " + l.ID()
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return noAnswer(op, ctx.Err())
	}
	sent := l.client.clock()
	var info LeaseInfo
	err := l.client.do(ctx, call{
		op: op, method: http.MethodPost, parts: []string{"leases", l.ID(), "renew"},
		header: secretHeader(l.secret()), body: r, out: &info, repeatable: repeat,
	})
	if err == nil {
		l.renewed(info, sent)
	}
	return err
}

// Release gives the key back and ends [Lease.KeepAlive]. It is sent again when
// its answer is lost; twice is harmless. When it fails, the lease ends by its
// time. Errors: as [Lease.Renew], and Invalid (codes outcome, target).
func (l *Lease) Release(ctx context.Context, r ReleaseRequest) (Released, error) {
	l.mu.Lock()
	l.ending = true
	l.mu.Unlock()
	done, err := l.client.ReleaseLease(ctx, l.ID(), l.secret(), r)
	if err != nil {
		return Released{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.released: // twice
	default:
		close(l.released)
	}
	l.deadline = 0
	return done, nil
}

// Report tells how a use of a leased proxy went without giving it back; what r
// leaves out of lease, pool and target is the lease's. See [Client.Report].
func (l *Lease) Report(ctx context.Context, r ReportRequest) (Reported, error) {
	info := l.Info()
	if r.Lease == "" && r.Use == "" {
		r.Lease = info.ID
	}
	r.Pool, r.Target = cmp.Or(r.Pool, info.Pool), cmp.Or(r.Target, info.Target)
	namespace, name, _ := strings.Cut(info.Key, ".") // a namespace has no dot
	return l.client.Report(ctx, namespace, name, r)
}

const (
	// maxNap bounds a sleep: timers stand still while the machine is suspended,
	// and the lease does not.
	maxNap = 5 * time.Second
	// leastTry is the least time that one try to renew may take.
	leastTry = time.Second
)

// KeepAlive renews the lease whenever a third of its time is over, until ctx
// ends or the key was given back by Release: then it returns nil. Any error says
// that the key is lost, or cannot be kept: stop using it before [Lease.Left] is
// over. While the server does not answer it goes on trying until then, and then
// returns Conflict with the code lease_expired. It has no other end.
func (l *Lease) KeepAlive(ctx context.Context) error {
	var last error // of the tries since the last renewal
	for failed := 0; ; {
		l.mu.Lock()
		now := l.client.clock()
		left, due, ttl, ending := l.deadline-now, l.due-now, l.info.TTL.Duration(), l.ending
		l.mu.Unlock()
		select {
		case <-l.released:
			return nil
		case <-ctx.Done():
			return nil
		default:
		}
		switch {
		case left <= 0 && ending:
			return nil
		case left <= 0:
			return l.expired(last)
		case due > 0:
			l.nap(ctx, min(due, left, maxNap))
			continue
		}
		err := l.try(ctx, left, ttl)
		if err == nil {
			failed, last = 0, nil
			continue
		}
		e, ok := errors.AsType[*Error](err)
		l.mu.Lock()
		ending = l.ending // the release may have overtaken the renewal
		l.mu.Unlock()
		switch {
		case ctx.Err() != nil || ending && ok && e.Code == "lease_released":
			continue // the next round says what it means
		case !ok || !e.temporary():
			return err
		}
		last = err
		pause := min(firstPause<<min(failed, 10), max(ttl/10, firstPause))
		pause = max(pause-rand.N(pause/2+1), min(e.RetryAfter, left/2))
		failed++
		l.mu.Lock()
		l.due = l.client.clock() + pause
		l.mu.Unlock()
	}
}

// try renews once, in a part of the time that is left: a connection that hangs
// must leave time for another.
func (l *Lease) try(ctx context.Context, left, ttl time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, min(left, max(ttl/4, leastTry)))
	defer cancel()
	return l.renew(ctx, RenewRequest{}, false)
}

// nap sleeps, at most until the key was given back.
func (l *Lease) nap(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.released:
	case <-ctx.Done():
	}
}

// expired is the error of a lease that could not be renewed in time.
func (l *Lease) expired(last error) error {
	e := &Error{Class: Conflict, Code: "lease_expired", op: "keep lease " + l.ID() + " alive", Title: "its time is over"}
	if last != nil {
		e.cause = fmt.Errorf("its time is over, and it could not be renewed: %w", last)
	}
	return e
}
