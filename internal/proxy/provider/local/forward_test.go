package local_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/local"
)

// forwarding runs a forward proxy in this process and returns where it listens.
func forwarding(t *testing.T, c provider.Credentials, l local.ForwardLimits) string {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.64.9.9:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- local.ServeForward(ctx, ln, c, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the proxy ended with %v", err)
		}
	})
	return ln.Addr().String()
}

// through returns a client that uses the proxy at address, with credentials
// unless they are zero.
func through(t *testing.T, address string, c provider.Credentials, base *http.Transport) *http.Client {
	t.Helper()
	u := &url.URL{Scheme: "http", Host: address}
	if !c.IsZero() {
		u.User = url.UserPassword(c.User, string(c.Password))
	}
	tr := &http.Transport{}
	if base != nil {
		tr = base.Clone()
	}
	tr.Proxy = http.ProxyURL(u)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 10 * time.Second}
}

func origin(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

// say sends text to address and returns the connection.
func say(t *testing.T, address, text string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn)
}

// answer reads one response.
func answer(t *testing.T, r io.Reader) (int, http.Header, string) {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(r), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(body)
}

func TestForwardHeaders(t *testing.T) {
	got := make(chan http.Header, 1)
	o := origin(t, func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header
		h := w.Header()
		h.Set("Connection", "X-Hop-Back")
		h.Set("X-Hop-Back", "1")
		h.Set("Keep-Alive", "timeout=5")
		h.Set("Proxy-Authenticate", "Basic realm=origin")
		h.Set("X-End", "2")
		h["Content-Type"], h["Date"] = nil, nil
		_, _ = io.WriteString(w, "<html>")
	})
	cred := provider.Credentials{User: "u", Password: provider.Secret("p")}
	at := forwarding(t, cred, local.ForwardLimits{})
	status, header, body := answer(t, say(t, at, "GET "+o.URL+"/a?b HTTP/1.1\r\nHost: "+o.Listener.Addr().String()+"\r\n"+
		"Proxy-Authorization: Basic dTpw\r\nProxy-Connection: keep-alive\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\n"+
		"Te: trailers\r\nKeep-Alive: 5\r\nUpgrade: h2c\r\nX-End: 2\r\nCookie: c=1\r\nAuthorization: Basic end2end\r\n\r\n"))
	if status != 200 || body != "<html>" {
		t.Fatalf("status %d, body %q", status, body)
	}
	want := http.Header{"X-End": {"2"}, "Cookie": {"c=1"}, "Authorization": {"Basic end2end"}}
	if d := cmp.Diff(want, <-got); d != "" {
		t.Errorf("the origin sees what is for it and nothing of this hop (-want +got):\n%s", d)
	}
	for _, name := range []string{"X-Hop-Back", "Keep-Alive", "Proxy-Authenticate", "Content-Type", "Date"} {
		if v, ok := header[name]; ok {
			t.Errorf("the client sees %s: %q, which the origin did not send it, or which was for the proxy", name, v)
		}
	}
	if header.Get("X-End") != "2" {
		t.Errorf("the client does not see X-End: %v", header)
	}
}

func TestForwardAnswersItself(t *testing.T) {
	cred := provider.Credentials{User: "u", Password: provider.Secret("p")}
	closed, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := closed.Addr().String()
	_ = closed.Close()
	open, locked := forwarding(t, provider.Credentials{}, local.ForwardLimits{MaxHeader: 8 << 10}), forwarding(t, cred, local.ForwardLimits{})
	_, openPort, _ := net.SplitHostPort(open)
	live := origin(t, func(http.ResponseWriter, *http.Request) {})
	_, livePort, _ := net.SplitHostPort(live.Listener.Addr().String())
	for name, tc := range map[string]struct {
		reason  string
		at      string
		request string
		status  int
	}{
		"origin-form":    {"the shallow check needs an answer, without credentials", locked, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
		"asterisk":       {"no crash on the odd form", locked, "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 400},
		"no password":    {"407 asks", locked, "GET http://" + dead + "/ HTTP/1.1\r\nHost: x\r\n\r\n", 407},
		"bad password":   {"407 asks", locked, "GET http://" + dead + "/ HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic dTpx\r\n\r\n", 407},
		"bad base64":     {"407 asks", locked, "GET http://" + dead + "/ HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic !\r\n\r\n", 407},
		"bearer":         {"407 asks", locked, "GET http://" + dead + "/ HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Bearer dTpw\r\n\r\n", 407},
		"connect, none":  {"407 asks for CONNECT too", locked, "CONNECT " + dead + " HTTP/1.1\r\nHost: x\r\n\r\n", 407},
		"dead target":    {"502 tells that the proxy lives", open, "GET http://" + dead + "/ HTTP/1.1\r\nHost: x\r\n\r\n", 502},
		"dead connect":   {"502 tells that the proxy lives", open, "CONNECT " + dead + " HTTP/1.1\r\nHost: x\r\n\r\n", 502},
		"itself":         {"no recursion", open, "GET http://" + open + "/ HTTP/1.1\r\nHost: x\r\n\r\n", 508},
		"itself tunnel":  {"no recursion", open, "CONNECT " + open + " HTTP/1.1\r\nHost: x\r\n\r\n", 508},
		"itself mapped":  {"another spelling of itself", open, "CONNECT [::ffff:127.64.9.9]:" + openPort + " HTTP/1.1\r\nHost: x\r\n\r\n", 508},
		"unspecified":    {"no address, though Linux would reach a server by it", open, "CONNECT 0.0.0.0:" + livePort + " HTTP/1.1\r\nHost: x\r\n\r\n", 502},
		"no port":        {"no port is guessed", open, "CONNECT example.com HTTP/1.1\r\nHost: x\r\n\r\n", 400},
		"port 0":         {"not a port", open, "CONNECT 127.0.0.1:0 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
		"https absolute": {"the proxy would read what the client wants private", open, "GET https://" + dead + "/ HTTP/1.1\r\nHost: x\r\n\r\n", 400},
		"ftp":            {"another protocol", open, "GET ftp://" + dead + "/ HTTP/1.1\r\nHost: x\r\n\r\n", 400},
		"large header":   {"the header is bounded", open, "GET http://" + dead + "/ HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("a", 16<<10) + "\r\n\r\n", 431},
	} {
		t.Run(name, func(t *testing.T) {
			status, header, body := answer(t, say(t, tc.at, tc.request))
			if status != tc.status {
				t.Errorf("%s: status %d (%q); want %d", tc.reason, status, body, tc.status)
			}
			if asks := header.Get("Proxy-Authenticate"); (status == 407) != strings.HasPrefix(asks, "Basic realm=") {
				t.Errorf("status %d with Proxy-Authenticate %q", status, asks)
			}
		})
	}
}

// A tunnel passes one side's end on and keeps the other way open.
func TestForwardHalfClose(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	done := make(chan error, 1)
	go func() {
		c, err := ln.Accept()
		if err != nil {
			done <- err
			return
		}
		defer c.Close()
		all, err := io.ReadAll(c) // ends by the client's half-close alone
		if err == nil {
			_, err = fmt.Fprintf(c, "got %s", all)
		}
		done <- err
	}()
	at := forwarding(t, provider.Credentials{}, local.ForwardLimits{})
	// The first bytes of the tunnel come in the CONNECT's own segment.
	c := say(t, at, "CONNECT "+ln.Addr().String()+" HTTP/1.1\r\nHost: x\r\n\r\nearly,")
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("CONNECT: %+v, %v", resp, err)
	}
	if _, err := io.WriteString(c, "late"); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if err != nil || string(got) != "got early,late" {
		t.Errorf("through the half-closed tunnel came %q, %v", got, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestForwardBounds(t *testing.T) {
	hold := make(chan struct{})
	o := origin(t, func(w http.ResponseWriter, r *http.Request) { <-hold })
	t.Cleanup(func() { close(hold) })
	target := o.Listener.Addr().String()

	t.Run("a tunnel on which nothing moves is ended", func(t *testing.T) {
		at := forwarding(t, provider.Credentials{}, local.ForwardLimits{Idle: 40 * time.Millisecond})
		c := say(t, at, "CONNECT "+target+" HTTP/1.1\r\nHost: x\r\n\r\n")
		all, err := io.ReadAll(c) // or the client's own deadline of 10 s fails it
		if err != nil || !strings.HasPrefix(string(all), "HTTP/1.1 200 ") {
			t.Errorf("read %q, %v; want the tunnel and then its end", all, err)
		}
	})
	t.Run("an answer that does not come is 504", func(t *testing.T) {
		at := forwarding(t, provider.Credentials{}, local.ForwardLimits{Answer: 40 * time.Millisecond})
		status, _, body := answer(t, say(t, at, "GET "+o.URL+"/ HTTP/1.1\r\nHost: x\r\n\r\n"))
		if status != 504 {
			t.Errorf("status %d, %q; want 504", status, body)
		}
	})
	t.Run("a client too many hears 503, and room comes back", func(t *testing.T) {
		at := forwarding(t, provider.Credentials{}, local.ForwardLimits{MaxClients: 1})
		first := say(t, at, "CONNECT "+target+" HTTP/1.1\r\nHost: x\r\n\r\n")
		if line, err := bufio.NewReader(first).ReadString('\n'); err != nil || !strings.Contains(line, " 200 ") {
			t.Fatalf("first client: %q, %v", line, err)
		}
		if status, _, body := answer(t, say(t, at, "")); status != 503 || !strings.HasSuffix(body, "may.\n") {
			t.Errorf("second client: status %d, %q; want 503", status, body)
		}
		_ = first.Close()
		for end := time.Now().Add(5 * time.Second); ; {
			c := say(t, at, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			line, _ := bufio.NewReader(c).ReadString('\n')
			_ = c.Close()
			if strings.Contains(line, " 400 ") {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("after the first client left: %q", line)
			}
		}
	})
}

// The first bytes of a slow answer arrive before the last are sent.
func TestForwardStreams(t *testing.T) {
	more := make(chan struct{})
	o := origin(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "first")
		w.(http.Flusher).Flush()
		<-more
		_, _ = io.WriteString(w, " last")
	})
	at := forwarding(t, provider.Credentials{}, local.ForwardLimits{})
	resp, err := through(t, at, provider.Credentials{}, nil).Get(o.URL)
	if err != nil {
		close(more)
		t.Fatal(err)
	}
	defer resp.Body.Close()
	first := make([]byte, 5)
	_, err = io.ReadFull(resp.Body, first)
	close(more)
	rest, rerr := io.ReadAll(resp.Body)
	if err != nil || rerr != nil || string(first)+string(rest) != "first last" {
		t.Errorf("came %q and %q; %v, %v", first, rest, err, rerr)
	}
}

// A websocket handshake in absolute form is passed on, bytes flow both ways,
// and the end of the origin is the end of the client's connection.
func TestForwardUpgrade(t *testing.T) {
	o := origin(t, func(w http.ResponseWriter, r *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + r.Header.Get("Upgrade") + "\r\n\r\n")
		_ = rw.Flush()
		line, _ := rw.ReadString('\n')
		_, _ = io.WriteString(c, "echo "+line)
	})
	at := forwarding(t, provider.Credentials{}, local.ForwardLimits{})
	c := say(t, at, "GET "+o.URL+"/ HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != 101 {
		t.Fatalf("handshake: %+v, %v", resp, err)
	}
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || string(got) != "echo hello\n" {
		t.Errorf("came %q, %v", got, err)
	}
}

// An IPv6 target is reached without a stall, in both forms.
func TestForwardIPv6(t *testing.T) {
	ln, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		t.Skipf("no IPv6 loopback here: %v", err)
	}
	o := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "six") }))
	_ = o.Listener.Close()
	o.Listener = ln
	o.Start()
	t.Cleanup(o.Close)
	at := forwarding(t, provider.Credentials{}, local.ForwardLimits{})
	resp, err := through(t, at, provider.Credentials{}, nil).Get(o.URL)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if string(body) != "six" {
		t.Errorf("plain: %q", body)
	}
	c := say(t, at, "CONNECT "+ln.Addr().String()+" HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.0\r\n\r\n")
	all, err := io.ReadAll(c)
	if err != nil || !strings.HasSuffix(string(all), "six") {
		t.Errorf("tunnel: %q, %v", all, err)
	}
}
