package sqldb

import (
	"context"
	"time"

	"fleetdesk/internal/core/lease"
)

var readBans = plain(`SELECT c.scope, c.id, count(*) FROM fleetdesk.cooldowns c WHERE c.banned_until > 0 AND c.banned_until > $1
	GROUP BY c.scope, c.id HAVING count(*) >= $2 ORDER BY count(*) DESC, c.scope, c.id LIMIT $3`)

// Bans implements [lease.Reader].
func (s *leaseStore) Bans(ctx context.Context, targets, limit int) (all []lease.BanCount, err error) {
	err = s.look(ctx, func(ctx context.Context, now time.Time, q asker) error {
		all = nil
		return q.ask(ctx, step{statement: readBans, args: []any{micros(now), int64(targets), int64(limit)}, row: into(&all, scanBan)})
	})
	return all, err
}

func scanBan(r scanner) (b lease.BanCount, err error) {
	err = r.Scan((*string)(&b.Scope), &b.ID, &b.Targets)
	return b, err
}
