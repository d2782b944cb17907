package sqldb_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/platform/sqldb"
)

// worker is a client of a store within one process.
type worker struct {
	store lease.Store
	name  string
	wakes chan struct{}
}

func newWorker(s lease.Store, name string) *worker {
	return &worker{s, name, make(chan struct{}, 1)}
}

// Waiting and Changed implement [lease.Watcher].
func (w *worker) Waiting() bool { return true }

func (w *worker) Changed(n lease.News) {
	if !n.All && len(n.Freed) == 0 {
		return
	}
	select {
	case w.wakes <- struct{}{}:
	default:
	}
}

// watch hears of changes until the returned function is called.
func (w *worker) watch(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = w.store.Watch(ctx, w)
	}()
	return func() { cancel(); <-done }
}

// take waits for a key of pool p, and is told when it begins to wait.
func (w *worker) take(ctx context.Context, ticket string, waits func()) (lease.Result, error) {
	op := lease.Take{
		Ticket: ticket, Pool: "p", Account: "ann", Holder: w.name, Secret: lease.HashOf(ticket), TTL: lease.MinTTL, Wait: true,
	}
	for first := true; ; first = false {
		res, err := w.store.Do(ctx, []lease.Op{op})
		if err != nil {
			return lease.Result{}, err
		}
		if res[0].Err != nil || res[0].Key != nil {
			return res[0], res[0].Err
		}
		if first && waits != nil {
			waits()
		}
		// Also without news a waiter shows life.
		select {
		case <-w.wakes:
		case <-time.After(2 * time.Second):
		case <-ctx.Done():
			return lease.Result{}, ctx.Err()
		}
	}
}

func (w *worker) release(ctx context.Context, r lease.Result) error {
	res, err := w.store.Do(ctx, []lease.Op{lease.Release{Proof: proofOf(r)}})
	if err != nil {
		return err
	}
	return res[0].Err
}

func proofOf(r lease.Result) lease.Proof {
	return lease.Proof{ID: lease.ID{Key: r.Key.Name, Fence: r.Lease.Fence}, Secret: r.Lease.Secret, Account: r.Lease.Account}
}

// leaseChild is what processes beside the tests do with leases.
func leaseChild(ctx context.Context, role string, db *sqldb.DB, path string) error {
	w := newWorker(db.Leases(), strconv.Itoa(os.Getpid()))
	defer w.watch(ctx)()
	switch role {
	case "lease-work":
		for n := range 25 {
			r, err := w.take(ctx, fmt.Sprint(w.name, "-", n), nil)
			if err != nil {
				return err
			}
			// What the key stands for is used by one at a time.
			thing := filepath.Join(filepath.Dir(path), r.Key.Name)
			f, err := os.OpenFile(thing, os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return fmt.Errorf("lease %s: %w", r.Key.ID(), err)
			}
			if err := errors.Join(f.Close(), os.Remove(thing)); err != nil {
				return err
			}
			if err := w.release(ctx, r); err != nil {
				return err
			}
			fmt.Println(r.Lease.Fence)
		}
	case "lease-wait":
		r, err := w.take(ctx, "waiter", func() { fmt.Println("waits") })
		if err != nil {
			return err
		}
		fmt.Println(time.Now().UnixNano(), r.Lease.Fence)
	case "lease-hold":
		r, err := w.take(ctx, "holder", nil)
		if err != nil {
			return err
		}
		fmt.Println(r.Lease.Fence)
		<-ctx.Done()
	case "lease-until-killed":
		for n := 0; ; n++ {
			r, err := w.take(ctx, fmt.Sprint(w.name, "-", n), nil)
			if err != nil {
				return err
			}
			if err := w.release(ctx, r); err != nil {
				return err
			}
			fmt.Println(r.Lease.Fence)
		}
	}
	return nil
}

// leasing makes a file with a pool.
func leasing(t *testing.T, items ...string) (db *sqldb.DB, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "desk.db")
	db = open(t, path)
	mustDo(t, db.Leases(), lease.Publish{Pool: lease.Pool{Name: "p", TTL: lease.MinTTL}, Items: items})
	return db, path
}

// Processes that all want the few keys of a file get them one after another.
func TestLeasesAcrossProcesses(t *testing.T) {
	db, path := leasing(t, "a", "b")
	const processes = 4
	type said struct {
		text string
		err  error
	}
	outs := make(chan said, processes)
	for range processes {
		cmd := childCommand(t, "lease-work", path)
		go func() {
			out, err := cmd.Output()
			outs <- said{string(out), err}
		}()
	}
	var fences []int64
	for range processes {
		out := <-outs
		if out.err != nil {
			t.Errorf("%v: %s", out.err, out.text)
		}
		last := int64(0)
		for line := range strings.Lines(out.text) {
			n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
			if err != nil || n <= last {
				t.Fatalf("fence %q after %d", line, last)
			}
			last = n
			fences = append(fences, n)
		}
	}
	slices.Sort(fences)
	if n := len(slices.Compact(fences)); n != processes*25 {
		t.Errorf("%d leases with fences of their own, want %d", n, processes*25)
	}
	consistent(t, db)
}

// A key that comes free in one process is in the hands of a waiter of another
// within milliseconds, not at its next sign of life.
func TestHandOffAcrossProcesses(t *testing.T) {
	db, path := leasing(t, "a")
	w := newWorker(db.Leases(), "test")
	r, err := w.take(t.Context(), "first", nil)
	if err != nil {
		t.Fatal(err)
	}
	cmd := childCommand(t, "lease-wait", path)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	if !lines.Scan() || lines.Text() != "waits" {
		t.Fatalf("it said %q", lines.Text())
	}
	freed := time.Now()
	if err := w.release(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	var at, fence int64
	if !lines.Scan() {
		t.Fatal("it got nothing")
	}
	if _, err := fmt.Sscan(lines.Text(), &at, &fence); err != nil || fence <= r.Lease.Fence {
		t.Fatalf("it said %q after fence %d: %v", lines.Text(), r.Lease.Fence, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if took := time.Unix(0, at).Sub(freed); took > 500*time.Millisecond {
		t.Errorf("the key was handed over after %s", took)
	}
}

// The lease of a process that is killed ends with its time, and not before.
func TestKilledHolder(t *testing.T) {
	_, path := leasing(t, "a")
	cmd := childCommand(t, "lease-hold", path)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var fence int64
	if _, err := fmt.Fscan(stdout, &fence); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()

	var ahead time.Duration
	s := openWith(t, sqldb.WithClock(sqldb.Options{Path: path}, func(now time.Time) time.Time { return now.Add(ahead) })).Leases()
	take := lease.Take{Ticket: "next", Pool: "p", Account: "bob"}
	if res := mustDo(t, s, take); res[0].Key != nil {
		t.Fatalf("the key of a killed holder went to lease %s at once", res[0].Key.ID())
	}
	ahead = lease.MinTTL
	res := mustDo(t, s, lease.Sweep{Limit: 10}, take)
	if res[1].Key == nil || res[1].Lease.Fence <= fence {
		t.Errorf("after its time: %+v", res[1])
	}
}

// A process that is killed at any moment leaves a file that is whole, with all
// that it was told was done.
func TestKilledLeaser(t *testing.T) {
	for round := range 4 {
		db, path := leasing(t, "a", "b", "c")
		cmd := childCommand(t, "lease-until-killed", path)
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		last := int64(killAfter(t, cmd, stdout, 3+round*7))
		var verdict string
		if err := db.Reader().QueryRow("PRAGMA integrity_check").Scan(&verdict); err != nil || verdict != "ok" {
			t.Errorf("round %d: integrity: %s %v", round, verdict, err)
		}
		consistent(t, db)
		keys, err := db.Leases().Keys(t.Context(), "p", "", 10)
		if err != nil {
			t.Fatal(err)
		}
		var newest, running int64
		for _, k := range keys.Keys {
			if k.Lease == nil {
				continue
			}
			newest = max(newest, k.Lease.Fence)
			if k.Lease.End == "" {
				running++
			}
			if k.Lease.Fence <= last && k.Lease.End != lease.Released {
				t.Errorf("round %d: lease %s was given back and is %q", round, k.ID(), k.Lease.End)
			}
		}
		if newest < last || running > 1 {
			t.Errorf("round %d: the last lease is %d, told was %d; %d run", round, newest, last, running)
		}
		if res := mustDo(t, db.Leases(), lease.Take{Ticket: "next", Pool: "p", Account: "bob"}); res[0].Lease == nil || res[0].Lease.Fence <= newest {
			t.Errorf("round %d: the next lease is %+v, after %d", round, res[0].Lease, newest)
		}
	}
}

// consistent checks that what other tables say of keys is what their rows say.
func consistent(t *testing.T, db *sqldb.DB) {
	t.Helper()
	for what, question := range map[string]string{
		"places of keys that differ from their rows": `SELECT count(*) FROM fleetdesk.ready r LEFT JOIN fleetdesk.keys k ON k.name = r.key
			WHERE k.name IS NULL OR r.free_at <> k.free_at OR r.rank <> k.rank OR r.exit_ip <> k.exit_ip`,
		"places that are missing": `SELECT count(*) FROM fleetdesk.members m WHERE NOT m.leaving
			AND NOT EXISTS (SELECT 1 FROM fleetdesk.ready r WHERE r.pool = m.pool AND r.key = m.key)`,
		"places without a member": `SELECT count(*) FROM fleetdesk.ready r
			WHERE NOT EXISTS (SELECT 1 FROM fleetdesk.members m WHERE m.pool = r.pool AND m.key = r.key AND NOT m.leaving)`,
		"members that their keys do not list": `SELECT count(*) FROM fleetdesk.members m LEFT JOIN fleetdesk.keys k ON k.name = m.key
			WHERE k.name IS NULL OR ',' || CASE WHEN m.leaving THEN k.leaving ELSE k.pools END || ',' NOT LIKE '%,' || m.pool || ',%'`,
		"running leases that are no lease": `SELECT count(*) FROM fleetdesk.running r LEFT JOIN fleetdesk.keys k ON k.name = r.key
			WHERE k.name IS NULL OR k.fence = 0 OR k.ended <> '' OR k.expires <> r.expires`,
		"leases that run and are not listed": `SELECT count(*) FROM fleetdesk.keys k WHERE k.fence > 0 AND k.ended = ''
			AND NOT EXISTS (SELECT 1 FROM fleetdesk.running r WHERE r.key = k.name AND r.expires = k.expires)`,
	} {
		var n int
		if err := db.Count(t.Context(), question, &n); err != nil || n != 0 {
			t.Errorf("%d %s: %v", n, what, err)
		}
	}
}

// A program that only reads sees leases, changes nothing, and is refused writes.
func TestLeasesReadOnly(t *testing.T) {
	for kind, place := range kinds {
		t.Run(kind, func(t *testing.T) {
			o := place(t)
			writer := openWith(t, o)
			mustDo(t, writer.Leases(), lease.Publish{Pool: lease.Pool{Name: "p"}, Items: []string{"a", "b"}}, lease.Take{Ticket: "one", Pool: "p", Account: "ann"})
			o.ReadOnly = true
			s := openWith(t, o).Leases()
			p, err := s.Pool(t.Context(), "p")
			if err != nil || p.Keys != 2 || p.Held != 1 || p.Free != 1 {
				t.Errorf("the pool is %+v, %v", p, err)
			}
			if _, err := s.Do(t.Context(), []lease.Op{lease.Sweep{Limit: 1}}); fault.Of(err) != fault.Denied {
				t.Errorf("Do: %v (%s), want Denied", err, fault.Of(err))
			}
			if _, err := s.Root(t.Context()); fault.Of(err) != fault.Denied {
				t.Errorf("Root that nobody made: %v (%s), want Denied", err, fault.Of(err))
			}
			want, err := writer.Leases().Root(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got, err := s.Root(t.Context()); err != nil || string(got) != string(want) {
				t.Errorf("Root: %v", err)
			}
		})
	}
}
