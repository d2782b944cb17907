package sqldb_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/sqldb"
)

// catalogue is what a database holds: its schemas' tables, indexes and so on with
// their contents' versions.
func catalogue(t *testing.T, url string) []string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	rows, err := conn.Query(t.Context(), `
		SELECT n.nspname || '.' || coalesce(c.relname || ' ' || c.relkind::text || ' ' || c.relfilenode || ' ' || c.xmin::text || ' ' ||
			CASE WHEN c.relkind = 'r' THEN pg_relation_size(c.oid) ELSE 0 END, '')
		FROM pg_namespace n LEFT JOIN pg_class c ON c.relnamespace = n.oid
		WHERE n.nspname NOT LIKE 'pg\_%' AND n.nspname <> 'information_schema' ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func databaseOf(t *testing.T, raw string) string {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return u.Path[1:]
}

func TestPostgresOpenRefuses(t *testing.T) {
	s := server.Server(t)
	exec := func(statements string) func(t *testing.T, url string) string {
		return func(t *testing.T, url string) string {
			if err := s.Exec(t.Context(), databaseOf(t, url), statements); err != nil {
				t.Fatal(err)
			}
			return url
		}
	}
	ours := func(t *testing.T, url string) string {
		db := openURL(t, url)
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		return url
	}
	// as makes a role that may connect and no more, and what else is asked for.
	as := func(role, statements string) func(t *testing.T, url string) string {
		return func(t *testing.T, url string) string {
			exec("CREATE ROLE "+role+" LOGIN; "+statements)(t, url)
			return strings.Replace(url, "postgres@", role+"@", 1)
		}
	}
	cases := map[string]struct {
		reason  string
		prepare func(t *testing.T, url string) string
		class   fault.Class
		says    []string
	}{
		"newer": {
			"an older program would corrupt it",
			func(t *testing.T, url string) string {
				return exec("INSERT INTO fleetdesk."+sqldb.VersionTable+" (version_id, is_applied) VALUES (99, true)")(t, ours(t, url))
			},
			fault.Permanent,
			[]string{"newer version", "schema 99"},
		},
		"other program's": {
			"somebody else chose the name before us",
			exec("CREATE SCHEMA fleetdesk; CREATE TABLE fleetdesk.cars (plate text)"),
			fault.Permanent,
			[]string{"belongs to another program", "another database"},
		},
		"other program's with goose": {
			"goose's table says nothing about whose it is",
			func(t *testing.T, url string) string {
				return exec("DROP TABLE fleetdesk.schema_info")(t, ours(t, url))
			},
			fault.Permanent,
			[]string{"belongs to another program"},
		},
		"other program's view": {
			"a view is something as well",
			exec("CREATE SCHEMA fleetdesk; CREATE VIEW fleetdesk.cars AS SELECT 1"),
			fault.Permanent,
			[]string{"belongs to another program"},
		},
		"may make no schema": {
			"a role that the owner of the server made for us",
			as("guest_a", ""),
			fault.Permanent,
			[]string{"lacks a right", "CREATE SCHEMA fleetdesk AUTHORIZATION"},
		},
		"may not use the schema": {
			"another role made the tables",
			func(t *testing.T, url string) string { return as("guest_b", "")(t, ours(t, url)) },
			fault.Permanent,
			[]string{"lacks a right"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			admin := server.Database(t)
			url := tc.prepare(t, admin)
			before := catalogue(t, admin)
			db, err := sqldb.Open(t.Context(), sqldb.Options{URL: url})
			if err == nil {
				_ = db.Close()
				t.Fatalf("opened: %s", tc.reason)
			}
			if got := fault.Of(err); got != tc.class {
				t.Errorf("class %s, want %s: %v", got, tc.class, err)
			}
			for _, says := range append(tc.says, "database ", databaseOf(t, admin)) {
				if !strings.Contains(err.Error(), says) {
					t.Errorf("the error does not say %q: %v", says, err)
				}
			}
			if d := cmp.Diff(before, catalogue(t, admin)); d != "" {
				t.Errorf("the database was touched (-before +after):\n%s", d)
			}
		})
	}
	t.Run("encoding", func(t *testing.T) {
		if err := s.Exec(t.Context(), "postgres", "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0"); err != nil {
			t.Fatal(err)
		}
		db, err := sqldb.Open(t.Context(), sqldb.Options{URL: s.URL("latin")})
		if err == nil {
			_ = db.Close()
		}
		if fault.Of(err) != fault.Permanent || !strings.Contains(fmt.Sprint(err), "ENCODING 'UTF8'") {
			t.Errorf("%v (%s), want Permanent", err, fault.Of(err))
		}
	})
}

// Other programs' tables in other schemas are no concern of ours, nor is whose
// name comes first in the search path.
func TestPostgresSharedDatabase(t *testing.T) {
	url := server.Database(t)
	err := server.Server(t).Exec(t.Context(), databaseOf(t, url), `
		CREATE TABLE accounts (plate text); CREATE TABLE schema_version (n int);
		CREATE SCHEMA postgres; CREATE TABLE postgres.tokens (n int)`)
	if err != nil {
		t.Fatal(err)
	}
	db := openURL(t, url)
	addAccounts(t, db, "ann")
	if got := accountNames(t, db); got != "ann" {
		t.Errorf("accounts %q", got)
	}
}

// A role that may make nothing but was given the schema is enough.
func TestPostgresGivenSchema(t *testing.T) {
	url := server.Database(t)
	if err := server.Server(t).Exec(t.Context(), databaseOf(t, url), "CREATE ROLE given LOGIN; CREATE SCHEMA fleetdesk AUTHORIZATION given"); err != nil {
		t.Fatal(err)
	}
	addAccounts(t, openURL(t, strings.Replace(url, "postgres@", "given@", 1)), "ann")
}

// A creation that was cut short at any step is taken up by the next start.
func TestPostgresOpenFinishesCreation(t *testing.T) {
	for name, undo := range map[string]string{
		"only the schema": "DROP SCHEMA fleetdesk CASCADE; CREATE SCHEMA fleetdesk",
		"only the version table": `CREATE TABLE public.kept AS SELECT * FROM fleetdesk.schema_version WHERE version_id = 0;
			DROP SCHEMA fleetdesk CASCADE; CREATE SCHEMA fleetdesk;
			CREATE TABLE fleetdesk.schema_version (id integer PRIMARY KEY GENERATED BY DEFAULT AS IDENTITY,
				version_id bigint NOT NULL, is_applied boolean NOT NULL, tstamp timestamp NOT NULL DEFAULT now());
			INSERT INTO fleetdesk.schema_version (version_id, is_applied) SELECT version_id, is_applied FROM public.kept`,
	} {
		t.Run(name, func(t *testing.T) {
			url := server.Database(t)
			if err := openURL(t, url).Close(); err != nil {
				t.Fatal(err)
			}
			if err := server.Server(t).Exec(t.Context(), databaseOf(t, url), undo); err != nil {
				t.Fatal(err)
			}
			addAccounts(t, openURL(t, url), "ann")
		})
	}
}

func TestPostgresOpenHonoursContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	db, err := sqldb.Open(ctx, sqldb.Options{URL: server.Database(t)})
	if err == nil {
		_ = db.Close()
	}
	if fault.Of(err) != fault.Timeout {
		t.Errorf("got %v (%s), want Timeout", err, fault.Of(err))
	}
}
