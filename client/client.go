// Package client speaks to the desk API of Fleetdesk: it holds the wire types
// and a small client. It needs the standard library only.
package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	// maxBody bounds an answer: 500 proxies with long conditions fit.
	maxBody = 16 << 20
	// firstPause is the pause before the first retry; it doubles.
	firstPause = 200 * time.Millisecond
	// maxPause is the longest pause between retries. A server that asks for
	// more gets no retry: the caller sees RetryAfter and decides.
	maxPause = 10 * time.Second
	// defaultTimeout bounds one attempt when Options bring no HTTP client.
	defaultTimeout = 30 * time.Second
)

// Token is a bearer token. However it is printed or encoded, it shows stars.
type Token string

const stars = "***"

// Format writes stars for every verb.
func (Token) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, stars) }

// String returns stars.
func (Token) String() string { return stars }

// MarshalText returns stars, which holds for encoding/json too.
func (Token) MarshalText() ([]byte, error) { return []byte(stars), nil }

// LogValue shows stars in a log.
func (Token) LogValue() slog.Value { return slog.StringValue(stars) }

// Options make a [Client].
type Options struct {
	// BaseURL is where the desk listens, such as "https://desk.example.com" or
	// "http://127.0.0.1:8080"; a path in front of /api/v1 is kept. Required.
	BaseURL string
	// Token is sent as "Authorization: Bearer …" to BaseURL's scheme, host and
	// port only, never after a redirect to another. Required.
	Token Token
	// HTTPClient makes the requests; its transport and timeout are used, its
	// redirect policy and cookies are not. Nil for one with a timeout of 30 s.
	HTTPClient *http.Client
	// Retries is how often a read, or a change that may as well be made twice,
	// is tried again when it failed for now (no connection, or status 502, 503,
	// 504): 2 when zero, none when negative.
	Retries int
}

// Client speaks to the desk. It is safe for concurrent use.
type Client struct {
	base    string // of every request: BaseURL and /api/v1
	http    *http.Client
	retries int
	// clock is the clock of leases; tests have one of their own.
	clock func() time.Duration
	// authorize holds the token in a closure, where no printing reaches it.
	authorize func(*http.Request)
}

// New checks the options; it sends nothing. Errors are of class Invalid.
func New(opts Options) (*Client, error) {
	invalid := func(text string) (*Client, error) {
		return nil, &Error{Class: Invalid, op: "new client", Title: text}
	}
	base, err := url.Parse(opts.BaseURL)
	switch {
	case err != nil:
		// The parser's text would repeat the URL, and with it a password.
		return invalid("BaseURL is not a URL")
	case base.Scheme != "http" && base.Scheme != "https", base.Host == "":
		return invalid("BaseURL must be http:// or https:// and a host")
	case base.User != nil || base.RawQuery != "" || base.Fragment != "":
		return invalid("BaseURL must hold no user, query or fragment")
	case opts.Token == "":
		return invalid("Token is missing")
	case strings.ContainsFunc(string(opts.Token), func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return invalid("Token holds a character that no token has (a line break at its end?)")
	}
	hc := &http.Client{Timeout: defaultTimeout}
	if opts.HTTPClient != nil {
		hc.Transport, hc.Timeout = opts.HTTPClient.Transport, opts.HTTPClient.Timeout
	}
	hc.CheckRedirect = sameOrigin
	c := &Client{base: base.JoinPath("api", "v1").String(), http: hc, retries: opts.Retries, clock: newClock()}
	switch {
	case c.retries == 0:
		c.retries = 2
	case c.retries < 0:
		c.retries = 0
	}
	token := string(opts.Token)
	c.authorize = func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
	return c, nil
}

// sameOrigin follows at most three redirects and none to another scheme, host
// or port, where net/http would still send the token to a subdomain.
func sameOrigin(r *http.Request, via []*http.Request) error {
	first := via[0].URL
	if len(via) > 3 || r.URL.Scheme != first.Scheme || r.URL.Host != first.Host {
		return http.ErrUseLastResponse
	}
	return nil
}

// Proxies returns one page of the proxies that match. Errors: Invalid for a
// bad query (Fields names the parameter), Denied, Quota, Unavailable.
func (c *Client) Proxies(ctx context.Context, q ProxyQuery) (ProxyList, error) {
	v := url.Values{}
	for name, value := range map[string]string{
		"namespace": q.Namespace, "selector": q.Selector, "provider": q.Provider,
		"phase": q.Phase, "cursor": q.Cursor,
	} {
		if value != "" {
			v.Set(name, value)
		}
	}
	if q.Limit != 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	var out ProxyList
	err := c.get(ctx, "list proxies", v, &out, "proxies")
	return out, err
}

// Proxy returns one proxy, or an error of class NotFound.
func (c *Client) Proxy(ctx context.Context, namespace, name string) (Proxy, error) {
	var out Proxy
	err := c.get(ctx, "get proxy "+namespace+"/"+name, nil, &out, "proxies", namespace, name)
	return out, err
}

// get reads /api/v1/<parts…> into out, with retries.
func (c *Client) get(ctx context.Context, op string, q url.Values, out any, parts ...string) error {
	return c.do(ctx, call{op: op, method: http.MethodGet, parts: parts, query: q, out: out, repeatable: true})
}

// retryPause says whether a failed call may be tried again, and after what.
func retryPause(err *Error, attempt int) (time.Duration, bool) {
	switch err.Status {
	case 0:
		if err.Class == Invalid {
			return 0, false
		}
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
	default:
		return 0, false
	}
	if err.RetryAfter > maxPause {
		return 0, false
	}
	pause := min(firstPause<<min(attempt, 10), maxPause)
	// Half of the pause is drawn, so that many clients do not return together.
	pause -= rand.N(pause/2 + 1)
	return max(pause, err.RetryAfter), true
}

// noAnswer classes the error of a request that got none. The cause is kept
// without *url.Error, whose text repeats method and URL.
func noAnswer(op string, err error) *Error {
	class := Unavailable
	if u, ok := errors.AsType[*url.Error](err); ok {
		if u.Timeout() {
			class = Timeout
		}
		err = u.Err
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		class = Timeout
	case errors.Is(err, context.Canceled):
		class = Transient
	}
	return &Error{Class: class, op: op, cause: err}
}

// answered makes the error of an answer other than 200.
func answered(op string, resp *http.Response, body []byte) *Error {
	e := &Error{
		Status:     resp.StatusCode,
		Title:      "the server answered " + resp.Status,
		RetryAfter: retryAfter(resp.Header.Get("Retry-After")),
		RequestID:  resp.Header.Get("X-Request-Id"),
		op:         op,
	}
	if resp.StatusCode/100 == 3 {
		e.Title = "the server redirects elsewhere, where the token is not sent: check BaseURL"
	}
	var p Problem
	if mt, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); mt == "application/problem+json" &&
		json.Unmarshal(body, &p) == nil {
		e.Detail, e.Fields = p.Detail, p.Errors
		e.Why, e.Holders, e.Position, e.UntilFree = p.Why, p.Holders, p.Position, p.SecondsUntilFree.Duration()
		if p.Title != "" {
			e.Title = p.Title
		}
		if p.RequestID != "" {
			e.RequestID = p.RequestID
		}
	}
	e.Class, e.Code = classOf(p.Type, resp.StatusCode)
	return e
}

// retryAfter reads the header in either form, seconds or a date; what it
// cannot read or lies in the past is 0.
func retryAfter(h string) time.Duration {
	if n, err := strconv.ParseInt(h, 10, 32); err == nil {
		return max(0, time.Duration(n)*time.Second)
	}
	if t, err := http.ParseTime(h); err == nil {
		return max(0, time.Until(t))
	}
	return 0
}
