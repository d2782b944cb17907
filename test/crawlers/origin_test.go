package crawlers_test

import (
	"crypto/tls"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path"
	"strings"
	"sync"
	"testing"
	"time"
)

// origin is a web server of many names that bans: an address that asks one name
// for more than rate pages within the window gets 403 there for a while.
type origin struct {
	plain, secure *httptest.Server

	mu sync.Mutex
	// rate, window and ban are the same for all names.
	rate        int
	window, ban time.Duration
	seen        map[visitor]*visits
	log         []visit
}

// visitor is an address that asks one name.
type visitor struct {
	name    string
	address netip.Addr
}

type visits struct {
	pages []time.Time // of the last window
	until time.Time   // the end of the ban
}

// visit is one request.
type visit struct {
	visitor
	at     time.Time
	path   string
	status int
}

func startOrigin(t *testing.T, ca *authority) *origin {
	t.Helper()
	o := &origin{rate: 3, window: time.Second, ban: time.Minute, seen: map[visitor]*visits{}}
	quiet := log.New(discard{}, "", 0) // clients that were told to break off
	o.plain = httptest.NewUnstartedServer(o)
	o.plain.Config.ErrorLog = quiet
	o.plain.Start()
	o.secure = httptest.NewUnstartedServer(o)
	o.secure.Config.ErrorLog = quiet
	o.secure.TLS = &tls.Config{GetCertificate: ca.certificate}
	o.secure.StartTLS()
	t.Cleanup(o.plain.Close)
	t.Cleanup(o.secure.Close)
	return o
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

// port is the one of the server that takes plain HTTP.
func (o *origin) port() string {
	_, port, _ := net.SplitHostPort(o.plain.Listener.Addr().String())
	return port
}

// banish bans an address from a name before it ever came.
func (o *origin) banish(name string, address netip.Addr, until time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen[visitor{name, address}] = &visits{until: until}
}

// of returns the requests for a name, in order.
func (o *origin) of(name string) (all []visit) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, v := range o.log {
		if v.name == name {
			all = append(all, v)
		}
	}
	return all
}

func (o *origin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		name = r.Host
	}
	peer := netip.MustParseAddrPort(r.RemoteAddr).Addr().Unmap()
	status := o.admit(visit{visitor: visitor{name, peer}, at: time.Now(), path: r.URL.Path})
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if status != http.StatusOK {
		w.WriteHeader(status)
		fmt.Fprintln(w, "<title>no</title>robots are not welcome")
		return
	}
	switch {
	case strings.HasPrefix(r.URL.Path, "/item/"):
		item := strings.TrimPrefix(r.URL.Path, "/item/")
		fmt.Fprintf(w, "<!doctype html><title>Item %[1]s</title><link rel=stylesheet href=/style.css><h1>Item %[1]s of %[2]s</h1>\n", item, name)
	case r.URL.Path == "/style.css":
		w.Header().Set("Content-Type", "text/css")
		fmt.Fprintln(w, "h1 { color: green }")
	case strings.HasPrefix(r.URL.Path, "/moved/"):
		http.Redirect(w, r, "/item/moved-"+path.Base(r.URL.Path), http.StatusFound)
	case r.URL.Path == "/robots.txt":
		w.Header().Set("Content-Type", "text/plain")
		fmt.Fprintln(w, "User-agent: *\nAllow: /")
	default:
		http.NotFound(w, r)
	}
}

// admit counts a request, and says with which status it is answered. What a page
// brings along is not counted as a page.
func (o *origin) admit(v visit) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := o.seen[v.visitor]
	if c == nil {
		c = &visits{}
		o.seen[v.visitor] = c
	}
	v.status = http.StatusOK
	if strings.HasPrefix(v.path, "/item/") {
		for len(c.pages) > 0 && v.at.Sub(c.pages[0]) > o.window {
			c.pages = c.pages[1:]
		}
		c.pages = append(c.pages, v.at)
		if len(c.pages) > o.rate {
			c.until = v.at.Add(o.ban)
		}
	}
	if v.at.Before(c.until) {
		v.status = http.StatusForbidden
	}
	o.log = append(o.log, v)
	return v.status
}
