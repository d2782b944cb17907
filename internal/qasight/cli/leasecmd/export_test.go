package leasecmd

import (
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/lease"
)

// Saved is a saved lease for tests.
type Saved struct {
	Lease, Pool, Server string
	Secret              client.Secret
	Until               time.Time
}

func (s Saved) own() saved {
	id, err := lease.ParseID(s.Lease)
	if err != nil {
		panic(err)
	}
	return saved{id, s.Pool, s.Server, s.Secret, s.Until}
}

func shown(s saved) Saved { return Saved{s.id.String(), s.pool, s.server, s.secret, s.until} }

// Leases is a folder of them.
type Leases struct{ Dir string }

func (l Leases) Put(s Saved) error { return leases{l.Dir}.put(s.own()) }

func (l Leases) Remove(id string) error { return leases{l.Dir}.remove(id) }

func (l Leases) Path(id string) string { return leases{l.Dir}.path(id) }

func (l Leases) Find(name, pool string, now time.Time) (Saved, bool, error) {
	s, ok, err := leases{l.Dir}.find(name, pool, now)
	if !ok {
		return Saved{}, ok, err
	}
	return shown(s), ok, err
}

// ParseSaved reads a file.
func ParseSaved(raw []byte) (Saved, error) {
	s, err := parseSaved(raw)
	if err != nil {
		return Saved{}, err
	}
	return shown(s), nil
}
