package sqldb

import (
	"cmp"
	"context"
	"slices"
	"time"

	"fleetdesk/internal/core/lease"
)

// desk is what one transaction tells the next.
type desk struct {
	lease.Begin
	// wakes counts the transactions that may have freed a key.
	wakes int64
	// events counts the events that were ever written; lastEvent is the number
	// of the last one.
	events, lastEvent int64
	// barred is set when some name may be barred.
	barred bool
}

// What the desk is read by; the clock is its high-water mark.
const deskValues = "d.counter, d.epoch, d.clock, d.wakes, d.events, d.last_event, " +
	"EXISTS (SELECT 1 FROM fleetdesk.open_actions) OR EXISTS (SELECT 1 FROM fleetdesk.changes c WHERE c.until > d.clock)"

func scanDesk(r scanner, more ...any) (d desk, err error) {
	var clock int64
	err = r.Scan(append([]any{&d.Counter, &d.Epoch, &clock, &d.wakes, &d.events, &d.lastEvent, &d.barred}, more...)...)
	d.Now = moment(clock)
	return d, err
}

// The statements of saving.
var (
	saveDesk = plain("UPDATE fleetdesk.desk SET counter = $1, epoch = $2, clock = $3, wakes = $4, events = $5, last_event = $6")

	savePools   = upsert("pools", 1, poolColumns...)
	dropPools   = remove("pools", poolColumns[0])
	insertKeys  = insert("keys", keyColumns...)
	updateKeys  = exactly(update("keys", 2, bumped, slices.Concat(keyID, keyState)...))
	grantKeys   = exactly(update("keys", 2, bumped, slices.Concat(keyID, keyGrant, keyState)...))
	changeKeys  = exactly(update("keys", 2, bumped, slices.Concat(keyID, keyDisabled, keyGrant, keyState)...))
	rewriteKeys = exactly(update("keys", 2, bumped, keyColumns...))
	dropKeys    = exactly(remove("keys", keyID...))

	insertMembers = insert("members", memberColumns...)
	updateMembers = exactly(update("members", 2, "", memberColumns...))
	dropMembers   = exactly(remove("members", memberColumns[:2]...))
	insertReady   = insert("ready", readyColumns...)
	moveReady     = exactly(update("ready", 4, "", readyMove...))
	dropReady     = exactly(remove("ready", readyID...))
	insertRunning = insert("running", runningColumns...)
	moveRunning   = exactly(update("running", 2, "", runningMove...))
	dropRunning   = exactly(remove("running", runningColumns...))

	saveTickets   = upsert("tickets", 1, ticketColumns...)
	dropTickets   = remove("tickets", ticketColumns[0])
	saveCooldowns = upsert("cooldowns", 3, cooldownColumns...)
	liftOne       = remove("cooldowns", cooldownID...)
	liftAll       = remove("cooldowns", cooldownID[:2]...)
	saveChanges   = upsert("changes", 1, changeColumns...)
	insertEvents  = plain("INSERT INTO fleetdesk.events (last_seq, total, at, list) VALUES ($1, $2, $3, $4)")

	forgetTickets = plain(`DELETE FROM fleetdesk.tickets WHERE id IN {SELECT * FROM (
		SELECT * FROM (SELECT t.id FROM fleetdesk.tickets t WHERE t.granted_fence = 0 AND t.place_until > 0 AND t.place_until < $1 ORDER BY t.place_until LIMIT $2) a
		UNION ALL
		SELECT * FROM (SELECT t.id FROM fleetdesk.tickets t WHERE t.granted_fence > 0 AND t.kept < $1 ORDER BY t.kept LIMIT $2) b) s LIMIT $2}`)
	forgetCooldowns = &statement{
		postgres: "DELETE FROM fleetdesk.cooldowns WHERE ctid = ANY (ARRAY(SELECT c.ctid FROM fleetdesk.cooldowns c WHERE c.forget < $1 ORDER BY c.forget LIMIT $2))",
		sqlite: "DELETE FROM cooldowns WHERE (scope, id, target) IN " +
			"(SELECT c.scope, c.id, c.target FROM cooldowns c WHERE c.forget < ?1 ORDER BY c.forget LIMIT ?2)",
	}
	forgetChanges = plain("DELETE FROM fleetdesk.changes WHERE pool IN {SELECT c.pool FROM fleetdesk.changes c WHERE c.until < $1 ORDER BY c.until LIMIT $2}")
	// Times and totals grow from row to row, so that the oldest rows tell all.
	markForgotten = plain(`UPDATE fleetdesk.desk SET forgotten = coalesce((
		SELECT max(old.last_seq) FROM (SELECT e.last_seq, e.total, e.at FROM fleetdesk.events e ORDER BY e.last_seq LIMIT $3) old
		WHERE old.at < $1 OR old.total <= $2), forgotten)`)
	forgetEvents = plain("DELETE FROM fleetdesk.events WHERE last_seq <= (SELECT d.forgotten FROM fleetdesk.desk d)")
)

const bumped = "version = t.version + 1"

// Save implements [lease.Tx]: what it is given is written with the commit.
func (t *leaseTx) Save(_ context.Context, c lease.Changes) error {
	set := func(s *statement, rows [][]any) {
		if len(rows) > 0 {
			t.writes = append(t.writes, step{statement: s, rows: rows})
		}
	}
	set(dropPools, ids(c.DropPools))
	set(savePools, rowsOf(c.Pools, poolValues))
	t.saveKeys(c, set)
	set(saveTickets, rowsOf(c.Tickets, ticketValues))
	set(dropTickets, ids(c.DropTickets))
	var one, all [][]any
	for _, id := range c.LiftCooldowns {
		if id.Target == "" {
			all = append(all, []any{string(id.Scope), id.ID})
		} else {
			one = append(one, []any{string(id.Scope), id.ID, id.Target})
		}
	}
	set(liftOne, one)
	set(liftAll, all)
	set(saveCooldowns, rowsOf(c.Cooldowns, cooldownValues))
	saveLinesOf(&c, set, func(s *statement, args ...any) { t.writes = append(t.writes, step{statement: s, args: args}) })
	set(saveChanges, rowsOf(latest(c.Changes), changeValues))

	d := t.begin
	d.Begin = c.Begin
	if n := len(c.Events); n > 0 {
		d.events += int64(n)
		d.lastEvent = c.Events[n-1].Seq
		t.writes = append(t.writes, step{
			statement: insertEvents,
			args:      []any{d.lastEvent, d.events, micros(d.Now), eventList(c.Events)},
		})
	}
	t.forget(c, d)
	if len(c.Freed) > 0 {
		d.wakes++
	}
	t.writes = append(t.writes, saveOf(d))
	t.news = lease.News{Freed: c.Freed, Events: len(c.Events) > 0}
	t.begin = d
	return nil
}

// saveOf writes the desk as it is after the transaction.
func saveOf(d desk) step {
	return step{statement: saveDesk, args: []any{d.Counter, d.Epoch, micros(d.Now), d.wakes, d.events, d.lastEvent}}
}

// rowsBy are rows by the statement that they are for.
type rowsBy map[*statement][][]any

func (r rowsBy) add(s *statement, row ...any) { r[s] = append(r[s], row) }

// saveKeys writes keys, and where other tables have them.
func (t *leaseTx) saveKeys(c lease.Changes, set func(*statement, [][]any)) {
	rows := rowsBy{}
	for i := range c.DropKeys {
		k := &c.DropKeys[i]
		rows.add(dropKeys, k.Name, k.Version)
		t.move(rows, k.Name, nil, true)
	}
	for i := range c.Keys {
		w := &c.Keys[i]
		was := t.spots[w.Name]
		values := make(keyValues, 0, len(keyColumns))
		switch k := &w.Key; {
		case w.Version == 0:
			rows.add(insertKeys, append(values, k.Name, int64(1)).lists(k).facts(k).disabled(k).grant(k).state(k)...)
		case w.Relist || w.Facts:
			rows.add(rewriteKeys, values.id(k).lists(k).facts(k).disabled(k).grant(k).state(k)...)
		case !was.sameDisabled(k):
			rows.add(changeKeys, values.id(k).disabled(k).grant(k).state(k)...)
		case !was.sameGrant(k):
			rows.add(grantKeys, values.id(k).grant(k).state(k)...)
		default:
			rows.add(updateKeys, values.id(k).state(k)...)
		}
		t.move(rows, w.Name, &w.Key, w.Version == 0 || w.Relist || w.Facts)
	}
	for _, s := range []*statement{
		dropMembers, dropReady, dropRunning, dropKeys, insertKeys, rewriteKeys, changeKeys, grantKeys, updateKeys,
		updateMembers, insertMembers, moveReady, insertReady, moveRunning, insertRunning,
	} {
		set(s, rows[s])
	}
}

// move puts the rows that other tables have of a key where they belong; k is nil
// for one that is dropped. listed is set when its lists or its address changed.
func (t *leaseTx) move(rows rowsBy, name string, k *lease.Key, listed bool) {
	was := t.spots[name] // nothing for a new one
	var now spot
	var state []any
	exitIP, seat := "", int64(0)
	if k != nil {
		now = spot{pools: k.Pools, leaving: k.Leaving, free: micros(k.FreeAt()), rank: rank(k), expires: runs(k)}
		state, exitIP, seat = readyValues(k), k.ExitIP, k.Seat
	}
	for _, p := range now.pools {
		if slices.Contains(was.pools, p) {
			rows.add(moveReady, append([]any{p, was.free, was.rank, name, now.free, now.rank}, state...)...)
		} else {
			rows.add(insertReady, append([]any{p, now.free, now.rank, name}, state...)...)
		}
	}
	for _, p := range was.pools {
		if !slices.Contains(now.pools, p) {
			rows.add(dropReady, p, was.free, was.rank, name)
		}
	}
	switch {
	case was.expires == now.expires:
	case was.expires == 0:
		rows.add(insertRunning, now.expires, name)
	case now.expires == 0:
		rows.add(dropRunning, was.expires, name)
	default:
		rows.add(moveRunning, was.expires, name, now.expires)
	}
	if !listed {
		return
	}
	before := slices.Concat(was.pools, was.leaving)
	after := slices.Concat(now.pools, now.leaving)
	for i, p := range after {
		leaving := i >= len(now.pools)
		if slices.Contains(before, p) {
			rows.add(updateMembers, p, name, leaving, exitIP, seat)
		} else {
			rows.add(insertMembers, p, name, leaving, exitIP, seat)
		}
	}
	for _, p := range before {
		if !slices.Contains(after, p) {
			rows.add(dropMembers, p, name)
		}
	}
}

// forget drops what says nothing any more.
func (t *leaseTx) forget(c lease.Changes, d desk) {
	now, most := d.Now, int64(c.Forget)
	before := func(ago time.Duration) int64 { return micros(now.Add(-ago)) }
	if c.Forget <= 0 {
		if c.ForgetRests > 0 {
			t.writes = append(t.writes, []step{
				{statement: forgetCooldowns, args: []any{before(0), int64(c.ForgetRests)}},
				{statement: forgetPlaces, args: []any{int64(c.ForgetRests)}},
				{statement: forgetOldLines},
			}...)
		}
		return
	}
	t.writes = append(t.writes, []step{
		{statement: forgetTickets, args: []any{before(0), most}},
		{statement: forgetCooldowns, args: []any{before(0), most}},
		{statement: forgetLines, args: []any{before(lease.LineFor), most}},
		{statement: dropLines, args: []any{before(lease.LineFor), most}},
		{statement: forgetPlaces, args: []any{most}},
		{statement: forgetOldLines},
		{statement: forgetChanges, args: []any{before(24 * time.Hour), most}},
		{statement: markForgotten, args: []any{before(lease.EventsFor), d.events - lease.MaxEvents, most}},
		{statement: forgetEvents},
	}...)
}

// latest leaves one change of each pool: those before it are over.
func latest(all []lease.Change) (last []lease.Change) {
	at := map[string]int{}
	for _, c := range all {
		i, have := at[c.Pool]
		switch {
		case !have:
			at[c.Pool] = len(last)
			last = append(last, c)
		case cmp.Or(c.Began.Compare(last[i].Began), c.Until.Compare(last[i].Until)) > 0:
			last[i] = c
		}
	}
	return last
}

func rowsOf[T any](all []T, values func(*T) []any) [][]any {
	rows := make([][]any, len(all))
	for i := range all {
		rows[i] = values(&all[i])
	}
	return rows
}

func ids(all []string) [][]any {
	rows := make([][]any, len(all))
	for i, id := range all {
		rows[i] = []any{id}
	}
	return rows
}
