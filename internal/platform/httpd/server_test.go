package httpd_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/httpd"
	"fleetdesk/internal/platform/obs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// buffer is a log that tests may read while the server writes.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// running is a server in the middle of Serve.
type running struct {
	*httpd.Server
	log    *buffer
	client *http.Client
	stop   context.CancelFunc
	done   chan error
}

func logger(w io.Writer) *slog.Logger {
	return obs.NewLogger(w, obs.Options{Level: slog.LevelDebug})
}

func start(t *testing.T, o httpd.Options) *running {
	t.Helper()
	r := &running{log: &buffer{}, done: make(chan error, 1)}
	o.Log = logger(r.log)
	if o.Address == "" {
		o.Address = "127.0.0.1:0"
	}
	var err error
	if r.Server, err = httpd.New(o); err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, r.stop = context.WithCancel(context.Background())
	finished := make(chan struct{})
	go func() {
		r.done <- r.Serve(ctx)
		close(finished)
	}()
	r.client = &http.Client{Transport: &http.Transport{}, Timeout: 10 * time.Second}
	t.Cleanup(func() {
		r.client.CloseIdleConnections()
		r.stop()
		<-finished
	})
	return r
}

func (r *running) get(t *testing.T, path string) (*http.Response, string) {
	t.Helper()
	resp, err := r.client.Get(r.URL() + path)
	if err != nil {
		t.Fatal(err)
	}
	return resp, bodyOf(t, resp)
}

func bodyOf(t *testing.T, resp *http.Response) string {
	t.Helper()
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// document reads a problem document.
func document(t *testing.T, resp *http.Response, body string) httpd.Document {
	t.Helper()
	if ct := resp.Header.Get("Content-Type"); ct != httpd.ProblemMediaType {
		t.Fatalf("Content-Type %q, body %s", ct, body)
	}
	var d httpd.Document
	if err := json.Unmarshal([]byte(body), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func text(s string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, s) })
}

func TestNewRefuses(t *testing.T) {
	used, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer used.Close()
	flags := httpd.Flags{Address: "--port", AllowPlaintext: "--allow-plaintext", TLSCert: "--tls-cert", TLSKey: "--tls-key"}
	good := httpd.Options{Handler: text("x"), Log: logger(io.Discard), Address: "127.0.0.1:0", Flags: flags}
	cases := map[string]struct {
		reason string
		change func(*httpd.Options)
		class  fault.Class
		texts  []string
	}{
		"used port":    {"a used port names the address and the flag", func(o *httpd.Options) { o.Address = used.Addr().String() }, fault.Conflict, []string{used.Addr().String(), "--port", "another program"}},
		"open address": {"an open address names all ways out", func(o *httpd.Options) { o.Address = "192.0.2.1:0" }, fault.Invalid, []string{"192.0.2.1", "--port", "--tls-cert", "--tls-key", "--allow-plaintext"}},
		"any address":  {"an empty host is every address", func(o *httpd.Options) { o.Address = ":0" }, fault.Invalid, []string{"--allow-plaintext"}},
		"any v6":       {"so is ::", func(o *httpd.Options) { o.Address = "[::]:0" }, fault.Invalid, []string{"--allow-plaintext"}},
		"mapped v4":    {"an open IPv4 address in IPv6 clothes", func(o *httpd.Options) { o.Address = "[::ffff:192.0.2.1]:0" }, fault.Invalid, []string{"--allow-plaintext"}},
		"not ours":     {"an address that the machine does not have", func(o *httpd.Options) { o.Address, o.AllowPlaintext = "192.0.2.1:0", true }, fault.Invalid, []string{"no such address", "--port"}},
		"no port":      {"host without port", func(o *httpd.Options) { o.Address = "127.0.0.1" }, fault.Invalid, []string{"--port"}},
		"bad port":     {"a port that is none", func(o *httpd.Options) { o.Address = "127.0.0.1:99999" }, fault.Invalid, []string{"--port"}},
		"half TLS":     {"a certificate without its key", func(o *httpd.Options) { o.TLS.Cert = "cert.pem" }, fault.Invalid, []string{"--tls-cert", "--tls-key"}},
		"no TLS file":  {"files that are not there", func(o *httpd.Options) { o.TLS = httpd.TLSFiles{Cert: "none.pem", Key: "none.key"} }, fault.Permanent, []string{"none.pem", "--tls-cert"}},
		"no handler":   {"nothing to serve", func(o *httpd.Options) { o.Handler = nil }, fault.Invalid, []string{"Handler"}},
		"no log":       {"no log", func(o *httpd.Options) { o.Log = nil }, fault.Invalid, []string{"Log"}},
		"negative":     {"a negative time is a mistake", func(o *httpd.Options) { o.Grace = -1 }, fault.Invalid, []string{"negative"}},
	}
	for name, c := range cases {
		o := good
		c.change(&o)
		s, err := httpd.New(o)
		if err == nil {
			t.Errorf("%s: %s: no error", name, c.reason)
			_ = s.Close()
			continue
		}
		if fault.Of(err) != c.class {
			t.Errorf("%s: %s: class %s of %v", name, c.reason, fault.Of(err), err)
		}
		for _, want := range c.texts {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %s: %q lacks %q", name, c.reason, err, want)
			}
		}
	}
}

func TestAllowPlaintext(t *testing.T) {
	s, err := httpd.New(httpd.Options{
		Handler: text("x"), Log: logger(io.Discard), Address: "localhost:0",
	})
	if err != nil {
		t.Fatalf("the name localhost is loopback: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("closing twice is harmless: %v", err)
	}
}

func TestHeadersAndLog(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /things/{id}", func(w http.ResponseWriter, r *http.Request) {
		httpd.SetAccount(r.Context(), "crawler")
		_, _ = io.WriteString(w, "hello")
	})
	mux.HandleFunc("GET /asset", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
	})
	r := start(t, httpd.Options{Handler: mux})
	req, err := http.NewRequest(http.MethodGet, r.URL()+"/things/secret-id?token=secret-query", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer secret-bearer")
	req.Header.Set("X-Request-Id", "made-up")
	resp, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	bodyOf(t, resp)
	for k, want := range map[string]string{
		"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer",
	} {
		if got := resp.Header.Get(k); got != want {
			t.Errorf("%s = %q, want %q", k, got, want)
		}
	}
	id := resp.Header.Get("X-Request-Id")
	if len(id) != 16 || id == "made-up" {
		t.Errorf("X-Request-Id = %q", id)
	}
	if resp, _ := r.get(t, "/asset"); resp.Header.Get("Cache-Control") != "max-age=60" {
		t.Error("a handler may say that its answer can be kept")
	}
	r.client.CloseIdleConnections()
	r.stop()
	if err := <-r.done; err != nil { // the log is whole now
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(r.log.String(), "\n")
	for _, want := range []string{"method=GET", `route="GET /things/{id}"`, "status=200", "bytes=5", "duration=", "account=crawler", "request=" + id} {
		if !strings.Contains(line, want) {
			t.Errorf("the log line lacks %s: %s", want, line)
		}
	}
	if strings.Contains(r.log.String(), "secret") {
		t.Errorf("path, query and headers have no place in the log:\n%s", r.log)
	}
}

func TestPanics(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/early", func(http.ResponseWriter, *http.Request) { panic("early trouble") })
	mux.HandleFunc("/late", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("part ", 1000))
		panic("late trouble")
	})
	mux.HandleFunc("/abort", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	r := start(t, httpd.Options{Handler: mux})
	resp, body := r.get(t, "/early")
	d := document(t, resp, body)
	if resp.StatusCode != http.StatusInternalServerError || d.Status != 500 || d.Type != httpd.ProblemType+"permanent" || d.RequestID == "" || strings.Contains(body, "trouble") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	if resp, err := r.client.Get(r.URL() + "/late"); err == nil {
		if b, err := io.ReadAll(resp.Body); err == nil {
			t.Errorf("a cut answer of %d bytes looks whole", len(b))
		}
		resp.Body.Close()
	}
	if _, err := r.client.Get(r.URL() + "/abort"); err == nil {
		t.Error("an aborted answer looks whole")
	}
	log := r.log.String()
	for _, want := range []string{"early trouble", "late trouble", "server_test.go", "request=" + d.RequestID} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %q:\n%s", want, log)
		}
	}
}

func TestBodyLimit(t *testing.T) {
	var entered atomic.Int32
	var h http.HandlerFunc = func(w http.ResponseWriter, r *http.Request) {
		entered.Add(1)
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			httpd.WriteError(w, r, slog.New(slog.DiscardHandler), err)
			return
		}
		fmt.Fprint(w, n)
	}
	r := start(t, httpd.Options{Handler: h, MaxBodyBytes: 1000})
	post := func(body io.Reader) (*http.Response, string) {
		t.Helper()
		resp, err := r.client.Post(r.URL(), "text/plain", body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, bodyOf(t, resp)
	}
	if _, body := post(strings.NewReader(strings.Repeat("x", 1000))); body != "1000" {
		t.Errorf("a body at the limit: %s", body)
	}
	for reason, body := range map[string]io.Reader{
		"declared": strings.NewReader(strings.Repeat("x", 1001)),
		"chunked":  struct{ io.Reader }{strings.NewReader(strings.Repeat("x", 1001))},
	} {
		resp, text := post(body)
		if d := document(t, resp, text); resp.StatusCode != http.StatusRequestEntityTooLarge || d.Type != httpd.ProblemType+"invalid:too_large" {
			t.Errorf("%s: %d %s", reason, resp.StatusCode, text)
		}
	}
	if n := entered.Load(); n != 2 {
		t.Errorf("a body declared too large reaches no handler; %d requests did, want 2", n)
	}
}

func TestHeaderLimit(t *testing.T) {
	r := start(t, httpd.Options{Handler: text("x"), MaxHeaderBytes: 1 << 10})
	req, err := http.NewRequest(http.MethodGet, r.URL(), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Large", strings.Repeat("x", 10<<10))
	resp, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	bodyOf(t, resp)
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("status %d", resp.StatusCode)
	}
}

func dial(t *testing.T, r *running) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", r.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

// A client that sends its header or body byte by byte, or nothing at all, is
// cut off (slowloris).
func TestSlowClientsAreCutOff(t *testing.T) {
	handled := make(chan error, 10)
	h := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.ReadAll(r.Body)
		handled <- err
	})
	header := start(t, httpd.Options{Handler: h, ReadHeaderTimeout: 50 * time.Millisecond})
	whole := start(t, httpd.Options{Handler: h, ReadTimeout: 100 * time.Millisecond})
	for reason, c := range map[string]struct {
		server *running
		begin  string
	}{
		"nothing":     {header, ""},
		"half header": {header, "GET / HTTP/1.1\r\nHost: desk.example.com\r\nX-Slow: "},
		"half body":   {whole, "POST / HTTP/1.1\r\nHost: desk.example.com\r\nContent-Length: 10\r\n\r\nhalf"},
	} {
		begin := c.begin
		c := dial(t, c.server)
		if _, err := io.WriteString(c, begin); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, c); err != nil {
			if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
				t.Errorf("%s: the connection stays open", reason)
			}
		}
	}
	if err := <-handled; err == nil {
		t.Error("half a body was taken for a whole one")
	}
	if len(handled) != 0 {
		t.Error("half a header reached the handler")
	}
}

// LongPoll outlives the timeout; without it the request is lost.
func TestLongPoll(t *testing.T) {
	const longer = 300 * time.Millisecond
	wait := func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(longer):
			_, _ = io.WriteString(w, "here")
		case <-r.Context().Done():
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/plain", wait)
	mux.HandleFunc("/long", func(w http.ResponseWriter, r *http.Request) {
		if err := httpd.LongPoll(w, time.Second); err != nil {
			t.Error(err)
		}
		wait(w, r)
	})
	r := start(t, httpd.Options{Handler: mux, ReadTimeout: longer / 6, WriteTimeout: longer / 6})
	if resp, err := r.client.Get(r.URL() + "/plain"); err == nil {
		t.Errorf("the timeouts do not hold: %q", bodyOf(t, resp))
	}
	if _, body := r.get(t, "/long"); body != "here" {
		t.Errorf("body %q", body)
	}
}

func TestConnectionLimit(t *testing.T) {
	r := start(t, httpd.Options{Handler: text("x"), MaxConns: 1})
	first := dial(t, r)
	ask := func(c net.Conn) error {
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			return err
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	if err := ask(first); err != nil {
		t.Fatal(err)
	}
	second := dial(t, r)
	answered := make(chan error, 1)
	go func() { answered <- ask(second) }()
	select {
	case err := <-answered:
		t.Fatalf("a second connection was served beside the only allowed one: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Errorf("the slot of a closed connection is not free: %v", err)
	}
}

func TestStop(t *testing.T) {
	entered := make(chan struct{}, 3)
	release := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/short", func(w http.ResponseWriter, _ *http.Request) {
		entered <- struct{}{}
		<-release
		_, _ = io.WriteString(w, "whole")
	})
	mux.HandleFunc("/poll", func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-httpd.Stopping(r.Context())
		_, _ = io.WriteString(w, "stopping")
		close(release)
	})
	r := start(t, httpd.Options{Handler: mux, Grace: 10 * time.Second})
	bodies := make(chan string, 2)
	for _, path := range []string{"/short", "/poll"} {
		go func() {
			resp, err := r.client.Get(r.URL() + path)
			if err != nil {
				bodies <- err.Error()
				return
			}
			b, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			bodies <- string(b)
		}()
		<-entered
	}
	r.stop()
	if err := <-r.done; err != nil {
		t.Errorf("Serve: %v", err)
	}
	got := map[string]bool{<-bodies: true, <-bodies: true}
	if !got["whole"] || !got["stopping"] {
		t.Errorf("running requests end whole, waiting ones at once; got %v", got)
	}
	if _, err := net.Dial("tcp", r.Addr().String()); err == nil {
		t.Error("the address is still taken")
	}
}

func TestGraceEnds(t *testing.T) {
	entered := make(chan struct{})
	left := make(chan error, 1)
	h := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done()
		left <- r.Context().Err()
	})
	r := start(t, httpd.Options{Handler: h, Grace: 50 * time.Millisecond})
	// With half of its body still to come, nothing but the server's own word
	// ends the request's context.
	c := dial(t, r)
	if _, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf"); err != nil {
		t.Fatal(err)
	}
	<-entered
	r.stop()
	if err := <-r.done; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if b, _ := io.ReadAll(c); len(b) != 0 {
		t.Errorf("the request that would not end got an answer: %s", b)
	}
	if err := <-left; err == nil {
		t.Error("the handler was not told")
	}
	if !strings.Contains(r.log.String(), "grace period") {
		t.Errorf("cutting requests off must be said: %s", r.log)
	}
}

func TestServeFails(t *testing.T) {
	s, err := httpd.New(httpd.Options{Handler: text("x"), Log: logger(io.Discard), Address: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(t.Context()); fault.Of(err) != fault.Unavailable {
		t.Errorf("serving a closed address: %v", err)
	}
}
