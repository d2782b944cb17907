package operator

import (
	"context"
	"errors"
	"math"
	"net/http"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/desk/api"
	"fleetdesk/internal/desk/service"
	"fleetdesk/internal/desk/token"
	"fleetdesk/internal/platform/httpd"
	"fleetdesk/internal/platform/sqldb"
	"fleetdesk/internal/proxy/origin"
)

// desk is the operator's client API: database, tokens, leases, listeners.
type desk struct {
	o      Options
	db     *sqldb.DB
	tokens *token.Service
	leases *service.Service
	server *httpd.Server
	origin *httpd.Server
	api    http.Handler // set before the server serves
}

// openDesk opens what can be wrong on this machine before anything runs: the
// database and the ports.
func openDesk(ctx context.Context, o Options, metrics prometheus.Registerer) (_ *desk, err error) {
	d := &desk{o: o}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	if d.db, err = sqldb.Open(ctx, o.database()); err != nil {
		return nil, err
	}
	d.tokens = token.New(token.Options{Store: d.db.Tokens(), Directory: d.db.Tokens()})
	d.leases, err = service.New(service.Options{Store: d.db.Leases(), Log: o.Log.With("part", "desk"), Metrics: metrics})
	if err != nil {
		return nil, err
	}
	d.server, err = httpd.New(httpd.Options{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { d.api.ServeHTTP(w, r) }),
		Address: o.APIBind,
		// A client that waits for a proxy holds a connection all the while.
		MaxConns:       4096,
		TLS:            httpd.TLSFiles{Cert: o.APITLSCert, Key: o.APITLSKey},
		AllowPlaintext: o.APIAllowPlaintext,
		Flags: httpd.Flags{
			Address: "--api-bind-address", AllowPlaintext: "--api-allow-plaintext",
			TLSCert: "--api-tls-cert", TLSKey: "--api-tls-key",
		},
		Log: o.Log.With("server", "api"),
	})
	if err != nil {
		return nil, err
	}
	if o.OriginBind == "" {
		return d, nil
	}
	d.origin, err = httpd.New(httpd.Options{
		Handler: origin.New(origin.Options{}), Address: o.OriginBind,
		// The origin tells callers what they sent themselves and nothing else.
		AllowPlaintext: true,
		Flags:          httpd.Flags{Address: "--origin-bind-address"},
		Log:            o.Log.With("server", "origin"),
	})
	return d, err
}

// runLeases has leases taken and given back until stop is called, which waits
// for the end. It is not the manager's to run: requests that are still answered
// while the manager stops need it.
func (d *desk) runLeases(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := d.leases.Run(ctx); err != nil {
			d.o.Log.Error("the desk's service ended with an error", "error", err)
		}
	}()
	return func() { cancel(); <-done }
}

// serve makes the handler of the client API over the manager's cache.
func (d *desk) serve(mgr manager.Manager, access api.Access, o Options, metrics *prometheus.Registry) error {
	handler, err := api.New(api.Options{
		Auth: d.tokens, Accounts: d.tokens, Actions: d.db.Actions(), Proxies: cachedProxies{mgr.GetClient()}, Selection: chosen{},
		Desk: d.leases, Access: access,
		Log: o.Log, Metrics: metrics, Limits: o.apiLimits(),
	})
	if err != nil {
		return err
	}
	health := httpd.Health(httpd.HealthOptions{
		Checks: []httpd.Check{
			{Name: "database", Run: func(ctx context.Context) error {
				_, err := d.db.Tokens().Accounts(ctx, "", 1)
				return err
			}},
			{Name: "leases", Run: func(ctx context.Context) error {
				_, err := d.leases.Pools(ctx, "", 1)
				return err
			}},
			{Name: "cache", Run: func(ctx context.Context) error {
				if !mgr.GetCache().WaitForCacheSync(ctx) {
					return fault.New(fault.Unavailable, "the cache of the Kubernetes API is not filled yet")
				}
				return nil
			}},
		},
		Metrics: firstWins{metrics, ctrlmetrics.Registry},
		Log:     o.Log,
	})
	// No ServeMux: it answers untidy paths by redirects of its own.
	d.api = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/healthz", "/readyz", "/metrics":
			health.ServeHTTP(w, r)
		default:
			handler.ServeHTTP(w, r)
		}
	})
	return nil
}

func (d *desk) originURL() string {
	switch {
	case d.origin == nil:
		return ""
	case d.o.OriginURL != "":
		return strings.TrimSuffix(d.o.OriginURL, "/")
	}
	return d.origin.URL()
}

func (d *desk) close() {
	for _, s := range []*httpd.Server{d.server, d.origin} {
		if s != nil {
			_ = s.Close() // serving has ended or never began
		}
	}
	if d.db != nil {
		if err := d.db.Close(); err != nil {
			d.o.Log.Warn("the database did not close cleanly", "error", err)
		}
	}
}

// database is where tokens and leases are kept.
func (o *Options) database() sqldb.Options {
	switch {
	case o.DatabaseURLFile != "":
		return sqldb.Options{URLFile: o.DatabaseURLFile}
	case o.Database != "":
		return sqldb.Options{Path: o.Database}
	}
	return sqldb.Options{Path: filepath.Join(o.StateDir, "desk.db")}
}

// apiLimits bounds what one token may ask.
func (o *Options) apiLimits() api.Limits {
	if o.APIRate < 0 {
		return api.Limits{PerToken: -1}
	}
	return api.Limits{PerToken: o.APIRate, Burst: max(1, int(math.Ceil(2*o.APIRate)))}
}

func (o *Options) adminTokenFile() string {
	if o.AdminTokenFile != "" {
		return o.AdminTokenFile
	}
	return filepath.Join(o.StateDir, "admin-token")
}

// firstWins shows several registries as one. Families that two of them have
// (both count the Go runtime) are taken from the first.
type firstWins []prometheus.Gatherer

// Gather implements prometheus.Gatherer.
func (g firstWins) Gather() ([]*dto.MetricFamily, error) {
	var all []*dto.MetricFamily
	var errs []error
	seen := map[string]bool{}
	for _, one := range g {
		families, err := one.Gather()
		errs = append(errs, err)
		for _, f := range families {
			if !seen[f.GetName()] {
				seen[f.GetName()] = true
				all = append(all, f)
			}
		}
	}
	slices.SortFunc(all, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return all, errors.Join(errs...)
}
