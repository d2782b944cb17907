package lease

import (
	"cmp"
	"maps"
	"math"
	"slices"
)

// queue is the live waiters of a pool in order, as far as they are known.
type queue struct {
	// stored waited when the transaction began, in that order; more is set while
	// the store has others behind them.
	stored []*ticketRow
	limit  int
	more   bool
	// mine wait since this transaction: new ones, and such that came back.
	mine []*ticketRow
}

func (w *work) addQueue(q QueueWant, found []Ticket) {
	have := w.queues[q.Pool]
	if have == nil {
		have = &queue{}
		w.queues[q.Pool] = have
	}
	have.stored = have.stored[:0]
	for i := range found {
		have.stored = append(have.stored, w.ticket(found[i]))
	}
	have.limit, have.more = q.Limit, len(found) >= q.Limit
}

// join puts a ticket that waits into the queue, unless the store has it there.
func (w *work) join(t *ticketRow) {
	q := w.queues[t.Pool]
	if q == nil || !t.moved() && t.was.Live(w.begin.Now) {
		return // nobody asks in this transaction, or it comes with the others
	}
	at, have := slices.BinarySearchFunc(q.mine, t.Seq, func(o *ticketRow, seq int64) int { return cmp.Compare(o.Seq, seq) })
	if !have {
		q.mine = slices.Insert(q.mine, at, t)
	}
}

// walk is a way along a queue.
type walk struct{ stored, mine int }

// waiter returns the next live waiter of a pool, nil behind the last one.
func (w *work) waiter(pool string, at *walk) *ticketRow {
	q := w.queues[pool]
	for {
		if at.stored == len(q.stored) && q.more {
			// What comes from the store is the same again, and further.
			if w.load(Want{Queues: []QueueWant{{pool, q.limit * 4}}}) != nil {
				return nil
			}
			continue
		}
		var t *ticketRow
		switch {
		case at.stored < len(q.stored) && (at.mine == len(q.mine) || q.stored[at.stored].was.Seq < q.mine[at.mine].Seq):
			t = q.stored[at.stored]
			at.stored++
			if t.moved() {
				continue
			}
		case at.mine < len(q.mine):
			t = q.mine[at.mine]
			at.mine++
		default:
			return nil
		}
		if t.live(w.begin.Now) {
			return t
		}
	}
}

// admit makes the ticket of a request that has none that counts.
func (w *work) admit(op Take) *ticketRow {
	t := w.tickets[op.Ticket]
	if t == nil {
		t = &ticketRow{}
		w.tickets[op.Ticket] = t
	} else if q := w.queues[t.Pool]; q != nil {
		q.mine = slices.DeleteFunc(q.mine, func(o *ticketRow) bool { return o == t })
	}
	t.Ticket = Ticket{
		ID: op.Ticket, Digest: op.Digest, Pool: op.Pool, Target: op.Target, Account: op.Account, Holder: op.Holder,
		Where: maps.Clone(op.Where), Match: slices.Clone(op.Match), RunsHooks: op.RunsHooks, Since: w.begin.Now,
	}
	t.dropped, t.class = false, ""
	w.touch(t)
	return t
}

// last is the place behind everybody.
const last = math.MaxInt64

// ahead counts the live waiters of a pool before a place.
func (w *work) ahead(pool string, seq int64) (int, bool) {
	var n int
	if q := w.queues[pool]; q.more {
		want := AheadWant{pool, seq}
		if _, known := w.aheads[want]; !known && !w.countAhead(want) {
			return 0, false
		}
		n = w.aheads[want]
	} else {
		n, _ = slices.BinarySearchFunc(q.stored, seq, func(t *ticketRow, seq int64) int { return cmp.Compare(t.was.Seq, seq) })
	}
	for _, t := range w.stirred { // what this transaction changed
		if t.stored && t.was.Pool == pool && t.was.Seq < seq && t.was.Live(w.begin.Now) {
			n--
		}
		if t.Pool == pool && t.Seq < seq && t.live(w.begin.Now) {
			n++
		}
	}
	return n, true
}

// countAhead asks for a place, and in the same breath for those of all who ask
// for a key in this transaction.
func (w *work) countAhead(first AheadWant) bool {
	wants := map[AheadWant]bool{first: true}
	for _, op := range w.takes {
		if q := w.queues[op.Pool]; q == nil || !q.more {
			continue
		}
		want := AheadWant{op.Pool, last}
		if t := w.tickets[op.Ticket]; t != nil && !t.dropped && t.Waiting() {
			want.Seq = t.Seq
		}
		if _, known := w.aheads[want]; !known {
			wants[want] = true
		}
	}
	return w.load(Want{Ahead: slices.Collect(maps.Keys(wants))}) == nil
}

// waiting returns a ticket that waits, nil for none. What a sweep of this
// transaction forgets is none.
func (w *work) waiting(id string) *ticketRow {
	t := w.tickets[id]
	if t == nil || t.dropped || !t.Waiting() || w.forget > 0 && t.PlaceUntil.Before(w.begin.Now) {
		return nil
	}
	return t
}

func (w *work) live(op Live) Result {
	for _, id := range op.Tickets {
		if t := w.waiting(id); t != nil {
			t.LiveUntil, t.PlaceUntil = w.begin.Now.Add(LiveFor), w.begin.Now.Add(PlaceFor)
			w.touch(t)
			w.join(t)
		}
	}
	return Result{}
}

func (w *work) leave(op Leave) Result {
	t := w.waiting(op.Ticket)
	if t == nil {
		return Result{}
	}
	t.LiveUntil, t.PlaceUntil = w.begin.Now, w.begin.Now.Add(PlaceFor)
	t.dropped = op.Forget
	w.touch(t)
	// Whoever stands behind it may have what was set aside for it.
	w.freed[t.Pool] = true
	return Result{}
}

func (w *work) revive() Result {
	for i := range w.lost {
		w.ticket(w.lost[i])
		t := w.waiting(w.lost[i].ID)
		if t == nil || t.PlaceUntil.After(w.begin.Now) || t.PlaceUntil.Before(w.lastPlace.Add(-PlaceFor)) {
			continue
		}
		t.PlaceUntil = w.begin.Now.Add(PlaceFor)
		w.touch(t)
	}
	return Result{}
}
