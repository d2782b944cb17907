package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"fleetdesk/internal/testkit/postgres"
)

var server = postgres.Shared(postgres.Options{})

// orphan makes a copy of the test binary start a server and wait to be killed.
const orphan = "POSTGRES_TEST_ORPHAN"

func TestMain(m *testing.M) {
	if os.Getenv(orphan) != "" {
		s, err := postgres.New(context.Background(), postgres.Options{})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(s.URL("postgres"))
		select {}
	}
	goleak.VerifyTestMain(server.Around(m))
}

func ask(t *testing.T, url, question string) (answer string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	err = conn.QueryRow(ctx, question).Scan(&answer)
	return answer, err
}

func want(t *testing.T, url, question, answer string) {
	t.Helper()
	if got, err := ask(t, url, question); err != nil || got != answer {
		t.Errorf("%s: %q %v, want %q", question, got, err, answer)
	}
}

func TestServesAsInProduction(t *testing.T) {
	url := server.Database(t)
	want(t, url, "SHOW fsync", "on")
	want(t, url, "SHOW synchronous_commit", "on")
	want(t, url, "SHOW listen_addresses", "")
	want(t, url, "SHOW server_encoding", "UTF8")
	want(t, url, "SHOW lc_collate", "C")
}

func TestDatabasesAreApart(t *testing.T) {
	s := server.Server(t)
	form := regexp.MustCompile(`^t_[a-z0-9_]{1,61}$`)
	seen := map[string]bool{}
	for _, name := range []string{"plain", "plain", "ünïcode / Slashes__", strings.Repeat("long", 40)} {
		t.Run(name, func(t *testing.T) {
			url := s.Database(t)
			db, err := ask(t, url, "SELECT current_database()")
			if err != nil || seen[db] || !form.MatchString(db) {
				t.Fatalf("database %q is not new or not valid: %v", db, err)
			}
			seen[db] = true
			if err := s.Exec(t.Context(), db, "CREATE TABLE mine (n int)"); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestTCPAndTLS(t *testing.T) {
	s := postgres.Private(t, postgres.Options{TLS: true})
	want(t, s.TCPURL("postgres")+"?sslmode=verify-full&sslrootcert="+s.CA(), "SELECT ssl::text FROM pg_stat_ssl WHERE pid = pg_backend_pid()", "true")
	want(t, s.TCPURL("postgres")+"?sslmode=disable", "SELECT 'in'", "in")
	wrong := strings.Replace(s.TCPURL("postgres"), "://postgres:", "://postgres:x", 1)
	if wrong == s.TCPURL("postgres") {
		t.Fatal("the URL has no password")
	}
	if _, err := ask(t, wrong+"?sslmode=disable", "SELECT 'in'"); err == nil {
		t.Error("a wrong password is let in")
	}
}

// What was committed survives a kill; nothing else of the server does.
func TestOutages(t *testing.T) {
	s := postgres.Private(t, postgres.Options{})
	url := s.URL("postgres")
	if err := s.Exec(t.Context(), "postgres", "CREATE TABLE kept AS SELECT 'here' AS what"); err != nil {
		t.Fatal(err)
	}
	for name, down := range map[string]func() error{"stopped": s.Stop, "killed": s.Kill} {
		for range 3 { // again at once, and twice is fine
			busy, err := pgx.Connect(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(down(), down()); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if _, err := ask(t, url, "SELECT 1"); err == nil {
				t.Fatalf("%s, and it answers", name)
			}
			_ = busy.Close(t.Context())
			if err := errors.Join(s.Start(t.Context()), s.Start(t.Context())); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			want(t, url, "SELECT what FROM kept", "here")
		}
	}
	thaw, err := s.Freeze()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if conn, err := pgx.Connect(ctx, url); err == nil {
		t.Error("a frozen server answers")
		_ = conn.Close(ctx)
	}
	if err := thaw(); err != nil {
		t.Fatal(err)
	}
	want(t, url, "SELECT what FROM kept", "here")
}

// A test binary that is killed takes its server along.
func TestEndsWithItsMaker(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), orphan+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var url string
	if _, err := fmt.Fscanln(out, &url); err != nil {
		t.Fatal(err)
	}
	want(t, url, "SELECT 'alive'", "alive")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); ; <-tick.C {
		if _, err := ask(t, url, "SELECT 1"); err != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the server outlives its maker")
		}
	}
	// Only the next one can remove what a killed one left; be it by hand here.
	_, host, _ := strings.Cut(url, "host=")
	host, _, _ = strings.Cut(strings.ReplaceAll(host, "%2F", "/"), "&")
	if filepath.Base(host) != "s" {
		t.Fatalf("odd socket folder %s", host)
	}
	if err := os.RemoveAll(filepath.Dir(host)); err != nil {
		t.Error(err)
	}
}

// A folder for temporary files that the server's user cannot reach, or whose name
// is too long for a socket, is no obstacle.
func TestOddTemporaryFolders(t *testing.T) {
	for name, dir := range map[string]string{
		"closed": t.TempDir(),
		"long":   filepath.Join(t.TempDir(), strings.Repeat("long/", 15)),
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			t.Setenv("TMPDIR", dir)
			want(t, postgres.Private(t, postgres.Options{}).Database(t), "SELECT 'here'", "here")
		})
	}
}

func TestSaysWhatToDo(t *testing.T) {
	_, err := postgres.New(t.Context(), postgres.Options{Binaries: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "apt-get install postgresql") {
		t.Errorf("no binaries: %v", err)
	}
	_, err = postgres.New(t.Context(), postgres.Options{Settings: map[string]string{"max_connections": "many"}})
	if err == nil || !strings.Contains(err.Error(), "max_connections") {
		t.Errorf("a bad setting: %v", err)
	}
}

func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		s, err := postgres.New(b.Context(), postgres.Options{})
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
