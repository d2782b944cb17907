package httpd

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"fleetdesk/internal/core/fault"
)

// Check is one thing that must work before the process is ready.
type Check struct {
	// Name is what /readyz shows, e.g. "database".
	Name string
	// Timeout bounds one run: 2 s when zero.
	Timeout time.Duration
	// Run returns nil when it works. It should honour ctx; one that does not
	// counts as failed until it returns, and is not started a second time.
	Run func(ctx context.Context) error
}

// HealthOptions say what [Health] serves.
type HealthOptions struct {
	// Checks are run on each /readyz, all at once.
	Checks []Check
	// Metrics are shown on /metrics; nil for no such route.
	Metrics prometheus.Gatherer
	// Log gets a line when a check begins to fail or works again; required.
	Log *slog.Logger
}

// readiness is the body of /readyz. Causes are in the log: the route needs no
// token, and texts of errors may name internal addresses.
type readiness struct {
	Ready  bool          `json:"ready"`
	Checks []checkResult `json:"checks"`
}

type checkResult struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Class is the class of the failure.
	Class string `json:"class,omitempty"`
}

// Health serves GET /healthz (the process lives: 200 "ok"), GET /readyz (200
// when every check passes, else 503; the JSON body lists each check) and GET
// /metrics (Prometheus). None of them asks for a token. Other methods and paths
// are answered with problem documents.
func Health(opts HealthOptions) http.Handler {
	mux := http.NewServeMux()
	// A pattern with a method wins over the same path without one: what is left
	// over would be answered by the mux in plain text.
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		WriteError(w, r, opts.Log, fault.New(fault.NotFound, "there is no such route"))
	})
	get := func(path string, h http.HandlerFunc) {
		mux.HandleFunc("GET "+path, h)
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			const allow = "GET, HEAD"
			w.Header().Set("Allow", allow)
			WriteError(w, r, opts.Log, WithStatus(
				fault.New(fault.Invalid, "this path has no such method; it has "+allow), http.StatusMethodNotAllowed))
		})
	}
	get("/healthz", func(w http.ResponseWriter, r *http.Request) {
		setQuiet(r.Context())
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok\n"))
	})
	checks := make([]*check, len(opts.Checks))
	for i, c := range opts.Checks {
		if c.Timeout <= 0 {
			c.Timeout = 2 * time.Second
		}
		checks[i] = &check{Check: c, log: opts.Log, idle: make(chan struct{}, 1)}
	}
	get("/readyz", func(w http.ResponseWriter, r *http.Request) {
		setQuiet(r.Context())
		serveReady(w, r, checks) //nolint:contextcheck // checks outlive a probe that hangs up, by intent
	})
	if opts.Metrics != nil {
		h := promhttp.HandlerFor(opts.Metrics, promhttp.HandlerOpts{
			ErrorLog:            slog.NewLogLogger(opts.Log.Handler(), slog.LevelWarn),
			MaxRequestsInFlight: 4,
			Timeout:             20 * time.Second,
		})
		get("/metrics", func(w http.ResponseWriter, r *http.Request) {
			setQuiet(r.Context())
			h.ServeHTTP(w, r)
		})
	}
	return mux
}

func serveReady(w http.ResponseWriter, r *http.Request, checks []*check) {
	body := readiness{Ready: true, Checks: make([]checkResult, len(checks))}
	var wg sync.WaitGroup
	for i, c := range checks {
		wg.Go(func() { body.Checks[i] = c.result(r.Context()) })
	}
	wg.Wait()
	for _, c := range body.Checks {
		body.Ready = body.Ready && c.OK
	}
	status := http.StatusOK
	if !body.Ready {
		status = http.StatusServiceUnavailable
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(body); err != nil {
		return // the probe hung up
	}
}

// check runs one Check at most once at a time.
type check struct {
	Check
	log  *slog.Logger
	idle chan struct{}

	mu     sync.Mutex
	failed bool
}

func (c *check) result(ctx context.Context) checkResult {
	// The request's end must not turn a working check into a failed one, as
	// the next reader of the log would take it for an outage.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.Timeout)
	defer cancel()
	err := c.run(ctx)
	c.mu.Lock()
	changed := c.failed != (err != nil)
	c.failed = err != nil
	c.mu.Unlock()
	if err == nil {
		if changed {
			c.log.Info("readiness check works again", "check", c.Name)
		}
		return checkResult{Name: c.Name, OK: true}
	}
	if changed {
		c.log.Warn("readiness check fails", "check", c.Name, "error", err)
	}
	return checkResult{Name: c.Name, Class: fault.Of(err).Meaning().Label}
}

func (c *check) run(ctx context.Context) error {
	late := func() error {
		return fault.Errorf(fault.Timeout, "check %s did not answer within %s", c.Name, c.Timeout)
	}
	// One run at a time: callers queue here within their own deadline.
	select {
	case c.idle <- struct{}{}:
	case <-ctx.Done():
		return late()
	}
	done := make(chan error, 1)
	go func() {
		defer func() { <-c.idle }()
		defer func() {
			if v := recover(); v != nil {
				done <- fault.Errorf(fault.Permanent, "check %s panicked: %v", c.Name, v)
			}
		}()
		done <- c.Run(ctx)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return late()
	}
}
