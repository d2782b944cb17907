package sqldb_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/sqldb"
	"fleetdesk/internal/testkit/postgres"
)

// Where a URL leads and how the server there must prove itself.
func TestPostgresURL(t *testing.T) {
	type place struct {
		Name, Host, User, Password, Database string
		Port                                 uint16
		// TLS is "" for none, "maybe" where plain text is tried as well,
		// "unproven" where any certificate will do, else the name that must be in
		// it.
		TLS   string
		Hosts int
	}
	local := place{"127.0.0.1:5432/desk", "127.0.0.1", "ann", "x", "desk", 5432, "maybe", 1}
	remote := place{"db.example.com:5432/desk", "db.example.com", "ann", "x", "desk", 5432, "db.example.com", 1}
	with := func(p place, f func(*place)) place { f(&p); return p }
	cases := map[string]struct {
		reason, url string
		want        place
	}{
		"loopback":         {"nobody listens in on this machine", "postgres://ann:x@127.0.0.1/desk", local},
		"loopback, off":    {"it may be said", "postgres://ann:x@127.0.0.1/desk?sslmode=disable", with(local, func(p *place) { p.TLS = "" })},
		"IPv6":             {"brackets are for the URL alone", "postgres://ann:x@[::1]:6432/desk?sslmode=disable", with(local, func(p *place) { p.Name, p.Host, p.Port, p.TLS = "[::1]:6432/desk", "::1", 6432, "" })},
		"remote":           {"without a word a server must prove itself", "postgres://ann:x@db.example.com/desk", remote},
		"remote, full":     {"the same, said", "postgresql://ann:x@db.example.com:5432/desk?sslmode=verify-full", remote},
		"remote, require":  {"a self-made certificate is common", "postgres://ann:x@db.example.com/desk?sslmode=require", with(remote, func(p *place) { p.TLS = "unproven" })},
		"remote, disabled": {"a trusted network may be said", "postgres://ann:x@db.example.com/desk?sslmode=disable", with(remote, func(p *place) { p.TLS = "" })},
		"an address": {
			"not every 127 is written so, and 192.0.2.1 is another machine", "postgres://ann:x@192.0.2.1:7000/desk",
			with(remote, func(p *place) { p.Name, p.Host, p.Port, p.TLS = "192.0.2.1:7000/desk", "192.0.2.1", 7000, "192.0.2.1" }),
		},
		"socket": {
			"a socket has no TLS", "postgres://ann@/desk?host=/run/postgresql",
			with(local, func(p *place) { p.Name, p.Host, p.Password, p.TLS = "/run/postgresql/desk", "/run/postgresql", "", "" }),
		},
		"escaped": {
			"every sign can be in a password", "postgres://ann%40x:p%40ss%2Fw%3Frd%231%25%20@127.0.0.1/my%20desk?sslmode=disable",
			with(local, func(p *place) {
				p.Name, p.User, p.Password, p.Database, p.TLS = "127.0.0.1:5432/my desk", "ann@x", "p@ss/w?rd#1% ", "my desk", ""
			}),
		},
		"several": {
			"the one that takes writes is looked for", "postgres://ann:x@a.example.com,b.example.com:7000/desk",
			with(remote, func(p *place) {
				p.Name, p.Host, p.TLS, p.Hosts = "a.example.com:5432,b.example.com:7000/desk", "a.example.com", "a.example.com", 2
			}),
		},
		"several as parameters": {
			"libpq's other form", "postgres://ann:x@/desk?host=localhost,::1&port=1,2&sslmode=disable",
			with(local, func(p *place) {
				p.Name, p.Host, p.Port, p.TLS, p.Hosts = "localhost:1,[::1]:2/desk", "localhost", 1, "", 2
			}),
		},
	}
	// None of these may show through.
	t.Setenv("PGPASSWORD", "from-the-environment")
	t.Setenv("PGSSLMODE", "disable")
	t.Setenv("PGOPTIONS", "-c statement_timeout=1")
	t.Setenv("PGHOST", "elsewhere.example.com")
	t.Setenv("PGUSER", "root")
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			cfg, called, err := sqldb.ParseURL(tc.url)
			if err != nil {
				t.Fatalf("%v: %s", err, tc.reason)
			}
			c := cfg.ConnConfig
			got := place{called, c.Host, c.User, c.Password, c.Database, c.Port, "", 1}
			seen := map[string]bool{c.Host: true}
			plain := c.TLSConfig == nil
			for _, f := range c.Fallbacks {
				plain = plain || f.TLSConfig == nil
				if !seen[f.Host] {
					got.Hosts++
				}
				seen[f.Host] = true
			}
			switch tls := c.TLSConfig; {
			case tls == nil:
			case plain:
				got.TLS = "maybe"
			case tls.InsecureSkipVerify:
				got.TLS = "unproven"
			default:
				got.TLS = tls.ServerName
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, d)
			}
			if d := cmp.Diff(map[string]string{"application_name": "fleetdesk"}, c.RuntimeParams); d != "" {
				t.Errorf("settings at connecting (-want +got):\n%s", d)
			}
			if (got.Hosts > 1) != (c.ValidateConnect != nil) {
				t.Error("of several hosts the one that takes writes is wanted, of one there is no choice")
			}
			if c.ConnectTimeout != 5*time.Second {
				t.Errorf("connecting may take %s", c.ConnectTimeout)
			}
		})
	}
}

// None of these opens, and none of the errors holds a piece of the password, which
// is "hunter2secret" with something in the middle.
func TestPostgresURLRefused(t *testing.T) {
	urls := map[string]string{
		"empty parts":        "postgres://",
		"another scheme":     "mysql://ann:hunter2secret@127.0.0.1/desk",
		"keywords":           "host=127.0.0.1 user=ann password=hunter2secret",
		"no user":            "postgres://127.0.0.1/desk",
		"no user's name":     "postgres://:hunter2secret@127.0.0.1/desk",
		"no host":            "postgres://ann:hunter2secret@/desk",
		"no database":        "postgres://ann:hunter2secret@127.0.0.1",
		"no database's name": "postgres://ann:hunter2secret@127.0.0.1/",
		"a port too far":     "postgres://ann:hunter2secret@127.0.0.1:65536/desk",
		"no number":          "postgres://ann:hunter2secret@127.0.0.1:http/desk",
		"an empty host":      "postgres://ann:hunter2secret@a.example.com,,b.example.com/desk",
		"hosts twice":        "postgres://ann:hunter2secret@127.0.0.1/desk?host=/run/postgresql",
		"no TLS mode":        "postgres://ann:hunter2secret@127.0.0.1/desk?sslmode=hunter2secret",
		"prefer":             "postgres://ann:hunter2secret@db.example.com/desk?sslmode=prefer",
		"allow":              "postgres://ann:hunter2secret@db.example.com/desk?sslmode=allow",
		"one is remote":      "postgres://ann:hunter2secret@127.0.0.1,db.example.com/desk?sslmode=prefer",
		"a file is missing":  "postgres://ann:hunter2secret@db.example.com/desk?sslrootcert=/nonexistent/ca.pem",
		"twice":              "postgres://ann:hunter2secret@127.0.0.1/desk?sslmode=disable&sslmode=require",
		"unknown":            "postgres://ann:hunter2secret@127.0.0.1/desk?hunter2secret=1",
		"a second password":  "postgres://ann@127.0.0.1/desk?password=hunter2secret",
		"another user":       "postgres://ann@127.0.0.1/desk?user=hunter2secret",
		"a service":          "postgres://ann:hunter2secret@127.0.0.1/desk?service=other",
		"options":            "postgres://ann:hunter2secret@127.0.0.1/desk?options=-c%20fsync%3Doff",
		"half an escape":     "postgres://ann:hunter2%secret@127.0.0.1/desk",
		"no such protocol":   "postgres://ann:hunter2secret@127.0.0.1/desk?channel_binding=hunter2secret",
		"a line break":       "postgres://ann:hunter2secret@127.0.0.1/desk\n",
		"a user's address":   "postgres://ann@127.0.0.1:31337/secret@127.0.0.1",
		"and more":           "postgres://ann@127.0.0.1:31337?secret@127.0.0.1/desk",
		"a NUL":              "postgres://ann:hunter2secret@127.0.0.1/de\x00sk",
	}
	// Signs that a generator of passwords likes, unescaped, in each place.
	for _, sign := range []string{"@", "/", "?", "#", ":", "%", "%zz", " ", "[", "]", ",", "&", "=", "\\", "\"", "1/", "12?", "@/", "?x=", "/@", ":1/"} {
		urls["sign "+sign] = "postgres://ann:hunter2" + sign + "secret@127.0.0.1:1/desk?sslmode=disable&connect_timeout=1"
		urls["sign at the end "+sign] = "postgres://ann:hunter2secret" + sign + "@127.0.0.1:1/desk?sslmode=disable&connect_timeout=1"
		urls["number and sign "+sign] = "postgres://ann:31337" + sign + "secret@127.0.0.1:1/desk?sslmode=disable&connect_timeout=1"
	}
	for name, url := range urls {
		t.Run(name, func(t *testing.T) {
			db, err := sqldb.Open(t.Context(), sqldb.Options{URL: url})
			if err == nil {
				_ = db.Close()
				t.Fatal("opened")
			}
			silent(t, err, "hunter2", "secret", "31337")
			if !strings.HasPrefix(name, "sign") && !strings.HasPrefix(name, "number") && fault.Of(err) != fault.Invalid {
				t.Errorf("class %s, want Invalid: %v", fault.Of(err), err)
			}
			if fault.Of(err) == fault.Invalid && !strings.Contains(err.Error(), "it should read postgres://user:password@host:5432/database") {
				t.Errorf("the error does not say how to write it: %v", err)
			}
		})
	}
}

// silent fails when an error, by any verb or by the errors in it, tells a word.
func silent(t *testing.T, err error, words ...string) {
	t.Helper()
	texts := []string{err.Error(), fmt.Sprintf("%v %+v %#v %q", err, err, err, err)}
	if e, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		texts = append(texts, e.Config.Password)
	}
	if e, ok := errors.AsType[*pgconn.ParseConfigError](err); ok {
		texts = append(texts, e.ConnString)
	}
	for _, text := range texts {
		for _, w := range words {
			if strings.Contains(text, w) {
				t.Errorf("it tells %q: %s", w, text)
			}
		}
	}
}

func TestOptionsPrintNothing(t *testing.T) {
	o := sqldb.Options{URL: "postgres://ann:hunter2@127.0.0.1/desk"}
	for _, text := range []string{fmt.Sprint(o), fmt.Sprintf("%v %+v %#v %s %d", o, o, o, o, o), fmt.Sprintf("%+v", &o), fmt.Sprint([]any{o})} {
		if strings.Contains(text, "hunter2") {
			t.Errorf("printed %s", text)
		}
	}
}

func TestURLFile(t *testing.T) {
	url := server.Database(t)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	addAccounts(t, openWith(t, sqldb.Options{URLFile: write("good", url+"\n")}), "ann")
	if got := accountNames(t, openURL(t, url)); got != "ann" {
		t.Errorf("accounts %q, want ann", got)
	}
	for name, tc := range map[string]struct {
		options sqldb.Options
		class   fault.Class
		says    string
	}{
		"missing":     {sqldb.Options{URLFile: filepath.Join(dir, "none")}, fault.Permanent, "no such file"},
		"a folder":    {sqldb.Options{URLFile: dir}, fault.Permanent, "is a directory"},
		"empty":       {sqldb.Options{URLFile: write("empty", " \n")}, fault.Invalid, "it holds no URL"},
		"endless":     {sqldb.Options{URLFile: "/dev/zero"}, fault.Invalid, "it holds no URL"},
		"no URL":      {sqldb.Options{URLFile: write("text", "hunter2")}, fault.Invalid, "does not begin with postgres://"},
		"two lines":   {sqldb.Options{URLFile: write("two", url+"\n"+url)}, fault.Invalid, "escaped"},
		"two places":  {sqldb.Options{URLFile: write("good", url), Path: "desk.db"}, fault.Invalid, "give one of"},
		"URL and all": {sqldb.Options{URL: url, Path: "desk.db"}, fault.Invalid, "give one of"},
		"nothing":     {sqldb.Options{}, fault.Invalid, "no path"},
	} {
		db, err := sqldb.Open(t.Context(), tc.options)
		if err == nil {
			_ = db.Close()
			t.Errorf("%s: opened", name)
			continue
		}
		if fault.Of(err) != tc.class || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v (%s), want %s with %q", name, err, fault.Of(err), tc.class, tc.says)
		}
		silent(t, err, "hunter2")
	}
}

// A server with TLS and passwords: what is wrong is told, and the password is not.
func TestPostgresTLSAndPassword(t *testing.T) {
	s := postgres.Private(t, postgres.Options{TLS: true, Settings: map[string]string{"max_connections": "4", "superuser_reserved_connections": "0"}})
	if err := s.Create(t.Context(), "desk"); err != nil {
		t.Fatal(err)
	}
	good := s.TCPURL("desk")
	full := good + "?sslmode=verify-full&sslrootcert=" + s.CA()
	db := openWith(t, sqldb.Options{URL: full, Connections: 1})
	addAccounts(t, db, "ann")
	var encrypted bool
	if err := db.Pool().QueryRow(t.Context(), "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").Scan(&encrypted); err != nil || !encrypted {
		t.Errorf("encrypted: %v %v", encrypted, err)
	}
	cases := map[string]struct {
		reason, url string
		class       fault.Class
		says        string
	}{
		"unknown authority": {"anybody can make a certificate", good + "?sslmode=verify-full", fault.Permanent, "certificate is not trusted"},
		"another name":      {"a certificate is for a name", strings.Replace(full, "localhost", "127.0.0.1", 1), fault.Permanent, "certificate is for another name"},
		"wrong password":    {"trying again changes nothing", strings.Replace(full, "://postgres:", "://postgres:hunter2", 1), fault.Permanent, "check user and password"},
		"unknown user":      {"nor does it here", strings.Replace(full, "://postgres:", "://nobody:", 1), fault.Permanent, "check user and password"},
		"no password":       {"it was forgotten", "postgres://postgres@" + good[strings.LastIndex(good, "@")+1:] + "?sslmode=disable", fault.Permanent, "check user and password"},
		"unknown database":  {"a person must make it", strings.Replace(full, "/desk?", "/none?", 1), fault.Permanent, "CREATE DATABASE"},
		"nobody listens":    {"it may be starting", "postgres://ann:hunter2@127.0.0.1:1/desk", fault.Unavailable, "cannot be reached"},
		"no such host":      {"a name may be unknown for now", "postgres://ann:hunter2@db.invalid/desk", fault.Unavailable, "cannot be reached"},
		"no such socket":    {"as a port where nobody listens", "postgres://ann:hunter2@/desk?host=/nonexistent", fault.Unavailable, "cannot be reached"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			db, err := sqldb.Open(t.Context(), sqldb.Options{URL: tc.url, Connections: 1})
			if err == nil {
				_ = db.Close()
				t.Fatalf("opened: %s", tc.reason)
			}
			if fault.Of(err) != tc.class || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%s: %v (%s), want %s with %q", tc.reason, err, fault.Of(err), tc.class, tc.says)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("the error has more than one line: %q", err)
			}
			silent(t, err, "hunter2", postgres.Password)
		})
	}
	t.Run("too many connections", func(t *testing.T) {
		for range 3 {
			openWith(t, sqldb.Options{URL: full, Connections: 1})
		}
		db, err := sqldb.Open(t.Context(), sqldb.Options{URL: full, Connections: 1})
		if err == nil {
			_ = db.Close()
			t.Fatal("opened")
		}
		if fault.Of(err) != fault.Unavailable || !strings.Contains(err.Error(), "max_connections") {
			t.Errorf("%v (%s), want Unavailable with max_connections", err, fault.Of(err))
		}
		silent(t, err, postgres.Password)
	})
}
