package broker_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/broker/brokertest"
)

// childPath tells a copy of the test binary which database to work on instead of
// testing.
const childPath = "BROKER_TEST_DATABASE"

const childRounds = 12

// child takes and gives back as a program does, each time with a broker of its
// own, and proves in the folder beside the database that it is alone.
func child(path string) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for range childRounds {
		if err := useOnce(ctx, path); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	return 0
}

func useOnce(ctx context.Context, path string) (err error) {
	b, err := broker.OpenLocal(ctx, broker.Local{Path: path, Account: "ann", Log: brokertest.Discard()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	if err := b.Prepare(ctx, poolOf("win", "a", "b")); err != nil {
		return err
	}
	l, err := b.Take(ctx, "win", client.TakeOptions{Holder: fmt.Sprint("process ", os.Getpid()), Wait: 50 * time.Second})
	if err != nil {
		return err
	}
	folder := filepath.Dir(path)
	mine := filepath.Join(folder, "held-"+l.Key())
	for _, name := range []string{mine, filepath.Join(folder, fmt.Sprintf("fence-%d", l.Fence()))} {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return fmt.Errorf("two hold key %s, or have one fence: %w", l.Key(), err)
		}
		_ = f.Close()
	}
	if err := l.Renew(ctx, client.RenewRequest{}); err != nil {
		return err
	}
	if err := os.Remove(mine); err != nil {
		return err
	}
	_, err = l.Release(ctx, client.ReleaseRequest{})
	return err
}

// Processes with one local database never hold the same key at once, and all are
// served.
func TestProcesses(t *testing.T) {
	const processes = 4
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	path := filepath.Join(folder, "state", "leases.db")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all sync.WaitGroup
	for n := range processes {
		all.Go(func() {
			c := exec.CommandContext(ctx, program)
			c.Env = append(os.Environ(), childPath+"="+path)
			if out, err := c.CombinedOutput(); err != nil {
				t.Errorf("process %d: %v: %s", n, err, out)
			}
		})
	}
	all.Wait()
	names, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	fences := 0
	for _, n := range names {
		if strings.HasPrefix(n.Name(), "fence-") {
			fences++
		}
	}
	if want := processes * childRounds; fences != want {
		t.Errorf("%d leases were taken, want %d", fences, want)
	}
	b := brokertest.OpenLocal(t, path, "bob")
	defer b.Close()
	if v, err := b.Pool(ctx, "win"); err != nil || v.Free != 2 || v.Waiting != 0 || v.Revision != 1 {
		t.Errorf("in the end the pool is %+v, %v", v, err)
	}
}
