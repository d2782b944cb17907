package leases_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleetdesk/internal/core/lease"
	tokens "fleetdesk/internal/core/token"
	"fleetdesk/internal/desk/api"
	"fleetdesk/internal/desk/service"
	"fleetdesk/internal/desk/token"
	"fleetdesk/internal/platform/httpd"
	"fleetdesk/internal/platform/sqldb"
	"fleetdesk/internal/testkit/postgres"
)

// The test binary is also the programs of the drill: it starts itself again in
// one of these roles.
var (
	role     = flag.String("role", "", "internal: server, clients or pairs")
	database = flag.String("database", "", "internal: URL or path of the database")
	listen   = flag.String("listen", "", "internal: where a server listens")
	servers  = flag.String("servers", "", "internal: base URLs, with commas")
	bearer   = flag.String("token-file", "", "internal: the clients' token")
	folder   = flag.String("folder", "", "internal: where clients write their histories")
	name     = flag.String("name", "", "internal: name of this process")
	number   = flag.Int("number", 1, "internal: how many clients")
	seed     = flag.Uint64("seed", 1, "internal: seed of what clients do")

	profile = flag.String("profile", "", "folder for CPU profiles of servers (bench)")

	drillFor = flag.Duration("for", 12*time.Second, "how long the drill lasts")
)

var cluster = postgres.Shared(postgres.Options{})

func TestMain(m *testing.M) {
	flag.Parse()
	if *role == "" {
		os.Exit(cluster.Run(m))
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	var err error
	switch *role {
	case "server":
		err = serve(ctx, os.Stdout)
	case "clients":
		err = beClients(ctx)
	case "pairs":
		err = bePairs(ctx, os.Stdin, os.Stdout)
	default:
		err = errors.New("no such role")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, *role, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// open opens a database by its URL or path.
func open(ctx context.Context, where string) (*sqldb.DB, error) {
	if strings.Contains(where, "://") {
		return sqldb.Open(ctx, sqldb.Options{URL: where})
	}
	return sqldb.Open(ctx, sqldb.Options{Path: where})
}

// desk is a running service on a database.
type desk struct {
	*service.Service
	db   *sqldb.DB
	stop func()
}

func openDesk(ctx context.Context, where string) (*desk, error) {
	db, err := open(ctx, where)
	if err != nil {
		return nil, err
	}
	s, err := service.New(service.Options{Store: db.Leases(), Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	if err != nil {
		return nil, err
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- s.Run(run) }()
	return &desk{s, db, func() {
		cancel()
		<-done
		_ = db.Close()
	}}, nil
}

// serve is one server of the desk. It prints a line once it listens.
func serve(ctx context.Context, out io.Writer) error {
	if *profile != "" {
		f, err := os.Create(filepath.Join(*profile, "server-"+strconv.Itoa(os.Getpid())+".pprof"))
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	d, err := openDesk(ctx, *database)
	if err != nil {
		return err
	}
	defer d.stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	handler, err := api.New(api.Options{
		Auth: token.New(token.Options{Store: d.db.Tokens(), Directory: d.db.Tokens()}), Desk: d.Service, Log: log,
		// All clients share one token, and how much it may ask is not the question.
		Limits: api.Limits{PerToken: -1},
	})
	if err != nil {
		return err
	}
	s, err := httpd.New(httpd.Options{Handler: handler, Address: *listen, Log: log})
	if err != nil {
		return err
	}
	fmt.Fprintln(out, s.URL())
	return s.Serve(ctx)
}

// prepare makes a pool of n keys and a token, and returns the token.
func prepare(ctx context.Context, d *desk, n int) (string, error) {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("k-%06d", i)
	}
	if n <= lease.MaxItems {
		if _, err := d.Publish(ctx, lease.Publish{Pool: lease.Pool{Name: pool}, Items: keys}); err != nil {
			return "", err
		}
	} else {
		res, err := d.Do(ctx, lease.OpenEpoch{Owner: "bench"})
		if err != nil {
			return "", err
		}
		epoch := res[0].Epoch
		if _, err := d.Do(ctx, lease.PutPool{Epoch: epoch, Pool: lease.Pool{Name: pool}}); err != nil {
			return "", err
		}
		for len(keys) > 0 {
			var ops []lease.Op
			for _, k := range keys[:min(250, len(keys))] {
				ops = append(ops, lease.PutKey{Epoch: epoch, Key: k, UID: "u-" + k, Pools: []string{pool}, Attributes: map[string]string{"address": "192.0.2.7", "port": "3128"}})
			}
			if _, err := d.Do(ctx, ops...); err != nil {
				return "", err
			}
			keys = keys[len(ops):]
		}
	}
	store := d.db.Tokens()
	err := store.CreateAccount(ctx, tokens.Account{Name: "load", Role: tokens.Admin, Created: time.Now()})
	if err != nil {
		return "", err
	}
	secret, _, err := token.New(token.Options{Store: store, Directory: store}).Issue(ctx, "load", time.Time{})
	if err != nil {
		return "", err
	}
	return secret.Reveal(), nil
}

const pool = "drill"

// connections is an HTTP client whose pool of connections is as large as the
// number of its users.
func connections(n int, timeout time.Duration) *http.Client {
	return &http.Client{Timeout: timeout, Transport: &http.Transport{MaxIdleConns: n, MaxIdleConnsPerHost: n, IdleConnTimeout: time.Minute}}
}
