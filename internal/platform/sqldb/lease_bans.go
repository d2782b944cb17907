package sqldb

import (
	"context"
	"strings"
	"time"

	"fleetdesk/internal/core/lease"
)

// readBans looks only at what is banned now: planners would rather have rows in
// the order in which they are counted, and look through all.
var readBans = func() *statement {
	s := plain(`SELECT b.scope, b.id, count(*) FROM
		(SELECT c.scope, c.id FROM fleetdesk.cooldowns c WHERE c.banned_until > 0 AND c.banned_until > $1 ORDER BY c.banned_until OFFSET 0) b
		GROUP BY b.scope, b.id HAVING count(*) >= $2 ORDER BY count(*) DESC, b.scope, b.id LIMIT $3`)
	s.sqlite = strings.NewReplacer("cooldowns c", "cooldowns c INDEXED BY cooldowns_by_ban", " ORDER BY c.banned_until OFFSET 0", "").Replace(s.sqlite)
	return s
}()

// Bans implements [lease.Reader].
func (s *leaseStore) Bans(ctx context.Context, targets, limit int) (all []lease.BanCount, err error) {
	err = s.look(ctx, func(ctx context.Context, now time.Time, q asker) error {
		all = nil
		return q.ask(ctx, step{statement: readBans, args: []any{micros(now), int64(targets), int64(max(limit, 0))}, row: into(&all, scanBan)})
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

func scanBan(r scanner) (b lease.BanCount, err error) {
	err = r.Scan((*string)(&b.Scope), &b.ID, &b.Targets)
	return b, err
}
