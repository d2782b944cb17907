package sqldb_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
	"fleetdesk/internal/platform/sqldb"
)

// exercised runs ops of all kinds and all reads, and returns the statements that
// were asked.
func exercised(t *testing.T, o sqldb.Options) (*sqldb.DB, map[string]string) {
	t.Helper()
	now := time.Date(2026, 11, 1, 10, 20, 30, 0, time.UTC)
	db := openWith(t, sqldb.WithClock(o, func(time.Time) time.Time { return now }))
	r := db.Record()
	g := &generator{Rand: rand.New(rand.NewPCG(20261101, 2))}
	for n := range 800 {
		if n == 400 {
			db.Wrap(leasetest.InLines)
		}
		now = now.Add(g.pause())
		ops := g.ops()
		g.learn(ops, mustRun(t, db.Leases(), ops))
	}
	everything(t, db.Leases())
	if _, err := db.Leases().Root(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended, ok := action.Entry{
		Action: "action-number-one", Phase: action.PhaseStarted, Pool: "p", Key: "a", Verb: action.VerbDestroy, User: "ann", Command: "true",
	}, true
	if _, err := db.Actions().Append(t.Context(), ended); err != nil {
		t.Fatal(err)
	}
	ended.Phase, ended.OK = action.PhaseFinished, &ok
	if _, err := db.Actions().Append(t.Context(), ended); err != nil {
		t.Fatal(err)
	}
	for _, q := range []action.Query{{Limit: 1}, {Pool: "p", Limit: 1}, {Key: "a", Limit: 1}, {Action: ended.Action, Limit: 1}} {
		if _, err := db.Actions().Entries(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	for _, q := range []action.OpenQuery{{Limit: 1}, {Pool: "p", Limit: 1}, {Keys: []string{"a", "b"}, Limit: 1}} {
		if _, err := db.Actions().Open(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	texts := r.Texts()
	if len(texts) < 75 {
		t.Fatalf("%d statements were asked, want all", len(texts))
	}
	return db, texts
}

func mustRun(t *testing.T, s lease.Store, ops []lease.Op) []lease.Result {
	t.Helper()
	res, err := s.Do(t.Context(), ops)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// small are tables of one row, such of which a statement looks at the first rows
// only, in the order in which they lie, and what is written by people.
var small = regexp.MustCompile(`fleetdesk\.desk|schema_info|root_key|LIMIT \$\d\) old|open_actions|resource_action`)

// No statement looks through a table, whatever the server's statistics say: not
// on new tables, nor on such that grew. What decides whether a pool of many keys
// is quick is named.
func TestPostgresPlans(t *testing.T) {
	url := server.Database(t)
	db, texts := exercised(t, sqldb.Options{URL: url})
	for _, state := range []string{"new", "grown", "emptied"} {
		switch state {
		case "grown":
			grow(t, db)
		case "emptied": // a planner then believes that tables stay so
			empty(t, db)
			for _, statement := range []string{"VACUUM", "ANALYZE"} {
				if _, err := db.Pool().Exec(t.Context(), statement); err != nil {
					t.Fatal(err)
				}
			}
		}
		t.Run(state, func(t *testing.T) {
			c, err := pgx.Connect(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close(context.WithoutCancel(t.Context()))
			if _, err := c.Exec(t.Context(), "BEGIN; "+sqldb.PlanSettings()); err != nil {
				t.Fatal(err)
			}
			used := map[string]bool{}
			for text := range texts {
				plan := postgresPlan(t, c, text)
				for i, line := range plan {
					if strings.Contains(line, "Join Filter") {
						t.Errorf("it compares each row with each:\n%s\n%s", text, strings.Join(plan, "\n"))
					}
					table := regexp.MustCompile(`(Seq|Index|Index Only) Scan.* on (\w+)`).FindStringSubmatch(line)
					if table == nil {
						continue
					}
					narrow := table[1] != "Seq" && i+1 < len(plan) && strings.Contains(plan[i+1], "Index Cond")
					if !narrow && !small.MatchString(text) {
						t.Errorf("it looks through %s:\n%s\n%s", table[2], text, strings.Join(plan, "\n"))
					}
					if strings.Contains(text, "c.scope = 'key' AND c.id = r.key") && table[2] == "cooldowns" && !strings.Contains(line, "cooldowns_pkey") {
						t.Errorf("it looks at all that rests for a target for each key:\n%s", strings.Join(plan, "\n"))
					}
				}
				for _, index := range regexp.MustCompile(`using (\w+)`).FindAllStringSubmatch(strings.Join(plan, "\n"), -1) {
					used[index[1]] = true
				}
			}
			for _, index := range []string{
				"ready_pkey", "running_pkey", "keys_pkey", "members_pkey", "members_by_exit_ip", "tickets_pkey", "tickets_waiting", "tickets_places", "tickets_kept",
				"cooldowns_pkey", "cooldowns_by_target", "cooldowns_by_forget", "cooldowns_by_ban", "changes_by_until", "events_pkey",
				"keys_by_exit_ip", "members_by_seat", "lines_pkey", "lines_by_use", "places_pkey", "old_lines_pkey",
			} {
				if !used[index] {
					t.Errorf("no statement uses the index %s", index)
				}
			}
		})
	}
}

// grow makes tables large and one-sided: most of it is about one target.
func grow(t *testing.T, db *sqldb.DB) {
	t.Helper()
	for _, statement := range []string{
		`INSERT INTO fleetdesk.cooldowns SELECT 'key', 'k' || n, 'shop.example.com', 1900000000000000 + n, 1, 0, 1 FROM generate_series(1, 20000) n`,
		`INSERT INTO fleetdesk.lines SELECT 'big', n || '.example.com', '', 1000000 + n, 7, 1 + n, 0, 20000 FROM generate_series(1, 1000) n`,
		`INSERT INTO fleetdesk.places SELECT 1000001, CASE WHEN n % 3 = 0 THEN 1900000000000000 + n ELSE 0 END, n, 1 + n, 2 + n, 'k' || n FROM generate_series(1, 20000) n`,
		`INSERT INTO fleetdesk.ready SELECT 'big', CASE WHEN n % 3 = 0 THEN 1900000000000000 + n ELSE 0 END, n, 'k' || n, 0, false, '' FROM generate_series(1, 20000) n`,
		`INSERT INTO fleetdesk.members SELECT 'big', 'k' || n, false, '', n FROM generate_series(1, 20000) n`,
		`INSERT INTO fleetdesk.tickets SELECT 'grown' || n, '', n, 'big', '', '', '', '', false, n, 1900000000000000 + n, 1900000000000000 + n, CASE WHEN n % 2 = 0 THEN 'k' || n ELSE '' END, (n % 2) * n, n
			FROM generate_series(1, 20000) n`,
		`INSERT INTO fleetdesk.events SELECT 1000000 + n, 1000000 + n, 7, '[]' FROM generate_series(1, 20000) n`,
		"ANALYZE",
	} {
		if _, err := db.Pool().Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
}

func postgresPlan(t *testing.T, c *pgx.Conn, text string) []string {
	t.Helper()
	if word, _, _ := strings.Cut(text, " "); word == "BEGIN" || word == "COMMIT" {
		return nil
	}
	args := ""
	if n := arguments(text); n > 0 {
		args = "(" + strings.TrimSuffix(strings.Repeat("NULL, ", n), ", ") + ")"
	}
	if _, err := c.Exec(t.Context(), "PREPARE one AS "+text); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	rows, err := c.Query(t.Context(), "EXPLAIN (COSTS OFF) EXECUTE one"+args, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	if _, err := c.Exec(t.Context(), "DEALLOCATE one"); err != nil {
		t.Fatal(err)
	}
	return plan
}

func sqlitePlan(t *testing.T, db *sqldb.DB, text string) (plan []string) {
	t.Helper()
	rows, err := db.Writer().Query("EXPLAIN QUERY PLAN "+text, make([]any, arguments(text))...)
	if err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	defer rows.Close()
	for rows.Next() {
		var id, parent, unused int
		var detail string
		if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
			t.Fatal(err)
		}
		plan = append(plan, detail)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return plan
}

// arguments counts those of a statement.
func arguments(text string) (most int) {
	for _, m := range regexp.MustCompile(`[$?](\d+)`).FindAllStringSubmatch(text, -1) {
		var n int
		_, _ = fmt.Sscan(m[1], &n)
		most = max(most, n)
	}
	return most
}

// The same for SQLite.
func TestSQLitePlans(t *testing.T) {
	db, texts := exercised(t, kinds["sqlite"](t))
	used := map[string]bool{}
	for postgres, text := range texts {
		plan := sqlitePlan(t, db, text)
		for _, line := range plan {
			if m := regexp.MustCompile(`^SCAN (\w+)`).FindStringSubmatch(line); m != nil && !regexp.MustCompile(`^(n|a|b|s|s\d|q|w|old|json_each|CONSTANT|\d+)$`).MatchString(m[1]) && !small.MatchString(postgres) {
				t.Errorf("it looks through %s:\n%s\n%s", m[1], text, strings.Join(plan, "\n"))
			}
			if m := regexp.MustCompile(`USING (?:COVERING )?INDEX (\w+)`).FindStringSubmatch(line); m != nil {
				used[m[1]] = true
			}
		}
	}
	for _, index := range []string{
		"members_by_exit_ip", "tickets_waiting", "tickets_places", "tickets_kept", "cooldowns_by_target", "cooldowns_by_forget", "changes_by_until",
		"resource_action_by_pool", "resource_action_by_key", "cooldowns_by_ban", "keys_by_exit_ip", "members_by_seat", "lines_by_use",
	} {
		if !used[index] {
			t.Errorf("no statement uses the index %s", index)
		}
	}
}
