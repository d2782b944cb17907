package sqldb

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"fleetdesk/internal/core/lease"
)

// step is one statement with what it is given and what takes its rows.
type step struct {
	*statement
	args []any
	// rows are for a statement that keeps rows.
	rows [][]any
	// row is called for each row of the answer; nil for a statement without.
	row func(scanner) error
}

// asker runs statements one after another, in one go where that saves a way to
// the database and back.
type asker interface {
	ask(ctx context.Context, steps ...step) error
}

func selectAll(from, alias string, cols []column) string {
	return "SELECT " + alias + "." + strings.Join(namesOf(cols), ", "+alias+".") + " FROM " + from + " " + alias
}

// The statements of loading. They find, and hold no rule.
var (
	selectPools   = selectAll("fleetdesk.pools", "p", poolColumns)
	selectKeys    = selectAll("fleetdesk.keys", "k", keyColumns)
	selectTickets = selectAll("fleetdesk.tickets", "t", ticketColumns)
	selectRests   = selectAll("fleetdesk.cooldowns", "c", cooldownColumns)
	selectChanges = selectAll("fleetdesk.changes", "c", changeColumns)

	loadPools = plain(selectPools + " WHERE p.name = ANY ($1)")
	loadKeys  = plain(selectKeys + " WHERE k.name = ANY ($1)")
	// With a key comes the pool of its lease, with a ticket the key that it got.
	loadLeasePools  = plain(selectPools + " WHERE p.name IN (SELECT k.lease_pool FROM fleetdesk.keys k WHERE k.name = ANY ($1) AND k.fence > 0)")
	loadTickets     = plain(selectTickets + " WHERE t.id = ANY ($1)")
	loadGrantedKeys = plain(selectKeys + " WHERE k.name IN (SELECT t.granted_key FROM fleetdesk.tickets t WHERE t.id = ANY ($1) AND t.granted_fence > 0)")
	loadGrantedPool = plain(selectPools + ` WHERE p.name IN (SELECT k.lease_pool FROM fleetdesk.tickets t JOIN fleetdesk.keys k ON k.name = t.granted_key
		WHERE t.id = ANY ($1) AND t.granted_fence > 0 AND k.fence > 0)`)

	loadQueue = plain(selectTickets + " WHERE t.pool = $1 AND t.granted_fence = 0 AND t.live_until > $2 ORDER BY t.seq LIMIT $3")
	loadAhead = plain("SELECT count(*) FROM fleetdesk.tickets t WHERE t.pool = $1 AND t.granted_fence = 0 AND t.live_until > $2 AND t.seq < $3")
	loadLost  = plain(selectTickets + " WHERE t.granted_fence = 0 AND t.place_until <= $1 ORDER BY t.place_until LIMIT $2")
	loadPlace = plain("SELECT coalesce(max(t.place_until), 0) FROM fleetdesk.tickets t WHERE t.granted_fence = 0")

	// CROSS JOIN keeps SQLite's order of looking: the few members first.
	loadCandidates = plain(candidates(""))
	// One row at most rests each: looked up by its whole key, never by the target.
	loadRested = plain(candidates(`
		AND coalesce((SELECT c.until FROM fleetdesk.cooldowns c WHERE c.scope = 'key' AND c.id = r.key AND c.target = $4), 0) <= $2
		AND coalesce((SELECT c.until FROM fleetdesk.cooldowns c WHERE c.scope = 'exitIP' AND c.id = r.exit_ip AND c.target = $4), 0) <= $2`))
	loadNext = plain(selectAll(`(SELECT r.key FROM fleetdesk.ready r WHERE r.pool = $1 AND r.free_at > $2 AND r.free_at < $3
		ORDER BY r.free_at, r.rank, r.key LIMIT $4) n CROSS JOIN fleetdesk.keys`, "k", keyColumns) + " WHERE k.name = n.key")
	loadNextRest = plain(`SELECT coalesce(min(s.until), 0) FROM (
		SELECT * FROM (SELECT c.until FROM fleetdesk.cooldowns c WHERE c.target = $2 AND c.until > $3 AND c.scope = 'key'
			AND EXISTS (SELECT 1 FROM fleetdesk.members m WHERE m.pool = $1 AND m.key = c.id AND NOT m.leaving) ORDER BY c.until LIMIT 1) a
		UNION ALL
		SELECT * FROM (SELECT c.until FROM fleetdesk.cooldowns c WHERE c.target = $2 AND c.until > $3 AND c.scope = 'exitIP'
			AND EXISTS (SELECT 1 FROM fleetdesk.members m WHERE m.pool = $1 AND m.exit_ip = c.id AND m.exit_ip <> '' AND NOT m.leaving) ORDER BY c.until LIMIT 1) b) s`)
	loadMembers = plain("SELECT r.key, r.auto_disabled FROM fleetdesk.ready r WHERE r.pool = $1 ORDER BY r.key")

	loadCooldown = plain(selectRests + " WHERE c.scope = $1 AND c.id = $2 AND c.target = $3")
	loadChanges  = plain(selectChanges + " WHERE c.pool = ANY ($1)")
	loadRunning  = plain(selectChanges + " WHERE c.until > $1")
	loadActions  = plain(`SELECT o.key, o.action, o."user" FROM fleetdesk.open_actions o WHERE o.key <> '' ORDER BY o.seq`)

	loadDue = plain(selectAll(`(SELECT r.key FROM fleetdesk.running r WHERE r.expires <= $1 ORDER BY r.expires, r.key LIMIT $2) n
		CROSS JOIN fleetdesk.keys`, "k", keyColumns) + " WHERE k.name = n.key")
	loadNextDue = plain("SELECT coalesce(min(r.expires), 0) FROM fleetdesk.running r WHERE r.expires > $1")
)

// candidates finds the keys of pool $1 that time frees at $2: the first $3 that
// were not waited for, by rank, and the first $3 others, by time.
func candidates(rested string) string {
	return selectAll(`(
		SELECT * FROM (SELECT r.key FROM fleetdesk.ready r WHERE r.pool = $1 AND r.free_at = 0`+rested+`
			ORDER BY r.rank, r.key LIMIT $3) a
		UNION ALL
		SELECT * FROM (SELECT r.key FROM fleetdesk.ready r WHERE r.pool = $1 AND r.free_at > 0 AND r.free_at <= $2`+rested+`
			ORDER BY r.free_at, r.rank, r.key LIMIT $3) b) n CROSS JOIN fleetdesk.keys`, "k", keyColumns) + " WHERE k.name = n.key"
}

// leaseTx is [lease.Tx]. It sees the state at the transaction's begin, since what
// is to be kept is written at its end, in one go with the commit.
type leaseTx struct {
	asker
	begin desk
	// bars are those in force, by name; nil before the first load.
	bars map[string][]lease.Bar
	// spots are where the keys that were loaded are in other tables.
	spots map[string]spot
	// writes keep what the rules decided, and news tells others of it.
	writes []step
	news   lease.News
}

// Load implements [lease.Tx].
func (t *leaseTx) Load(ctx context.Context, w lease.Want) (f lease.Found, err error) {
	now := micros(t.begin.Now)
	var steps []step
	add := func(s *statement, row func(scanner) error, args ...any) {
		steps = append(steps, step{s, args, nil, row})
	}
	var keys [][]lease.Key // all that were found, to complete them
	if t.bars == nil {
		steps = append(steps, t.loadBars(now)...)
	}
	if pools := storables(w.Pools); len(pools) > 0 {
		add(loadPools, into(&f.Pools, scanPool), pools)
	}
	if names := storables(w.Keys); len(names) > 0 {
		add(loadKeys, into(&f.Keys, t.key), names)
		add(loadLeasePools, into(&f.Pools, scanPool), names)
	}
	if ids := storables(w.Tickets); len(ids) > 0 {
		add(loadTickets, into(&f.Tickets, scanTicket), ids)
		add(loadGrantedKeys, into(&f.Keys, t.key), ids)
		add(loadGrantedPool, into(&f.Pools, scanPool), ids)
	}
	f.Queues = make([][]lease.Ticket, len(w.Queues))
	for i, q := range w.Queues {
		if storable(q.Pool) {
			add(loadQueue, into(&f.Queues[i], scanTicket), q.Pool, now, int64(q.Limit))
		}
	}
	f.Ahead = make([]int, len(w.Ahead))
	for i, a := range w.Ahead {
		if storable(a.Pool) {
			add(loadAhead, func(r scanner) error { return r.Scan(&f.Ahead[i]) }, a.Pool, now, a.Seq)
		}
	}
	f.Candidates = make([]lease.CandidatesFound, len(w.Candidates))
	for i, c := range w.Candidates {
		switch found := &f.Candidates[i]; {
		case !storable(c.Pool) || !storable(c.Target):
		case c.Target == "":
			add(loadCandidates, into(&found.Keys, t.key), c.Pool, now, int64(c.Limit)+1)
		default:
			add(loadRested, into(&found.Keys, t.key), c.Pool, now, int64(c.Limit)+1, c.Target)
		}
	}
	f.Next = make([]lease.NextFound, len(w.Next))
	for i, n := range w.Next {
		if !storable(n.Pool) || !storable(n.Target) {
			continue
		}
		found := &f.Next[i]
		add(loadNext, into(&found.Keys, t.key), n.Pool, now, micros(lease.Never()), int64(lease.MaxNext))
		if n.Target != "" {
			add(loadNextRest, timeInto(&found.Rested), n.Pool, n.Target, now)
		}
	}
	f.Members = make([]lease.MembersFound, len(w.Members))
	for i, pool := range w.Members {
		if storable(pool) {
			add(loadMembers, memberInto(&f.Members[i]), pool)
		}
	}
	for _, c := range w.Cooldowns {
		if storable(c.ID) && storable(c.Target) {
			add(loadCooldown, into(&f.Cooldowns, scanCooldown), string(c.Scope), c.ID, c.Target)
		}
	}
	if pools := storables(w.Changes); len(pools) > 0 {
		add(loadChanges, into(&f.Changes, scanChange), pools)
	}
	if w.Due > 0 {
		add(loadDue, into(&f.Due, t.key), now, int64(w.Due))
		add(loadNextDue, timeInto(&f.NextDue), now)
	}
	if w.Lost {
		add(loadLost, into(&f.Lost, scanTicket), now, int64(lease.MaxQueue))
		add(loadPlace, timeInto(&f.LastPlace))
	}
	if len(steps) > 0 {
		if err := t.ask(ctx, steps...); err != nil {
			return lease.Found{}, err
		}
	}
	keys = append(keys, f.Keys, f.Due)
	for i, c := range w.Candidates {
		f.Candidates[i].Keys, f.Candidates[i].More = cut(f.Candidates[i].Keys, c.Limit)
		keys = append(keys, f.Candidates[i].Keys)
	}
	for i := range f.Next {
		keys = append(keys, f.Next[i].Keys)
	}
	for _, some := range keys {
		t.complete(some)
	}
	if len(w.Bars) > 0 {
		f.Bars = make(map[string][]lease.Bar, len(w.Bars))
		for _, n := range w.Bars {
			f.Bars[n] = t.bars[n]
		}
	}
	return f, nil
}

// loadBars asks for all bars: there are few, and any key may have one.
func (t *leaseTx) loadBars(now int64) []step {
	t.bars = map[string][]lease.Bar{}
	return barSteps(t.bars, now)
}

func barSteps(bars map[string][]lease.Bar, now int64) []step {
	add := func(name string, b lease.Bar) { bars[name] = slices.Clip(append(bars[name], b)) }
	return []step{
		{loadRunning, []any{now}, nil, func(r scanner) error {
			c, err := scanChange(r)
			for _, n := range c.Keys {
				add(n, lease.Bar{Change: c.ID, By: c.Account, Until: c.Until})
			}
			return err
		}},
		{loadActions, nil, nil, func(r scanner) error {
			var key string
			var b lease.Bar
			err := r.Scan(&key, &b.Action, &b.By)
			add(key, b)
			return err
		}},
	}
}

// key reads a key and remembers where it is.
func (t *leaseTx) key(r scanner) (lease.Key, error) {
	k, at, err := scanKey(r)
	t.spots[k.Name] = at
	return k, err
}

// complete gives keys their bars.
func (t *leaseTx) complete(keys []lease.Key) {
	for i := range keys {
		keys[i].Bars = t.bars[keys[i].Name]
	}
}

// cut keeps the first `limit` keys that were not waited for, and as many of the
// others; more tells that there are others still.
func cut(keys []lease.Key, limit int) (kept []lease.Key, more bool) {
	slices.SortFunc(keys, func(a, b lease.Key) int {
		return cmp.Or(a.FreeAt().Compare(b.FreeAt()), a.Rank().Compare(b.Rank()), cmp.Compare(a.Name, b.Name))
	})
	free := 0
	for free < len(keys) && keys[free].FreeAt().IsZero() {
		free++
	}
	timed := len(keys) - free
	kept = keys[:min(free, limit):min(free, limit)]
	return append(kept, keys[free:free+min(timed, limit)]...), free > limit || timed > limit
}

// into appends each row to a list.
func into[T any](list *[]T, scan func(scanner) (T, error)) func(scanner) error {
	return func(r scanner) error {
		v, err := scan(r)
		*list = append(*list, v)
		return err
	}
}

func timeInto(at *time.Time) func(scanner) error {
	return func(r scanner) error {
		var n int64
		err := r.Scan(&n)
		*at = moment(n)
		return err
	}
}

func memberInto(f *lease.MembersFound) func(scanner) error {
	return func(r scanner) error {
		var name string
		var auto bool
		err := r.Scan(&name, &auto)
		f.Names = append(f.Names, name)
		if auto {
			f.AutoDisabled++
		}
		return err
	}
}

// storables are those of the names that can be in a database at all.
func storables(names []string) []string {
	if !slices.ContainsFunc(names, func(n string) bool { return !storable(n) }) {
		return names
	}
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !storable(n) })
}
