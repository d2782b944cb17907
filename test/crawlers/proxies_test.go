package crawlers_test

import (
	"bufio"
	"context"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fleetdesk/client"
)

// forward is a forward proxy: requests in absolute form, and CONNECT. It listens
// on an address, leaves by one of its own, and asks for a user and a password.
type forward struct {
	name     string
	listen   netip.Addr
	exit     netip.Addr
	port     int
	user     string
	password string
	bench    *bench

	srv   *http.Server
	out   *http.Transport
	asked atomic.Int64 // requests with the right password
	// told are command lines that showed a secret while a request was under way.
	mu   sync.Mutex
	told []string
}

// awkward are credentials that lose their tail, or turn into others, where
// somebody forgets to escape, to unescape or to encode them.
const (
	awkwardUser     = "crawl$r@é%2F"
	awkwardPassword = "a:b@c$d%e/é+ ł"
)

// startForward starts a proxy that listens on one address, and leaves by one.
func startForward(t *testing.T, b *bench, name string, listen, exit netip.Addr) *forward {
	t.Helper()
	f := &forward{
		name: name, listen: listen, exit: exit, bench: b,
		user: awkwardUser, password: awkwardPassword + name,
	}
	f.out = &http.Transport{DialContext: f.dial, DisableCompression: true, DisableKeepAlives: true}
	l, err := net.Listen("tcp", netip.AddrPortFrom(listen, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	f.port = l.Addr().(*net.TCPAddr).Port
	f.srv = &http.Server{Handler: f, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = f.srv.Serve(l)
	}()
	t.Cleanup(func() {
		f.stop()
		<-done
	})
	return f
}

// stop makes it a proxy that refuses connections.
func (f *forward) stop() { _ = f.srv.Close() }

// access is what the desk hands out.
func (f *forward) access() client.ProxyAccess {
	return client.ProxyAccess{
		Protocol: "http", Host: f.listen.String(), Port: f.port, Username: f.user, Password: client.Secret(f.password),
	}
}

func (f *forward) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte(f.user+":"+f.password))
	if subtle.ConstantTimeCompare([]byte(r.Header.Get("Proxy-Authorization")), []byte(want)) != 1 {
		w.Header().Set("Proxy-Authenticate", `Basic realm="proxy", charset="UTF-8"`)
		http.Error(w, "this proxy needs a user name and password", http.StatusProxyAuthRequired)
		return
	}
	f.asked.Add(1)
	if lines := f.bench.inProcessList(); lines != nil {
		f.mu.Lock()
		f.told = append(f.told, lines...)
		f.mu.Unlock()
	}
	switch {
	case r.Method == http.MethodConnect:
		f.tunnel(w, r)
	case r.URL.Scheme == "http" && r.URL.Host != "":
		f.pass(w, r)
	default:
		http.Error(w, "this is a forward proxy", http.StatusBadRequest)
	}
}

// dial knows the names of the example domain, and leaves by the proxy's own
// address. What is not on this machine does not exist.
func (f *forward) dial(ctx context.Context, _, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	switch {
	case exampleName.MatchString(host) && port == "80":
		address = f.bench.origin.plain.Listener.Addr().String()
	case exampleName.MatchString(host) && port == "443":
		address = f.bench.origin.secure.Listener.Addr().String()
	case host == "localhost":
		address = net.JoinHostPort("127.0.0.1", port)
	default:
		return nil, fmt.Errorf("there is no %s", address)
	}
	d := net.Dialer{Timeout: 5 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(f.exit, 0))}
	return d.DialContext(ctx, "tcp4", address)
}

func (f *forward) tunnel(w http.ResponseWriter, r *http.Request) {
	far, err := f.dial(r.Context(), "tcp", r.Host)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer far.Close()
	near, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer near.Close()
	if _, err := io.WriteString(near, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	end := time.Now().Add(time.Minute)
	_, _ = near.SetDeadline(end), far.SetDeadline(end)
	done := make(chan struct{}, 2)
	half := func(to net.Conn, from io.Reader) {
		_, _ = io.Copy(to, from)
		_ = to.(*net.TCPConn).CloseWrite()
		done <- struct{}{}
	}
	go half(far, bufio.NewReader(buffered))
	go half(near, far)
	<-done
	<-done
}

func (f *forward) pass(w http.ResponseWriter, r *http.Request) {
	out := r.Clone(r.Context())
	out.RequestURI = ""
	for _, name := range []string{"Proxy-Authorization", "Proxy-Connection", "Connection", "Keep-Alive", "Te"} {
		out.Header.Del(name)
	}
	answer, err := f.out.RoundTrip(out)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer answer.Body.Close()
	for name, values := range answer.Header {
		w.Header()[name] = values
	}
	w.Header().Set("Content-Length", strconv.FormatInt(answer.ContentLength, 10))
	if answer.ContentLength < 0 {
		w.Header().Del("Content-Length")
	}
	w.WriteHeader(answer.StatusCode)
	_, _ = io.Copy(w, answer.Body)
}
