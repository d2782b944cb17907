package sqldb

import (
	"context"
	"fmt"
	"strings"
	"time"

	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/lease"
)

// actionLog is [action.Log] over either kind of database. Entries are added in
// the desk's transactions and have numbers of its counter, so that they are seen
// in the order of their numbers, and a take sees the bar of an action or not.
type actionLog struct{ *leaseStore }

// Actions returns the action log; it lives as long as the database is open.
func (d *DB) Actions() action.Log { return &actionLog{d.desk} }

const (
	actionValues  = `r.seq, r.action, r.phase, r.pool, r.key, r.verb, r."user", r.host, r.command, r.ok, r.detail, r.time`
	selectActions = "SELECT " + actionValues + " FROM fleetdesk.resource_action r"
)

var (
	loadAction   = plain(selectActions + " WHERE r.action = $1")
	insertAction = plain(`INSERT INTO fleetdesk.resource_action (seq, action, phase, pool, key, verb, "user", host, command, ok, detail, time)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`)
	openAction   = plain(`INSERT INTO fleetdesk.open_actions (action, seq, pool, key, "user") VALUES ($1, $2, $3, $4, $5)`)
	closeAction  = plain("DELETE FROM fleetdesk.open_actions WHERE action = $1")
	loadKeyPools = plain("SELECT k.pools FROM fleetdesk.keys k WHERE k.name = $1")
)

func scanAction(r scanner) (e action.Entry, err error) {
	var at int64
	err = r.Scan(&e.Seq, &e.Action, (*string)(&e.Phase), &e.Pool, &e.Key, (*string)(&e.Verb), &e.User, &e.Host, &e.Command, &e.OK, &e.Detail, &at)
	e.Time = moment(at)
	return e, err
}

// Append implements [action.Log].
func (l *actionLog) Append(ctx context.Context, e action.Entry) (held action.Entry, err error) {
	if err := e.Validate(); err != nil {
		return action.Entry{}, err
	}
	err = l.alone(ctx, func(ctx context.Context, d desk, q asker) (kept, error) {
		var existing []action.Entry
		var pools []string
		err := q.ask(ctx,
			step{statement: loadAction, args: []any{e.Action}, row: into(&existing, scanAction)},
			step{statement: loadKeyPools, args: []any{e.Key}, row: func(r scanner) error {
				var list string
				err := r.Scan(&list)
				pools = names(list)
				return err
			}},
		)
		if err != nil {
			return kept{}, err
		}
		var add bool
		if held, add, err = action.Next(existing, e); err != nil || !add {
			return kept{desk: d}, err
		}
		d.Counter++
		held = e
		held.Seq, held.Time = d.Counter, d.Now
		var ok any
		if e.OK != nil {
			own := *e.OK
			ok, held.OK = own, &own
		}
		k := kept{writes: []step{{statement: insertAction, args: []any{
			held.Seq, held.Action, string(held.Phase), held.Pool, held.Key, string(held.Verb), held.User, held.Host,
			held.Command, ok, held.Detail, micros(held.Time),
		}}}}
		if e.Phase == action.PhaseStarted {
			k.writes = append(k.writes, step{statement: openAction, args: []any{held.Action, held.Seq, held.Pool, held.Key, held.User}})
		} else {
			k.writes = append(k.writes, step{statement: closeAction, args: []any{held.Action}})
			if len(pools) > 0 { // the end of its bar may free the key
				k.news = lease.News{Freed: pools}
				d.wakes++
			}
		}
		k.writes = append(k.writes, saveOf(d))
		k.desk = d
		return k, nil
	})
	if err != nil {
		return action.Entry{}, err
	}
	return held, nil
}

// Entries implements [action.Log].
func (l *actionLog) Entries(ctx context.Context, q action.Query) ([]action.Entry, error) {
	if err := q.Validate(); err != nil {
		return nil, err
	}
	f := filter{}
	for _, one := range []struct{ column, value string }{{"r.pool", q.Pool}, {"r.key", q.Key}, {"r.action", q.Action}} {
		if !storable(one.value) {
			return nil, nil
		}
		if one.value != "" {
			f.add(one.column+" = $%d", one.value)
		}
	}
	if q.Before > 0 {
		f.add("r.seq < $%d", q.Before)
	}
	f.args = append(f.args, int64(q.Limit))
	return l.list(ctx, plain(fmt.Sprintf("%s%s ORDER BY r.seq DESC LIMIT $%d", selectActions, f.text(), len(f.args))), f.args)
}

// Open implements [action.Log].
func (l *actionLog) Open(ctx context.Context, q action.OpenQuery) ([]action.Entry, error) {
	if err := q.Validate(); err != nil {
		return nil, err
	}
	f := filter{}
	f.add("o.seq > $%d", q.After)
	if !storable(q.Pool) {
		return nil, nil
	}
	if q.Pool != "" {
		f.add("o.pool = $%d", q.Pool)
	}
	if len(q.Keys) > 0 {
		f.add("o.key = ANY ($%d)", storables(q.Keys))
		f.where = append(f.where, "o.key <> ''")
	}
	f.args = append(f.args, int64(q.Limit))
	open := fmt.Sprintf("SELECT o.seq FROM fleetdesk.open_actions o%s ORDER BY o.seq LIMIT $%d", f.text(), len(f.args))
	return l.list(ctx, each(actionValues, open, "resource_action", "r", "r.seq = n.seq", " ORDER BY n.seq"), f.args)
}

// filter is the part of a query behind WHERE.
type filter struct {
	where []string
	args  []any
}

func (f *filter) add(condition string, arg any) {
	f.args = append(f.args, arg)
	f.where = append(f.where, fmt.Sprintf(condition, len(f.args)))
}

func (f *filter) text() string {
	if len(f.where) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(f.where, " AND ")
}

func (l *actionLog) list(ctx context.Context, s *statement, args []any) (all []action.Entry, err error) {
	err = l.look(ctx, func(ctx context.Context, _ time.Time, q asker) error {
		all = nil
		return q.ask(ctx, step{statement: s, args: args, row: into(&all, scanAction)})
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}
