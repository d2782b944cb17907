package api

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/desk/service"
	"fleetdesk/internal/platform/httpd"
)

// Access turns a key that was just leased into how to reach it, for a product
// whose keys are proxies.
type Access interface {
	// Access returns how to reach the key that carries the uid, with the
	// credentials that its holder needs. When it fails, the lease is given back
	// and the client is told of an outage (503, code access): nothing is handed
	// out that cannot be used. It is called again when a grant is replayed, may
	// block within ctx, and must not change attributes. The zero ProxyAccess says
	// that the key's name tells all there is to tell.
	Access(ctx context.Context, key, uid string, attributes map[string]string) (client.ProxyAccess, error)
}

// Codes of this file's errors that core/lease and desk/service do not know.
const (
	codeAccess = "access" // 503: the leased proxy cannot be reached now
	codeWaits  = "waits"  // 429, or 503: too many waiting requests or streams
)

// statusGone is what the log and the metrics show for a request whose client
// left; nobody reads it.
const statusGone = 499

type takeInput struct {
	IdempotencyKey string `header:"Idempotency-Key" minLength:"1" maxLength:"255" pattern:"^[ -~]+$" patternDescription:"printable ASCII" doc:"Makes requests of the account that carry the same one the same request: it is answered alike for 10 minutes, and keeps its place in line for 15 seconds after its connection was lost." example:"f1c2b6de-8a34-4a1e-9d57-1d0a4e6d2c11"`
	Body           client.LeaseRequest
}

type takeOutput struct {
	LeaseSecret  string `header:"Lease-Secret" doc:"The lease's secret, which renews and releases it."`
	CacheControl string `header:"Cache-Control" doc:"no-store: the answer holds a secret."`
	Body         grant
}

// grant is client.Grant, whose password shows stars when it is encoded. No value
// of this type is logged or kept.
type grant struct {
	client.LeaseInfo
	Waited client.Seconds `json:"waited" doc:"Seconds that the request waited at the server; secondsLeft counts from their end." example:"0.004"`
	Proxy  *proxyAccess   `json:"proxy,omitempty" doc:"How to reach a leased proxy; absent for keys that are none."`
}

type proxyAccess struct {
	Protocol string `json:"protocol" doc:"What to speak to it: http, https or socks5." example:"http"`
	Host     string `json:"host" doc:"Host name or IP address." example:"192.0.2.10"`
	Port     int    `json:"port" doc:"TCP port." example:"3128"`
	Username string `json:"username,omitempty" doc:"Absent for a proxy that asks for none." example:"crawler"`
	Password string `json:"password,omitempty" doc:"Absent for a proxy that asks for none." example:"pa$$word"`
	URL      string `json:"url" doc:"All of it as a URL, with the credentials escaped." example:"http://crawler:pa$$word@192.0.2.10:3128"`
}

func readTake(r *http.Request, body []byte, in *takeInput) bool {
	var ok bool
	if in.IdempotencyKey, ok = plainHeader(r.Header, "Idempotency-Key", 255); !ok {
		return false
	}
	p, seen := plain{data: body}, uint(0)
	b := &in.Body
	return p.object(func(name []byte) {
		switch string(name) {
		case "pool":
			p.once(&seen, 0)
			b.Pool = p.text(lease.MaxName)
		case "holder":
			p.once(&seen, 1)
			b.Holder = p.text(lease.MaxText)
		case "target":
			p.once(&seen, 2)
			b.Target = p.some(lease.MaxText)
		case "ttl":
			p.once(&seen, 3)
			b.TTL = p.number(int64(lease.MinTTL/time.Second), int64(lease.MaxTTL/time.Second))
		case "wait":
			p.once(&seen, 4)
			b.Wait = p.number(0, 60)
		case "constraints":
			p.once(&seen, 5)
			b.Constraints = p.texts(16)
		case "runsHooks":
			p.once(&seen, 6)
			b.RunsHooks = p.truth()
		default:
			readWish(&p, &seen, string(name), &b.Wish)
		}
	}) && b.Pool != ""
}

// takeLease hands out a key, waiting for one when asked to.
func (s *server) takeLease(ctx context.Context, x *exchange, in *takeInput) error {
	b := &in.Body
	host, err := targetOf("body.target", b.Target)
	if err != nil {
		return err
	}
	match, err := s.matchOf("body.", b.Wish)
	if err != nil {
		return err
	}
	wait := time.Duration(b.Wait) * time.Second
	bounded, end, err := s.waiting(ctx, x, wait)
	if err != nil {
		return err
	}
	defer end()
	g, err := s.opts.Desk.Take(bounded, service.TakeRequest{
		Account: x.principal.Account, Pool: b.Pool, Holder: b.Holder, Target: host, Where: b.Constraints, Match: match,
		TTL: time.Duration(b.TTL) * time.Second, Wait: wait, IdempotencyKey: in.IdempotencyKey, RunsHooks: b.RunsHooks,
	})
	if err != nil {
		if ctx.Err() != nil {
			x.w.WriteHeader(statusGone)
			return nil
		}
		return err
	}
	body := grant{LeaseInfo: leaseOnWire(&g.Lease), Waited: client.SecondsOf(g.Waited)}
	if s.opts.Access != nil && ctx.Err() == nil {
		if body.Proxy, err = s.reach(ctx, x, &g); err != nil {
			return err
		}
	}
	// The client is gone: it must not hold what it does not know of.
	if ctx.Err() != nil {
		s.opts.Desk.Undelivered(g)
		x.w.WriteHeader(statusGone)
		return nil
	}
	status := http.StatusCreated
	if g.Replayed {
		status = http.StatusOK
	}
	if err := s.reply(x, answer{status: status, secret: g.Secret.Reveal(), body: body}); err != nil {
		s.opts.Desk.Undelivered(g)
		if fault.Of(err) == fault.Permanent { // nothing was sent yet
			return err
		}
	}
	return nil
}

// reach asks how to reach the leased proxy. Without an answer the lease is given
// back.
func (s *server) reach(ctx context.Context, x *exchange, g *service.Grant) (*proxyAccess, error) {
	asked, cancel := context.WithTimeout(ctx, s.opts.Limits.CallTimeout)
	defer cancel()
	a, err := s.opts.Access.Access(asked, g.Key, g.UID, g.Attributes)
	switch {
	case err == nil:
		return accessOnWire(a), nil
	}
	back, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.Limits.CallTimeout)
	defer cancel()
	if _, failed := s.opts.Desk.Release(back, service.ReleaseRequest{
		Proof: service.Proof{ID: g.ID, Secret: g.Secret, Account: x.principal.Account},
	}); failed != nil {
		s.opts.Desk.Undelivered(*g) // it ends by itself then
		err = errors.Join(err, failed)
	}
	return nil, fault.WithCode(fault.Errorf(fault.Unavailable, "key %s was leased and given back, how to reach it is not known: %w", g.Key, err), codeAccess)
}

// accessOnWire is how to reach a proxy; nil for a key that is none.
func accessOnWire(a client.ProxyAccess) *proxyAccess {
	if a == (client.ProxyAccess{}) {
		return nil
	}
	return &proxyAccess{a.Protocol, a.Host, a.Port, a.Username, string(a.Password), a.URL().String()}
}

// waiting bounds a take: by CallTimeout, and its wait when it has one. The end
// of the server's life is the service's to see. end must be called.
func (s *server) waiting(ctx context.Context, x *exchange, wait time.Duration) (bounded context.Context, end func(), err error) {
	if wait <= 0 {
		bounded, cancel := context.WithTimeout(ctx, s.opts.Limits.CallTimeout)
		return bounded, cancel, nil
	}
	leave, err := s.waits.enter(x.principal.TokenID)
	if err != nil {
		return nil, nil, err
	}
	if err := httpd.LongPoll(x.w, wait+s.opts.Limits.CallTimeout); err != nil && !errors.Is(err, http.ErrNotSupported) {
		leave()
		return nil, nil, fault.Errorf(fault.Transient, "api: move the deadline of a waiting request: %w", err)
	}
	bounded, cancel := context.WithTimeout(ctx, wait+s.opts.Limits.CallTimeout)
	return bounded, func() {
		cancel()
		leave()
	}, nil
}

type getLeaseInput struct {
	ID string `path:"id" maxLength:"400" doc:"Public id of the lease." example:"win-01~17"`
}

type leaseOutput struct{ Body client.LeaseInfo }

func (s *server) getLease(ctx context.Context, in *getLeaseInput) (*leaseOutput, error) {
	l, err := s.opts.Desk.Lease(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return &leaseOutput{leaseOnWire(&l)}, nil
}

type renewInput struct {
	ID          string `path:"id" maxLength:"400" doc:"Public id of the lease." example:"win-01~17"`
	LeaseSecret string `header:"Lease-Secret" maxLength:"128" doc:"The secret that came with the grant."`
	Body        *client.RenewRequest
}

func readRenew(r *http.Request, body []byte, in *renewInput) bool {
	if !readProof(r, &in.ID, &in.LeaseSecret) {
		return false
	}
	if len(body) == 0 {
		return true
	}
	in.Body = &client.RenewRequest{}
	p, seen := plain{data: body}, uint(0)
	return p.object(func(name []byte) {
		switch string(name) {
		case "ttl":
			p.once(&seen, 0)
			in.Body.TTL = p.number(int64(lease.MinTTL/time.Second), int64(lease.MaxTTL/time.Second))
		case "fence":
			p.once(&seen, 1)
			in.Body.Fence = p.number(1, 1<<53)
		case "reset":
			p.once(&seen, 2)
			in.Body.Reset = p.oneOf(client.ResetBegin, client.ResetDone)
		default:
			p.odd = true
		}
	})
}

// readProof reads what both operations on a running lease need.
func readProof(r *http.Request, id, secret *string) bool {
	var ok bool
	*id = r.PathValue("id")
	*secret, ok = plainHeader(r.Header, "Lease-Secret", 128)
	return ok && len(*id) <= 400
}

func (s *server) renewLease(ctx context.Context, x *exchange, in *renewInput) error {
	var b client.RenewRequest
	if in.Body != nil {
		b = *in.Body
	}
	bounded, cancel := context.WithTimeout(ctx, s.opts.Limits.CallTimeout)
	defer cancel()
	l, err := s.opts.Desk.Renew(bounded, service.RenewRequest{
		Proof: service.Proof{ID: in.ID, Secret: service.NewSecret(in.LeaseSecret), Account: x.principal.Account},
		TTL:   time.Duration(b.TTL) * time.Second, Fence: b.Fence, Reset: lease.Reset(b.Reset),
	})
	if err != nil {
		return err
	}
	return s.told(x, leaseOnWire(&l))
}

type releaseInput struct {
	ID          string `path:"id" maxLength:"400" doc:"Public id of the lease." example:"win-01~17"`
	LeaseSecret string `header:"Lease-Secret" maxLength:"128" doc:"The secret that came with the grant."`
	Body        *client.ReleaseRequest
}

type releaseOutput struct{ Body client.Released }

func readRelease(r *http.Request, body []byte, in *releaseInput) bool {
	if !readProof(r, &in.ID, &in.LeaseSecret) {
		return false
	}
	if len(body) == 0 {
		return true
	}
	in.Body = &client.ReleaseRequest{}
	p, seen := plain{data: body}, uint(0)
	return p.object(func(name []byte) {
		switch string(name) {
		case "outcome":
			p.once(&seen, 0)
			in.Body.Outcome = p.oneOf(client.OutcomeOK, client.OutcomeBanned, client.OutcomeError, client.OutcomeBroken)
		case "reason":
			p.once(&seen, 1)
			in.Body.Reason = p.text(lease.MaxText)
		case "target":
			p.once(&seen, 2)
			in.Body.Target = p.some(lease.MaxText)
		case "reset":
			p.once(&seen, 3)
			in.Body.Reset = p.oneOf(client.ResetDone, client.ResetFailed)
		default:
			p.odd = true
		}
	})
}

func (s *server) releaseLease(ctx context.Context, x *exchange, in *releaseInput) error {
	var b client.ReleaseRequest
	if in.Body != nil {
		b = *in.Body
	}
	host, err := targetOf("body.target", b.Target)
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, s.opts.Limits.CallTimeout)
	defer cancel()
	r, err := s.opts.Desk.Release(bounded, service.ReleaseRequest{
		Proof:   service.Proof{ID: in.ID, Secret: service.NewSecret(in.LeaseSecret), Account: x.principal.Account},
		Outcome: lease.Outcome(b.Outcome), Reason: b.Reason, Target: host, Reset: lease.Reset(b.Reset),
	})
	if err != nil {
		return err
	}
	return s.told(x, client.Released{ID: r.ID, Key: r.Key, Disabled: r.Disabled, Capped: r.Capped})
}

// told answers a call that did what it says. A client that is gone by then asks
// again, which is harmless.
func (s *server) told(x *exchange, body any) error {
	if err := s.reply(x, answer{status: http.StatusOK, body: body}); fault.Of(err) == fault.Permanent {
		return err
	}
	return nil
}

func leaseOnWire(l *service.Lease) client.LeaseInfo {
	w := client.LeaseInfo{
		ID: l.ID, Pool: l.Pool, Key: l.Key, UID: l.UID, Account: l.Account, Holder: l.Holder, Target: l.Target, Fence: l.Fence,
		State: string(l.State), TTL: client.SecondsOf(l.TTL), SecondsLeft: client.SecondsOf(max(0, l.Left)),
		NeedsReset: l.NeedsReset, Attributes: l.Attributes, Notice: l.Notice,
	}
	if l.End != "" {
		w.State, w.SecondsLeft = string(l.End), 0
	}
	if w.Attributes == nil {
		w.Attributes = map[string]string{}
	}
	return w
}

// crowd bounds requests that wait, over all and for each token.
type crowd struct {
	all, perToken int
	text          string

	mu      sync.Mutex
	waiting int
	byToken map[string]int // each above zero; at most all entries
}

func newCrowd(all, perToken int, text string) *crowd {
	return &crowd{all: all, perToken: perToken, text: text, byToken: map[string]int{}}
}

// enter counts one more until leave is called, or refuses it.
func (c *crowd) enter(id string) (leave func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.byToken[id] >= c.perToken:
		return nil, httpd.WithRetryAfter(fault.WithCode(fault.Errorf(fault.Quota, "this token has %d %s already", c.perToken, c.text), codeWaits), time.Second)
	case c.waiting >= c.all:
		return nil, httpd.WithRetryAfter(httpd.WithStatus(fault.WithCode(
			fault.Errorf(fault.Quota, "this server has %d %s already", c.all, c.text), codeWaits), http.StatusServiceUnavailable), time.Second)
	}
	c.waiting++
	c.byToken[id]++
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.waiting--
		if c.byToken[id]--; c.byToken[id] == 0 {
			delete(c.byToken, id)
		}
	}), nil
}
