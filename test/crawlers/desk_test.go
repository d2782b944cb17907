package crawlers_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/token"
	"fleetdesk/internal/desk/api"
	"fleetdesk/internal/desk/service"
	desktoken "fleetdesk/internal/desk/token"
	"fleetdesk/internal/platform/httpd"
	"fleetdesk/internal/platform/sqldb"
)

// desk is the desk's API over a SQLite file. What a controller would write of
// the proxies is put there by hand.
type desk struct {
	url, token string
	client     *client.Client
	bench      *bench
	service    *service.Service
	epoch      int64

	mu    sync.Mutex
	calls []call
	// told are command lines that showed a secret while a request was under way.
	told []string
}

// call is one request to the desk, as it was answered.
type call struct {
	path   string
	status int
	body   map[string]any
	answer map[string]any
}

func startDesk(t *testing.T, b *bench) *desk {
	t.Helper()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	db, err := sqldb.Open(t.Context(), sqldb.Options{Path: filepath.Join(b.dir, "desk.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	tokens := desktoken.New(desktoken.Options{Store: db.Tokens(), Directory: db.Tokens()})
	if _, err := tokens.CreateAccount(t.Context(), "crawler", token.Runner); err != nil {
		t.Fatal(err)
	}
	bearer, _, err := tokens.IssueFor(t.Context(), "crawler", 0)
	if err != nil {
		t.Fatal(err)
	}
	d := &desk{token: bearer.Reveal(), bench: b}
	if d.service, err = service.New(service.Options{Store: db.Leases(), Log: log}); err != nil {
		t.Fatal(err)
	}
	d.goRun(t, d.service.Run)
	d.prepare(t)
	handler, err := api.New(api.Options{
		Auth: tokens, Desk: d.service, Access: d, Selection: byHand{}, Log: log, Limits: api.Limits{PerToken: -1},
	})
	if err != nil {
		t.Fatal(err)
	}
	server, err := httpd.New(httpd.Options{Handler: d.recorded(handler), Address: "127.0.0.1:0", Log: log})
	if err != nil {
		t.Fatal(err)
	}
	d.goRun(t, server.Serve)
	d.url = server.URL()
	if d.client, err = client.New(client.Options{BaseURL: d.url, Token: client.Token(d.token)}); err != nil {
		t.Fatal(err)
	}
	return d
}

// goRun runs something until the test ends.
func (d *desk) goRun(t *testing.T, run func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func (d *desk) do(t *testing.T, ops ...lease.Op) []lease.Result {
	t.Helper()
	results, err := d.service.Do(t.Context(), ops...)
	for _, r := range results {
		if err == nil {
			err = r.Err
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return results
}

func (d *desk) prepare(t *testing.T) {
	t.Helper()
	for range 1000 { // it may just begin to run
		if results, err := d.service.Do(t.Context(), lease.OpenEpoch{Owner: "test"}); err == nil && results[0].Err == nil {
			d.epoch = results[0].Epoch
			break
		}
		time.Sleep(time.Millisecond)
	}
	for _, name := range []string{poolAll, poolLive, poolDead, poolSix} {
		d.do(t, lease.PutPool{Epoch: d.epoch, Pool: lease.Pool{Name: name}})
	}
}

// put adds a proxy.
func (d *desk) put(t *testing.T, key string, pools ...string) {
	t.Helper()
	d.do(t, lease.PutKey{
		Epoch: d.epoch, Key: key, UID: "uid of " + key, Pools: pools, Attributes: map[string]string{"protocol": "http"},
		ExitIP: d.bench.proxies[key].exit.String(),
	})
}

// Access is what the desk knows of how to reach a proxy.
func (d *desk) Access(_ context.Context, key, _ string, _ map[string]string) (client.ProxyAccess, error) {
	f := d.bench.proxies[key]
	if f == nil {
		return client.ProxyAccess{}, fault.Errorf(fault.NotFound, "there is no proxy %s", key)
	}
	return f.access(), nil
}

// byHand names and chooses proxies as the operator does.
type byHand struct{}

func (byHand) Match(w client.Wish) ([]lease.Match, error) {
	if w != (client.Wish{Scheme: w.Scheme}) {
		return nil, fault.New(fault.Unsupported, "the programs of the page ask for a scheme alone")
	}
	if w.Scheme == "" {
		return nil, nil
	}
	return []lease.Match{{Attribute: "protocol", Op: lease.In, Values: []string{w.Scheme}}}, nil
}

func (byHand) Key(namespace, name string) string   { return namespace + "." + name }
func (byHand) DefaultPool(namespace string) string { return namespace + ".default" }
func (byHand) Parts(key string) (namespace, name string, ok bool) {
	return strings.Cut(key, ".")
}

// recorded keeps what is asked and answered.
func (d *desk) recorded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		told := d.bench.inProcessList()
		c := call{path: strings.TrimPrefix(r.URL.Path, "/api/v1/"), status: http.StatusOK}
		body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		r.Body = io.NopCloser(bytes.NewReader(body))
		_ = json.Unmarshal(body, &c.body)
		answer := &recorder{ResponseWriter: w, call: &c}
		next.ServeHTTP(answer, r)
		_ = json.Unmarshal(answer.text.Bytes(), &c.answer)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.calls = append(d.calls, c)
		d.told = append(d.told, told...)
	})
}

type recorder struct {
	http.ResponseWriter
	call *call
	text bytes.Buffer
}

func (r *recorder) WriteHeader(status int) {
	r.call.status = status
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	r.text.Write(b)
	return r.ResponseWriter.Write(b)
}

func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// about returns the calls about a site, in order.
func (d *desk) about(target string) (all []call) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.calls {
		if text, _ := c.body["target"].(string); text == target {
			all = append(all, c)
		}
	}
	return all
}
