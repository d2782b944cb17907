package sqldb_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/token"
	"fleetdesk/internal/platform/sqldb"
)

// childRole and childPath tell a copy of the test binary what to do instead of
// testing: real processes are what these tests are about.
const (
	childRole = "SQLDB_TEST_CHILD"
	childPath = "SQLDB_TEST_PATH"
)

// child is the main of such a copy; it returns the exit code.
func child(role string) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	path := os.Getenv(childPath)
	if strings.HasSuffix(role, "nobody") { // no rights but those of everybody
		if err := syscall.Setuid(65534); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	db, err := sqldb.Open(ctx, sqldb.Options{Path: path, ReadOnly: strings.HasPrefix(role, "read")})
	if err != nil {
		fmt.Printf("%s: %v\n", fault.Of(err), err)
		return 0
	}
	defer db.Close()
	switch role {
	case "lease-work", "lease-wait", "lease-hold", "lease-until-killed":
		if err := leaseChild(ctx, role, db, path); err != nil {
			fmt.Println(err)
			return 1
		}
	case "nobody":
		fmt.Println("opened")
	case "read", "read-as-nobody":
		all, err := db.Tokens().Accounts(ctx, "", 10)
		if err != nil {
			fmt.Println(err)
			return 1
		}
		for _, a := range all {
			fmt.Println(a.Name)
		}
	case "begin":
		// Asks SQLite's own lock, past the side lock.
		ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		tx, err := db.Writer().BeginTx(ctx, nil)
		if err != nil {
			fmt.Println("busy")
			return 0
		}
		_ = tx.Rollback()
		fmt.Println("free")
	case "bootstrap":
		for n := range 20 {
			created, err := db.Tokens().Bootstrap(ctx, rootAccount(os.Getpid(), n), rootToken(os.Getpid(), n))
			if err != nil {
				fmt.Println(err)
				return 1
			}
			if created {
				fmt.Println("created", rootAccount(os.Getpid(), n).Name)
			}
		}
	case "write":
		// Until it is killed; each line says what is stored for good.
		for n := 0; ; n++ {
			a := token.Account{Name: fmt.Sprintf("a%d", n), Role: token.Viewer}
			if err := db.Tokens().CreateAccount(ctx, a); err != nil {
				fmt.Println(err)
				return 1
			}
			r := token.Record{ID: fmt.Sprintf("t%d", n), Account: a.Name, Hash: make([]byte, 32)}
			if err := db.Tokens().CreateToken(ctx, r); err != nil {
				fmt.Println(err)
				return 1
			}
			fmt.Println(n)
		}
	}
	return 0
}

func rootAccount(pid, n int) token.Account {
	return token.Account{Name: fmt.Sprintf("root-%d-%d", pid, n), Role: token.Admin}
}

func rootToken(pid, n int) token.Record {
	return token.Record{ID: fmt.Sprintf("token-%d-%d", pid, n), Account: rootAccount(pid, n).Name, Hash: make([]byte, 32)}
}

func childCommand(t *testing.T, role, path string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), childRole+"="+role, childPath+"="+path)
	cmd.Stderr = os.Stderr
	return cmd
}

// runChild runs one to its end and returns what it printed.
func runChild(t *testing.T, role, path string) string {
	t.Helper()
	out, err := childCommand(t, role, path).Output()
	if err != nil {
		t.Fatalf("child %s: %v: %s", role, err, out)
	}
	return strings.TrimSpace(string(out))
}

// Several processes that all want to be first: one is.
func TestBootstrapAcrossProcesses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "desk.db")
	const processes = 4
	outs := make(chan string, processes)
	for range processes {
		cmd := childCommand(t, "bootstrap", path) // the database does not exist yet either
		go func() {
			out, err := cmd.Output()
			if err != nil {
				out = append(out, []byte(err.Error())...)
			}
			outs <- string(out)
		}()
	}
	var said string
	for range processes {
		said += <-outs
	}
	db := open(t, path)
	all, err := db.Tokens().Accounts(t.Context(), "", 100)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 {
		t.Fatalf("%d accounts, want one: %v", len(all), all)
	}
	if want := "created " + all[0].Name + "\n"; said != want {
		t.Errorf("the processes said %q, want %q", said, want)
	}
	if _, _, err := db.Tokens().TokenByID(t.Context(), strings.Replace(all[0].Name, "root", "token", 1)); err != nil {
		t.Errorf("the first admin has no token: %v", err)
	}
}

// A writer that is killed -9 at any moment loses nothing that it was told was
// stored, and leaves a database that opens and is whole.
func TestKilledWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "desk.db")
	for round := range 4 {
		if err := removeAll(path); err != nil {
			t.Fatal(err)
		}
		cmd := childCommand(t, "write", path)
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		last := killAfter(t, cmd, stdout, 3+round*7)

		db, err := sqldb.Open(t.Context(), sqldb.Options{Path: path})
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		var verdict string
		if err := db.Reader().QueryRow("PRAGMA integrity_check").Scan(&verdict); err != nil || verdict != "ok" {
			t.Errorf("round %d: integrity: %s %v", round, verdict, err)
		}
		for n := range last + 1 {
			if _, _, err := db.Tokens().TokenByID(t.Context(), fmt.Sprintf("t%d", n)); err != nil {
				t.Errorf("round %d: stored and lost: %v", round, err)
			}
		}
		// It had gone on by one pair at most between two lines.
		var accounts, tokens int
		if err := db.Reader().QueryRow("SELECT (SELECT count(*) FROM accounts), (SELECT count(*) FROM tokens)").Scan(&accounts, &tokens); err != nil {
			t.Fatal(err)
		}
		if tokens > accounts || accounts > tokens+1 {
			t.Errorf("round %d: %d accounts and %d tokens", round, accounts, tokens)
		}
		addAccounts(t, db, "after") // no lock is left
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// killAfter kills the process as soon as it printed some lines, and returns the
// last number that it managed to print.
func killAfter(t *testing.T, cmd *exec.Cmd, stdout io.Reader, lines int) (last int) {
	t.Helper()
	seen := 0
	scanner := bufio.NewScanner(stdout)
	for scanner.Scan() {
		n, err := strconv.Atoi(scanner.Text())
		if err != nil {
			t.Fatalf("the writer failed: %s", scanner.Text())
		}
		last = n
		if seen++; seen == lines {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = cmd.Wait()
	if seen < lines {
		t.Fatalf("the writer ended by itself after %d lines", seen)
	}
	return last
}

// A process that is killed while it makes the database and its first admin leaves
// either nothing or both halves.
func TestKilledBootstrap(t *testing.T) {
	path := filepath.Join(t.TempDir(), "desk.db")
	for round := range 12 {
		if err := removeAll(path); err != nil {
			t.Fatal(err)
		}
		cmd := childCommand(t, "bootstrap", path)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Duration(round)*4*time.Millisecond, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()

		db, err := sqldb.Open(t.Context(), sqldb.Options{Path: path})
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		var admins, tokens int
		if err := db.Reader().QueryRow("SELECT (SELECT count(*) FROM accounts), (SELECT count(*) FROM tokens)").Scan(&admins, &tokens); err != nil {
			t.Fatal(err)
		}
		if admins != tokens || admins > 1 {
			t.Errorf("round %d: %d admins with %d tokens", round, admins, tokens)
		}
		if created, err := db.Tokens().Bootstrap(t.Context(), rootAccount(0, 0), rootToken(0, 0)); err != nil || created != (admins == 0) {
			t.Errorf("round %d: with %d admins: created %v, %v", round, admins, created, err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func removeAll(path string) error {
	all, err := filepath.Glob(path + "*")
	if err != nil {
		return err
	}
	for _, p := range all {
		if err := os.Remove(p); err != nil {
			return err
		}
	}
	return nil
}

// What this user may not write is refused with the reason, before SQLite opens it
// for reading only and fails at the first write.
func TestOpenUnwritable(t *testing.T) {
	role := "begin"
	if os.Geteuid() == 0 {
		role = "nobody" // root may write everything
	}
	base := t.TempDir()
	for _, p := range []string{base, filepath.Dir(base)} {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	sub := func(name string, mode os.FileMode) string {
		dir := filepath.Join(base, name)
		if err := os.Mkdir(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, "desk.db")
	}
	dir := sub("dir", 0o555)
	file := sub("file", 0o777)
	closed(t, file)
	if err := os.Chmod(file, 0o444); err != nil {
		t.Fatal(err)
	}
	lock := sub("lock", 0o777)
	if err := os.WriteFile(lock+".lock", nil, 0o444); err != nil {
		t.Fatal(err)
	}
	good := sub("good", 0o777)

	for _, tc := range []struct{ path, says string }{
		{dir, "permanent: database " + dir + ": the folder " + filepath.Dir(dir) + " cannot be written"},
		{file, "permanent: database " + file + ": the file " + file + " cannot be written"},
		{lock, "permanent: lock file " + lock + ".lock: it cannot be opened for writing"},
	} {
		if out := runChild(t, role, tc.path); !strings.HasPrefix(out, tc.says) {
			t.Errorf("got  %q\nwant %q", out, tc.says)
		}
	}
	if out := runChild(t, role, good); out != "opened" && out != "free" {
		t.Errorf("a folder that may be written: %q", out)
	}
}
