package leasetest

import (
	"cmp"
	"context"
	"slices"

	"fleetdesk/internal/core/lease"
)

// Bans implements [lease.Reader].
func (m *Memory) Bans(ctx context.Context, targets, limit int) ([]lease.BanCount, error) {
	leave, err := m.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	now := m.now()
	counts := map[lease.CooldownID]int{}
	for id, c := range m.rests {
		if c.BannedUntil.After(now) {
			counts[lease.CooldownID{Scope: id.Scope, ID: id.ID}]++
		}
	}
	var all []lease.BanCount
	for id, n := range counts {
		if n >= targets {
			all = append(all, lease.BanCount{Scope: id.Scope, ID: id.ID, Targets: n})
		}
	}
	slices.SortFunc(all, func(a, b lease.BanCount) int {
		return cmp.Or(cmp.Compare(b.Targets, a.Targets), cmp.Compare(a.Scope, b.Scope), cmp.Compare(a.ID, b.ID))
	})
	return all[:min(len(all), limit)], nil
}
