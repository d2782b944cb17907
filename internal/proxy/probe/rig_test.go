package probe_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/elazarl/goproxy"
	"go.uber.org/goleak"

	"fleetdesk/internal/proxy/origin"
	"fleetdesk/internal/proxy/probe"
	"fleetdesk/internal/proxy/provider"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// exitAddress is where the test's proxies leave from.
const exitAddress = "127.64.1.2"

// newOrigin serves the origin pages and counts requests.
func newOrigin(t *testing.T, secure bool) (base string, hits *atomic.Int64, cas *x509.CertPool) {
	t.Helper()
	hits = &atomic.Int64{}
	pages := origin.New(origin.Options{})
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		switch r.URL.Path {
		case "/redirect":
			http.Redirect(w, r, "/generate_204", http.StatusFound)
		case "/huge":
			chunk := make([]byte, 64<<10)
			for {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		case "/private":
			if user, pass, _ := r.BasicAuth(); user != "u" || pass != "url-password" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			w.WriteHeader(http.StatusNoContent)
		default:
			pages.ServeHTTP(w, r)
		}
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	if secure {
		srv.StartTLS()
		cas = pool(srv)
	} else {
		srv.Start()
	}
	t.Cleanup(srv.Close)
	return srv.URL, hits, cas
}

func pool(srv *httptest.Server) *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(srv.Certificate())
	return p
}

// newProxy is a real forward proxy on loopback that leaves from exitAddress.
// With a user it answers 407 unless the credentials match byte for byte.
func newProxy(t *testing.T, listen string, user, password string, secure bool) probe.Target {
	t.Helper()
	dial := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(exitAddress)}}).DialContext
	p := goproxy.NewProxyHttpServer()
	p.Logger = log.New(io.Discard, "", 0)
	p.Tr = &http.Transport{DialContext: dial, DisableKeepAlives: true}
	p.ConnectDial = func(network, addr string) (net.Conn, error) {
		return dial(context.Background(), network, addr)
	}
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
	l, err := net.Listen("tcp", net.JoinHostPort(listen, "0"))
	if err != nil {
		if strings.Contains(listen, ":") {
			t.Skipf("this machine has no IPv6 loopback: %v", err)
		}
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user != "" && r.Header.Get("Proxy-Authorization") != want {
			w.Header().Set("Proxy-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusProxyAuthRequired)
			return
		}
		p.ServeHTTP(w, r)
	}))
	_ = srv.Listener.Close()
	srv.Listener = l
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	target := probe.Target{User: user, Password: provider.Secret(password), Protocol: provider.HTTP}
	if secure {
		srv.StartTLS()
		target.Protocol, target.CAs = provider.HTTPS, pool(srv)
	} else {
		srv.Start()
	}
	t.Cleanup(srv.Close)
	return at(t, target, l.Addr())
}

func at(t *testing.T, target probe.Target, addr net.Addr) probe.Target {
	t.Helper()
	host, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		t.Fatal(err)
	}
	target.Address = host
	if target.Port, err = strconv.Atoi(port); err != nil {
		t.Fatal(err)
	}
	return target
}

// rawProxy runs serve for each connection and waits for all of them at the
// end; serve sees its connection closed then.
func rawProxy(t *testing.T, serve func(net.Conn)) probe.Target {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			wg.Go(func() {
				defer func() { _ = c.Close() }()
				serve(c)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return at(t, probe.Target{Protocol: provider.HTTP}, l.Addr())
}

// stall reads until the other side closes.
func stall(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

// readHeader reads a request's header.
func readHeader(c net.Conn) {
	buf := make([]byte, 0, 4096)
	one := make([]byte, 1)
	for !strings.HasSuffix(string(buf), "\r\n\r\n") {
		if _, err := c.Read(one); err != nil {
			return
		}
		buf = append(buf, one[0])
	}
}

// socksProxy is a small SOCKS5 server. With a user it insists on the password
// method. It answers requests with code, and connects when that is 0.
func socksProxy(t *testing.T, user, password string, code byte) probe.Target {
	target := rawProxy(t, func(c net.Conn) {
		read := func(n int) []byte {
			b := make([]byte, n)
			if _, err := io.ReadFull(c, b); err != nil {
				return make([]byte, n)
			}
			return b
		}
		write := func(b ...byte) { _, _ = c.Write(b) }
		methods := string(read(int(read(2)[1])))
		want := "\x00"
		if user != "" {
			want = "\x02"
		}
		if !strings.Contains(methods, want) {
			write(5, 0xff)
			return
		}
		write(5, want[0])
		if user != "" {
			gotUser := string(read(int(read(2)[1])))
			gotPass := string(read(int(read(1)[0])))
			if gotUser != user || gotPass != password {
				write(1, 1)
				return
			}
			write(1, 0)
		}
		var host string
		switch read(4)[3] {
		case 1:
			host = net.IP(read(4)).String()
		case 3:
			host = string(read(int(read(1)[0])))
		case 4:
			host = net.IP(read(16)).String()
		}
		port := read(2)
		if code != 0 {
			write(5, code, 0, 1, 0, 0, 0, 0, 0, 0)
			return
		}
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(exitAddress)}}
		far, err := d.Dial("tcp", net.JoinHostPort(host, strconv.Itoa(int(port[0])<<8|int(port[1]))))
		if err != nil {
			write(5, 5, 0, 1, 0, 0, 0, 0, 0, 0)
			return
		}
		write(5, 0, 0, 3, 4, 'h', 'e', 'r', 'e', 0, 0)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = io.Copy(c, far)
			_ = c.Close()
		}()
		_, _ = io.Copy(far, c)
		_ = far.Close()
		<-done
	})
	target.Protocol, target.User, target.Password = provider.SOCKS5, user, provider.Secret(password)
	return target
}

// closedPort is an address where nothing listens.
func closedPort(t *testing.T) probe.Target {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return at(t, probe.Target{Protocol: provider.HTTP}, l.Addr())
}

// tlsProxy is a raw https proxy.
func tlsProxy(t *testing.T, serve func(net.Conn)) probe.Target {
	t.Helper()
	srv := httptest.NewUnstartedServer(nil)
	srv.StartTLS()
	cert, cas := srv.TLS.Certificates[0], pool(srv)
	srv.Close()
	target := rawProxy(t, func(c net.Conn) {
		serve(tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}}))
	})
	target.Protocol, target.CAs = provider.HTTPS, cas
	return target
}

func mustURL(t *testing.T, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func portOf(target probe.Target) string { return strconv.Itoa(target.Port) }
