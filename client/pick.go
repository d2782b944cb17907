package client

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"time"
)

// NextRequest asks for a proxy that is used at once and held by nobody.
type NextRequest struct {
	// Pool is the pool's name, "<namespace>.<pool>"; Namespace stands for the pool
	// "<namespace>.default". One of them is needed.
	Pool      string `json:"pool,omitempty" minLength:"1" maxLength:"317" doc:"Name of the pool; it or namespace is needed." example:"crawl.eu"`
	Namespace string `json:"namespace,omitempty" minLength:"1" maxLength:"63" doc:"Stands for the pool \"<namespace>.default\"." example:"crawl"`
	// Target is the site that it is used for; order, rests and bans are per target.
	Target string `json:"target,omitempty" minLength:"1" maxLength:"512" doc:"Site that it is used for: a host name, or a URL of which the host counts. Order, rests and bans are per target." example:"shop.example.com"`
	Wish
	// Holder says to people who asks: a job, a host.
	Holder string `json:"holder,omitempty" maxLength:"512" doc:"Who asks, for people: a job, a host." example:"nightly 4711"`
	// Constraints are attributes that it must have.
	Constraints map[string]string `json:"constraints,omitempty" maxProperties:"16" doc:"Attributes that it must have, at most 16."`
	// Wait is how long [Client.Next] asks again while there is none; it is not
	// sent. 0 asks once, and a negative one asks until ctx ends.
	Wait time.Duration `json:"-"`
}

// Wish is what a proxy is asked to be like.
type Wish struct {
	// Selector is a label selector on Proxy objects: "tier=eu,env in (a,b),!old".
	Selector string `json:"selector,omitempty" minLength:"1" maxLength:"2048" doc:"Label selector that the Proxy object must match." example:"tier=eu,!old"`
	// Scheme is what clients speak to it: http, https or socks5.
	Scheme string `json:"scheme,omitempty" enum:"http,https,socks5" doc:"What clients speak to it." example:"http"`
	// Provider and Region are where it is.
	Provider string `json:"provider,omitempty" minLength:"1" maxLength:"253" doc:"Its provider." example:"kvm-home"`
	Region   string `json:"region,omitempty" minLength:"1" maxLength:"253" doc:"Its region: the label topology.kubernetes.io/region, or the zone that was asked for." example:"eu-1"`
}

// Pick is a proxy that was picked for one use. However it is printed or encoded,
// it shows no password.
type Pick struct {
	// Use names it in a report.
	Use string `json:"use" doc:"Names this use in a report." example:"crawl.home-1~21"`
	// Key is the desk's name of the proxy, Namespace and Name those of the object.
	Key       string `json:"key" doc:"Key of the proxy." example:"crawl.home-1"`
	Namespace string `json:"namespace" doc:"Namespace of the Proxy object." example:"crawl"`
	Name      string `json:"name" doc:"Name of the Proxy object." example:"home-1"`
	// Pool it was picked from, and Target as it was understood.
	Pool   string `json:"pool" doc:"Pool that it was picked from." example:"crawl.eu"`
	Target string `json:"target,omitempty" doc:"Site as it was understood: a host name in lower-case ASCII." example:"shop.example.com"`
	// ExitIP is the address that targets see; "" when unknown.
	ExitIP string `json:"exitIP,omitempty" doc:"Address that targets see; absent when unknown." example:"203.0.113.7"`
	// Attributes are the key's; never nil in an answer.
	Attributes map[string]string `json:"attributes" nullable:"false" doc:"Attributes of the key."`
	// Rested is when it may be handed out for the target again.
	Rested Seconds `json:"rested" doc:"Seconds until it may be handed out for the target again, as far as this use tells." example:"30"`
	// proxy is in a closure, where no printing reaches it.
	proxy func() *ProxyAccess
}

// Proxy is how to reach it; nil for a key that is no proxy. Nothing may go direct
// then: see [ProxyAccess.Transport].
func (p Pick) Proxy() *ProxyAccess {
	if p.proxy == nil {
		return nil
	}
	return p.proxy()
}

// plainPick is a Pick as it is encoded, but for the proxy.
type plainPick Pick

// UnmarshalJSON reads a pick as the server writes it.
func (p *Pick) UnmarshalJSON(text []byte) error {
	var w struct {
		plainPick
		Proxy *ProxyAccess `json:"proxy"`
	}
	if err := json.Unmarshal(text, &w); err != nil {
		return err
	}
	*p = Pick(w.plainPick)
	p.proxy = func() *ProxyAccess { return w.Proxy }
	return nil
}

// MarshalJSON writes it with stars for the password.
func (p Pick) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		plainPick
		Proxy *ProxyAccess `json:"proxy,omitempty"`
	}{plainPick(p), p.Proxy()})
}

// Format writes what it is without its credentials, for every verb.
func (p Pick) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "pick "+p.Use) }

// LogValue shows what it is without its credentials in a log.
func (p Pick) LogValue() slog.Value { return slog.StringValue(p.Use) }

// ReportRequest tells how a use of a proxy went.
type ReportRequest struct {
	// Outcome is ok, banned or error.
	Outcome string `json:"outcome" enum:"ok,banned,error" doc:"How the use went: banned says that the target refuses the proxy, error that it failed for another reason." example:"banned"`
	// Target is the site that the outcome is about; banned needs one.
	Target string `json:"target,omitempty" minLength:"1" maxLength:"512" doc:"Site that the outcome is about; banned needs one." example:"shop.example.com"`
	// Pool says how long a ban rests; "" for the namespace's default.
	Pool string `json:"pool,omitempty" minLength:"1" maxLength:"317" doc:"Pool whose rules say how long a ban rests; the namespace's default when absent." example:"crawl.eu"`
	// Use is the pick that it is about, Lease the lease; at most one.
	Use   string `json:"use,omitempty" minLength:"1" maxLength:"400" doc:"Pick that it is about." example:"crawl.home-1~21"`
	Lease string `json:"lease,omitempty" minLength:"1" maxLength:"400" doc:"Lease that it is about." example:"crawl.home-1~19"`
	// Reason says more, for people.
	Reason string `json:"reason,omitempty" maxLength:"512" doc:"Says more, for people."`
	// Replace asks for another proxy in the same call; what it leaves out of pool
	// and target is the report's.
	Replace *NextRequest `json:"replace,omitempty"`
}

// Reported is what a report did.
type Reported struct {
	// Outcome and Target are what was understood.
	Outcome string `json:"outcome" doc:"Outcome that was reported." example:"banned"`
	Target  string `json:"target,omitempty" doc:"Site as it was understood." example:"shop.example.com"`
	// Rest is how long the proxy now rests for the target, whatever the reason.
	Rest Seconds `json:"rest" doc:"Seconds for which the proxy, or its exit IP, now rests for the target, whatever the reason." example:"600"`
	// Strikes counts the bans in a row.
	Strikes int `json:"strikes" doc:"Bans in a row by the target." example:"1"`
	// Replacement is the proxy that was picked in its place; nil when none was
	// asked for, or for the reason in NoReplacement.
	Replacement *Pick `json:"replacement,omitempty"`
	// NoReplacement is why there is none though one was asked for.
	NoReplacement *NoReplacement `json:"noReplacement,omitempty"`
}

// NoReplacement is why a report got no replacement.
type NoReplacement struct {
	// Code is none_free, or that of another error.
	Code string `json:"code" doc:"Why there is none, as the last part of a problem's type: none_free, access, pool, constraints." example:"none_free"`
	// Detail says it to people.
	Detail string `json:"detail" doc:"Why there is none, for people."`
	// Why counts the pool's keys by what keeps them from the request.
	Why []Why `json:"why,omitempty" nullable:"false" doc:"With none_free: how many keys of the pool are kept from the request by what."`
	// SecondsUntilFree is when the next one is due; 0 when no time frees one.
	SecondsUntilFree Seconds `json:"secondsUntilFree,omitempty" doc:"With none_free: seconds until the next one comes free by time; absent when no time frees one." example:"42.5"`
}

// Why says how many keys of a pool are kept from a request by what.
type Why struct {
	// Cause is a state of a key, or banned, resting, in-use or no-match.
	Cause string `json:"cause" doc:"State of these keys, or: banned and resting (for the target), in-use (as often as the pool allows), no-match (without what was asked for)." example:"banned"`
	// Count is how many; 1000 may be more.
	Count int `json:"count" doc:"How many; 1000 stands for 1000 or more." example:"12"`
}

// Cooldown is a rest of a proxy, or of its exit IP, for one target.
type Cooldown struct {
	// Target is the site, or the registrable domain in pools that count by it.
	Target string `json:"target" doc:"Site that it rests for; the registrable domain in pools that count by it." example:"shop.example.com"`
	// Cause is banned or resting (after a use).
	Cause string `json:"cause" enum:"banned,resting" doc:"banned by the target, or resting after a use." example:"banned"`
	// SecondsLeft is when it ends by time.
	SecondsLeft Seconds `json:"secondsLeft" doc:"Seconds until it ends by time." example:"540"`
	// Strikes counts the bans in a row.
	Strikes int `json:"strikes,omitempty" doc:"Bans in a row by the target; absent for none." example:"1"`
	// Scope is what rests: key, or exitIP for every proxy that leaves by ExitIP.
	Scope  string `json:"scope" enum:"key,exitIP" doc:"What rests: the proxy, or every proxy that leaves by exitIP." example:"key"`
	ExitIP string `json:"exitIP,omitempty" doc:"Address that rests; absent when the proxy alone does." example:"203.0.113.7"`
}

// CooldownList is one page of a proxy's cooldowns, ordered by target.
type CooldownList struct {
	// Items has at most as many entries as the limit asked for; never nil in
	// an answer.
	Items []Cooldown `json:"items" nullable:"false" doc:"Cooldowns in force ordered by target; of two for one target the one that ends last."`
	// Next is the cursor of the next page; empty on the last one.
	Next string `json:"next,omitempty" doc:"Cursor of the next page; absent on the last one."`
}

// Next picks a proxy: nobody holds it, and it rests for the target from now on.
// Asked again it is another one, which is also what becomes of an answer that
// was lost. With r.Wait it comes back when the server says that one is due.
//
// Errors: Quota (code none_free, with Why and UntilFree) when there is none;
// NotFound (code pool); Invalid (codes target, selector, constraints, text,
// name); Denied; Unavailable (code store) when the database does not answer,
// which is not the same as none free; and ctx's own.
func (c *Client) Next(ctx context.Context, r NextRequest) (Pick, error) {
	began, failed := time.Now(), 0
	for {
		var out Pick
		err := c.one(ctx, call{op: "pick a proxy", method: http.MethodPost, parts: []string{"proxies", "next"}, body: r, out: &out})
		if err == nil {
			return out, nil
		}
		pause, again := max(err.UntilFree, min(err.RetryAfter, maxPause), firstPause), true
		switch {
		case err.Code != codeNoneFree:
			pause, again = retryPause(err, failed)
			again = again && failed < c.retries
			failed++
		case r.Wait >= 0 && pause > r.Wait-time.Since(began):
			again = false // it says when to come back
		default:
			failed = 0
		}
		if end, ok := ctx.Deadline(); !again || ctx.Err() != nil || ok && time.Until(end) <= pause || !sleep(ctx, pause) {
			return Pick{}, err
		}
	}
}

// Report tells how a use of a proxy went: banned has it rest for the target, for
// longer each time. With r.Replace another one is picked in the same call.
//
// Errors: NotFound (codes key, pool), Denied (code not_owner) for a running lease
// of another account, Invalid (codes target, use, selector, text). A report is
// not sent again when no answer came; whoever sends a ban twice says it once.
func (c *Client) Report(ctx context.Context, namespace, name string, r ReportRequest) (Reported, error) {
	var out Reported
	err := c.do(ctx, call{
		op: "report on proxy " + namespace + "/" + name, method: http.MethodPost,
		parts: []string{"proxies", namespace, name, "reports"}, body: r, out: &out,
	})
	return out, err
}

// ReportPick is [Client.Report] on a pick; what r leaves out of use, pool and
// target is the pick's.
func (c *Client) ReportPick(ctx context.Context, p Pick, r ReportRequest) (Reported, error) {
	if r.Use == "" && r.Lease == "" {
		r.Use = p.Use
	}
	r.Pool, r.Target = cmp.Or(r.Pool, p.Pool), cmp.Or(r.Target, p.Target)
	return c.Report(ctx, p.Namespace, p.Name, r)
}

// Cooldowns returns one page of what a proxy rests for. Errors: NotFound (code
// key).
func (c *Client) Cooldowns(ctx context.Context, namespace, name string, p Page) (CooldownList, error) {
	var out CooldownList
	err := c.get(ctx, "list cooldowns of proxy "+namespace+"/"+name, p.query(), &out, "proxies", namespace, name, "cooldowns")
	return out, err
}

// LiftCooldowns ends the rests of a proxy for one target as [Client.Cooldowns]
// names it, with those of its exit IP; for all targets when it is "". Again is
// harmless. Errors: NotFound (code key), Invalid (code target).
func (c *Client) LiftCooldowns(ctx context.Context, namespace, name, target string) error {
	q := url.Values{}
	if target != "" {
		q.Set("target", target)
	}
	return c.do(ctx, call{
		op: "lift cooldowns of proxy " + namespace + "/" + name, method: http.MethodDelete,
		parts: []string{"proxies", namespace, name, "cooldowns"}, query: q, repeatable: true,
	})
}
