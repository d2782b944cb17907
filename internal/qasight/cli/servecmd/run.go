package servecmd

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/desk/api"
	"fleetdesk/internal/desk/service"
	"fleetdesk/internal/desk/token"
	"fleetdesk/internal/platform/httpd"
	"fleetdesk/internal/platform/obs"
	"fleetdesk/internal/platform/sqldb"
	"fleetdesk/internal/qasight/cli/command"
)

// desk is the running server: database, accounts, leases, listener.
type desk struct {
	o       options
	db      *sqldb.DB
	tokens  *token.Service
	leases  *service.Service
	server  *httpd.Server
	handler http.Handler // set before the server serves
}

// started is what there is to say of a server that listens.
type started struct {
	url string
	// tokenFile holds the first admin token, when fresh for the first time; "" when
	// it is gone.
	tokenFile string
	fresh     bool
}

// serve runs the server until ctx ends. It returns nil after a clean stop; an
// error says which setting or place to mend.
func serve(ctx context.Context, o options) error {
	if err := o.validate(); err != nil {
		return err
	}
	if err := makeHome(o.home, o.database == "" && (o.urlFile == "" || o.adminTokenFile == "")); err != nil {
		return err
	}
	if o.adminTokenFile == "" {
		o.adminTokenFile = o.tokenFile(o.home)
	}
	d, err := open(ctx, o, obs.NewRegistry())
	if err != nil {
		return err
	}
	defer d.close()
	s, err := d.firstAdmin(ctx)
	if err != nil {
		return setting(err)
	}
	// Requests that are still answered while the server stops need it.
	stop := d.runLeases(ctx)
	defer stop()
	withdraw, err := d.announce(s.url)
	if err != nil {
		return err
	}
	defer withdraw()
	if err := o.ready(s); err != nil {
		return err
	}
	return d.server.Serve(ctx)
}

// setting makes an error in what the command line names a wrong command line: for
// the table of exit codes, a place that cannot be used is none that is away.
func setting(err error) error {
	switch fault.Of(err) {
	case fault.Conflict, fault.Denied, fault.Permanent:
		return command.Exit(command.ExitUsage, err)
	}
	return err
}

// named reports whether an error of opening the database is about a file that the
// command line names. What a database server refuses is not.
func (p place) named(err error) bool {
	if p.urlFile != "" {
		file, ok := errors.AsType[*fs.PathError](err)
		return ok && file.Path == p.urlFile
	}
	return p.database != ""
}

// open opens what can be wrong on this machine before anything runs: the database
// and the port.
func open(ctx context.Context, o options, metrics *prometheus.Registry) (_ *desk, err error) {
	d := &desk{o: o}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	// A stale address would lead those who wait for the file to nowhere.
	if o.addressFile != "" {
		if err := os.Remove(o.addressFile); err != nil && !missing(o.addressFile) {
			return nil, fault.Errorf(fault.Invalid, "--address-file: %w", err)
		}
	}
	if d.db, err = sqldb.Open(ctx, o.at(o.home)); err != nil {
		if o.named(err) {
			err = setting(err)
		}
		return nil, err
	}
	d.tokens = token.New(token.Options{Store: d.db.Tokens(), Directory: d.db.Tokens()})
	d.leases, err = service.New(service.Options{Store: d.db.Leases(), Log: o.log.With("part", "desk"), Metrics: metrics})
	if err != nil {
		return nil, err
	}
	if d.handler, err = d.routes(metrics); err != nil {
		return nil, err
	}
	d.server, err = httpd.New(httpd.Options{
		Handler: d.handler,
		Address: o.listen,
		// A client that waits for a key holds a connection all the while.
		MaxConns:       4096,
		TLS:            o.tls,
		AllowPlaintext: o.allowPlaintext,
		Flags:          httpd.Flags{Address: "--listen", AllowPlaintext: "--allow-plaintext", TLSCert: "--tls-cert", TLSKey: "--tls-key"},
		Log:            o.log.With("server", "api"),
	})
	if err != nil {
		return nil, setting(err)
	}
	return d, nil
}

// routes are the desk's API without proxies, and the health routes.
func (d *desk) routes(metrics *prometheus.Registry) (http.Handler, error) {
	desk, err := api.New(api.Options{
		Auth: d.tokens, Accounts: d.tokens, Actions: d.db.Actions(), Desk: d.leases,
		Log: d.o.log, Metrics: metrics, Limits: d.o.limits(),
	})
	if err != nil {
		return nil, err
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
		},
		Metrics: metrics,
		Log:     d.o.log,
	})
	// No ServeMux: it answers untidy paths by redirects of its own.
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/healthz", "/readyz", "/metrics":
			health.ServeHTTP(w, r)
		default:
			desk.ServeHTTP(w, r)
		}
	}), nil
}

// runLeases has leases taken and given back until stop is called, which waits for
// the end.
func (d *desk) runLeases(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := d.leases.Run(ctx); err != nil {
			d.o.log.Error("the desk's service ended with an error", "error", err)
		}
	}()
	return func() { cancel(); <-done }
}

// announce writes the server's URL to the address file, whole or not at all, until
// withdraw is called.
func (d *desk) announce(url string) (withdraw func(), err error) {
	path := d.o.addressFile
	if path == "" {
		return func() {}, nil
	}
	refuse := func(err error) (func(), error) {
		return nil, fault.Errorf(fault.Invalid, "--address-file: %w: name a file in a folder that you may write to", err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return refuse(err)
	}
	_, err = tmp.WriteString(url + "\n")
	if e := tmp.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		os.Remove(tmp.Name())
		return refuse(err)
	}
	return func() { os.Remove(path) }, nil
}

func (d *desk) close() {
	if d.server != nil {
		if err := d.server.Close(); err != nil { // serving has ended or never began
			d.o.log.Debug("the listener did not close", "error", err)
		}
	}
	if d.db != nil {
		if err := d.db.Close(); err != nil {
			d.o.log.Warn("the database did not close cleanly", "error", err)
		}
	}
}
