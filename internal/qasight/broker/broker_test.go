package broker_test

import (
	"context"
	"flag"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"fleetdesk/client"
	"fleetdesk/internal/core/lease/leasetest"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/broker/brokertest"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(childPath); path != "" {
		os.Exit(child(path))
	}
	flag.Parse()
	// Most clauses wait more than they work.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

func TestLocal(t *testing.T) {
	t.Parallel()
	brokertest.Run(t, func(t *testing.T) brokertest.Harness { return brokertest.Local(t) })
}

func TestServer(t *testing.T) {
	t.Parallel()
	brokertest.Run(t, func(t *testing.T) brokertest.Harness {
		return brokertest.Serve(t, brokertest.SQLite(t), nil).Harness()
	})
}

func TestLocalInMemory(t *testing.T) {
	t.Parallel()
	brokertest.RunControlled(t, func(*testing.T) brokertest.Controlled { return brokertest.NewMemory().Harness() })
}

func TestServerInMemory(t *testing.T) {
	t.Parallel()
	brokertest.RunControlled(t, func(t *testing.T) brokertest.Controlled {
		_, h := brokertest.NewMemory().Serve(t)
		return h
	})
}

// The suite of desks, through the types of a broker.
func TestDesk(t *testing.T) {
	t.Parallel()
	t.Run("local", func(t *testing.T) {
		t.Parallel()
		leasetest.RunDesk(t, func(t *testing.T) leasetest.DeskHarness { return deskHarness(t, brokertest.NewMemory().Harness()) })
	})
	t.Run("server", func(t *testing.T) {
		t.Parallel()
		leasetest.RunDesk(t, func(t *testing.T) leasetest.DeskHarness {
			_, h := brokertest.NewMemory().Serve(t)
			return deskHarness(t, h)
		})
	})
}

func deskHarness(t *testing.T, h brokertest.Controlled) leasetest.DeskHarness {
	all := map[string]*brokerDesk{}
	as := func(account string) *brokerDesk {
		if all[account] == nil {
			b := h.Open(t, account)
			t.Cleanup(func() {
				if err := b.Close(); err != nil {
					t.Error(err)
				}
			})
			all[account] = newBrokerDesk(b)
		}
		return all[account]
	}
	return leasetest.DeskHarness{
		As:      func(account string) leasetest.Desk { return as(account) },
		Admin:   func(account string) leasetest.Admin { return as(account) },
		Change:  func(account string) leasetest.Changer { return as(account) },
		Advance: h.Advance,
	}
}

// Close ends what a broker runs, at once and also while requests wait; they are
// told that it stops, and nothing of theirs stays.
func TestCloseEndsWhoWaits(t *testing.T) {
	h := brokertest.Local(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	other := h.Open(t, "ann")
	defer other.Close()
	if _, err := other.Publish(ctx, poolOf("win", "a"), nil); err != nil { // it runs now
		t.Fatal(err)
	}
	before := goleak.IgnoreCurrent()
	b := h.Open(t, "ann")
	l, err := b.Take(ctx, "win", client.TakeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	waits, stop := context.WithCancel(ctx)
	over := make(chan error, 1)
	go func() {
		_, err := b.Take(waits, "win", client.TakeOptions{Wait: time.Minute})
		over <- err
	}()
	waitUntil(t, "it waits", func() bool {
		v, err := other.Pool(ctx, "win")
		return err == nil && v.Waiting == 1
	})
	began := time.Now()
	if err := b.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("Close took %v", took)
	}
	stop()
	if err := <-over; err == nil {
		t.Error("who waited was given a held key")
	}
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
	resumed, err := other.Resume(ctx, l.ID(), l.Secret())
	if err != nil {
		t.Fatalf("the lease did not outlive its broker: %v", err)
	}
	if _, err := resumed.Release(ctx, client.ReleaseRequest{}); err != nil {
		t.Fatal(err)
	}
	if v, err := other.Pool(ctx, "win"); err != nil || v.Free != 1 {
		t.Errorf("in the end the pool is %+v, %v", v, err)
	}
}

// A broker goes on when the ctx that it was opened with ends.
func TestOutlivesItsOpening(t *testing.T) {
	m := brokertest.NewMemory()
	ctx, cancel := context.WithCancel(t.Context())
	b, err := broker.Over(ctx, m.Stores(), broker.Place{Path: "memory", Account: "ann"}, brokertest.Discard())
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := b.Prepare(t.Context(), poolOf("win", "a")); err != nil {
		t.Error(err)
	}
	for range 2 { // again is harmless
		if err := b.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
}

// waitUntil waits for something that others do, looking again and again.
func waitUntil(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(30 * time.Second); !is(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("it never came to pass: %s", what)
		}
	}
}
