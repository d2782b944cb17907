package broker

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"

	"fleetdesk/client"
	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/token"
	"fleetdesk/internal/desk/api"
	"fleetdesk/internal/desk/service"
	"fleetdesk/internal/platform/sqldb"
)

// Local says which local lease database to open.
type Local struct {
	// Path is its file.
	Path string
	// Account is whose takes and changes are made: the person at this machine.
	Account string
	// File is the project's file, an absolute path: see [View.Ours]. "" when that
	// does not matter.
	File string
	// Log hears what goes wrong inside; required.
	Log *slog.Logger
}

func (o Local) origins() *origins {
	if o.File == "" {
		return nil
	}
	return &origins{filepath.Join(filepath.Dir(o.Path), "published"), o.File}
}

// OpenLocal opens the local lease database. What it runs ends with Close. Errors:
// those of sqldb.Open.
func OpenLocal(ctx context.Context, o Local) (Broker, error) {
	if err := os.MkdirAll(filepath.Dir(o.Path), 0o700); err != nil {
		return nil, fault.Errorf(fault.Permanent, "the folder of the lease database cannot be made: %w", err)
	}
	db, err := sqldb.Open(ctx, sqldb.Options{Path: o.Path})
	if err != nil {
		return nil, err
	}
	d, err := over(ctx, Stores{db.Leases(), db.Actions()}, Place{Path: o.Path, Account: o.Account}, o.Log)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	d.origins = o.origins()
	stop := d.close
	d.close = sync.OnceValue(func() error { return errors.Join(stop(), db.Close()) })
	return d, nil
}

// LookLocal opens the local lease database to look at it: nothing is changed or
// made, neither the file nor its schema. A file that is not there is a broker
// without any pool. Errors: those of sqldb.Open with ReadOnly.
func LookLocal(ctx context.Context, o Local) (Looker, error) {
	place := Place{Path: o.Path, Account: o.Account}
	if _, err := os.Stat(o.Path); errors.Is(err, fs.ErrNotExist) { // nor may its folder be
		return absent{place}, nil
	}
	db, err := sqldb.Open(ctx, sqldb.Options{Path: o.Path, ReadOnly: true})
	switch {
	case fault.Of(err) == fault.NotFound:
		return absent{place}, nil
	case err != nil:
		return nil, err
	}
	d, _, err := inProcess(Stores{db.Leases(), db.Actions()}, place, o.Log)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	d.origins = o.origins()
	d.close = sync.OnceValue(db.Close)
	return d, nil
}

// Stores are what a broker in this process works on.
type Stores struct {
	Leases  lease.Store
	Actions action.Log
}

// Over returns a broker whose desk runs in this process, over any stores, for the
// account of place, which may do everything. Close ends it and leaves the stores
// open.
func Over(ctx context.Context, s Stores, place Place, log *slog.Logger) (Broker, error) {
	return over(ctx, s, place, log)
}

func over(ctx context.Context, s Stores, place Place, log *slog.Logger) (*desk, error) {
	d, leases, err := inProcess(s, place, log)
	if err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- leases.Run(running) }()
	d.close = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	return d, nil
}

// inProcess makes a broker over a desk in this process, which does not run yet.
func inProcess(s Stores, place Place, log *slog.Logger) (*desk, *service.Service, error) {
	leases, err := service.New(service.Options{Store: s.Leases, Log: log})
	if err != nil {
		return nil, nil, err
	}
	handler, err := api.New(api.Options{
		Auth:    oneself{token.Principal{Account: place.Account, Role: token.Admin, TokenID: "local"}},
		Actions: s.Actions, Desk: leases, Log: slog.New(unaudited{log.Handler()}),
		Limits: api.Limits{PerToken: -1, WaitsPerToken: maxWaits},
	})
	if err != nil {
		return nil, nil, err
	}
	c, err := client.New(client.Options{BaseURL: "http://local.invalid", Token: "local", HTTPClient: &http.Client{Transport: inside{handler}}})
	if err != nil {
		return nil, nil, err
	}
	return &desk{client: c, place: place, follow: true}, leases, nil
}

// maxWaits bounds the takes of this process that wait at once: the workers of a
// stage.
const maxWaits = 1000

// unaudited leaves out a server's audit: whoever is told here is who did it.
type unaudited struct{ slog.Handler }

// Handle implements [slog.Handler].
func (h unaudited) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "audit" {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (h unaudited) WithAttrs(attrs []slog.Attr) slog.Handler {
	return unaudited{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements [slog.Handler].
func (h unaudited) WithGroup(name string) slog.Handler { return unaudited{h.Handler.WithGroup(name)} }

// oneself lets every request in as the one account: it comes from this process.
type oneself struct{ who token.Principal }

// Authenticate implements [api.Authenticator].
func (o oneself) Authenticate(context.Context, string) (token.Principal, error) { return o.who, nil }

// Generation implements [api.Authenticator].
func (oneself) Generation() uint64 { return 0 }

// absent is a local lease database that does not exist: nobody ever took a key.
type absent struct{ place Place }

func (a absent) Place() Place { return a.place }
func (absent) Close() error   { return nil }

func (a absent) Pool(_ context.Context, name string) (View, error) { return View{}, lease.NoPool(name) }

func (absent) Pools(context.Context) ([]client.PoolStatus, error) { return nil, nil }

func (absent) Waiters(_ context.Context, name string) ([]client.Waiter, error) {
	return nil, lease.NoPool(name)
}

func (absent) Entries(context.Context, Match, int) ([]action.Entry, error) { return nil, nil }
func (absent) Open(context.Context, string) ([]action.Entry, error)        { return nil, nil }
