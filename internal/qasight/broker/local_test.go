package broker_test

import (
	"bytes"
	"context"
	"database/sql"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/client"
	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/broker/brokertest"
)

// listing is what lies in a folder, with modes, sizes and contents.
func listing(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		i, err := e.Info()
		if err != nil {
			return err
		}
		text := i.Mode().String()
		if i.Mode().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += "\n" + string(b)
		}
		all[strings.TrimPrefix(path, dir)] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func look(t *testing.T, path string) (broker.Looker, error) {
	t.Helper()
	return broker.LookLocal(t.Context(), broker.Local{Path: path, Account: "ann", Log: brokertest.Discard()})
}

// Looking at a database that is not there makes nothing, and finds nothing.
func TestLookAtNothing(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.db")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"no file":   filepath.Join(t.TempDir(), "leases.db"),
		"no folder": filepath.Join(t.TempDir(), "state", "qasight", "leases.db"),
		"no schema": empty,
	} {
		dir := filepath.Dir(path)
		if name == "no folder" {
			dir = filepath.Dir(filepath.Dir(dir))
		}
		before := listing(t, dir)
		b, err := look(t, path)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got, want := b.Place(), (broker.Place{Path: path, Account: "ann"}); got != want {
			t.Errorf("%s: it is %+v", name, got)
		}
		v, err := b.Pool(t.Context(), "win")
		if fault.Of(err) != fault.NotFound || fault.CodeOf(err) != "pool" || len(v.Members) > 0 {
			t.Errorf("%s: Pool: %+v, %v", name, v, err)
		}
		if _, err := b.Waiters(t.Context(), "win"); fault.Of(err) != fault.NotFound || fault.CodeOf(err) != "pool" {
			t.Errorf("%s: Waiters: %v", name, err)
		}
		pools, err := b.Pools(t.Context())
		entries, failed := b.Entries(t.Context(), broker.Match{}, 10)
		open, broken := b.Open(t.Context(), "")
		if err != nil || failed != nil || broken != nil || len(pools)+len(entries)+len(open) > 0 {
			t.Errorf("%s: %v %v %v, %v, %v, %v", name, pools, entries, open, err, failed, broken)
		}
		for range 2 {
			if err := b.Close(); err != nil {
				t.Errorf("%s: Close: %v", name, err)
			}
		}
		if diff := cmp.Diff(before, listing(t, dir)); diff != "" {
			t.Errorf("%s: the folder was touched (-before +after):\n%s", name, diff)
		}
	}
}

// used makes a local database with a held key, a disabled one, an action without
// an end and one that ended, and returns the broker that made it.
func used(t *testing.T, path string) broker.Broker {
	t.Helper()
	b := brokertest.OpenLocal(t, path, "ann")
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(b.Prepare(ctx, poolOf("win", "a", "b", "c")))
	_, err := b.Take(ctx, "win", client.TakeOptions{Holder: "job 1", TTL: time.Hour})
	must(err)
	_, err = b.Disable(ctx, "win", "b", "does not boot")
	must(err)
	e := action.Entry{Action: "A23456789012345678901234", Phase: action.PhaseStarted, Pool: "win", Key: "c", Verb: action.VerbDestroy, User: "ann", Command: "x"}
	_, err = b.Append(ctx, e)
	must(err)
	e.Action, e.Key = "B23456789012345678901234", "d"
	_, err = b.Append(ctx, e)
	must(err)
	yes := true
	e.Phase, e.OK = action.PhaseFinished, &yes
	_, err = b.Append(ctx, e)
	must(err)
	return b
}

// Looking shows what is there, beside a writer and alone, and changes nothing.
func TestLook(t *testing.T) {
	for name, alone := range map[string]bool{"beside a writer": false, "alone": true} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "leases.db")
			writer := used(t, path)
			if alone {
				if err := writer.Close(); err != nil {
					t.Fatal(err)
				}
			}
			before := listing(t, filepath.Dir(path))
			b, err := look(t, path)
			if err != nil {
				t.Fatal(err)
			}
			ctx := t.Context()
			v, err := b.Pool(ctx, "win")
			if err != nil || v.Held != 1 || len(v.Members) != 3 || v.Members[0].Lease == nil || v.Members[0].Lease.Holder != "job 1" ||
				v.Members[1].State != client.StateDisabled || v.Members[2].State != client.StateBarred {
				t.Errorf("the pool is %+v, %v", v, err)
			}
			entries, err := b.Entries(ctx, broker.Match{}, 10)
			open, failed := b.Open(ctx, "")
			if err != nil || failed != nil || len(entries) != 3 || len(open) != 1 || open[0].Key != "c" {
				t.Errorf("the log has %v and open %v, %v, %v", entries, open, err, failed)
			}
			if pools, err := b.Pools(ctx); err != nil || len(pools) != 1 {
				t.Errorf("the pools are %v, %v", pools, err)
			}
			if waiters, err := b.Waiters(ctx, "win"); err != nil || len(waiters) > 0 {
				t.Errorf("waiters: %v, %v", waiters, err)
			}
			if err := b.Close(); err != nil {
				t.Error(err)
			}
			after := listing(t, filepath.Dir(path))
			// SQLite's own side files may come: the marks of who reads, and an empty log.
			for _, all := range []map[string]string{before, after} {
				delete(all, "/leases.db-shm")
				if _, text, _ := strings.Cut(all["/leases.db-wal"], "\n"); text == "" {
					delete(all, "/leases.db-wal")
				}
			}
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("the folder was touched (-before +after):\n%.2000s", diff)
			}
			if !alone {
				if _, err := writer.Enable(ctx, "win", "b"); err != nil {
					t.Errorf("the writer, after it: %v", err)
				}
				if err := writer.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// An open look sees what others write meanwhile.
func TestLookFollows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.db")
	writer := used(t, path)
	defer writer.Close()
	b, err := look(t, path)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for range 3 {
		if err := writer.Prepare(t.Context(), poolOf("mac", "m")); err != nil {
			t.Fatal(err)
		}
		if v, err := b.Pool(t.Context(), "mac"); err != nil || v.Free != 1 {
			t.Fatalf("the new pool is %+v, %v", v, err)
		}
		if _, err := writer.Publish(t.Context(), poolOf("mac", "m"), nil); err != nil {
			t.Fatal(err)
		}
	}
}

// A database of an older version is not upgraded by a look, which says what is to
// be done; the next command that takes upgrades it.
func TestLookAtOldSchema(t *testing.T) {
	dump, err := os.ReadFile("../../platform/sqldb/testdata/upgrade/sqlite/1.sql")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "leases.db")
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(string(dump)); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = look(t, path)
	if fault.Of(err) != fault.Unsupported || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "older version") {
		t.Errorf("an older schema: %v (%s)", err, fault.Of(err))
	}
	after, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("the file was changed, %v", err)
	}
	b := brokertest.OpenLocal(t, path, "ann")
	if err := b.Prepare(t.Context(), poolOf("win", "a")); err != nil {
		t.Error(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := look(t, path)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := l.Pool(t.Context(), "win"); err != nil || v.Free != 1 {
		t.Errorf("after the upgrade: %+v, %v", v, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// What is no database is refused, by a look and by an opening, and stays as it is.
func TestNoDatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.db")
	text := []byte(strings.Repeat("not a database\n", 100))
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	_, looked := look(t, path)
	_, opened := broker.OpenLocal(t.Context(), broker.Local{Path: path, Account: "ann", Log: brokertest.Discard()})
	_, below := broker.OpenLocal(t.Context(), broker.Local{Path: filepath.Join(path, "x.db"), Account: "ann", Log: brokertest.Discard()})
	for what, err := range map[string]error{"look": looked, "open": opened, "a file in the folder's place": below} {
		if err == nil || fault.Of(err) == fault.NotFound || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, text) {
		t.Errorf("it was changed, %v", err)
	}
}

// The folder of a local database is its owner's alone, and so is the file.
func TestLocalModes(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state", "qasight", "leases.db")
	b := brokertest.OpenLocal(t, path, "ann")
	defer b.Close()
	for p, want := range map[string]os.FileMode{filepath.Dir(path): 0o700, filepath.Dir(filepath.Dir(path)): 0o700, path: 0o600} {
		if i, err := os.Stat(p); err != nil || i.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", p, i.Mode(), err)
		}
	}
}

// A local broker logs nothing of what is done through it, also where a team
// server would write its audit: whoever is told is who did it. What goes wrong is
// told.
func TestLocalIsSilent(t *testing.T) {
	var text bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&text, &slog.HandlerOptions{Level: slog.LevelInfo}))
	m := brokertest.NewMemory()
	b, err := broker.Over(t.Context(), m.Stores(), broker.Place{Path: "memory", Account: "ann"}, log.With("program", "qasight").WithGroup("broker"))
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if err := b.Prepare(ctx, poolOf("win", "a", "b")); err != nil {
		t.Fatal(err)
	}
	l, err := b.Take(ctx, "win", client.TakeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, disabled := b.Disable(ctx, "win", "a", "x")
	_, forced := b.Force(ctx, "win", l.Key(), client.ForceRequest{Reason: "it hangs"})
	if disabled != nil || forced != nil {
		t.Fatal(disabled, forced)
	}
	if _, err := b.Force(ctx, "win", "b", client.ForceRequest{}); err == nil {
		t.Error("nobody holds it")
	}
	if text.Len() > 0 {
		t.Errorf("it logged %s", text.String())
	}
	m.Outage(true)
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := b.Take(short, "win", client.TakeOptions{}); err == nil {
		t.Error("the database does not answer")
	}
	if _, err := b.Open(ctx, ""); err == nil {
		t.Error("the log does not answer")
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	// The service tells of the leases, and the API of what it asks itself.
	for _, want := range []string{"leasetest: the database does not answer", "brokertest: the database does not answer", `"program":"qasight"`} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("of an outage it logged %q, and not %s", text.String(), want)
		}
	}
}

// An error of the rules is the same text from a local database as from a server.
func TestSameTexts(t *testing.T) {
	local := brokertest.OpenLocal(t, filepath.Join(t.TempDir(), "leases.db"), "root")
	defer local.Close()
	server := brokertest.Serve(t, brokertest.SQLite(t), nil).Open(t, "root", nil)
	defer server.Close()
	var texts [2][]string
	for i, b := range []broker.Broker{local, server} {
		_, take := b.Take(t.Context(), "win", client.TakeOptions{})
		_, view := b.Pool(t.Context(), "win")
		_, begin := b.Begin(t.Context(), "win", client.ChangeRequest{})
		for _, err := range []error{take, view, begin} {
			if err == nil {
				t.Fatal("an unknown pool was found")
			}
			text, _, _ := strings.Cut(err.Error(), ", request ") // the id in the server's log
			texts[i] = append(texts[i], strings.TrimSuffix(text, ")"))
		}
	}
	if !slices.Equal(texts[0], texts[1]) {
		t.Errorf("local %q, server %q", texts[0], texts[1])
	}
}
