package sqldb_test

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/token"
	"fleetdesk/internal/platform/sqldb"
)

// fixture is a dump of a database that an older version left, with rows in every
// table that it had: testdata/upgrade/<kind>/<version>.sql.
func fixture(t *testing.T, kind string, version int64) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "upgrade", kind, fmt.Sprintf("%d.sql", version)))
	if err != nil {
		t.Fatalf("each schema version has a dump, so that every upgrade is tried: %v", err)
	}
	return string(b)
}

// latest is the version that this program knows.
func latest(t *testing.T, kind string) int64 {
	t.Helper()
	n, err := sqldb.LatestStep("migrations/" + kind)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// load makes an SQLite file of a dump.
func load(t *testing.T, dump string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "desk.db")
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(dump); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// A file of every version that there was becomes what a new one is, with its
// rows.
func TestUpgrade(t *testing.T) {
	fresh := schemaOf(t, open(t, filepath.Join(t.TempDir(), "desk.db")))
	for version := int64(1); version <= latest(t, "sqlite"); version++ {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			path := load(t, fixture(t, "sqlite", version))
			if version < latest(t, "sqlite") {
				_, err := sqldb.Open(t.Context(), sqldb.Options{Path: path, ReadOnly: true})
				if fault.Of(err) != fault.Unsupported {
					t.Errorf("for reading: %v (%s), want Unsupported", err, fault.Of(err))
				}
			}
			db := open(t, path)
			if d := cmp.Diff(fresh, schemaOf(t, db)); d != "" {
				t.Errorf("the schema is not that of a new file (-new +upgraded):\n%s", d)
			}
			kept(t, db, version)
		})
	}
}

func TestPostgresUpgrade(t *testing.T) {
	fresh := postgresSchema(t, openURL(t, server.Database(t)))
	for version := int64(1); version <= latest(t, "postgres"); version++ {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			url := server.Database(t)
			if err := server.Server(t).Exec(t.Context(), databaseOf(t, url), fixture(t, "postgres", version)); err != nil {
				t.Fatal(err)
			}
			if version < latest(t, "postgres") {
				_, err := sqldb.Open(t.Context(), sqldb.Options{URL: url, ReadOnly: true})
				if fault.Of(err) != fault.Unsupported {
					t.Errorf("for reading: %v (%s), want Unsupported", err, fault.Of(err))
				}
			}
			db := openURL(t, url)
			if d := cmp.Diff(fresh, postgresSchema(t, db)); d != "" {
				t.Errorf("the schema is not that of a new database (-new +upgraded):\n%s", d)
			}
			kept(t, db, version)
		})
	}
}

// Both back ends have the same steps.
func TestStepsAreTheSame(t *testing.T) {
	names := func(kind string) (all []string) {
		files, err := filepath.Glob(filepath.Join("migrations", kind, "*.sql"))
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		for _, f := range files {
			all = append(all, filepath.Base(f))
		}
		return all
	}
	if d := cmp.Diff(names("sqlite"), names("postgres")); d != "" {
		t.Errorf("(-sqlite +postgres):\n%s", d)
	}
}

// kept looks for the rows of the dumps.
func kept(t *testing.T, db *sqldb.DB, version int64) {
	t.Helper()
	at := time.Date(2026, 11, 1, 10, 20, 30, 123456000, time.UTC)
	hash := func(first byte) []byte {
		h := make([]byte, 32)
		for i := range h {
			h[i] = first + byte(i)
		}
		return h
	}
	s := db.Tokens()
	accounts, err := s.Accounts(t.Context(), "", 100)
	if err != nil {
		t.Fatal(err)
	}
	wantAccounts := []token.Account{
		{Name: "ann@example.com", Role: token.Viewer, Created: at},
		{Name: "old", Role: token.Admin, Disabled: true},
		{Name: "root", Role: token.Admin, Created: at.Add(time.Second)},
	}
	if d := cmp.Diff(wantAccounts, accounts); d != "" {
		t.Errorf("accounts of version %d (-want +got):\n%s", version, d)
	}
	for account, want := range map[string][]token.Record{
		"ann@example.com": {{ID: "anns", Account: "ann@example.com", Hash: hash(0), Created: at, Expires: at.Add(time.Hour)}},
		"root": {
			{ID: "ended", Account: "root", Hash: hash(200), Created: at, Revoked: true},
			{ID: "roots", Account: "root", Hash: hash(100), Created: at},
		},
	} {
		tokens, err := s.Tokens(t.Context(), account, "", 100)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, tokens); d != "" {
			t.Errorf("tokens of %s of version %d (-want +got):\n%s", account, version, d)
		}
	}
	addAccounts(t, db, "new")
}

func schemaOf(t *testing.T, db *sqldb.DB) map[string]string {
	t.Helper()
	rows, err := db.Reader().Query("SELECT type || ' ' || name, coalesce(sql, '') FROM sqlite_schema")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	all := map[string]string{}
	for rows.Next() {
		var name, sql string
		if err := rows.Scan(&name, &sql); err != nil {
			t.Fatal(err)
		}
		all[name] = sql
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

func postgresSchema(t *testing.T, db *sqldb.DB) []string {
	t.Helper()
	rows, err := db.Pool().Query(t.Context(), `
		SELECT c.relname || ' ' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || ' ' || a.attnotnull::text || ' ' || coalesce(co.collname, '') || ' ' ||
			coalesce(pg_get_expr(d.adbin, d.adrelid), '') || ' ' || a.attidentity::text || a.attgenerated::text
		FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid LEFT JOIN pg_collation co ON co.oid = a.attcollation
			LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
		WHERE c.relnamespace = 'fleetdesk'::regnamespace AND c.relkind <> 'i' AND a.attnum > 0 AND NOT a.attisdropped
		UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'fleetdesk'
		UNION ALL SELECT conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = 'fleetdesk'::regnamespace
		ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return all
}
