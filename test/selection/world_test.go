package selection_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/desk/service"
	"fleetdesk/internal/platform/sqldb"
	"fleetdesk/internal/testkit/postgres"
)

var cluster = postgres.Shared(postgres.Options{})

func TestMain(m *testing.M) { os.Exit(cluster.Run(m)) }

const (
	pool    = "crawl.all"
	account = "crawler"
	// closedSite bans every address.
	closedSite = "closed.example.com"
	// sharing is how many proxies leave by one address.
	sharing = 3
	// bannedShare is how many of a hundred addresses a target bans.
	bannedShare = 20
)

// world is a pool in a database, and the service before it.
type world struct {
	*service.Service
	store            lease.Store
	proxies, targets int
	stop             func()
}

func target(n int) string { return fmt.Sprintf("site-%04d.example.com", n) }

// newPlace makes an empty database.
func newPlace(tb testing.TB, kind string) sqldb.Options {
	if kind == "postgres" {
		return sqldb.Options{URL: cluster.Database(tb)}
	}
	return sqldb.Options{Path: filepath.Join(tb.TempDir(), "desk.db")}
}

// openWorld starts a service on a database.
func openWorld(ctx context.Context, place sqldb.Options) (*world, error) {
	db, err := sqldb.Open(ctx, place)
	if err != nil {
		return nil, err
	}
	w := &world{store: db.Leases()}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if w.Service, err = service.New(service.Options{Store: w.store, Log: log}); err != nil {
		return nil, err
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- w.Run(run) }()
	w.stop = func() {
		cancel()
		<-done
		_ = db.Close()
	}
	return w, nil
}

// newWorld makes so many proxies, and has the targets ban a fifth of their
// addresses for a day. The rest after a use is a second: at the highest rates a
// target is asked for some times a second, and a third of a hundred proxies'
// addresses is enough for it.
func newWorld(ctx context.Context, kind string, tb testing.TB, proxies, targets int) (*world, error) {
	w, err := openWorld(ctx, newPlace(tb, kind))
	if err != nil {
		return nil, err
	}
	w.proxies, w.targets = proxies, targets
	err = w.fill(ctx, lease.Pool{
		Scope: lease.ScopeExitIP, Cooldown: time.Second, TTL: 10 * time.Second, NewShare: 10,
		Ban: lease.Ban{Initial: 24 * time.Hour, Factor: 1, Max: 24 * time.Hour},
	})
	if err == nil {
		err = w.ban(ctx)
	}
	if err != nil {
		w.stop()
		return nil, fmt.Errorf("fill the database: %w", err)
	}
	return w, nil
}

// fill makes the pool and its proxies.
func (w *world) fill(ctx context.Context, p lease.Pool) error {
	epoch, err := w.do(ctx, lease.OpenEpoch{Owner: "bench"})
	if err != nil {
		return err
	}
	e := epoch[0].Epoch
	p.Name, p.Kind = pool, lease.Managed
	ops := []lease.Op{lease.PutPool{Epoch: e, Pool: p}}
	for i := range w.proxies {
		ops = append(ops, lease.PutKey{
			Epoch: e, Key: key(i), UID: key(i), Pools: []string{pool}, ExitIP: fmt.Sprintf("2001:db8::%x", i/sharing+1),
			Attributes: map[string]string{"protocol": "http", "provider": "kvm", "address": "192.0.2.7", "port": "3128"},
		})
	}
	return w.doAll(ctx, ops)
}

// ban has one proxy of each address tell of the address's bans.
func (w *world) ban(ctx context.Context) error {
	var ops []lease.Op
	add := func(i int, target string) {
		ops = append(ops, lease.Report{Key: key(i), Pool: pool, Target: target, Outcome: lease.Banned, Account: account})
	}
	for i := 0; i < w.proxies; i += sharing {
		for t := range w.targets {
			if (i/sharing*7919+t*104729)%100 < bannedShare {
				add(i, target(t))
			}
		}
		add(i, closedSite)
	}
	return w.doAll(ctx, append(ops, lease.Sweep{Limit: 1 << 20}))
}

func key(n int) string { return fmt.Sprintf("crawl.proxy-%05d", n) }

// doAll runs ops in transactions of a thousand.
func (w *world) doAll(ctx context.Context, ops []lease.Op) error {
	for some := range slices.Chunk(ops, 1000) {
		if _, err := w.do(ctx, some...); err != nil {
			return err
		}
	}
	return nil
}

// do runs ops of which none may be refused.
func (w *world) do(ctx context.Context, ops ...lease.Op) ([]lease.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	results, err := w.store.Do(ctx, ops)
	for i := range results {
		if err == nil {
			err = results[i].Err
		}
	}
	return results, err
}

// answered makes what is no failure one of the answers that figures count.
func answered(err error) error {
	switch fault.CodeOf(err) {
	case "none_free":
		return errNone
	case "busy":
		return errShed
	}
	return err
}

// pick is a quick pick for a target.
func (w *world) pick(ctx context.Context, target string) (service.Pick, error) {
	p, err := w.Next(ctx, service.PickRequest{Account: account, Pool: pool, Target: target})
	return p, answered(err)
}

// picks asks for one target after another, in an order that no two clients keep.
func (w *world) picks(ctx context.Context, n int) error {
	_, err := w.pick(ctx, w.target(n))
	return err
}

// target is that of request n.
func (w *world) target(n int) string { return target(n * 7919 % w.targets) }

// rounds are picks with the report that follows each: of twenty, one says that
// the site banned the address, and one that the proxy failed.
func (w *world) rounds(ctx context.Context, n int) error {
	p, err := w.pick(ctx, w.target(n))
	if err != nil {
		return err
	}
	r := service.ReportRequest{Account: account, Key: p.Key, Pool: pool, Target: p.Target, Outcome: lease.OK, Use: p.Use}
	switch n % 20 {
	case 7:
		r.Outcome = lease.Banned
	case 13:
		r.Outcome = lease.Failed
	}
	_, err = w.Report(ctx, r)
	return answered(err)
}

// leases takes and releases instead.
func (w *world) leases(ctx context.Context, n int) error {
	g, err := w.Take(ctx, service.TakeRequest{Account: account, Pool: pool, Target: w.target(n)})
	if err != nil {
		return answered(err)
	}
	_, err = w.Release(ctx, service.ReleaseRequest{Proof: service.Proof{ID: g.ID, Secret: g.Secret, Account: account}})
	return answered(err)
}

// none asks for what there is not.
func (w *world) none(ctx context.Context, _ int) error {
	_, err := w.pick(ctx, closedSite)
	if err == nil {
		err = fault.New(fault.Permanent, "a target that bans every address was given one")
	}
	return err
}
