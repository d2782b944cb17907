package leasetest

import (
	"cmp"
	"slices"
	"time"

	"fleetdesk/internal/core/lease"
)

// list is the index of a pool's keys.
type list struct {
	names   map[string]bool // those that it lists
	leaving map[string]bool
	ready   sorted // FreeAt is zero, by rank
	timed   sorted // FreeAt is a time, by it
	seats   sorted // those with a seat, by it
}

// entry is a name with what it is ordered by.
type entry struct {
	at, then, own time.Time
	seq           int64
	name          string
}

func (a entry) compare(b entry) int {
	return cmp.Or(a.at.Compare(b.at), a.then.Compare(b.then), a.own.Compare(b.own), cmp.Compare(a.seq, b.seq), cmp.Compare(a.name, b.name))
}

// sorted keeps entries in order, in blocks, so that a change moves a few
// hundred entries however many there are.
type sorted struct{ blocks [][]entry }

const blockSize = 256

// block finds the one that holds, or would hold, the entry.
func (s *sorted) block(e entry) int {
	i, _ := slices.BinarySearchFunc(s.blocks, e, func(b []entry, e entry) int { return b[len(b)-1].compare(e) })
	return min(i, len(s.blocks)-1)
}

func (s *sorted) add(e entry) {
	if len(s.blocks) == 0 {
		s.blocks = [][]entry{{e}}
		return
	}
	i := s.block(e)
	at, have := slices.BinarySearchFunc(s.blocks[i], e, entry.compare)
	if have {
		return
	}
	b := slices.Insert(s.blocks[i], at, e)
	if len(b) <= 2*blockSize {
		s.blocks[i] = b
		return
	}
	s.blocks = slices.Replace(s.blocks, i, i+1, slices.Clone(b[:blockSize]), slices.Clone(b[blockSize:]))
}

func (s *sorted) remove(e entry) {
	if len(s.blocks) == 0 {
		return
	}
	i := s.block(e)
	at, have := slices.BinarySearchFunc(s.blocks[i], e, entry.compare)
	if !have {
		return
	}
	if s.blocks[i] = slices.Delete(s.blocks[i], at, at+1); len(s.blocks[i]) == 0 {
		s.blocks = slices.Delete(s.blocks, i, i+1)
	}
}

// all yields the entries in order.
func (s *sorted) all(yield func(entry) bool) { s.from(entry{}, yield) }

// from yields those that are not before one.
func (s *sorted) from(first entry, yield func(entry) bool) {
	if len(s.blocks) == 0 {
		return
	}
	i := s.block(first)
	at, _ := slices.BinarySearchFunc(s.blocks[i], first, entry.compare)
	for ; i < len(s.blocks); i++ {
		for _, e := range s.blocks[i][at:] {
			if !yield(e) {
				return
			}
		}
		at = 0
	}
}

// place is where a pool's index has a key.
func (l *list) place(k *lease.Key) (*sorted, entry) {
	switch at := k.FreeAt(); {
	case at.IsZero():
		return &l.ready, entry{at: k.Rank(), name: k.Name}
	case at.Before(lease.Never()):
		return &l.timed, entry{at: at, name: k.Name}
	}
	return nil, entry{}
}

func (m *Memory) list(pool string) *list {
	l := m.lists[pool]
	if l == nil {
		l = &list{names: map[string]bool{}, leaving: map[string]bool{}}
		m.lists[pool] = l
	}
	return l
}

// unindex takes a row out of every index, and index puts it in.
func (m *Memory) unindex(k *lease.Key) {
	for _, p := range k.Pools {
		l := m.list(p)
		delete(l.names, k.Name)
		l.seats.remove(entry{seq: k.Seat, name: k.Name})
		if s, e := l.place(k); s != nil {
			s.remove(e)
		}
	}
	for _, p := range k.Leaving {
		delete(m.list(p).leaving, k.Name)
	}
	if k.Lease != nil && k.Lease.End == "" {
		m.expiries.remove(entry{at: k.Lease.Expires, name: k.Name})
	}
}

func (m *Memory) index(k *lease.Key) {
	for _, p := range k.Pools {
		l := m.list(p)
		l.names[k.Name] = true
		if k.Seat > 0 {
			l.seats.add(entry{seq: k.Seat, name: k.Name})
		}
		if s, e := l.place(k); s != nil {
			s.add(e)
		}
	}
	for _, p := range k.Leaving {
		m.list(p).leaving[k.Name] = true
	}
	if k.Lease != nil && k.Lease.End == "" {
		m.expiries.add(entry{at: k.Lease.Expires, name: k.Name})
	}
}

// setTicket keeps a ticket; dropTicket forgets it.
func (m *Memory) setTicket(t lease.Ticket) {
	m.dropTicket(t.ID)
	m.tickets[t.ID] = t
	if t.Waiting() {
		q := m.waiting[t.Pool]
		if q == nil {
			q = &sorted{}
			m.waiting[t.Pool] = q
		}
		q.add(entry{seq: t.Seq, name: t.ID})
	}
}

func (m *Memory) dropTicket(id string) {
	t, ok := m.tickets[id]
	if !ok {
		return
	}
	delete(m.tickets, id)
	if q := m.waiting[t.Pool]; q != nil {
		q.remove(entry{seq: t.Seq, name: id})
	}
}
