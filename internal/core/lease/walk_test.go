package lease_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"fleetdesk/internal/core/lease"
)

// picks is a quick pick of the pool m.
func picks(target string) lease.Take {
	return lease.Take{Pool: "m", Target: target, Account: "ann", Quick: true}
}

// asked has ops done, those again whose walks came to no end.
func asked(t *testing.T, m lease.Store, ops ...lease.Op) []lease.Result {
	t.Helper()
	all, err := m.Do(context.Background(), ops)
	for i := 0; i < len(ops) && err == nil; i++ {
		for try := 0; all[i].Looking && try < 20 && err == nil; try++ {
			var again []lease.Result
			if again, err = m.Do(context.Background(), ops[i:i+1]); err == nil {
				all[i] = again[0]
			}
		}
		if all[i].Err != nil {
			t.Fatalf("op %d, %+v: %v", i, ops[i], all[i].Err)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Where nearly all keys are held, a request for a target looks at those that are
// free and not along the line of those that are not, wherever in it these are.
func TestWalksLeaveHeldKeys(t *testing.T) {
	const keys, free = 3000, 100
	for name, used := range map[string]bool{"whose rest is over": true, "that nobody used for the target": false} {
		t.Run(name, func(t *testing.T) {
			s := &spy{}
			m, now := spied(s)
			do(t, m, lease.OpenEpoch{}, lease.PutPool{Epoch: 1, Pool: lease.Pool{Name: "m", Cooldown: time.Minute}})
			var ops []lease.Op
			for i := range keys {
				ops = append(ops, lease.PutKey{Epoch: 1, Key: fmt.Sprintf("m%05d", i), UID: "1", Pools: []string{"m"}})
			}
			do(t, m, ops...)
			if used {
				for range keys / 100 {
					ops = nil
					for range 100 {
						ops = append(ops, picks("x.example"))
					}
					asked(t, m, ops...)
				}
			}
			ops = nil
			for i := range keys - free {
				op := take("m", fmt.Sprint("h", i))
				op.TTL = time.Hour
				ops = append(ops, op)
			}
			do(t, m, ops...)
			*now = now.Add(2 * time.Minute)
			moved := 0
			s.save = func(c *lease.Changes) error {
				moved += len(c.Places) + len(c.DropPlaces)
				return nil
			}
			s.loaded = 0
			got := map[string]bool{}
			for range free {
				r := do(t, m, picks("x.example"))[0]
				if r.Use == nil || got[r.Key.Name] {
					t.Fatalf("of %d free keys pick %d got %+v", free, len(got), r)
				}
				got[r.Key.Name] = true
			}
			if s.loaded > free*(free+300) || moved > free*200 {
				t.Errorf("%d picks read %d rows and moved %d places", free, s.loaded, moved)
			}
			r := do(t, m, picks("x.example"))[0]
			if r.Busy == nil || !r.Busy.Due.Equal(now.Add(time.Minute)) {
				t.Errorf("when all that are free rest: %+v", r.Busy)
			}
		})
	}
}

// Requests that ask for other attributes each read a large pool once for all.
func TestAsksReadTogether(t *testing.T) {
	const keys, asks = 3000, 40
	s := &spy{}
	m, _ := spied(s)
	managed(t, m, keys)
	for _, wants := range []string{"", "yes"} {
		var ops []lease.Op
		for i := range asks {
			op := picks("x.example")
			op.Match = []lease.Match{{Attribute: fmt.Sprint("a", i, wants), Op: lease.Exists}}
			if wants != "" {
				op.Match[0].Op = lease.Absent
			}
			ops = append(ops, op)
		}
		s.loaded = 0
		for i, r := range asked(t, m, ops...) {
			if (r.Use != nil) != (wants != "") {
				t.Errorf("ask %d got %+v", i, r)
			}
		}
		if s.loaded > 2*keys {
			t.Errorf("%d requests read %d rows of %d keys", asks, s.loaded, keys)
		}
	}
}

// Whatever requests ask for, few lines remain: each use that ends early writes into
// all of them. The one that goes is the one that was not used for longest.
func TestFewLinesRemain(t *testing.T) {
	m, now := spied(&spy{})
	do(t, m, lease.OpenEpoch{}, lease.PutPool{Epoch: 1, Pool: lease.Pool{Name: "m", InFlight: 1, TTL: time.Minute}})
	var ops []lease.Op
	for i := range 200 {
		ops = append(ops, lease.PutKey{Epoch: 1, Key: fmt.Sprintf("m%05d", i), UID: "1", Pools: []string{"m"}})
	}
	do(t, m, ops...)
	ask := func(n int) lease.Take {
		op := picks("x.example")
		op.Match = []lease.Match{{Attribute: "a", Op: lease.NotIn, Values: []string{fmt.Sprint(n)}}}
		return op
	}
	for i := range 4 * lease.MaxAsks {
		*now = now.Add(2 * time.Minute)
		for _, n := range []int{0, i} {
			r := asked(t, m, ask(n))[0]
			if r.Use == nil {
				t.Fatalf("ask %d got %+v", n, r)
			}
			do(t, m, lease.Report{Key: r.Key.Name, Pool: "m", Target: "x.example", Outcome: lease.OK, Use: r.Use.ID, Account: "ann"})
		}
		if n := len(m.Lines("m")); n > lease.MaxAsks {
			t.Fatalf("after %d asks there are %d lines", i+1, n)
		}
	}
	first := m.Lines("m")[0]
	if age := now.Sub(first.Began); age < lease.LineFor {
		t.Errorf("the line that was in use all the time is %s old", age)
	}
	// Many at once get theirs, and the next one puts things in order again.
	ops = nil
	for i := range 3 * lease.MaxAsks {
		ops = append(ops, ask(1000+i))
	}
	for i, r := range asked(t, m, ops...) {
		if r.Use == nil {
			t.Errorf("ask %d got %+v", i, r)
		}
	}
	asked(t, m, ask(2000))
	if n := len(m.Lines("m")); n > lease.MaxAsks {
		t.Errorf("after many at once there are %d lines", n)
	}
}

// A use that is reported leaves one place a line, however often it is used.
func TestReportsLeaveNoPlaces(t *testing.T) {
	m, now := spied(&spy{})
	do(t, m, lease.OpenEpoch{}, lease.PutPool{Epoch: 1, Pool: lease.Pool{Name: "m", InFlight: 1, TTL: time.Hour}})
	const keys = 40
	var ops []lease.Op
	for i := range keys {
		ops = append(ops, lease.PutKey{Epoch: 1, Key: fmt.Sprintf("m%05d", i), UID: "1", Pools: []string{"m"}})
	}
	do(t, m, ops...)
	for range 10 * keys {
		*now = now.Add(time.Millisecond)
		r := do(t, m, picks("x.example"))[0]
		do(t, m, lease.Report{Key: r.Key.Name, Pool: "m", Target: "x.example", Outcome: lease.OK, Use: r.Use.ID, Account: "ann"})
	}
	if n := m.Places("m"); n > 2*keys {
		t.Errorf("%d keys have %d places", keys, n)
	}
}

// When all that was to come free next was given back in the same transaction, and
// rests, or was taken again, whoever gets nothing is told of those behind.
func TestDueBehindWhatWasGivenBack(t *testing.T) {
	for name, again := range map[string]bool{"rests": false, "is taken again": true} {
		t.Run(name, func(t *testing.T) {
			m, now := spied(&spy{})
			do(t, m, lease.OpenEpoch{}, lease.PutPool{Epoch: 1, Pool: lease.Pool{Name: "m", Cooldown: time.Hour, MaxTTL: 2 * time.Hour}})
			var ops []lease.Op
			for i := range lease.MaxNext + 1 {
				do(t, m, lease.PutKey{Epoch: 1, Key: fmt.Sprint("m", i), UID: "1", Pools: []string{"m"}})
				op := take("m", fmt.Sprint("h", i))
				op.Target, op.TTL = "x.example", time.Duration(i+1)*time.Minute
				ops = append(ops, op)
			}
			held := do(t, m, ops...)
			ops = nil
			for i := range lease.MaxNext {
				ops = append(ops, lease.Release{Proof: proof(held[i], fmt.Sprint("h", i))})
			}
			for i := range lease.MaxNext {
				op := take("m", fmt.Sprint("again", i))
				if op.TTL = 2 * time.Hour; again {
					ops = append(ops, op)
				}
			}
			all := do(t, m, append(ops, picks("x.example"))...)
			r := all[len(all)-1]
			if r.Busy == nil || r.Busy.Due.IsZero() || r.Busy.Due.After(now.Add((lease.MaxNext+1)*time.Minute)) {
				t.Errorf("it is told %+v", r.Busy)
			}
		})
	}
}

// Who waits for a key that somebody holds for the same target is told when its rest
// after the lease is over, and not when the lease is.
func TestDueAfterTheRest(t *testing.T) {
	m, now := spied(&spy{})
	do(t, m, lease.OpenEpoch{}, lease.PutPool{Epoch: 1, Pool: lease.Pool{Name: "m", Cooldown: time.Minute}},
		lease.PutKey{Epoch: 1, Key: "m0", UID: "1", Pools: []string{"m"}})
	held := take("m", "h")
	held.Target, held.TTL = "x.example", 2*time.Minute
	do(t, m, held)
	for target, after := range map[string]time.Duration{"x.example": 3 * time.Minute, "y.example": 2 * time.Minute} {
		if r := do(t, m, picks(target))[0]; r.Busy == nil || !r.Busy.Due.Equal(now.Add(after)) {
			t.Errorf("for %s it is told %+v", target, r.Busy)
		}
	}
}

// Whoever gets none of a managed pool has no search done among the rests for its
// target, which are as many as the pool has keys: the line knows the next one.
func TestNoneAsksForNoRests(t *testing.T) {
	s := &spy{}
	m, _ := spied(s)
	do(t, m, lease.OpenEpoch{}, lease.PutPool{Epoch: 1, Pool: lease.Pool{Name: "m", Cooldown: time.Minute}},
		lease.PutKey{Epoch: 1, Key: "m0", UID: "1", Pools: []string{"m"}})
	asked := 0
	s.want = func(w *lease.Want) {
		for _, n := range w.Next {
			if asked++; n.Target != "" {
				t.Errorf("it asks for %+v", n)
			}
		}
	}
	for i, r := range do(t, m, picks("x.example"), picks("x.example"), picks("x.example")) {
		if (r.Use != nil) != (i == 0) {
			t.Errorf("pick %d: %+v", i, r)
		}
	}
	if asked != 1 {
		t.Errorf("it asked %d times what comes next", asked)
	}
}
