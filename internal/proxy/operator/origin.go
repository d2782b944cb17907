package operator

import (
	"context"
	"log/slog"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/httpd"
	"fleetdesk/internal/platform/obs"
	"fleetdesk/internal/proxy/origin"
)

// originOptions are the settings of an origin that runs by itself.
type originOptions struct {
	bind, metricsBind string
	tls               httpd.TLSFiles
	// log hears of the start and of what goes wrong, requests of each request.
	log, requests *slog.Logger
}

// newOriginCommand is the origin as a program of its own, for a machine that is
// on the internet and in no cluster.
func newOriginCommand(p *Program) *cobra.Command {
	o := originOptions{bind: "127.0.0.1:8701"}
	var verbosity int
	var jsonLog bool
	c := &cobra.Command{
		Use: "origin", Short: "Serve the page that tells proxies how the internet sees them", Args: noArgs,
		Long: `Serves the far end of health checks: a page that says which address a request
came from, and which of its headers tell that a proxy sent it. Run it on a
machine that proxies reach as they reach any site, and give operators its URL:

  proxy-operator --health-check-url http://origin.example.com:8701/generate_204

It needs no cluster, no files and no rights. It believes no header, so put
nothing in front of it: it would see that in place of the proxies. It repeats
nothing of a request but the address it came from.

  GET /generate_204   204, for health checks
  GET /ip             {"ip":"192.0.2.1","leaks":["Via"]}
  GET /               the same for people

Each answer has the headers X-Client-IP and X-Proxy-Headers. Over https an HTTP
proxy adds nothing that the page could see: to learn what proxies add, serve
http, which is the default.`,
		RunE: func(c *cobra.Command, _ []string) error {
			o.log = obs.NewLogger(p.Streams.Err, obs.Options{Level: obs.Verbosity(verbosity), JSON: jsonLog})
			if o.requests = o.log; verbosity == 0 {
				o.requests = slog.New(warnings{o.log.Handler()})
			}
			return serveOrigin(c.Context(), o)
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&o.bind, "bind-address", o.bind, "where it listens (host:port); :8701 for every address of the machine")
	f.StringVar(&o.tls.Cert, "tls-cert", "", "PEM certificate chain, to serve https instead of http; read again when it changes")
	f.StringVar(&o.tls.Key, "tls-key", "", "PEM key of that certificate")
	f.StringVar(&o.metricsBind, "metrics-bind-address", "", "where /metrics and /healthz are served (host:port), for you alone; empty for nowhere")
	f.IntVarP(&verbosity, "verbosity", "v", 0, "log level: 1 adds a line per request")
	f.BoolVar(&jsonLog, "log-json", false, "log JSON lines")
	return c
}

// warnings drops what is no warning: on the open internet a line per request is
// noise.
type warnings struct{ slog.Handler }

// Enabled implements slog.Handler.
func (w warnings) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && w.Handler.Enabled(ctx, level)
}

// WithAttrs implements slog.Handler.
func (w warnings) WithAttrs(attrs []slog.Attr) slog.Handler {
	return warnings{w.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (w warnings) WithGroup(name string) slog.Handler { return warnings{w.Handler.WithGroup(name)} }

// serveOrigin serves until ctx ends and returns nil then.
func serveOrigin(ctx context.Context, o originOptions) error {
	metrics := obs.NewRegistry()
	answered := prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "proxy_operator", Subsystem: "origin", Name: "requests_total",
		Help: "Requests by page, status, and whether a header told of a proxy.",
	}, []string{"page", "status", "leaks"})
	if err := metrics.Register(answered); err != nil {
		return fault.Wrap(fault.Conflict, err)
	}
	// Tight bounds, since anybody may come: an answer is a few hundred bytes and
	// no request has a body.
	server, err := httpd.New(httpd.Options{
		Handler: origin.New(origin.Options{Answered: func(s origin.Seen) {
			answered.WithLabelValues(string(s.Page), strconv.Itoa(s.Status), strconv.FormatBool(s.Leaks)).Inc()
		}}),
		Address: o.bind, TLS: o.tls,
		// It tells callers what they sent themselves and nothing else.
		AllowPlaintext: true,
		Flags:          httpd.Flags{Address: "--bind-address", TLSCert: "--tls-cert", TLSKey: "--tls-key"},
		ReadTimeout:    10 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: 30 * time.Second,
		MaxBodyBytes: 1 << 10,
		Log:          o.requests.With("server", "origin"),
	})
	if err != nil {
		return err
	}
	defer func() { _ = server.Close() }() // serving has ended or never began
	group, ctx := errgroup.WithContext(ctx)
	at := []any{"url", server.URL()}
	if o.metricsBind != "" {
		side, err := httpd.New(httpd.Options{
			Handler: httpd.Health(httpd.HealthOptions{Metrics: metrics, Log: o.log}), Address: o.metricsBind,
			AllowPlaintext: true, // counts alone
			Flags:          httpd.Flags{Address: "--metrics-bind-address"},
			Log:            o.requests.With("server", "metrics"),
		})
		if err != nil {
			return err
		}
		defer func() { _ = side.Close() }() // as above
		group.Go(func() error { return side.Serve(ctx) })
		at = append(at, "metrics", side.URL()+"/metrics")
	}
	group.Go(func() error { return server.Serve(ctx) })
	o.log.Info("the origin answers", at...)
	return group.Wait()
}
