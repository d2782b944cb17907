package broker_test

import (
	"context"
	"path/filepath"
	"testing"

	"fleetdesk/client"
	"fleetdesk/internal/core/token"
	"fleetdesk/internal/desk/api"
	"fleetdesk/internal/desk/service"
	"fleetdesk/internal/platform/sqldb"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/broker/brokertest"
)

type nobody struct{}

func (nobody) Authenticate(context.Context, string) (token.Principal, error) {
	return token.Principal{}, nil
}
func (nobody) Generation() uint64 { return 0 }

// What one call of the program costs on a database that exists, and where it goes.
func BenchmarkLocal(b *testing.B) {
	path := filepath.Join(b.TempDir(), "leases.db")
	p := poolOf("win", "a", "b", "c")
	must := func(b *testing.B, err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	warm := brokertest.OpenLocal(b, path, "ann")
	must(b, warm.Prepare(b.Context(), p))
	must(b, warm.Close())
	ctx := b.Context()
	b.Run("call", func(b *testing.B) {
		for b.Loop() {
			l := brokertest.OpenLocal(b, path, "ann")
			must(b, l.Prepare(ctx, p))
			got, err := l.Take(ctx, "win", client.TakeOptions{})
			must(b, err)
			_, err = got.Release(ctx, client.ReleaseRequest{})
			must(b, err)
			must(b, l.Close())
		}
	})
	b.Run("open", func(b *testing.B) {
		for b.Loop() {
			must(b, brokertest.OpenLocal(b, path, "ann").Close())
		}
	})
	b.Run("look", func(b *testing.B) {
		for b.Loop() {
			l, err := broker.LookLocal(ctx, broker.Local{Path: path, Account: "ann", Log: brokertest.Discard()})
			must(b, err)
			must(b, l.Close())
		}
	})
	b.Run("database", func(b *testing.B) {
		for b.Loop() {
			db, err := sqldb.Open(ctx, sqldb.Options{Path: path})
			must(b, err)
			must(b, db.Close())
		}
	})
	b.Run("api", func(b *testing.B) {
		m := brokertest.NewMemory()
		for b.Loop() {
			s, err := service.New(service.Options{Store: m.Leases, Log: brokertest.Discard()})
			must(b, err)
			_, err = api.New(api.Options{Auth: nobody{}, Actions: m.Actions, Desk: s, Log: brokertest.Discard()})
			must(b, err)
		}
	})
	open := brokertest.OpenLocal(b, path, "ann")
	defer open.Close()
	b.Run("prepare", func(b *testing.B) {
		for b.Loop() {
			must(b, open.Prepare(ctx, p))
		}
	})
	b.Run("take and release", func(b *testing.B) {
		for b.Loop() {
			got, err := open.Take(ctx, "win", client.TakeOptions{})
			must(b, err)
			_, err = got.Release(ctx, client.ReleaseRequest{})
			must(b, err)
		}
	})
}
