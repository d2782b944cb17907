package leases_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/desk/service"
)

var (
	span   = flag.Duration("span", 3*time.Second, "how long one figure is measured")
	figure = flag.String("figure", "", "measure only figures whose name contains this")
)

// emit prints one line for machines.
func emit(name string, value float64, unit string) {
	fmt.Printf("BENCH %s %.4g %s\n", name, value, unit)
}

func wanted(name string) bool { return strings.Contains(name, *figure) }

// BenchmarkLeases prints BENCH lines; `make bench-leases` says how it is run.
func BenchmarkLeases(b *testing.B) {
	for b.Loop() {
		ctx := b.Context()
		emit("lease.fsync.p50_us", fsync(b), "us")
		for _, kind := range []string{"sqlite", "postgres"} {
			for _, keys := range []int{100, 10_000, 100_000} {
				benchKeys(ctx, b, kind, keys)
			}
		}
		benchHandoff(ctx, b)
		benchProcesses(ctx, b)
		benchRaw(ctx, b)
	}
}

// fsync measures what durability costs on this disk: one page written and synced.
func fsync(b *testing.B) float64 {
	f, err := os.CreateTemp(b.TempDir(), "")
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	page := make([]byte, 8192)
	var all []time.Duration
	for range 200 {
		begin := time.Now()
		if _, err := f.WriteAt(page, 0); err != nil {
			b.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
		all = append(all, time.Since(begin))
	}
	slices.Sort(all)
	return float64(all[len(all)/2].Microseconds())
}

func place(b *testing.B, kind string) string {
	if kind == "sqlite" {
		return filepath.Join(b.TempDir(), "desk.db")
	}
	return cluster.Database(b)
}

// benchKeys measures pairs with so many keys, through the engine (the service in
// this process) and through HTTP (a server process; the clients are here).
func benchKeys(ctx context.Context, b *testing.B, kind string, keys int) {
	clients := []int{1, 8, 32}
	if keys >= 10_000 {
		clients = append(clients, 256)
	}
	names := func(level string) []string {
		var all []string
		for _, c := range clients {
			all = append(all, fmt.Sprintf("lease.%s.%s.c%d.k%d", level, kind, c, keys))
		}
		return all
	}
	if !slices.ContainsFunc(append(names("engine"), names("http")...), wanted) {
		return
	}
	where := place(b, kind)
	d, err := openDesk(ctx, where)
	if err != nil {
		b.Fatal(err)
	}
	token, err := prepare(ctx, d, keys)
	if err != nil {
		b.Fatal(err)
	}
	for i, c := range clients {
		measure(ctx, b, names("engine")[i], c, enginePair(d.Service))
	}
	d.stop()
	server, url := startServer(b, where, "127.0.0.1:0")
	defer server.end()
	for i, c := range clients {
		measure(ctx, b, names("http")[i], c, httpPair(b, url, token, c))
	}
}

func measure(ctx context.Context, b *testing.B, name string, clients int, do pair) {
	if !wanted(name) {
		return
	}
	f, err := load(ctx, clients, *span/3, *span, do)
	if err != nil {
		b.Fatalf("%s: %v", name, err)
	}
	note := ""
	if strings.Contains(name, ".http.") {
		note = " (rate limit off, wait=0)"
	}
	emit(name+".pairs_per_s", f.perSecond(), "1/s"+note)
	emit(name+".take_p50_ms", float64(f.quantile(0.5).Microseconds())/1000, "ms")
	emit(name+".take_p99_ms", float64(f.quantile(0.99).Microseconds())/1000, "ms")
	if f.none > 0 {
		emit(name+".none_free", float64(f.none), "takes")
	}
}

func enginePair(s *service.Service) pair {
	return func(ctx context.Context, _ int) (time.Duration, error) {
		begin := time.Now()
		g, err := s.Take(ctx, service.TakeRequest{Account: "load", Pool: pool, IdempotencyKey: rand.Text()})
		took := time.Since(begin)
		if fault.CodeOf(err) == "none_free" {
			return 0, errNone
		}
		if err != nil {
			return 0, err
		}
		_, err = s.Release(ctx, service.ReleaseRequest{Proof: service.Proof{ID: g.ID, Secret: g.Secret, Account: "load"}})
		return took, err
	}
}

func httpPair(b *testing.B, url, token string, clients int) pair {
	c, err := client.New(client.Options{BaseURL: url, Token: client.Token(token), HTTPClient: connections(clients, time.Minute), Retries: -1})
	if err != nil {
		b.Fatal(err)
	}
	return func(ctx context.Context, _ int) (time.Duration, error) {
		begin := time.Now()
		l, err := c.Take(ctx, pool, client.TakeOptions{})
		took := time.Since(begin)
		if e, ok := errors.AsType[*client.Error](err); ok && e.Code == "none_free" {
			return 0, errNone
		}
		if err != nil {
			return 0, err
		}
		_, err = l.Release(ctx, client.ReleaseRequest{})
		return took, err
	}
}

// benchHandoff measures the time from a release to the answer of the client that
// waits for that key, through HTTP: both are here, the server is a process.
func benchHandoff(ctx context.Context, b *testing.B) {
	for _, kind := range []string{"postgres", "sqlite"} {
		name := "lease.handoff." + kind
		if !wanted(name) {
			continue
		}
		where := place(b, kind)
		d, err := openDesk(ctx, where)
		if err != nil {
			b.Fatal(err)
		}
		token, err := prepare(ctx, d, 1)
		d.stop()
		if err != nil {
			b.Fatal(err)
		}
		server, url := startServer(b, where, "127.0.0.1:0")
		c, err := client.New(client.Options{BaseURL: url, Token: client.Token(token), HTTPClient: connections(16, time.Minute), Retries: -1})
		if err != nil {
			b.Fatal(err)
		}
		const waiters, rounds = 8, 50
		var (
			mu       sync.Mutex
			released time.Time
			all      []time.Duration
			group    sync.WaitGroup
		)
		for range waiters {
			group.Go(func() {
				for range rounds {
					l, err := c.Take(ctx, pool, client.TakeOptions{Wait: 30 * time.Second})
					got := time.Now()
					if err != nil {
						b.Error(err)
						return
					}
					mu.Lock()
					if !released.IsZero() {
						all = append(all, got.Sub(released))
					}
					mu.Unlock()
					time.Sleep(2 * time.Millisecond) // the key is used
					mu.Lock()
					released = time.Now()
					mu.Unlock()
					if _, err := l.Release(ctx, client.ReleaseRequest{}); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		group.Wait()
		server.kill()
		slices.Sort(all)
		suffix := ""
		if kind == "sqlite" {
			suffix = "." + kind
		}
		for q, value := range map[string]float64{"p50": 0.5, "p99": 0.99} {
			emit("lease.handoff"+suffix+"."+q+"_ms", float64(all[int(value*float64(len(all)-1))].Microseconds())/1000, "ms")
		}
	}
}

// benchProcesses measures 8 processes on one SQLite file, as command-line calls
// on one machine are.
func benchProcesses(ctx context.Context, b *testing.B) {
	const name, processes = "lease.engine.sqlite.procs8", 8
	if !wanted(name) {
		return
	}
	where := filepath.Join(b.TempDir(), "desk.db")
	d, err := openDesk(ctx, where)
	if err != nil {
		b.Fatal(err)
	}
	_, err = prepare(ctx, d, 100)
	d.stop()
	if err != nil {
		b.Fatal(err)
	}
	var all []*process
	var ins []io.WriteCloser
	var outs []*bufio.Reader
	for range processes {
		p := spawn(b, "-role=pairs", "-database="+where, "-span="+span.String())
		in, err := p.cmd.StdinPipe()
		if err != nil {
			b.Fatal(err)
		}
		out, err := p.cmd.StdoutPipe()
		if err != nil {
			b.Fatal(err)
		}
		if err := p.cmd.Start(); err != nil {
			b.Fatal(err)
		}
		all, ins, outs = append(all, p), append(ins, in), append(outs, bufio.NewReader(out))
	}
	read := func(i int) string {
		line, err := outs[i].ReadString('\n')
		if err != nil {
			b.Fatalf("%v: %s", err, all[i].err.String())
		}
		return strings.TrimSpace(line)
	}
	for i := range all {
		read(i) // it is open
	}
	for _, in := range ins {
		if _, err := io.WriteString(in, "go\n"); err != nil {
			b.Fatal(err)
		}
	}
	sum, least := 0, -1
	for i := range all {
		n, err := strconv.Atoi(read(i))
		if err != nil {
			b.Fatal(err)
		}
		sum += n
		if least < 0 || n < least {
			least = n
		}
		_ = all[i].cmd.Wait()
	}
	emit(name+".pairs_per_s", float64(sum)/span.Seconds(), "1/s")
	emit(name+".slowest_share", float64(least)*processes/float64(max(sum, 1)), "of its fair share")
}

// bePairs is one of these processes: it waits for the word and counts its pairs.
func bePairs(ctx context.Context, in io.Reader, out io.Writer) error {
	d, err := openDesk(ctx, *database)
	if err != nil {
		return err
	}
	defer d.stop()
	fmt.Fprintln(out, "open")
	if _, err := bufio.NewReader(in).ReadString('\n'); err != nil {
		return err
	}
	f, err := load(ctx, 1, 0, *span, enginePair(d.Service))
	if err != nil {
		return err
	}
	fmt.Fprintln(out, f.pairs)
	return nil
}

// benchRaw is the reference: two bare statements on the same PostgreSQL, which
// keep no lease, no fence, no order and no waiter.
func benchRaw(ctx context.Context, b *testing.B) {
	const name = "lease.raw.postgres.c8"
	if !wanted(name) {
		return
	}
	db, err := pgxpool.New(ctx, cluster.Database(b))
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	for _, q := range []string{
		"CREATE TABLE raw (key text PRIMARY KEY, owner text, used timestamptz NOT NULL DEFAULT now())",
		"CREATE INDEX ON raw (used) WHERE owner IS NULL",
		"INSERT INTO raw (key) SELECT 'k-' || i FROM generate_series(1, 100) i",
	} {
		if _, err := db.Exec(ctx, q); err != nil {
			b.Fatal(err)
		}
	}
	f, err := load(ctx, 8, *span/3, *span, func(ctx context.Context, c int) (time.Duration, error) {
		begin := time.Now()
		var key string
		err := db.QueryRow(ctx, `UPDATE raw SET owner = $1, used = clock_timestamp() WHERE key =
			(SELECT key FROM raw WHERE owner IS NULL ORDER BY used LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING key`, strconv.Itoa(c)).Scan(&key)
		took := time.Since(begin)
		if errors.Is(err, pgx.ErrNoRows) {
			return 0, errNone
		}
		if err != nil {
			return 0, err
		}
		_, err = db.Exec(ctx, "UPDATE raw SET owner = NULL WHERE key = $1 AND owner = $2", key, strconv.Itoa(c))
		return took, err
	})
	if err != nil {
		b.Fatal(err)
	}
	emit(name+".pairs_per_s", f.perSecond(), "1/s")
	emit(name+".take_p99_ms", float64(f.quantile(0.99).Microseconds())/1000, "ms")
}
