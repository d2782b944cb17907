package sqldb_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/platform/sqldb"
)

// ofEach runs a test with a database of each kind.
func ofEach(t *testing.T, f func(t *testing.T, o sqldb.Options)) {
	t.Helper()
	for kind, place := range kinds {
		t.Run(kind, func(t *testing.T) { f(t, place(t)) })
	}
}

// statement runs a statement of SQL that both kinds know.
func statement(t *testing.T, db *sqldb.DB, sql string) {
	t.Helper()
	if err := db.Run(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

// A program that a newer one left behind hands nothing out, and says why by a
// code.
func TestLeasesNewerSchema(t *testing.T) {
	ofEach(t, func(t *testing.T, o sqldb.Options) {
		db := openWith(t, o)
		s := db.Leases()
		mustDo(t, s, lease.Publish{Pool: lease.Pool{Name: "p"}, Items: []string{"a"}})
		statement(t, db, "UPDATE fleetdesk.schema_info SET min_reader = 99")
		take := lease.Take{Ticket: "one", Pool: "p", Account: "ann"}
		_, err := s.Do(t.Context(), []lease.Op{take})
		if fault.Of(err) != fault.Permanent || fault.CodeOf(err) != "schema" {
			t.Errorf("Do: %v (%s, code %q), want Permanent and schema", err, fault.Of(err), fault.CodeOf(err))
		}
		_, err = s.Root(t.Context())
		if fault.Of(err) != fault.Permanent || fault.CodeOf(err) != "schema" {
			t.Errorf("Root: %v (%s, code %q), want Permanent and schema", err, fault.Of(err), fault.CodeOf(err))
		}
		statement(t, db, "UPDATE fleetdesk.schema_info SET min_reader = 1")
		if res := mustDo(t, s, take); res[0].Key == nil {
			t.Errorf("an upgrade that only expands: %+v", res[0])
		}
	})
}

// Texts that no database can keep name nothing, and do no harm to the ops beside
// them; messages of other programs are made fit.
func TestLeaseOddTexts(t *testing.T) {
	ofEach(t, func(t *testing.T, o sqldb.Options) {
		s := openWith(t, o).Leases()
		epoch := mustDo(t, s, lease.OpenEpoch{Owner: "operator"})[0].Epoch
		mustDo(t, s, lease.Publish{Pool: lease.Pool{Name: "p"}, Items: []string{"a"}}, lease.PutPool{Epoch: epoch, Pool: lease.Pool{Name: "ns.m"}})
		for _, odd := range []string{"a\x00b", "\xff\xfe", "\x00"} {
			proof := lease.Proof{ID: lease.ID{Key: odd, Fence: 1}, Account: odd}
			res, err := s.Do(t.Context(), []lease.Op{
				lease.Take{Ticket: odd, Pool: odd, Account: odd},
				lease.Take{Ticket: "x", Pool: "p", Target: odd, Account: "ann"},
				lease.Live{Tickets: []string{odd}},
				lease.Release{Proof: proof},
				lease.Disable{Key: odd},
				lease.Report{Key: odd, Pool: odd},
				lease.BeginChange{ID: "c", Pool: odd, Keys: []string{odd}},
				lease.EndChange{Pool: odd, ID: odd},
				lease.DropKey{Epoch: epoch, Key: odd},
				lease.Publish{Pool: lease.Pool{Name: odd}, Items: []string{odd}},
				lease.PutKey{Epoch: epoch, Key: "ns.k", UID: "1", Pools: []string{"ns.m"}, Unfit: "it says " + odd, Attributes: map[string]string{"say": odd}},
				lease.Renew{Proof: proof},
			})
			if err != nil {
				t.Fatalf("%q: %v", odd, err)
			}
			for i, refused := range []bool{true, true, false, true, true, true, true, false, false, true, false, true} {
				if (res[i].Err != nil) != refused {
					t.Errorf("%q, op %d: %v", odd, i, res[i].Err)
				}
			}
			if _, err := s.Keys(t.Context(), "ns.m", odd, 10); err != nil {
				t.Errorf("keys after %q: %v", odd, err)
			}
			keys, err := s.Keys(t.Context(), "ns.m", "", 10)
			if err != nil || len(keys.Keys) != 1 || !strings.HasPrefix(keys.Keys[0].Unfit, "it says ") || strings.ContainsRune(keys.Keys[0].Unfit, 0) {
				t.Errorf("the managed key is %+v, %v", keys, err)
			}
			for what, err := range map[string]error{
				"Pool":      second(s.Pool(t.Context(), odd)),
				"Keys":      second(s.Keys(t.Context(), odd, "", 1)),
				"Key":       second(s.Key(t.Context(), odd)),
				"Queue":     second(s.Queue(t.Context(), odd, 0, 1)),
				"Cooldowns": second(s.Cooldowns(t.Context(), odd, "", 1)),
			} {
				if fault.Of(err) != fault.NotFound {
					t.Errorf("%s of %q: %v (%s), want NotFound", what, odd, err, fault.Of(err))
				}
			}
			if _, err := s.Pools(t.Context(), odd, 10); err != nil {
				t.Errorf("pools after %q: %v", odd, err)
			}
		}
	})
}

func second[T any](_ T, err error) error { return err }

// A row that somebody changed without the lock makes the whole transaction fail,
// and nothing of it is kept.
func TestLeaseRowsChangedBeside(t *testing.T) {
	cases := map[string]struct {
		reason, statement string
	}{
		"version": {"the row is another one by now", "UPDATE fleetdesk.keys SET version = version + 1 WHERE name = 'a'"},
		"gone":    {"the row is gone", "DELETE FROM fleetdesk.keys WHERE name = 'a'"},
		"moved":   {"the pool has it elsewhere", "UPDATE fleetdesk.ready SET rank = 7 WHERE key = 'a'"},
	}
	ofEach(t, func(t *testing.T, o sqldb.Options) {
		for name, tc := range cases {
			t.Run(name, func(t *testing.T) {
				db := openWith(t, o)
				s := db.Leases()
				mustDo(t, s, lease.Publish{Pool: lease.Pool{Name: "p"}, Items: []string{"a"}})
				before := everything(t, s)
				db.Interfere(tc.statement)
				_, err := s.Do(t.Context(), []lease.Op{
					lease.Take{Ticket: name, Pool: "p", Account: "ann", Keep: true}, lease.Publish{Pool: lease.Pool{Name: "q"}, Items: []string{"b"}},
				})
				if fault.Of(err) != fault.Transient {
					t.Errorf("%s: %v (%s), want Transient", tc.reason, err, fault.Of(err))
				}
				after := everything(t, s)
				if d := cmp.Diff(before, after, ignoreNow); d != "" {
					t.Errorf("something was kept (-before +after):\n%s", d)
				}
				if res := mustDo(t, s, lease.Take{Ticket: name, Pool: "p", Account: "ann"}); res[0].Key == nil {
					t.Errorf("it does not work again: %+v", res[0])
				}
				mustDo(t, s, lease.Force{Key: "a"})
			})
		}
	})
}

// ignoreNow leaves out when something was read.
var ignoreNow = cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Now" }, cmp.Ignore())

// The root key is made once, whoever asks first, and stays.
func TestRootKey(t *testing.T) {
	ofEach(t, func(t *testing.T, o sqldb.Options) {
		all := handles(t, o, 4)
		roots := make(chan string, 4)
		for _, db := range all {
			go func() {
				root, err := db.Leases().Root(t.Context())
				if err != nil || len(root) != 32 {
					t.Errorf("%d bytes, %v", len(root), err)
				}
				roots <- string(root)
			}()
		}
		first := <-roots
		for range 3 {
			if other := <-roots; other != first {
				t.Error("two root keys")
			}
		}
		if root, err := openWith(t, o).Leases().Root(t.Context()); err != nil || string(root) != first {
			t.Errorf("another one after opening again: %v", err)
		}
	})
}

// A process hears of its own transactions at once and once, and of others' soon.
func TestSQLiteWatch(t *testing.T) {
	o := kinds["sqlite"](t)
	all := handles(t, o, 2)
	mine, other := all[0].Leases(), all[1].Leases()
	h := watching(t, mine)
	for n := range 3 {
		mustDo(t, mine, lease.Publish{Pool: lease.Pool{Name: fmt.Sprint("own", n)}, Items: []string{fmt.Sprint("k", n)}})
		select {
		case n := <-h.news:
			if len(n.Freed) != 1 || n.All || !n.Events {
				t.Errorf("of its own: %+v", n)
			}
		default:
			t.Error("its own transaction was not told when it was done")
		}
	}
	h.silent(t, other)
	mustDo(t, other, lease.Disable{Key: "k0", By: "root"}, lease.Enable{Key: "k0", By: "root"})
	if n := h.next(t); !n.All || !n.Events {
		t.Errorf("of another's: %+v", n)
	}
	// Both at once: neither hides the other.
	mustDo(t, mine, lease.Disable{Key: "k1", By: "root"})
	mustDo(t, other, lease.Disable{Key: "k0", By: "root"}, lease.Enable{Key: "k0", By: "root"})
	mustDo(t, mine, lease.Enable{Key: "k1", By: "root"})
	heardAll, heardOwn := false, 0
	for !heardAll || heardOwn < 2 {
		n := h.next(t)
		heardAll = heardAll || n.All
		if !n.All && n.Events {
			heardOwn++
		}
	}
	// A transaction that fails changes nothing of that.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := mine.Do(ctx, []lease.Op{lease.Enable{Key: "k1"}}); fault.Of(err) != fault.Timeout {
		t.Errorf("%v (%s)", err, fault.Of(err))
	}
	for len(h.news) > 0 {
		<-h.news
	}
	mustDo(t, other, lease.Disable{Key: "k0", By: "root"}, lease.Enable{Key: "k0", By: "root"})
	for n := h.next(t); !n.All; n = h.next(t) {
	}
}

// What an older version kept of leases is there after the upgrade, and goes on.
func TestLeasesUpgrade(t *testing.T) {
	at := time.Date(2026, 11, 1, 10, 21, 10, 0, time.UTC)
	for version := int64(2); version <= latest(t, "sqlite"); version++ {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			places := map[string]sqldb.Options{"sqlite": {Path: load(t, fixture(t, "sqlite", version))}, "postgres": {URL: server.Database(t)}}
			if err := server.Server(t).Exec(t.Context(), databaseOf(t, places["postgres"].URL), fixture(t, "postgres", version)); err != nil {
				t.Fatal(err)
			}
			for kind, o := range places {
				t.Run(kind, func(t *testing.T) {
					db := openWith(t, sqldb.WithClock(o, func(time.Time) time.Time { return at }))
					keptLeases(t, db)
				})
			}
		})
	}
}

// keptLeases looks for the leases of the dumps, and uses them.
func keptLeases(t *testing.T, db *sqldb.DB) {
	t.Helper()
	s := db.Leases()
	consistent(t, db)
	root, err := s.Root(t.Context())
	if err != nil || fmt.Sprintf("%x", root[:4]) != "00010203" {
		t.Errorf("the root key is another one: %v", err)
	}
	win, err := s.Pool(t.Context(), "win-vms")
	if err != nil || win.Keys != 3 || win.Held != 0 || win.Change == nil || win.Change.ID != "change-1" || !win.Hooks.Reset || win.Cooldown != 30*time.Second || win.Revision != 2 {
		t.Errorf("win-vms is %+v, %v", win, err)
	}
	eu, err := s.Pool(t.Context(), "crawl.eu")
	if err != nil || eu.Keys != 2 || eu.Held != 1 || eu.Waiting != 0 || eu.Scope != lease.ScopeExitIP || eu.Kind != lease.Managed {
		t.Errorf("crawl.eu is %+v, %v", eu, err)
	}
	states := map[string]lease.State{}
	for _, pool := range []string{"win-vms", "crawl.eu"} {
		keys, err := s.Keys(t.Context(), pool, "", 10)
		if err != nil {
			t.Fatal(err)
		}
		for i := range keys.Keys {
			states[keys.Keys[i].Name] = keys.Keys[i].State(keys.Now)
		}
	}
	want := map[string]lease.State{
		"win-01": lease.Barred, "win-02": lease.DisabledSt, "win-03": lease.Held, "win-04": lease.Barred, "crawl.a": lease.Held, "crawl.b": lease.Unhealthy,
	}
	if d := cmp.Diff(want, states); d != "" {
		t.Errorf("states (-want +got):\n%s", d)
	}
	rests, err := s.Cooldowns(t.Context(), "crawl.a", "", 10)
	if err != nil || len(rests) != 1 || rests[0].Target != "shop.example.com" || rests[0].Strikes != 1 {
		t.Errorf("crawl.a rests %+v, %v", rests, err)
	}
	// Managed keys have seats: older ones by name, and what comes later stands
	// behind them.
	var seats []int64
	for _, name := range []string{"crawl.a", "crawl.b"} {
		keys, err := s.Key(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		seats = append(seats, keys.Keys[0].Seat)
	}
	if seats[0] <= 23 || seats[1] <= seats[0] {
		t.Errorf("seats %v", seats)
	}
	queue, err := s.Queue(t.Context(), "crawl.eu", 0, 10)
	if err != nil || len(queue) != 1 || queue[0].ID != "six" || queue[0].Where["city"] != "Łódź" {
		t.Errorf("the queue is %+v, %v", queue, err)
	}
	open, err := db.Actions().Open(t.Context(), action.OpenQuery{Limit: 10})
	if err != nil || len(open) != 1 || open[0].Key != "win-01" {
		t.Errorf("open actions are %+v, %v", open, err)
	}
	events, gap, err := s.Events(t.Context(), 0, 100)
	if err != nil || gap || len(events) != 14 {
		t.Errorf("%d events, a gap %v, %v", len(events), gap, err)
	}
	// A replay, a renewal and a release of what was taken before.
	three := lease.Proof{ID: lease.ID{Key: "win-03", Fence: 8}, Secret: lease.HashOf("three"), Account: "ann@example.com"}
	res := mustDo(t, s,
		lease.Take{
			Ticket: "five", Digest: "digest of five", Keep: true, Pool: "crawl.eu", Target: "news.example.com", Account: "ann@example.com",
			Secret: lease.HashOf("five"), RunsHooks: true,
		},
		lease.Renew{Proof: three}, lease.Release{Proof: three, Reset: lease.ResetDone})
	if !res[0].Replayed || res[0].Lease.Fence != 17 {
		t.Errorf("the replay is %+v", res[0])
	}
	if _, err := s.Key(t.Context(), "win-03"); fault.Of(err) != fault.NotFound {
		t.Errorf("the key that left its list while it was held: %v", err)
	}
	// A pick goes by the turns, of which there are none yet or an old one.
	mustDo(t, s, lease.Lift{Key: "crawl.a"}, lease.Force{Key: "crawl.a"})
	epoch := mustDo(t, s, lease.OpenEpoch{})[0].Epoch
	pick := mustDo(t, s,
		lease.PutKey{Epoch: epoch, Key: "crawl.c", UID: "uid-c", Pools: []string{"crawl.eu"}, ExitIP: "192.0.2.3"},
		lease.Take{Pool: "crawl.eu", Target: "other.example.com", Account: "ann@example.com", Quick: true},
		lease.Take{Pool: "crawl.eu", Target: "other.example.com", Account: "ann@example.com", Quick: true, Where: map[string]string{"city": "Łódź"}})
	if k := pick[0].Key; k == nil || k.Seat <= seats[1] {
		t.Errorf("a new key has the seat of %+v", k)
	}
	if pick[2].Use == nil && pick[1].Use == nil {
		t.Errorf("the picks got %+v and %+v", pick[1].Busy, pick[2].Busy)
	}
	next := mustDo(t, s, lease.Enable{Key: "win-02", By: "root"}, lease.Take{Ticket: "seven", Pool: "win-vms", Account: "ann@example.com", RunsHooks: true})[1]
	if next.Key == nil || next.Key.Name != "win-02" || next.Lease.Fence <= 23 || !next.Lease.Resetting {
		t.Errorf("the next lease is %+v", next)
	}
	consistent(t, db)
}
