package leasetest

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

// tx is one transaction. Nothing of it is kept before Save, so Load sees the
// state at its begin without doing anything for that.
type tx struct {
	m   *Memory
	now time.Time
}

func (t *tx) Load(ctx context.Context, w lease.Want) (lease.Found, error) {
	if err := ctx.Err(); err != nil {
		return lease.Found{}, fault.Wrap(fault.Timeout, err)
	}
	var f lease.Found
	pools, keys := map[string]bool{}, map[string]bool{}
	for _, n := range w.Pools {
		pools[n] = true
	}
	for _, n := range w.Keys {
		keys[n] = true
	}
	for n, k := range t.m.keys {
		if slices.Contains(w.ExitIPs, k.ExitIP) && k.ExitIP != "" {
			keys[n] = true
		}
	}
	for _, id := range w.Tickets {
		if ticket, ok := t.m.tickets[id]; ok {
			f.Tickets = append(f.Tickets, copyTicket(ticket))
			if !ticket.Waiting() {
				keys[ticket.Granted.Key] = true
			}
		}
	}
	for _, n := range slices.Sorted(maps.Keys(keys)) {
		if k := t.m.keys[n]; k != nil {
			f.Keys = append(f.Keys, t.m.copyKey(k, t.now))
			if k.Lease != nil {
				pools[k.Lease.Pool] = true
			}
		}
	}
	for _, n := range slices.Sorted(maps.Keys(pools)) {
		if p, ok := t.m.pools[n]; ok {
			f.Pools = append(f.Pools, p)
		}
	}
	t.loadQueues(w, &f)
	for _, c := range w.Candidates {
		f.Candidates = append(f.Candidates, t.candidates(c))
	}
	for _, free := range w.Free {
		f.Free = append(f.Free, t.free(free))
	}
	t.loadLines(w, &f)
	for _, n := range w.Next {
		f.Next = append(f.Next, t.next(n))
	}
	for _, p := range w.Members {
		f.Members = append(f.Members, t.members(p))
	}
	for _, l := range w.Listed {
		f.Listed = append(f.Listed, t.listed(l))
	}
	for _, id := range w.Cooldowns {
		if c, ok := t.m.rests[id]; ok {
			f.Cooldowns = append(f.Cooldowns, copyRest(c))
		}
	}
	if len(w.Bars) > 0 {
		f.Bars = map[string][]lease.Bar{}
		for _, n := range w.Bars {
			f.Bars[n] = t.m.bars(n, t.now)
		}
	}
	for _, p := range w.Changes {
		if ch := t.m.change(p); ch != nil {
			f.Changes = append(f.Changes, *ch)
		}
	}
	if w.Due > 0 {
		t.loadDue(w.Due, &f)
		for _, l := range t.m.lines {
			f.Old = f.Old || l.Used.Before(t.now.Add(-lease.LineFor))
		}
	}
	return f, nil
}

func (t *tx) loadQueues(w lease.Want, f *lease.Found) {
	for _, q := range w.Queues {
		live := []lease.Ticket{}
		for ticket := range t.m.queue(q.Pool) {
			if len(live) == q.Limit {
				break
			}
			if ticket.Live(t.now) {
				live = append(live, copyTicket(ticket))
			}
		}
		f.Queues = append(f.Queues, live)
	}
	for _, a := range w.Ahead {
		n := 0
		for ticket := range t.m.queue(a.Pool) {
			if ticket.Seq < a.Seq && ticket.Live(t.now) {
				n++
			}
		}
		f.Ahead = append(f.Ahead, n)
	}
	if !w.Lost {
		return
	}
	for _, pool := range slices.Sorted(maps.Keys(t.m.waiting)) {
		for ticket := range t.m.queue(pool) {
			if ticket.PlaceUntil.After(f.LastPlace) {
				f.LastPlace = ticket.PlaceUntil
			}
			if !ticket.PlaceUntil.After(t.now) && len(f.Lost) < lease.MaxQueue {
				f.Lost = append(f.Lost, copyTicket(ticket))
			}
		}
	}
}

func (t *tx) candidates(c lease.CandidateWant) lease.CandidatesFound {
	f := lease.CandidatesFound{}
	l := t.m.lists[c.Pool]
	if l == nil {
		return f
	}
	for _, s := range []*sorted{&l.ready, &l.timed} {
		n := 0
		for e := range s.all {
			k := t.m.keys[e.name]
			if k.FreeAt().After(t.now) {
				break // by time from here on
			}
			if c.Target != "" && t.m.rested(k, c.Target, t.now) {
				continue
			}
			if n++; n > c.Limit {
				f.More = true
				break
			}
			f.Keys = append(f.Keys, t.m.copyKey(k, t.now))
		}
	}
	return f
}

func (t *tx) next(w lease.NextWant) lease.NextFound {
	f := lease.NextFound{}
	l := t.m.lists[w.Pool]
	if l == nil {
		return f
	}
	for e := range l.timed.all {
		if !e.at.After(t.now) {
			continue
		}
		if len(f.Keys) == lease.MaxNext {
			break
		}
		f.Keys = append(f.Keys, t.m.copyKey(t.m.keys[e.name], t.now))
	}
	if w.Target == "" {
		return f
	}
	for id, c := range t.m.rests {
		if id.Target != w.Target || !c.Until.After(t.now) || !f.Rested.IsZero() && !c.Until.Before(f.Rested) {
			continue
		}
		if id.Scope == lease.ScopeKey && l.names[id.ID] || id.Scope == lease.ScopeExitIP && t.m.leavesBy(l, id.ID) {
			f.Rested = c.Until
		}
	}
	return f
}

func (t *tx) members(pool string) lease.MembersFound {
	f := lease.MembersFound{}
	l := t.m.lists[pool]
	if l == nil {
		return f
	}
	f.Names = slices.Sorted(maps.Keys(l.names))
	for _, n := range f.Names {
		if d := t.m.keys[n].Disabled; d != nil && d.Auto {
			f.AutoDisabled++
		}
	}
	return f
}

func (t *tx) listed(w lease.ListedWant) (keys []lease.Key) {
	if l := t.m.lists[w.Pool]; l != nil {
		for _, n := range page(slices.Sorted(maps.Keys(l.names)), "", w.Limit) {
			keys = append(keys, t.m.copyKey(t.m.keys[n], t.now))
		}
	}
	return keys
}

func (t *tx) loadDue(limit int, f *lease.Found) {
	for e := range t.m.expiries.all {
		switch {
		case e.at.After(t.now):
			f.NextDue = e.at
			return
		case len(f.Due) < limit:
			f.Due = append(f.Due, t.m.copyKey(t.m.keys[e.name], t.now))
		}
	}
}

// Save keeps all or nothing.
func (t *tx) Save(ctx context.Context, c lease.Changes) error {
	if err := ctx.Err(); err != nil {
		return fault.Wrap(fault.Timeout, err)
	}
	m := t.m
	for i := range c.Keys {
		if err := m.checkVersion(&c.Keys[i].Key); err != nil {
			return err
		}
	}
	for i := range c.DropKeys {
		if err := m.checkVersion(&c.DropKeys[i]); err != nil {
			return err
		}
		if m.keys[c.DropKeys[i].Name] == nil {
			return fault.Errorf(fault.Permanent, "leasetest: there is no key %q to drop", c.DropKeys[i].Name)
		}
	}
	m.begin = c.Begin
	for _, n := range c.DropPools {
		delete(m.pools, n)
	}
	for _, p := range c.Pools {
		p.At = kept(p.At)
		m.pools[p.Name] = p
	}
	for i := range c.DropKeys {
		if k := m.keys[c.DropKeys[i].Name]; k != nil {
			m.unindex(k)
			delete(m.keys, k.Name)
		}
	}
	for i := range c.Keys {
		m.write(&c.Keys[i])
	}
	for _, id := range c.DropTickets {
		m.dropTicket(id)
	}
	for i := range c.Tickets {
		m.setTicket(copyTicket(c.Tickets[i]))
	}
	for _, id := range c.LiftCooldowns {
		maps.DeleteFunc(m.rests, func(have lease.CooldownID, _ lease.Cooldown) bool {
			return have.Scope == id.Scope && have.ID == id.ID && (id.Target == "" || id.Target == have.Target)
		})
	}
	for _, r := range c.Cooldowns {
		m.rests[r.CooldownID] = copyRest(r)
	}
	m.saveLines(&c)
	for _, ch := range c.Changes {
		ch.Keys = slices.Clone(ch.Keys)
		ch.Began, ch.Until = kept(ch.Began), kept(ch.Until)
		m.changes[ch.ID] = ch
	}
	m.events = append(m.events, c.Events...)
	some(m.rests, c.ForgetRests, func(c lease.Cooldown) bool { return c.Forget.Before(t.now) })
	if c.Forget > 0 {
		m.forget(c.Forget, t.now)
	}
	if len(c.Freed)+len(c.Events) > 0 {
		m.tell(lease.News{Freed: c.Freed, Events: len(c.Events) > 0})
	}
	return nil
}

func (m *Memory) checkVersion(k *lease.Key) error {
	have := int64(0)
	if row := m.keys[k.Name]; row != nil {
		have = row.Version
	}
	if k.Version != have {
		return fault.Errorf(fault.Transient, "leasetest: key %s was read with version %d and has %d", k.Name, k.Version, have)
	}
	return nil
}

// write keeps of a row what the write says that it changed, and nothing else.
func (m *Memory) write(w *lease.KeyWrite) {
	k := copyRow(&w.Key)
	k.Bars = nil
	if old := m.keys[k.Name]; old != nil {
		m.unindex(old)
		if !w.Relist {
			k.Pools, k.Leaving = old.Pools, old.Leaving
		}
		if !w.Facts {
			k.Managed, k.UID, k.Attributes, k.ExitIP, k.Unfit = old.Managed, old.UID, old.Attributes, old.ExitIP, old.Unfit
			k.Weight, k.Joined, k.Seat, k.Since = old.Weight, old.Joined, old.Seat, old.Since
		}
	}
	k.Version++
	m.keys[k.Name] = &k
	m.index(&k)
}

// forget drops what says nothing any more, at most so many of each kind.
func (m *Memory) forget(most int, now time.Time) {
	var dead []string
	for id, t := range m.tickets {
		if t.Waiting() && t.PlaceUntil.Before(now) || !t.Waiting() && t.Kept.Before(now) {
			dead = append(dead, id)
		}
	}
	for _, id := range dead[:min(len(dead), most)] {
		m.dropTicket(id)
	}
	some(m.rests, most, func(c lease.Cooldown) bool { return c.Forget.Before(now) })
	for id, l := range m.lines {
		if l.Used.Before(now.Add(-lease.LineFor)) {
			m.dropLine(id)
		}
	}
	some(m.changes, most, func(c lease.Change) bool { return c.Until.Before(now.Add(-24 * time.Hour)) })
	n := 0
	for n < min(len(m.events), most) && (m.events[n].At.Before(now.Add(-lease.EventsFor)) || len(m.events)-n > lease.MaxEvents) {
		m.forgotten = m.events[n].Seq
		n++
	}
	m.events = slices.Delete(m.events, 0, n)
}

func some[K comparable, V any](rows map[K]V, most int, drop func(V) bool) {
	for id, row := range rows {
		if most > 0 && drop(row) {
			delete(rows, id)
			most--
		}
	}
}

// queue yields the waiting tickets of a pool in order.
func (m *Memory) queue(pool string) func(yield func(lease.Ticket) bool) {
	return func(yield func(lease.Ticket) bool) {
		q := m.waiting[pool]
		if q == nil {
			return
		}
		for e := range q.all {
			if !yield(m.tickets[e.name]) {
				return
			}
		}
	}
}

// rested reports whether the key rests for the target, by itself or by the
// address that it leaves by.
func (m *Memory) rested(k *lease.Key, target string, now time.Time) bool {
	if m.rests[lease.CooldownID{Scope: lease.ScopeKey, ID: k.Name, Target: target}].Until.After(now) {
		return true
	}
	return k.ExitIP != "" && m.rests[lease.CooldownID{Scope: lease.ScopeExitIP, ID: k.ExitIP, Target: target}].Until.After(now)
}

func (m *Memory) leavesBy(l *list, exitIP string) bool {
	for n := range l.names {
		if m.keys[n].ExitIP == exitIP {
			return true
		}
	}
	return false
}

// bars are the ones in force on a name.
func (m *Memory) bars(name string, now time.Time) []lease.Bar {
	var bars []lease.Bar
	for _, ch := range m.changes {
		if now.Before(ch.Until) && slices.Contains(ch.Keys, name) {
			bars = append(bars, lease.Bar{Change: ch.ID, By: ch.Account, Until: ch.Until})
		}
	}
	bars = append(bars, m.actions[name]...)
	slices.SortFunc(bars, func(a, b lease.Bar) int {
		return cmp.Or(cmp.Compare(a.Change, b.Change), cmp.Compare(a.Action, b.Action))
	})
	return bars
}

// change is the latest change of a pool, nil for none.
func (m *Memory) change(pool string) *lease.Change {
	var last *lease.Change
	for _, ch := range m.changes {
		if ch.Pool != pool {
			continue
		}
		if last == nil || cmp.Or(ch.Began.Compare(last.Began), ch.Until.Compare(last.Until)) > 0 {
			ch.Keys = slices.Clone(ch.Keys)
			last = &ch
		}
	}
	return last
}

// copyKey is a row as it is read, with its bars.
func (m *Memory) copyKey(k *lease.Key, now time.Time) lease.Key {
	c := copyRow(k)
	c.Bars = m.bars(k.Name, now)
	return c
}

// copyRow copies everything, so that no caller can reach what is kept, with
// times as a database keeps them.
func copyRow(k *lease.Key) lease.Key {
	c := *k
	c.Pools, c.Leaving, c.Past = slices.Clone(k.Pools), slices.Clone(k.Leaving), slices.Clone(k.Past)
	c.Attributes = maps.Clone(k.Attributes)
	if k.Disabled != nil {
		d := *k.Disabled
		d.At = kept(d.At)
		c.Disabled = &d
	}
	if k.Lease != nil {
		l := *k.Lease
		l.TTL = l.TTL.Truncate(time.Microsecond)
		l.Taken, l.Expires, l.EndedAt = kept(l.Taken), kept(l.Expires), kept(l.EndedAt)
		c.Lease = &l
	}
	c.CoolUntil, c.UsedAt, c.Joined = kept(c.CoolUntil), kept(c.UsedAt), kept(c.Joined)
	return c
}

func copyRest(c lease.Cooldown) lease.Cooldown {
	c.Until, c.BannedUntil, c.Forget, c.Turn = kept(c.Until), kept(c.BannedUntil), kept(c.Forget), kept(c.Turn)
	c.Uses = slices.Clone(c.Uses)
	for i := range c.Uses {
		c.Uses[i].Ends = kept(c.Uses[i].Ends)
	}
	return c
}

func copyTicket(t lease.Ticket) lease.Ticket {
	t.Where, t.Match = maps.Clone(t.Where), slices.Clone(t.Match)
	for i := range t.Match {
		t.Match[i].Values = slices.Clone(t.Match[i].Values)
	}
	t.Since, t.LiveUntil, t.PlaceUntil, t.Kept = kept(t.Since), kept(t.LiveUntil), kept(t.PlaceUntil), kept(t.Kept)
	return t
}
