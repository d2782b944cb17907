package actiontest

import (
	"context"
	"slices"
	"sync"
	"time"

	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/fault"
)

// Memory is an [action.Log] in memory. It passes the suite, and can be made to
// fail.
type Memory struct {
	clock func() time.Time

	mu      sync.Mutex
	entries []action.Entry // by Seq
	fail    error
}

// NewMemory returns an empty log that tells the time by clock; nil means
// time.Now.
func NewMemory(clock func() time.Time) *Memory {
	if clock == nil {
		clock = time.Now
	}
	return &Memory{clock: clock}
}

// Fail makes every later call return err, until it is called with nil.
func (m *Memory) Fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = err
}

// enter locks the log for a call that may go on.
func (m *Memory) enter(ctx context.Context) (leave func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, fault.Wrap(fault.Timeout, err)
	}
	m.mu.Lock()
	if m.fail != nil {
		defer m.mu.Unlock()
		return nil, m.fail
	}
	return m.mu.Unlock, nil
}

// Append implements [action.Log].
func (m *Memory) Append(ctx context.Context, e action.Entry) (action.Entry, error) {
	leave, err := m.enter(ctx)
	if err != nil {
		return action.Entry{}, err
	}
	defer leave()
	var existing []action.Entry
	for _, x := range m.entries {
		if x.Action == e.Action {
			existing = append(existing, x)
		}
	}
	held, add, err := action.Next(existing, e)
	if err != nil || !add {
		return held, err
	}
	e = clone(e)
	e.Seq, e.Time = int64(len(m.entries))+1, m.clock().UTC().Truncate(time.Microsecond)
	m.entries = append(m.entries, e)
	return clone(e), nil
}

// Entries implements [action.Log].
func (m *Memory) Entries(ctx context.Context, q action.Query) ([]action.Entry, error) {
	leave, err := m.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if err := q.Validate(); err != nil {
		return nil, err
	}
	var page []action.Entry
	for _, e := range slices.Backward(m.entries) {
		if len(page) < q.Limit && (q.Before == 0 || e.Seq < q.Before) &&
			(q.Pool == "" || e.Pool == q.Pool) && (q.Key == "" || e.Key == q.Key) && (q.Action == "" || e.Action == q.Action) {
			page = append(page, clone(e))
		}
	}
	return page, nil
}

// Open implements [action.Log].
func (m *Memory) Open(ctx context.Context, q action.OpenQuery) ([]action.Entry, error) {
	leave, err := m.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if err := q.Validate(); err != nil {
		return nil, err
	}
	ended := map[string]bool{}
	for _, e := range m.entries {
		if e.Phase != action.PhaseStarted {
			ended[e.Action] = true
		}
	}
	var page []action.Entry
	for _, e := range m.entries {
		if len(page) < q.Limit && e.Phase == action.PhaseStarted && !ended[e.Action] && e.Seq > q.After &&
			(q.Pool == "" || e.Pool == q.Pool) && (len(q.Keys) == 0 || slices.Contains(q.Keys, e.Key)) {
			page = append(page, clone(e))
		}
	}
	return page, nil
}

// clone shares nothing with e.
func clone(e action.Entry) action.Entry {
	if e.OK != nil {
		ok := *e.OK
		e.OK = &ok
	}
	return e
}
