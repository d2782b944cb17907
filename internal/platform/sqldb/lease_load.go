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
	// rows are for a statement that keeps or looks up rows.
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
	return "SELECT " + of(alias, cols) + " FROM " + from + " " + alias
}

func of(alias string, cols []column) string {
	return alias + "." + strings.Join(namesOf(cols), ", "+alias+".")
}

// keysOf makes a statement that reads the keys that a subquery names.
func keysOf(subquery, order string) *statement {
	return each(of("k", keyColumns), subquery, "keys", "k", "k.name = n.key", order)
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
	// With a key comes the pool of its lease.
	loadLeasePools = plain(selectPools + " WHERE p.name IN {SELECT k.lease_pool FROM fleetdesk.keys k WHERE k.name = ANY ($1) AND k.fence > 0}")
	loadExits      = plain(selectKeys + " WHERE k.exit_ip = ANY ($1) AND k.exit_ip <> ''")
	loadListed     = keysOf("SELECT m.key FROM fleetdesk.members m WHERE m.pool = $1 AND NOT m.leaving ORDER BY m.key LIMIT $2", "")
	loadTickets    = plain(selectTickets + " WHERE t.id = ANY ($1)")

	loadQueue = plain(selectTickets + " WHERE t.pool = $1 AND t.granted_fence = 0 AND t.live_until > $2 ORDER BY t.seq LIMIT $3")
	loadAhead = plain("SELECT count(*) FROM fleetdesk.tickets t WHERE t.pool = $1 AND t.granted_fence = 0 AND t.live_until > $2 AND t.seq < $3")
	loadLost  = plain(selectTickets + " WHERE t.granted_fence = 0 AND t.place_until > 0 AND t.place_until <= $1 ORDER BY t.place_until LIMIT $2")
	loadPlace = plain("SELECT t.place_until FROM fleetdesk.tickets t WHERE t.granted_fence = 0 AND t.place_until > 0 AND t.place_until > $1 ORDER BY t.place_until DESC LIMIT 1")

	loadCandidates = keysOf(candidates(""), "")
	// One row at most rests each: looked up by its whole key, never by the target.
	loadRested = keysOf(candidates(`
		AND coalesce((SELECT c.until FROM fleetdesk.cooldowns c WHERE c.scope = 'key' AND c.id = r.key AND c.target = $4), 0) <= $2
		AND coalesce((SELECT c.until FROM fleetdesk.cooldowns c WHERE c.scope = 'exitIP' AND c.id = r.exit_ip AND c.target = $4), 0) <= $2`), "")
	loadNext = keysOf(`SELECT r.key FROM fleetdesk.ready r WHERE r.pool = $1 AND r.free_at > $2 AND r.free_at < $3
		ORDER BY r.free_at, r.rank, r.key LIMIT $4`, "")
	// A member is looked up for each cooldown, until one is found.
	loadNextRest = plain(`SELECT coalesce(min(s.until), 0) FROM (
		SELECT * FROM (SELECT c.until FROM fleetdesk.cooldowns c WHERE c.target = $2 AND c.until > 0 AND c.until > $3 AND c.scope = 'key'
			AND coalesce((SELECT 1 FROM fleetdesk.members m WHERE m.pool = $1 AND m.key = c.id AND NOT m.leaving), 0) = 1 ORDER BY c.until LIMIT 1) a
		UNION ALL
		SELECT * FROM (SELECT c.until FROM fleetdesk.cooldowns c WHERE c.target = $2 AND c.until > 0 AND c.until > $3 AND c.scope = 'exitIP'
			AND coalesce((SELECT 1 FROM fleetdesk.members m WHERE m.pool = $1 AND m.exit_ip = c.id AND m.exit_ip <> '' AND NOT m.leaving LIMIT 1), 0) = 1
			ORDER BY c.until LIMIT 1) b) s`)
	loadMembers = plain("SELECT r.key, r.auto_disabled FROM fleetdesk.ready r WHERE r.pool = $1 ORDER BY r.key")

	loadCooldowns = rowsOfEach(of("c", cooldownColumns), "cooldowns", "c", cooldownID...)
	loadChanges   = plain(selectChanges + " WHERE c.pool = ANY ($1)")
	loadRunning   = plain(selectChanges + " WHERE c.until > $1")
	loadActions   = plain(`SELECT o.key, o.action, o."user" FROM fleetdesk.open_actions o WHERE o.key <> '' ORDER BY o.seq`)

	loadDue     = keysOf("SELECT r.key FROM fleetdesk.running r WHERE r.expires <= $1 ORDER BY r.expires, r.key LIMIT $2", "")
	loadOld     = plain("SELECT 1 FROM fleetdesk.old_lines o WHERE o.no > 0 UNION ALL SELECT 1 FROM fleetdesk.lines l WHERE l.used < $1 LIMIT 1")
	loadNextDue = plain("SELECT coalesce(min(r.expires), 0) FROM fleetdesk.running r WHERE r.expires > $1")
)

// candidates finds the keys of pool $1 that time frees at $2: the first $3 that
// were not waited for, by rank, and the first $3 others, by time.
func candidates(rested string) string {
	return `SELECT * FROM (SELECT r.key FROM fleetdesk.ready r WHERE r.pool = $1 AND r.free_at = 0` + rested + `
			ORDER BY r.rank, r.key LIMIT $3) a
		UNION ALL
		SELECT * FROM (SELECT r.key FROM fleetdesk.ready r WHERE r.pool = $1 AND r.free_at > 0 AND r.free_at <= $2` + rested + `
			ORDER BY r.free_at, r.rank, r.key LIMIT $3) b`
}

// leaseTx is [lease.Tx]. It sees the state at the transaction's begin, since what
// is to be kept is written at its end, in one go with the commit.
type leaseTx struct {
	asker
	begin desk
	// bars are those in force, by name; nil before the first load, and when
	// there are none.
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
	if t.bars == nil && t.begin.barred {
		steps = append(steps, t.loadBars(now)...)
	}
	if pools := storables(w.Pools); len(pools) > 0 {
		add(loadPools, into(&f.Pools, scanPool), pools)
	}
	if names := storables(w.Keys); len(names) > 0 {
		add(loadKeys, into(&f.Keys, t.key), names)
		add(loadLeasePools, into(&f.Pools, scanPool), names)
	}
	if ips := storables(w.ExitIPs); len(ips) > 0 {
		add(loadExits, into(&f.Keys, t.key), ips)
	}
	f.Listed = make([][]lease.Key, len(w.Listed))
	for i, l := range w.Listed {
		if storable(l.Pool) {
			add(loadListed, into(&f.Listed[i], t.key), l.Pool, int64(l.Limit))
		}
	}
	if ids := storables(w.Tickets); len(ids) > 0 {
		add(loadTickets, into(&f.Tickets, scanTicket), ids)
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
	f.Free = make([]int, len(w.Free))
	for i, free := range w.Free {
		if storable(free.Pool) {
			add(loadFree, func(r scanner) error { return r.Scan(&f.Free[i]) }, free.Pool, now, int64(free.Limit))
		}
	}
	f.Lines = make([]lease.LineFound, len(w.Lines))
	steps = append(steps, t.loadLines(w.Lines, f.Lines)...)
	f.LinesOf = make([][]lease.Line, len(w.LinesOf))
	for i, of := range w.LinesOf {
		if storable(of.Pool) && storable(of.Target) {
			add(loadLinesOf, into(&f.LinesOf[i], scanLine), of.Pool, of.Target)
		}
	}
	f.Seats = make([][]lease.Key, len(w.Seats))
	for i, s := range w.Seats {
		if storable(s.Pool) {
			add(loadSeats, into(&f.Seats[i], t.key), s.Pool, s.After, int64(s.Limit))
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
	var rests [][]any
	for _, c := range w.Cooldowns {
		if storable(c.ID) && storable(c.Target) {
			rests = append(rests, []any{string(c.Scope), c.ID, c.Target})
		}
	}
	if len(rests) > 0 {
		steps = append(steps, step{statement: loadCooldowns, rows: rests, row: into(&f.Cooldowns, scanCooldown)})
	}
	if pools := storables(w.Changes); len(pools) > 0 {
		add(loadChanges, into(&f.Changes, scanChange), pools)
	}
	if w.Due > 0 {
		add(loadDue, into(&f.Due, t.key), now, int64(w.Due))
		add(loadNextDue, timeInto(&f.NextDue), now)
		add(loadOld, func(r scanner) error {
			var one int
			f.Old = true
			return r.Scan(&one)
		}, micros(t.begin.Now.Add(-lease.LineFor)))
	}
	if w.Lost {
		add(loadLost, into(&f.Lost, scanTicket), now, int64(lease.MaxQueue))
		add(loadPlace, timeInto(&f.LastPlace), int64(0))
	}
	if len(steps) > 0 {
		if err := t.ask(ctx, steps...); err != nil {
			return lease.Found{}, err
		}
	}
	if err := t.loadGranted(ctx, &f); err != nil {
		return lease.Found{}, err
	}
	keys = append(keys, f.Keys, f.Due)
	keys = append(keys, f.Listed...)
	for i := range f.Lines {
		inOrder(w.Lines[i], &f.Lines[i])
		keys = append(keys, f.Lines[i].Keys)
	}
	for i := range f.Seats {
		slices.SortFunc(f.Seats[i], func(a, b lease.Key) int { return cmp.Compare(a.Seat, b.Seat) })
		keys = append(keys, f.Seats[i])
	}
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

// loadGranted asks for the keys that tickets got, and the pools of their leases.
// Few requests come twice, so it is a question of its own.
func (t *leaseTx) loadGranted(ctx context.Context, f *lease.Found) error {
	var names []string
	for i := range f.Tickets {
		if g := f.Tickets[i].Granted; g.Key != "" {
			names = append(names, g.Key)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return t.ask(ctx,
		step{statement: loadKeys, args: []any{names}, row: into(&f.Keys, t.key)},
		step{statement: loadLeasePools, args: []any{names}, row: into(&f.Pools, scanPool)},
	)
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
