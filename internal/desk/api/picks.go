package api

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/desk/service"
)

type nextInput struct{ Body client.NextRequest }

type nextOutput struct {
	CacheControl string `header:"Cache-Control" doc:"no-store: the answer holds credentials."`
	Body         pick
}

// pick is client.Pick, whose password shows stars when it is encoded. No value of
// this type is logged or kept.
type pick struct {
	Use        string            `json:"use" doc:"Names this use in a report." example:"crawl.home-1~21"`
	Key        string            `json:"key" doc:"Key of the proxy." example:"crawl.home-1"`
	Namespace  string            `json:"namespace" doc:"Namespace of the Proxy object." example:"crawl"`
	Name       string            `json:"name" doc:"Name of the Proxy object." example:"home-1"`
	Pool       string            `json:"pool" doc:"Pool that it was picked from." example:"crawl.eu"`
	Target     string            `json:"target,omitempty" doc:"Site as it was understood: a host name in lower-case ASCII." example:"shop.example.com"`
	Proxy      *proxyAccess      `json:"proxy,omitempty" doc:"How to reach it; absent for a key that is no proxy."`
	ExitIP     string            `json:"exitIP,omitempty" doc:"Address that targets see; absent when unknown." example:"203.0.113.7"`
	Attributes map[string]string `json:"attributes" nullable:"false" doc:"Attributes of the key."`
	Rested     client.Seconds    `json:"rested" doc:"Seconds until it may be handed out for the target again, as far as this use tells." example:"30"`
}

func readNext(_ *http.Request, body []byte, in *nextInput) bool {
	p, seen := plain{data: body}, uint(0)
	return p.object(func(name []byte) { readNextField(&p, &seen, string(name), &in.Body) })
}

func readNextField(p *plain, seen *uint, name string, b *client.NextRequest) {
	switch name {
	case "pool":
		p.once(seen, 0)
		b.Pool = p.some(lease.MaxName)
	case "namespace":
		p.once(seen, 1)
		b.Namespace = p.some(maxNamespace)
	case "target":
		p.once(seen, 2)
		b.Target = p.some(lease.MaxText)
	case "holder":
		p.once(seen, 3)
		b.Holder = p.text(lease.MaxText)
	case "constraints":
		p.once(seen, 4)
		b.Constraints = p.texts(16)
	default:
		readWish(p, seen, name, &b.Wish)
	}
}

// maxNamespace bounds the name of a namespace.
const maxNamespace = 63

// readWish reads a field of a wish; its bits begin at wishBit.
func readWish(p *plain, seen *uint, name string, w *client.Wish) {
	const wishBit = 16
	switch name {
	case "selector":
		p.once(seen, wishBit)
		w.Selector = p.some(2048)
	case "scheme":
		p.once(seen, wishBit+1)
		w.Scheme = p.oneOf("http", "https", "socks5")
	case "provider":
		p.once(seen, wishBit+2)
		w.Provider = p.some(253)
	case "region":
		p.once(seen, wishBit+3)
		w.Region = p.some(253)
	default:
		p.odd = true
	}
}

// pickOf is a request as the service takes it; where is the place of its fields.
func (s *server) pickOf(where, account string, b *client.NextRequest) (service.PickRequest, error) {
	r := service.PickRequest{Account: account, Holder: b.Holder, Where: b.Constraints}
	var err error
	if r.Pool, err = s.poolOf(where, b.Pool, b.Namespace); err != nil {
		return r, err
	}
	if r.Target, err = targetOf(where+"target", b.Target); err != nil {
		return r, err
	}
	r.Match, err = s.matchOf(where, b.Wish)
	return r, err
}

// nextProxy picks a proxy.
func (s *server) nextProxy(ctx context.Context, x *exchange, in *nextInput) error {
	if x.r.Header["Idempotency-Key"] != nil { // whoever sends one counts on a replay
		return invalid("header.Idempotency-Key", "idempotency_key", "a pick is not replayed, asked again it is another one: leave it out")
	}
	r, err := s.pickOf("body.", x.principal.Account, &in.Body)
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, s.opts.Limits.CallTimeout)
	defer cancel()
	p, err := s.opts.Desk.Next(bounded, r)
	if err != nil {
		if ctx.Err() != nil {
			x.w.WriteHeader(statusGone)
			return nil
		}
		return err
	}
	body, err := s.reachPick(ctx, x, &p)
	if err != nil {
		return err
	}
	if ctx.Err() != nil { // the client is gone, and will not report it
		s.unused(ctx, x, &p)
		x.w.WriteHeader(statusGone)
		return nil
	}
	if err := s.reply(x, answer{status: http.StatusOK, private: true, body: body}); err != nil {
		s.unused(ctx, x, &p)
		if fault.Of(err) == fault.Permanent { // nothing was sent yet
			return err
		}
	}
	return nil
}

// reachPick asks how to reach what was picked. Without an answer the use is over.
func (s *server) reachPick(ctx context.Context, x *exchange, p *service.Pick) (*pick, error) {
	asked, cancel := context.WithTimeout(ctx, s.opts.Limits.CallTimeout)
	defer cancel()
	a, err := s.opts.Access.Access(asked, p.Key, p.UID, p.Attributes)
	if err != nil {
		s.unused(ctx, x, p)
		return nil, fault.WithCode(fault.Errorf(fault.Unavailable, "key %s was picked, how to reach it is not known: %w", p.Key, err), codeAccess)
	}
	body := &pick{
		Use: p.Use.String(), Key: p.Key, Pool: p.Pool, Target: p.Target, Proxy: accessOnWire(a), ExitIP: p.ExitIP,
		Attributes: p.Attributes, Rested: client.SecondsOf(p.Rested),
	}
	body.Namespace, body.Name, _ = s.opts.Selection.Parts(p.Key)
	if body.Attributes == nil {
		body.Attributes = map[string]string{}
	}
	return body, nil
}

// unused ends a use that never was, where the pool counts it: nobody else would
// before its time is over. Its rest stays.
func (s *server) unused(ctx context.Context, x *exchange, p *service.Pick) {
	if !p.Counted {
		return
	}
	back, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.Limits.CallTimeout)
	defer cancel()
	_, err := s.opts.Desk.Report(back, service.ReportRequest{
		Account: x.principal.Account, Key: p.Key, Pool: p.Pool, Target: p.Target, Use: p.Use, // without an outcome: it had none
	})
	if err != nil {
		s.opts.Log.DebugContext(ctx, "a use that never was counts until its time is over", "key", p.Key, "class", fault.Of(err), "error", err)
	}
}

type reportInput struct {
	Namespace string `path:"namespace" maxLength:"63" doc:"Namespace of the Proxy object." example:"crawl"`
	Name      string `path:"name" maxLength:"253" doc:"Name of the Proxy object." example:"home-1"`
	Body      client.ReportRequest
}

type reportOutput struct {
	CacheControl string `header:"Cache-Control" doc:"no-store: a replacement comes with credentials."`
	Body         reported
}

// reported is client.Reported with a pick that shows its password.
type reported struct {
	Outcome       string                `json:"outcome" doc:"Outcome that was reported." example:"banned"`
	Target        string                `json:"target,omitempty" doc:"Site as it was understood." example:"shop.example.com"`
	Rest          client.Seconds        `json:"rest" doc:"Seconds for which the proxy, or its exit IP, now rests for the target, whatever the reason." example:"600"`
	Strikes       int                   `json:"strikes" doc:"Bans in a row by the target." example:"1"`
	Replacement   *pick                 `json:"replacement,omitempty" doc:"The proxy that was picked in its place."`
	NoReplacement *client.NoReplacement `json:"noReplacement,omitempty" doc:"Why there is no replacement though one was asked for."`
}

func readReport(r *http.Request, body []byte, in *reportInput) bool {
	in.Namespace, in.Name = r.PathValue("namespace"), r.PathValue("name")
	if len(in.Namespace) > maxNamespace || len(in.Name) > 253 {
		return false
	}
	p, seen := plain{data: body}, uint(0)
	b := &in.Body
	return p.object(func(name []byte) {
		switch string(name) {
		case "outcome":
			p.once(&seen, 0)
			b.Outcome = p.oneOf(client.OutcomeOK, client.OutcomeBanned, client.OutcomeError)
		case "target":
			p.once(&seen, 1)
			b.Target = p.some(lease.MaxText)
		case "pool":
			p.once(&seen, 2)
			b.Pool = p.some(lease.MaxName)
		case "use":
			p.once(&seen, 3)
			b.Use = p.some(400)
		case "lease":
			p.once(&seen, 4)
			b.Lease = p.some(400)
		case "reason":
			p.once(&seen, 5)
			b.Reason = p.text(lease.MaxText)
		case "replace":
			p.once(&seen, 6)
			b.Replace = &client.NextRequest{}
			inner := uint(0)
			p.members(func(name []byte) { readNextField(&p, &inner, string(name), b.Replace) })
		default:
			p.odd = true
		}
	}) && b.Outcome != ""
}

// reportProxy writes a report.
func (s *server) reportProxy(ctx context.Context, x *exchange, in *reportInput) error {
	r, err := s.reportOf(x, in)
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, s.opts.Limits.CallTimeout)
	defer cancel()
	done, err := s.opts.Desk.Report(bounded, r)
	if err != nil {
		return err
	}
	if in.Body.Reason != "" {
		s.opts.Log.LogAttrs(ctx, slog.LevelDebug, "a use was reported", slog.String("account", x.principal.Account), slog.String("key", r.Key),
			slog.String("target", r.Target), slog.String("outcome", in.Body.Outcome), slog.String("reason", in.Body.Reason))
	}
	body := reported{Outcome: in.Body.Outcome, Target: r.Target, Rest: client.SecondsOf(done.Rest), Strikes: done.Strikes}
	if done.Without != nil {
		body.NoReplacement = without(done.Without)
	}
	if done.Replacement != nil {
		if body.Replacement, err = s.reachPick(ctx, x, done.Replacement); err != nil {
			s.opts.Log.WarnContext(ctx, "how to reach a replacement is not known", "key", done.Replacement.Key, "class", fault.Of(err), "error", err)
			body.NoReplacement = &client.NoReplacement{
				Code: codeAccess, Detail: "key " + done.Replacement.Key + " was picked, how to reach it is not known: pick another",
			}
		}
	}
	if err := s.reply(x, answer{status: http.StatusOK, private: true, body: body}); err != nil {
		if done.Replacement != nil && body.Replacement != nil {
			s.unused(ctx, x, done.Replacement)
		}
		if fault.Of(err) == fault.Permanent { // nothing was sent yet
			return err
		}
	}
	return nil
}

// reportOf is a report as the service takes it.
func (s *server) reportOf(x *exchange, in *reportInput) (service.ReportRequest, error) {
	b := &in.Body
	r := service.ReportRequest{
		Account: x.principal.Account, Key: s.opts.Selection.Key(in.Namespace, in.Name), Outcome: lease.Outcome(b.Outcome),
		Pool: cmp.Or(b.Pool, s.opts.Selection.DefaultPool(in.Namespace)),
	}
	if lease.ValidName(r.Key) != nil {
		return r, lease.NoKey(r.Key)
	}
	var err error
	if r.Target, err = targetOf("body.target", b.Target); err != nil {
		return r, err
	}
	if r.Outcome == lease.Banned && r.Target == "" {
		return r, invalid("body.target", codeTarget, "a ban is by a target: name it")
	}
	if b.Use != "" && b.Lease != "" {
		return r, invalid("body.use", codeUse, "name the use or the lease that it is about, not both")
	}
	for location, text := range map[string]string{"body.use": b.Use, "body.lease": b.Lease} {
		if text == "" {
			continue
		}
		if r.Use, err = lease.ParseID(text); err != nil || r.Use.Key != r.Key {
			return r, invalid(location, codeUse, "it is none of this proxy: send what came with it")
		}
		r.Leased = b.Lease != ""
	}
	if b.Replace == nil {
		return r, nil
	}
	next := *b.Replace
	if next.Pool == "" && next.Namespace == "" {
		next.Pool = r.Pool
	}
	if next.Target == "" {
		next.Target = r.Target
	}
	pick, err := s.pickOf("body.replace.", r.Account, &next)
	r.Replace = &pick
	return r, err
}

// without is why there is no replacement, as clients are told.
func without(err error) *client.NoReplacement {
	n := &client.NoReplacement{Code: fault.CodeOf(err), Detail: err.Error()}
	if e, ok := errors.AsType[*service.NoneFree](err); ok {
		n.Why, n.SecondsUntilFree = whyOnWire(e.Why), client.SecondsOf(e.RetryAfter)
	}
	return n
}
