package actiontest_test

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/action/actiontest"
	"fleetdesk/internal/core/fault"
)

func TestMemory(t *testing.T) {
	actiontest.Run(t, func(*testing.T) action.Log { return actiontest.NewMemory(nil) })
}

func TestMemoryFails(t *testing.T) {
	m := actiontest.NewMemory(nil)
	broken := fault.New(fault.Unavailable, "the disk is gone")
	m.Fail(broken)
	if _, err := m.Entries(t.Context(), action.Query{Limit: 1}); !errors.Is(err, broken) {
		t.Errorf("told to fail: %v", err)
	}
	m.Fail(nil)
	if _, err := m.Open(t.Context(), action.OpenQuery{Limit: 1}); err != nil {
		t.Errorf("told to work: %v", err)
	}
}

func TestClausesAreNamedOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range actiontest.Clauses() {
		if seen[c.Name] || c.Name == "" || c.Promise == "" || c.Check == nil {
			t.Errorf("clause %q is named twice or lacks a part", c.Name)
		}
		seen[c.Name] = true
	}
}

// mutant is the good log with single methods replaced.
type mutant struct {
	*actiontest.Memory
	append  func(context.Context, action.Entry) (action.Entry, error)
	entries func(context.Context, action.Query) ([]action.Entry, error)
	open    func(context.Context, action.OpenQuery) ([]action.Entry, error)
}

func (m *mutant) Append(ctx context.Context, e action.Entry) (action.Entry, error) {
	if m.append != nil {
		return m.append(ctx, e)
	}
	return m.Memory.Append(ctx, e)
}

func (m *mutant) Entries(ctx context.Context, q action.Query) ([]action.Entry, error) {
	if m.entries != nil {
		return m.entries(ctx, q)
	}
	return m.Memory.Entries(ctx, q)
}

func (m *mutant) Open(ctx context.Context, q action.OpenQuery) ([]action.Entry, error) {
	if m.open != nil {
		return m.open(ctx, q)
	}
	return m.Memory.Open(ctx, q)
}

// table is a log that asks no rule but what its check says, as one would be that
// a database's constraints alone hold up.
type table struct {
	mu    sync.Mutex
	rows  []action.Entry
	check func(rows []action.Entry, e action.Entry) (held action.Entry, add bool, err error)
}

func (b *table) append(ctx context.Context, e action.Entry) (action.Entry, error) {
	if err := ctx.Err(); err != nil {
		return action.Entry{}, fault.Wrap(fault.Timeout, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	held, add, err := b.check(b.rows, e)
	if err != nil || !add {
		return held, err
	}
	e.Seq, e.Time = int64(len(b.rows))+1, time.Now().UTC().Truncate(time.Microsecond)
	b.rows = append(b.rows, e)
	return e, nil
}

func (b *table) entries(_ context.Context, q action.Query) (page []action.Entry, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range slices.Backward(b.rows) {
		if len(page) < q.Limit && (q.Action == "" || q.Action == e.Action) {
			page = append(page, e)
		}
	}
	return page, nil
}

// Each mutant breaks one promise; the suite must notice by the named clause.
func TestMutantsAreCaught(t *testing.T) {
	// rules makes the mutant a table that follows check in place of Next.
	rules := func(m *mutant, check func(rows []action.Entry, e action.Entry) (action.Entry, bool, error)) {
		b := &table{check: check}
		m.append, m.entries = b.append, b.entries
	}
	cases := map[string]struct {
		reason string
		breaks func(*mutant)
		clause string
	}{
		"cuts detail": {
			"as a narrow column does",
			func(m *mutant) {
				m.append = func(ctx context.Context, e action.Entry) (action.Entry, error) {
					e.Detail = e.Detail[:min(1000, len(e.Detail))]
					return m.Memory.Append(ctx, e)
				}
			}, "Append/text",
		},
		"unknown is false": {
			"a column that cannot be null makes a failure of an action that runs",
			func(m *mutant) {
				m.entries = func(ctx context.Context, q action.Query) ([]action.Entry, error) {
					all, err := m.Memory.Entries(ctx, q)
					for i := range all {
						if all[i].OK == nil {
							all[i].OK = new(bool)
						}
					}
					return all, err
				}
			}, "Append/keeps",
		},
		"believes the client's time": {
			"a wrong clock would write the past",
			func(m *mutant) {
				m.append = func(ctx context.Context, e action.Entry) (action.Entry, error) {
					kept, err := m.Memory.Append(ctx, e)
					if !e.Time.IsZero() {
						kept.Time = e.Time
					}
					return kept, err
				}
			}, "Append/stamps",
		},
		"numbers by action": {
			"pages need one order over all",
			func(m *mutant) {
				m.append = func(ctx context.Context, e action.Entry) (action.Entry, error) {
					kept, err := m.Memory.Append(ctx, e)
					of, _ := m.Memory.Entries(ctx, action.Query{Action: e.Action, Limit: 10})
					kept.Seq = int64(len(of))
					return kept, err
				}
			}, "Append/grows",
		},
		"shares pointers": {
			"whoever reads could write",
			func(m *mutant) {
				rules(m, func(rows []action.Entry, e action.Entry) (action.Entry, bool, error) {
					return action.Entry{}, true, nil
				})
			}, "Append/pointer",
		},
		"adds twice": {
			"a repeated request tells of two commands",
			func(m *mutant) {
				rules(m, func(rows []action.Entry, e action.Entry) (action.Entry, bool, error) {
					return action.Entry{}, true, nil
				})
			}, "Append/same",
		},
		"refuses repeats": {
			"a lost answer would end a person's change",
			func(m *mutant) {
				rules(m, func(rows []action.Entry, e action.Entry) (action.Entry, bool, error) {
					for _, x := range rows {
						if x.Action == e.Action && x.Phase == e.Phase {
							return action.Entry{}, false, fault.New(fault.Conflict, "unique constraint")
						}
					}
					return action.Entry{}, true, nil
				})
			}, "Append/same",
		},
		"upserts": {
			"the log could be rewritten",
			func(m *mutant) {
				b := &table{}
				b.check = func(rows []action.Entry, e action.Entry) (action.Entry, bool, error) {
					for i, x := range rows {
						if x.Action == e.Action && x.Phase == e.Phase {
							e.Seq, e.Time = x.Seq, x.Time
							b.rows[i] = e
							return e, false, nil
						}
					}
					return action.Entry{}, true, nil
				}
				m.append, m.entries = b.append, b.entries
			}, "Append/exists",
		},
		"ends nothing": {
			"an end of nothing hides a command that was never recorded",
			func(m *mutant) {
				rules(m, func(rows []action.Entry, e action.Entry) (action.Entry, bool, error) {
					return action.Entry{}, true, e.Validate()
				})
			}, "Append/unknown",
		},
		"unknown is a conflict": {
			"whoever never began must be told so",
			func(m *mutant) {
				m.append = func(ctx context.Context, e action.Entry) (action.Entry, error) {
					kept, err := m.Memory.Append(ctx, e)
					if fault.Of(err) == fault.NotFound {
						err = fault.Wrap(fault.Conflict, err)
					}
					return kept, err
				}
			}, "Append/unknown",
		},
		"ends twice": {
			"the second outcome would win",
			func(m *mutant) {
				rules(m, func(rows []action.Entry, e action.Entry) (action.Entry, bool, error) {
					held, add, err := action.Next(rows, e)
					if fault.CodeOf(err) == action.CodeEnded {
						return action.Entry{}, true, nil
					}
					return held, add, err
				})
			}, "Append/ended",
		},
		"resolved is the end": {
			"what the command knows late would be lost",
			func(m *mutant) {
				m.append = func(ctx context.Context, e action.Entry) (action.Entry, error) {
					of, _ := m.Memory.Entries(ctx, action.Query{Action: e.Action, Limit: 10})
					if e.Phase == action.PhaseFinished && slices.ContainsFunc(of, func(x action.Entry) bool { return x.Phase == action.PhaseResolved }) {
						return action.Entry{}, fault.WithCode(fault.New(fault.Conflict, "resolved"), action.CodeEnded)
					}
					return m.Memory.Append(ctx, e)
				}
			}, "Append/late",
		},
		"takes any end": {
			"an end of another key",
			func(m *mutant) {
				rules(m, func(rows []action.Entry, e action.Entry) (action.Entry, bool, error) {
					held, add, err := action.Next(rows, e)
					if fault.CodeOf(err) == action.CodeDiffers {
						return action.Entry{}, true, nil
					}
					return held, add, err
				})
			}, "Append/differs",
		},
		"checks nothing": {
			"what was not validated is for ever in the log",
			func(m *mutant) {
				rules(m, func(rows []action.Entry, e action.Entry) (action.Entry, bool, error) {
					held, add, err := action.Next(rows, e)
					if fault.Of(err) == fault.Invalid {
						return action.Entry{}, true, nil
					}
					return held, add, err
				})
			}, "Append/invalid",
		},
		"folds case": {
			"as a database with a case-blind collation does",
			func(m *mutant) {
				m.append = func(ctx context.Context, e action.Entry) (action.Entry, error) {
					e.Action = strings.ToLower(e.Action)
					return m.Memory.Append(ctx, e)
				}
			}, "Append/bytes",
		},
		"looks, then adds": {
			"two callers both see no end",
			func(m *mutant) {
				b := &table{check: func([]action.Entry, action.Entry) (action.Entry, bool, error) { return action.Entry{}, true, nil }}
				m.entries = b.entries
				var all sync.WaitGroup
				all.Add(24)
				m.append = func(ctx context.Context, e action.Entry) (action.Entry, error) {
					of, _ := b.entries(ctx, action.Query{Action: e.Action, Limit: 100})
					held, add, err := action.Next(of, e)
					if e.Phase != action.PhaseStarted {
						all.Done()
						all.Wait()
					}
					if err != nil || !add {
						return held, err
					}
					return b.append(ctx, e)
				}
			}, "Append/race-other",
		},
		"numbers early": {
			"a sequence gives numbers out before their rows can be seen",
			func(m *mutant) {
				var mu sync.Mutex
				var rows, late []action.Entry // late ones are committed after the next look
				m.append = func(_ context.Context, e action.Entry) (action.Entry, error) {
					mu.Lock()
					defer mu.Unlock()
					e.Seq, e.Time = int64(len(rows)+len(late))+1, time.Now().UTC().Truncate(time.Microsecond)
					if e.Seq%3 == 0 {
						late = append(late, e)
					} else {
						rows = append(rows, e)
					}
					return e, nil
				}
				m.entries = func(context.Context, action.Query) ([]action.Entry, error) {
					mu.Lock()
					defer mu.Unlock()
					page := slices.SortedFunc(slices.Values(rows), func(a, b action.Entry) int { return cmp.Compare(b.Seq, a.Seq) })
					rows, late = append(rows, late...), nil
					return page, nil
				}
			}, "Append/race-order",
		},
		"oldest first": {
			"the page of a log begins today",
			func(m *mutant) {
				m.entries = func(ctx context.Context, q action.Query) ([]action.Entry, error) {
					limit := q.Limit
					q.Limit = 1000
					all, err := m.Memory.Entries(ctx, q)
					slices.Reverse(all)
					return all[:min(limit, len(all))], err
				}
			}, "Entries/newest",
		},
		"any of the filters": {
			"or in place of and",
			func(m *mutant) {
				m.entries = func(ctx context.Context, q action.Query) ([]action.Entry, error) {
					if q.Pool != "" && q.Key != "" {
						q.Key = ""
					}
					return m.Memory.Entries(ctx, q)
				}
			}, "Entries/filters",
		},
		"includes before": {
			"a page that starts at the last one's end repeats it",
			func(m *mutant) {
				m.entries = func(ctx context.Context, q action.Query) ([]action.Entry, error) {
					if q.Before > 0 {
						q.Before++
					}
					return m.Memory.Entries(ctx, q)
				}
			}, "Entries/paging",
		},
		"limitless": {
			"a negative limit means no limit in SQLite",
			func(m *mutant) {
				m.entries = func(ctx context.Context, q action.Query) ([]action.Entry, error) {
					if q.Limit < 1 {
						q.Limit = 1000
					}
					return m.Memory.Entries(ctx, q)
				}
			}, "Entries/invalid",
		},
		"resolved is open": {
			"a person's word must lift the bar",
			func(m *mutant) {
				m.open = func(ctx context.Context, q action.OpenQuery) ([]action.Entry, error) {
					all, err := m.Memory.Entries(ctx, action.Query{Limit: 1000})
					var open []action.Entry
					for _, a := range slices.Backward(action.Fold(all)) {
						if a.Finished == nil {
							open = append(open, *a.Started)
						}
					}
					return open, err
				}
			}, "Open/unfinished",
		},
		"ends its pool": {
			"one end is one action's",
			func(m *mutant) {
				m.open = func(ctx context.Context, q action.OpenQuery) ([]action.Entry, error) {
					open, err := m.Memory.Open(ctx, q)
					all, _ := m.Memory.Entries(ctx, action.Query{Limit: 1})
					if len(all) > 0 && all[0].Phase != action.PhaseStarted {
						open = slices.DeleteFunc(open, func(e action.Entry) bool { return e.Key == all[0].Key && e.Pool == all[0].Pool })
					}
					return open, err
				}
			}, "Open/unfinished",
		},
		"first key only": {
			"a change may be of five",
			func(m *mutant) {
				m.open = func(ctx context.Context, q action.OpenQuery) ([]action.Entry, error) {
					q.Keys = q.Keys[:min(1, len(q.Keys))]
					return m.Memory.Open(ctx, q)
				}
			}, "Open/filters",
		},
		"skips by count": {
			"a page by offset misses those behind one that ended",
			func(m *mutant) {
				pages := map[int64]int{}
				m.open = func(ctx context.Context, q action.OpenQuery) ([]action.Entry, error) {
					after, limit := q.After, q.Limit
					q.After, q.Limit = 0, 1000
					all, err := m.Memory.Open(ctx, q)
					skip := 0
					if after > 0 {
						pages[after] = (len(pages) + 1) * limit
						skip = min(pages[after], len(all))
					}
					return all[skip:min(skip+limit, len(all))], err
				}
			}, "Open/paging",
		},
		"any number of keys": {
			"a statement has a bound on its parameters",
			func(m *mutant) {
				m.open = func(ctx context.Context, q action.OpenQuery) ([]action.Entry, error) {
					q.Keys = q.Keys[:min(action.MaxKeys, len(q.Keys))]
					return m.Memory.Open(ctx, q)
				}
			}, "Open/invalid",
		},
		"ignores contexts": {
			"a call must not go on after its caller left",
			func(m *mutant) {
				m.append = func(ctx context.Context, e action.Entry) (action.Entry, error) {
					return m.Memory.Append(context.WithoutCancel(ctx), e)
				}
			}, "Context/ended",
		},
	}
	clauses := map[string]actiontest.Clause{}
	for _, c := range actiontest.Clauses() {
		clauses[c.Name] = c
	}
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		tc := cases[name]
		t.Run(name, func(t *testing.T) {
			m := &mutant{Memory: actiontest.NewMemory(nil)}
			tc.breaks(m)
			c, ok := clauses[tc.clause]
			if !ok {
				t.Fatalf("no clause %q", tc.clause)
			}
			if err := c.Check(t.Context(), m); err == nil {
				t.Errorf("clause %s does not notice: %s", tc.clause, tc.reason)
			}
		})
	}
}
