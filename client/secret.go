package client

import (
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/url"
	"strconv"
	"time"
)

// Secret is the secret of a lease, or a proxy's password. However it is printed
// or encoded, it shows stars; string(s) is the text.
type Secret string

// Format writes stars for every verb.
func (Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, stars) }

// String returns stars.
func (Secret) String() string { return stars }

// MarshalText returns stars, which holds for encoding/json too.
func (Secret) MarshalText() ([]byte, error) { return []byte(stars), nil }

// LogValue shows stars in a log.
func (Secret) LogValue() slog.Value { return slog.StringValue(stars) }

// Seconds is a time on the wire: how long something still lasts, or takes, in
// seconds with at most three decimals.
type Seconds float64

// SecondsOf cuts d to milliseconds, so that nobody is told of time that is not
// there.
func SecondsOf(d time.Duration) Seconds {
	return Seconds(float64(d.Truncate(time.Millisecond)/time.Millisecond) / 1000)
}

// Duration is s to the millisecond. What no duration can hold, or is none, is
// the nearest that one can, and 0.
func (s Seconds) Duration() time.Duration {
	ms := math.Round(float64(s) * 1000)
	switch {
	case math.IsNaN(ms):
		return 0
	case ms >= float64(math.MaxInt64/time.Millisecond):
		return math.MaxInt64
	case ms <= float64(math.MinInt64/time.Millisecond):
		return math.MinInt64
	}
	return time.Duration(ms) * time.Millisecond
}

// ProxyAccess is how to reach a proxy that was leased. It is handed out with
// the lease and never shown again.
type ProxyAccess struct {
	// Protocol is what to speak to it: http, https or socks5.
	Protocol string `json:"protocol" doc:"What to speak to it: http, https or socks5." example:"http"`
	// Host is a host name or an IP address, without brackets.
	Host string `json:"host" doc:"Host name or IP address." example:"192.0.2.10"`
	// Port is a TCP port.
	Port int `json:"port" doc:"TCP port." example:"3128"`
	// Username and Password are "" for a proxy that asks for none.
	Username string `json:"username,omitempty" doc:"Absent for a proxy that asks for none." example:"crawler"`
	Password Secret `json:"password,omitempty"`
}

// Address is host and port, as a dialer takes them.
func (p ProxyAccess) Address() string { return net.JoinHostPort(p.Host, strconv.Itoa(p.Port)) }

// Format writes the URL without the password, for every verb: some verbs make
// fmt look into a struct behind a pointer without asking its fields how they
// want to be shown.
func (p ProxyAccess) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, p.URL().Redacted()) }

// LogValue shows the URL without the password in a log.
func (p ProxyAccess) LogValue() slog.Value { return slog.StringValue(p.URL().Redacted()) }

// URL is the proxy as a URL, for http.ProxyURL and the like. Its String holds
// the password; use Redacted for logs.
func (p ProxyAccess) URL() *url.URL {
	u := &url.URL{Scheme: p.Protocol, Host: p.Address()}
	switch {
	case p.Password != "":
		u.User = url.UserPassword(p.Username, string(p.Password))
	case p.Username != "":
		u.User = url.User(p.Username)
	}
	return u
}
