package probe

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/health"
	"fleetdesk/internal/platform/egress"
)

// AllowFlag is the operator's flag that opens address ranges for control
// requests; texts name it.
const AllowFlag = "--health-allow-cidr"

func hint(p netip.Prefix) string { return fmt.Sprintf("allow it with %s=%s", AllowFlag, p) }

// controlKeep is how long an answer to a control request serves further
// failed probes: a thousand proxies that fail together ask once.
const controlKeep = 3 * time.Second

// Direct makes control requests: the request of a check, sent by the operator
// itself without a proxy. Requests of the same test that come together share
// one answer.
//
// Nobody's settings decide what the others hear. A request is shared only when
// it asks the same (URL, expected status, CAs), and it may take as long as the
// most patient of those that share it would wait: the default timeout, or a
// longer one of their own, which is then part of what must be the same. Each
// asker compares the time that it took with its own timeout.
//
// Somebody who may write a URL into an object must not reach, through the
// operator, what only the operator can reach: loopback, link-local, metadata,
// private and other special ranges are refused unless allowed. The operator's
// own origin is exempt. Redirects are not followed.
type Direct struct {
	guard egress.Guard
	own   string // host:port
	// patience is the least time that a request may take.
	patience time.Duration
	// send makes one request, bounded by the check's timeout; [Direct.ask].
	send func(context.Context, Check) (health.Control, error)

	mu      sync.Mutex
	flights []*flight
}

// flight is one control request, running until done is closed.
type flight struct {
	check   Check // its timeout is the flight's
	done    chan struct{}
	at      time.Time     // when it ended
	took    time.Duration // how long it flew
	control health.Control
	err     error
	aborted bool // its asker gave up: says nothing
}

// answer is what the flight says to somebody who would have waited for timeout.
//
// An answer that came later is neither a pass, which would condemn proxies for
// not being faster than the far end, nor the far end's failure, which would
// excuse a proxy that nobody can even connect to.
func (f *flight) answer(timeout time.Duration) (health.Control, error) {
	if f.control == health.ControlPassed && f.took > timeout {
		return health.ControlLate, fail(Timeout, nil, "the expected answer took %s, and the check waits %s", f.took.Round(time.Millisecond), timeout)
	}
	return f.control, f.err
}

// NewDirect returns a Direct that may go to the prefixes of allow as well, and
// to ownOrigin whatever its address: host:port or an http(s) URL, empty for
// none.
func NewDirect(allow []netip.Prefix, ownOrigin string) (*Direct, error) {
	own, err := originKey(ownOrigin)
	if err != nil {
		return nil, err
	}
	allow, err = egress.Prefixes(AllowFlag, allow)
	if err != nil {
		return nil, err
	}
	d := &Direct{guard: egress.Guard{Allow: allow, Hint: hint}, own: own, patience: DefaultTimeout}
	d.send = d.ask
	return d, nil
}

// Ask returns what the control request said and, unless it passed, why. The
// error of a refused one names the flag that allows it. It may take longer than
// the check's timeout, up to 5 s, and says ControlLate when an answer did. A
// context that ends first is ControlNone.
func (d *Direct) Ask(ctx context.Context, c Check) (health.Control, error) {
	c = c.withDefaults()
	timeout := c.Timeout
	c.Timeout = max(timeout, d.patience)
	for {
		f, lead := d.join(c)
		if lead {
			d.fly(ctx, f)
			return f.answer(timeout)
		}
		select {
		case <-f.done:
			if !f.aborted {
				return f.answer(timeout)
			}
		case <-ctx.Done():
			return health.ControlNone, context.Cause(ctx)
		}
	}
}

// join returns the flight of a check and whether the caller must fly it.
func (d *Direct) join(c Check) (f *flight, lead bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.flights = slices.DeleteFunc(d.flights, func(f *flight) bool {
		return !f.at.IsZero() && time.Since(f.at) >= controlKeep
	})
	for _, f := range d.flights {
		if f.check.equal(c) {
			return f, false
		}
	}
	f = &flight{check: c, done: make(chan struct{})}
	d.flights = append(d.flights, f)
	return f, true
}

// fly makes a flight's request.
func (d *Direct) fly(ctx context.Context, f *flight) {
	started := time.Now()
	f.control, f.err = d.send(ctx, f.check)
	ended := time.Now()
	f.took = ended.Sub(started)
	if ctx.Err() != nil {
		// Whether it was given up or its asker's own deadline passed: the others
		// have time left.
		f.control, f.err = health.ControlNone, context.Cause(ctx)
	}
	d.mu.Lock()
	f.at = ended
	if f.aborted = f.control == health.ControlNone; f.aborted {
		d.flights = slices.DeleteFunc(d.flights, func(o *flight) bool { return o == f })
	}
	d.mu.Unlock()
	close(f.done)
}

func (d *Direct) ask(ctx context.Context, c Check) (health.Control, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	req, err := newRequest(ctx, c)
	if err != nil {
		return health.ControlFailed, err // nobody can send it, so no proxy is to blame
	}
	var verdicts egress.Verdicts
	dialer := &net.Dialer{KeepAlive: -1}
	if d.own == "" || hostPortOf(req.URL) != d.own {
		dialer.Control = d.guard.Control(verdicts.Note)
	}
	tr := egress.Transport(ctx, dialer)
	tr.TLSClientConfig = clientTLS(c)
	tr.MaxResponseHeaderBytes = maxHeaderBytes
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	if err == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxBody))
		_ = resp.Body.Close()
	}
	if refused := verdicts.Refused(); err != nil && refused != nil {
		return health.ControlRefused, fault.Wrap(fault.Denied, refused)
	}
	switch {
	case err != nil:
		return health.ControlFailed, fail(ConnectFailed, err, "%s: %s", shown(req.URL), directText(ctx, c, err))
	case resp.StatusCode != c.ExpectedStatus:
		return health.ControlFailed, fail(UnexpectedStatus, nil, "%s: status %d instead of %d", shown(req.URL), resp.StatusCode, c.ExpectedStatus)
	}
	return health.ControlPassed, nil
}

func directText(ctx context.Context, c Check, err error) string {
	if egress.FromDial(err) {
		return dialText(err)
	}
	switch {
	case timedOut(ctx, err):
		return fmt.Sprintf("no whole answer within %s", c.Timeout)
	case isTLS(err):
		return tlsText(err)
	case closedEarly(err):
		return "the connection was closed before the answer was whole"
	}
	return "the answer is not HTTP"
}

// originKey reads host:port or a URL as a host:port.
func originKey(s string) (string, error) {
	if s == "" {
		return "", nil
	}
	bad := fault.New(fault.Invalid, "the own origin has no host and port; write http://host:port or host:port")
	hostPort := s
	if strings.Contains(s, "://") {
		u, err := url.Parse(s)
		if err != nil {
			return "", bad // the cause repeats the URL, which may hold a password
		}
		hostPort = hostPortOf(u)
	}
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil || host == "" {
		return "", bad
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return "", bad
	}
	return net.JoinHostPort(strings.ToLower(host), port), nil
}

// hostPortOf is a URL's host and port, lower case, the scheme's port filled in.
func hostPortOf(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}
