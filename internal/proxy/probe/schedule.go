package probe

import (
	"container/heap"
	"context"
	"time"

	"fleetdesk/internal/core/health"
)

// entry is one subject being watched. It is replaced, not changed, whenever a
// running probe's answer must no longer count: identity is its generation.
type entry struct {
	key     string
	subject Subject
	// far is what is known of the subject's far end, shared by its peers.
	far     *farEnd
	history health.History
	// snapshot lacks the state, which is history's, and the facts, which are
	// record's.
	snapshot Snapshot
	record   record
	// tries counts probes since the entry was added.
	tries int
	// counted is when a Fail was last stepped.
	counted time.Time
	// suspect is when the first failure ended that no success has answered; see
	// premature.
	suspect time.Time
	// refused: the last control request was refused.
	refused bool
	// cancel ends the running or last probe; nil before the first.
	cancel context.CancelFunc

	// due is when the next probe is wanted, or the running one was; the zero
	// time is before all.
	due time.Time
	// place is the index in the schedule, -1 when not in it.
	place int
}

func (e *entry) queued() bool { return e.place >= 0 }

// schedule is a heap of entries by due time; the zero value is empty.
type schedule struct{ heap entryHeap }

func (s *schedule) add(e *entry, due time.Time) {
	e.due = due
	heap.Push(&s.heap, e)
}

func (s *schedule) move(e *entry, due time.Time) {
	e.due = due
	heap.Fix(&s.heap, e.place)
}

func (s *schedule) remove(e *entry) {
	if e.queued() {
		heap.Remove(&s.heap, e.place)
	}
}

func (s *schedule) first() *entry {
	if len(s.heap) == 0 {
		return nil
	}
	return s.heap[0]
}

type entryHeap []*entry

func (h entryHeap) Len() int           { return len(h) }
func (h entryHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h entryHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

func (h *entryHeap) Push(x any) {
	e, _ := x.(*entry)
	e.place = len(*h)
	*h = append(*h, e)
}

func (h *entryHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	e.place = -1
	return e
}
