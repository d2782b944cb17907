package sqldb_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/platform/sqldb"
	"fleetdesk/internal/testkit/postgres"
)

// Four replicas whose clients all want the few keys of a database: nobody has
// one that another has, and later leases have greater fences.
func TestLeasesAcrossReplicas(t *testing.T) {
	url := server.Database(t)
	replicas := handles(t, sqldb.Options{URL: url}, 4)
	items := []string{"a", "b", "c", "d", "e"}
	mustDo(t, replicas[0].Leases(), lease.Publish{Pool: lease.Pool{Name: "p"}, Items: items})
	var mu sync.Mutex
	holders := map[string]string{}
	fences := map[time.Time]int64{} // by the time of the transaction, the last one's
	var granted, busy atomic.Int64
	client := func(s lease.Store, name string) error {
		for n := range 15 {
			var ops []lease.Op
			for i := range 3 {
				ticket := fmt.Sprint(name, "-", n, "-", i)
				ops = append(ops, lease.Take{Ticket: ticket, Pool: "p", Account: "ann", Secret: lease.HashOf(ticket)})
			}
			res, err := s.Do(t.Context(), ops)
			if err != nil {
				return err
			}
			var back []lease.Op
			mu.Lock()
			for _, r := range res {
				if r.Err != nil {
					err = errors.Join(err, r.Err)
				}
				if r.Key == nil {
					busy.Add(1)
					continue
				}
				granted.Add(1)
				if other := holders[r.Key.Name]; other != "" {
					err = errors.Join(err, fmt.Errorf("key %s is held by %s and %s", r.Key.Name, other, name))
				}
				holders[r.Key.Name] = name
				fences[r.Now] = max(fences[r.Now], r.Lease.Fence)
				back = append(back, lease.Release{Proof: proofOf(r)})
			}
			mu.Unlock()
			if err != nil {
				return err
			}
			mu.Lock()
			for _, r := range res {
				if r.Key != nil {
					delete(holders, r.Key.Name)
				}
			}
			mu.Unlock()
			res, err = s.Do(t.Context(), back)
			if err != nil {
				return err
			}
			for _, r := range res {
				err = errors.Join(err, r.Err)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	const clients = 12
	errs := make(chan error, clients)
	for n := range clients {
		go func() { errs <- client(replicas[n%4].Leases(), fmt.Sprint("client ", n)) }()
	}
	for range clients {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if granted.Load() < clients*4 {
		t.Errorf("%d grants, %d of none", granted.Load(), busy.Load())
	}
	var times []time.Time
	for at := range fences {
		times = append(times, at)
	}
	slices.SortFunc(times, time.Time.Compare)
	for i := 1; i < len(times); i++ {
		if fences[times[i]] <= fences[times[i-1]] {
			t.Errorf("the fence of %v is %d, that of %v was %d", times[i], fences[times[i]], times[i-1], fences[times[i-1]])
		}
	}
	consistent(t, replicas[0])
}

// heard is a watcher that keeps what it hears.
type heard struct{ news chan lease.News }

func (h heard) Waiting() bool { return true }

func (h heard) Changed(n lease.News) {
	select {
	case h.news <- n:
	default:
	}
}

// watching watches a store until the test ends.
func watching(t *testing.T, s lease.Store) heard {
	t.Helper()
	h := heard{make(chan lease.News, 100)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Watch(ctx, h) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Watch: %v", err)
		}
	})
	if n := h.next(t); !n.All || !n.Events {
		t.Fatalf("what was before is told as %+v", n)
	}
	return h
}

func (h heard) next(t *testing.T) lease.News {
	t.Helper()
	select {
	case n := <-h.news:
		return n
	case <-time.After(10 * time.Second):
		t.Fatal("nothing was heard")
		return lease.News{}
	}
}

// silent checks that nothing more is heard of what was done until now: a mark
// that another replica sets is the next that comes.
func (h heard) silent(t *testing.T, other lease.Store) {
	t.Helper()
	mustDo(t, other, lease.Publish{Pool: lease.Pool{Name: "mark"}})
	if n := h.next(t); n.All || len(n.Freed) > 0 {
		t.Errorf("heard %+v, want the mark alone", n)
	}
}

// A replica hears of its own transactions at once and once, of others' by the
// pools that they freed; of very many as of all.
func TestPostgresWatch(t *testing.T) {
	url := server.Database(t)
	all := handles(t, sqldb.Options{URL: url}, 2)
	mine, other := all[0].Leases(), all[1].Leases()
	h := watching(t, mine)
	publish := func(s lease.Store, n int) {
		ops := []lease.Op{}
		for i := range n {
			ops = append(ops, lease.Publish{Pool: lease.Pool{Name: fmt.Sprintf("p%0100d", i)}, Items: []string{fmt.Sprint("k", i)}})
		}
		mustDo(t, s, ops...)
	}
	publish(mine, 2)
	select {
	case n := <-h.news:
		if len(n.Freed) != 2 || n.All || !n.Events {
			t.Errorf("of its own: %+v", n)
		}
	default:
		t.Error("its own transaction was not told when it was done")
	}
	h.silent(t, other)
	mustDo(t, other, lease.Disable{Key: "k0", By: "root"})
	if n := h.next(t); len(n.Freed) > 0 || n.All || !n.Events {
		t.Errorf("of a transaction that frees nothing: %+v", n)
	}
	mustDo(t, other, lease.Enable{Key: "k0", By: "root"})
	if n := h.next(t); len(n.Freed) != 1 || !strings.HasPrefix(n.Freed[0], "p000") || n.All {
		t.Errorf("of another's: %+v", n)
	}
	publish(other, 100)
	if n := h.next(t); !n.All {
		t.Errorf("of a hundred pools: %+v", n)
	}
	// A lost connection is made anew, and what was missed is told as all.
	var ended int
	err := all[1].Pool().QueryRow(t.Context(), "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()").Scan(&ended)
	if err != nil || ended != 1 {
		t.Fatalf("%d connections listened: %v", ended, err)
	}
	if n := h.next(t); !n.All || !n.Events {
		t.Errorf("after a lost connection: %+v", n)
	}
	mustDo(t, other, lease.Disable{Key: "k0", By: "root"}, lease.Enable{Key: "k0", By: "root"})
	if n := h.next(t); len(n.Freed) != 1 {
		t.Errorf("by the new connection: %+v", n)
	}
}

// A server that is lost is Unavailable within moments, takes no lease with it,
// and is found again without a new handle.
func TestPostgresLeaseOutage(t *testing.T) {
	s := postgres.Private(t, postgres.Options{})
	db := openURL(t, s.Database(t))
	st := db.Leases()
	mustDo(t, st, lease.Publish{Pool: lease.Pool{Name: "p"}, Items: []string{"a", "b", "c", "d", "e"}})
	h := watching(t, st)
	var last lease.Result
	for n, down := range []func() error{s.Stop, s.Kill, s.Kill} {
		last = mustDo(t, st, lease.Take{Ticket: fmt.Sprint(n), Pool: "p", Account: "ann"})[0]
		if err := down(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_, err := st.Do(t.Context(), []lease.Op{lease.Take{Ticket: "lost", Pool: "p", Account: "ann"}})
		_, reading := st.Pool(t.Context(), "p")
		_, root := st.Root(t.Context())
		for what, err := range map[string]error{"Do": err, "Pool": reading, "Root": root} {
			if fault.Of(err) != fault.Unavailable || fault.CodeOf(err) != "store" {
				t.Errorf("%s: %v (%s, code %q), want Unavailable and store", what, err, fault.Of(err), fault.CodeOf(err))
			}
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("three calls took %s", took)
		}
		for len(h.news) > 0 {
			<-h.news
		}
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := h.next(t); !n.All {
			t.Errorf("after the outage: %+v", n)
		}
		keys, err := st.Key(t.Context(), last.Key.Name)
		if err != nil || keys.Keys[0].Lease == nil || keys.Keys[0].Lease.Fence != last.Lease.Fence || !keys.Keys[0].Held(keys.Now) {
			t.Errorf("lease %s is lost: %+v, %v", last.Key.ID(), keys, err)
		}
	}
	if res := mustDo(t, st, lease.Take{Ticket: "after", Pool: "p", Account: "ann"}); res[0].Lease == nil || res[0].Lease.Fence <= last.Lease.Fence {
		t.Errorf("the next lease is %+v, after %d", res[0].Lease, last.Lease.Fence)
	}
	consistent(t, db)
}

// A server that ends connections between the steps of a transaction: it is done
// again, for nothing of it was kept.
func TestPostgresConnectionLostInside(t *testing.T) {
	url := server.Database(t)
	admin := openURL(t, url)
	mustDo(t, admin.Leases(), lease.Publish{Pool: lease.Pool{Name: "p"}, Items: []string{"a", "b"}})
	tries := 0
	s := openWith(t, sqldb.WithClock(sqldb.Options{URL: url}, func(now time.Time) time.Time {
		if tries++; tries == 1 { // the transaction has begun
			_, err := admin.Pool().Exec(context.WithoutCancel(t.Context()),
				"SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")
			if err != nil {
				t.Error(err)
			}
		}
		return now
	})).Leases()
	res := mustDo(t, s, lease.Take{Ticket: "one", Pool: "p", Account: "ann"})
	if res[0].Key == nil || tries < 2 {
		t.Errorf("after %d tries: %+v", tries, res[0])
	}
	consistent(t, admin)
}

// When the answer to a commit does not come, it is unknown whether it was done:
// that is Timeout, and the same request may come again.
func TestPostgresCommitUnanswered(t *testing.T) {
	s := postgres.Private(t, postgres.Options{})
	url := s.Database(t)
	db := openURL(t, url)
	st := db.Leases()
	mustDo(t, st, lease.Publish{Pool: lease.Pool{Name: "p"}, Items: []string{"a", "b"}})
	wait := func(standby string) {
		t.Helper()
		if err := s.Exec(t.Context(), "postgres", "ALTER SYSTEM SET synchronous_standby_names = '"+standby+"'"); err != nil {
			t.Fatal(err)
		}
		if err := s.Exec(t.Context(), "postgres", "SELECT pg_reload_conf()"); err != nil {
			t.Fatal(err)
		}
		until(t, "the setting holds", func() bool {
			var now string
			err := db.Pool().QueryRow(t.Context(), "SHOW synchronous_standby_names").Scan(&now)
			return err == nil && now == standby
		})
	}
	wait("nobody") // a commit waits for a copy that never comes
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	take := lease.Take{Ticket: "one", Digest: "d", Keep: true, Pool: "p", Account: "ann", Secret: lease.HashOf("one")}
	_, err := st.Do(ctx, []lease.Op{take})
	if fault.Of(err) != fault.Timeout || fault.CodeOf(err) != "store" {
		t.Errorf("%v (%s, code %q), want Timeout and store", err, fault.Of(err), fault.CodeOf(err))
	}
	wait("")
	if res := mustDo(t, st, take); !res[0].Replayed {
		t.Errorf("it was done, and the same request again is no replay: %+v", res[0])
	}
}

// A replica that stands still with the lock of the desk loses it after two
// seconds; the others wait for it and go on.
func TestPostgresHungDesk(t *testing.T) {
	url := server.Database(t)
	hangs, free := make(chan struct{}), make(chan struct{})
	var once sync.Once
	hung := openWith(t, sqldb.WithClock(sqldb.Options{URL: url}, func(now time.Time) time.Time {
		once.Do(func() { close(hangs); <-free })
		return now
	})).Leases()
	other := openURL(t, url).Leases()
	did := make(chan error, 1)
	go func() {
		_, err := hung.Do(t.Context(), []lease.Op{lease.OpenEpoch{Owner: "hung"}})
		did <- err
	}()
	<-hangs
	began := time.Now()
	mustDo(t, other, lease.OpenEpoch{Owner: "other"})
	if took := time.Since(began); took < time.Second || took > 4*time.Second {
		t.Errorf("the other one waited for %s, want about 2 s", took)
	}
	close(free)
	if err := <-did; err != nil {
		t.Errorf("the hung one, when it went on: %v", err)
	}
	if res := mustDo(t, other, lease.OpenEpoch{Owner: "other"}); res[0].Epoch != 3 {
		t.Errorf("the epoch is %d, want 3: each was opened once", res[0].Epoch)
	}
}

// Another session that holds the lock for long is told as what it is.
func TestPostgresDeskLocked(t *testing.T) {
	url := server.Database(t)
	s := openWith(t, sqldb.Options{URL: url, LockWait: 200 * time.Millisecond}).Leases()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.WithoutCancel(t.Context()))
	if _, err := c.Exec(t.Context(), fmt.Sprintf("SELECT pg_advisory_lock(%d)", sqldb.DeskLock)); err != nil {
		t.Fatal(err)
	}
	_, err = s.Do(t.Context(), []lease.Op{lease.OpenEpoch{}})
	if fault.Of(err) != fault.Unavailable || fault.CodeOf(err) != "store" || !strings.Contains(fmt.Sprint(err), "pg_stat_activity") {
		t.Errorf("%v (%s, code %q), want Unavailable and store", err, fault.Of(err), fault.CodeOf(err))
	}
	if _, err := s.Pools(t.Context(), "", 10); err != nil {
		t.Errorf("readers do not wait: %v", err)
	}
}
