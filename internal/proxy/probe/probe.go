// Package probe asks whether a proxy proxies: it sends real requests through
// proxies, by the transport that users' requests take as well, and keeps the
// health of many proxies up to date.
package probe

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// What a zero field of a [Check] or [Subject] stands for.
const (
	DefaultStatus   = 204
	DefaultTimeout  = 5 * time.Second
	DefaultInterval = 30 * time.Second
)

// Target is a proxy as its users reach it.
type Target struct {
	// Address is an IP address (IPv6 without brackets) or a host name.
	Address string
	Port    int
	// Protocol is what the proxy speaks to its clients; empty is HTTP.
	Protocol provider.Protocol
	// User and Password are what the proxy asks of its clients; both empty
	// for none. Any bytes are fine, save that HTTP cannot carry a colon in a
	// user name and SOCKS5 carries at most 255 bytes of each.
	User     string
	Password provider.Secret
	// CAs verify the certificate of an https proxy; nil for the system's own.
	// The certificate must be for ServerName, or for Address when that is
	// empty.
	CAs        *x509.CertPool
	ServerName string
}

// Check is the request to send through a proxy.
type Check struct {
	// URL is fetched by GET; http or https. Empty asks for the shallow check:
	// does the proxy's port answer at all?
	URL string
	// ExpectedStatus is the only status that passes; zero is 204. A 407 never
	// passes.
	ExpectedStatus int
	// Timeout bounds the whole probe, from the first packet to the last byte
	// wanted; zero is 5 s.
	Timeout time.Duration
	// CAs verify the certificate of an https URL; nil for the system's own.
	CAs *x509.CertPool
}

// Result is what one probe found.
type Result struct {
	OK bool
	// Latency is the time from the start to the first byte of the answer; zero
	// when there was none.
	Latency time.Duration
	// ExitIP is the address that the far end saw, where it said so and OK.
	ExitIP netip.Addr
	// Leaks are the headers by which the far end saw a proxy, where it said so
	// and OK.
	Leaks Leaks
	// Shallow means that no request went through the proxy: only its port was
	// asked.
	Shallow bool
	// Reason is [ReasonOK] or what Err says, as a stable word.
	Reason Reason
	// Err is nil when OK. It carries a class of core/fault. Its text never
	// holds a password, a query string, or what the proxy sent (but for a bad
	// certificate's names, clipped).
	Err error
}

// Reason is a stable word, in CamelCase, for what a probe found.
type Reason string

// The reasons.
const (
	ReasonOK Reason = "ProbePassed"
	// ConnectFailed: no connection to the proxy's port.
	ConnectFailed Reason = "ConnectFailed"
	// ProxyTLSFailed: an https proxy's certificate or handshake is bad.
	ProxyTLSFailed Reason = "ProxyTLSFailed"
	// AuthRefused: the proxy does not take the credentials, or asks for some
	// and none are known.
	AuthRefused Reason = "AuthRefused"
	// ProxyRefused: the proxy says that it will not, or cannot, connect.
	ProxyRefused Reason = "ProxyRefused"
	// Timeout: connected, and then not done in time.
	Timeout Reason = "Timeout"
	// TargetTLSFailed: the URL's certificate, as seen through the proxy, is
	// bad.
	TargetTLSFailed Reason = "TargetTLSFailed"
	// UnexpectedStatus: an answer with another status than the expected one.
	UnexpectedStatus Reason = "UnexpectedStatus"
	// BadResponse: closed early, or not an answer in the protocol.
	BadResponse Reason = "BadResponse"
	// InvalidTarget: the proxy's address or credentials cannot be used.
	InvalidTarget Reason = "InvalidTarget"
	// InvalidCheck: the URL cannot be used.
	InvalidCheck Reason = "InvalidCheck"
	// Cancelled: the caller gave up; says nothing about the proxy.
	Cancelled Reason = "Cancelled"
)

// own reports whether the reason can only be the proxy's own fault: it
// answered, and the answer has nothing to do with the URL behind it. No
// control request can excuse it.
func (r Reason) own() bool {
	return r == AuthRefused || r == ProxyTLSFailed || r == InvalidTarget
}

func (r Reason) class() fault.Class {
	switch r {
	case ConnectFailed:
		return fault.Unavailable
	case Timeout:
		return fault.Timeout
	case AuthRefused:
		return fault.Denied
	case InvalidTarget, InvalidCheck:
		return fault.Invalid
	}
	return fault.Transient
}

// failure is an error with its reason; fail classes it.
type failure struct {
	reason Reason
	msg    string
	cause  error
}

func (f *failure) Error() string { return f.msg }
func (f *failure) Unwrap() error { return f.cause }

// fail makes a classed error of a reason. The cause stays reachable and out of
// the text, since it may hold what a proxy sent.
func fail(r Reason, cause error, format string, args ...any) error {
	return fault.Wrap(r.class(), &failure{r, fmt.Sprintf(format, args...), cause})
}

// ReasonOf returns the reason of an error of this package, also of one that
// came through a [Transport]; "" for another error.
func ReasonOf(err error) Reason {
	if f, ok := errors.AsType[*failure](err); ok {
		return f.reason
	}
	return ""
}

func (c Check) withDefaults() Check {
	if c.ExpectedStatus == 0 {
		c.ExpectedStatus = DefaultStatus
	}
	if c.Timeout <= 0 {
		c.Timeout = DefaultTimeout
	}
	return c
}

func (c Check) equal(o Check) bool {
	c, o = c.withDefaults(), o.withDefaults()
	return c.Timeout == o.Timeout && c.sameTest(o)
}

// sameTest reports whether two checks, defaults filled in, ask the same of the
// far end. Only then does an answer to one say something about the other; how
// long each would have waited must be compared with the time it took.
func (c Check) sameTest(o Check) bool {
	return c.URL == o.URL && c.ExpectedStatus == o.ExpectedStatus && samePool(c.CAs, o.CAs)
}

// parse returns the URL without its user part, and that.
func (c Check) parse() (*url.URL, *url.Userinfo, error) {
	u, err := url.Parse(c.URL)
	if err != nil || u.Hostname() == "" || (u.Scheme != "http" && u.Scheme != "https") {
		// url.Parse's error repeats the URL with its password and query.
		return nil, nil, fail(InvalidCheck, nil, "the health check's URL is not an absolute http or https URL; correct healthCheck.url or --health-check-url")
	}
	user := u.User
	u.User, u.Fragment = nil, ""
	return u, user, nil
}

// shown is the URL for people: without the parts that may hold secrets.
func shown(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

func (t Target) withDefaults() Target {
	if t.Protocol == "" {
		t.Protocol = provider.HTTP
	}
	return t
}

func (t Target) equal(o Target) bool {
	t, o = t.withDefaults(), o.withDefaults()
	return t.Address == o.Address && t.Port == o.Port && t.Protocol == o.Protocol &&
		t.User == o.User && string(t.Password) == string(o.Password) &&
		t.ServerName == o.ServerName && samePool(t.CAs, o.CAs)
}

func samePool(a, b *x509.CertPool) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Equal(b)
}

func (t Target) hostPort() string { return net.JoinHostPort(t.Address, strconv.Itoa(t.Port)) }

func (t Target) hasCredentials() bool { return t.User != "" || len(t.Password) > 0 }

func (t Target) check() error {
	switch {
	case t.Address == "":
		return fail(InvalidTarget, nil, "the proxy has no address yet")
	case strings.ContainsAny(t.Address, "[]/@ "):
		return fail(InvalidTarget, nil, "the proxy's address %.80q is neither an IP address nor a host name", t.Address)
	case t.Port < 1 || t.Port > 65535:
		return fail(InvalidTarget, nil, "the proxy's port %d is not in 1..65535", t.Port)
	}
	switch t.Protocol {
	case provider.HTTP, provider.HTTPS:
		if strings.Contains(t.User, ":") {
			return fail(InvalidTarget, nil, "the proxy's user name holds a colon, which HTTP proxies cannot be told; change it in the Secret of authSecretRef")
		}
	case provider.SOCKS5:
		if len(t.User) > 255 || len(t.Password) > 255 {
			return fail(InvalidTarget, nil, "SOCKS5 carries at most 255 bytes of user name and of password; shorten them in the Secret of authSecretRef")
		}
	default:
		return fail(InvalidTarget, nil, "the proxy's protocol %.20q is none of http, https, socks5", t.Protocol)
	}
	return nil
}
