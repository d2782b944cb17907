package actiontest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/fault"
)

func appendKeeps(ctx context.Context, l action.Log) error {
	one, two := began("one", "win-vms", "qa-win-01"), began("two", "win-vms", "")
	two.Verb, two.Host = action.VerbList, ""
	verdict := resolved(two, "bob", "it had printed nothing")
	found := true
	verdict.OK = &found
	want, err := add(ctx, l, one, two, finished(one, false, "no such domain\n"), verdict, finished(two, true, ""))
	if err != nil {
		return err
	}
	for i, e := range []action.Entry{one, two, finished(one, false, "no such domain\n"), verdict, finished(two, true, "")} {
		e.Seq, e.Time = want[i].Seq, want[i].Time
		if d := gocmp.Diff(e, want[i]); d != "" {
			return fmt.Errorf("what was returned differs (-want +got):\n%s", d)
		}
	}
	return holds(ctx, l, want...)
}

func appendStamps(ctx context.Context, l action.Log) error {
	e := began("one", "a", "k")
	e.Seq, e.Time = 1<<40, time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)
	kept, err := add(ctx, l, e)
	if err != nil {
		return err
	}
	got := kept[0]
	switch {
	case got.Seq < 1 || got.Seq == e.Seq:
		return fmt.Errorf("the entry has the Seq %d: the store did not give it", got.Seq)
	case got.Time.Year() < 2020:
		return fmt.Errorf("the entry has the Time %s: the store did not give it", got.Time)
	case got.Time.Location() != time.UTC || !got.Time.Equal(got.Time.Truncate(time.Microsecond)):
		return fmt.Errorf("the entry has the Time %s: not UTC to the microsecond", got.Time)
	}
	// The same entry is the same whatever it says of them.
	e.Seq, e.Time = 7, time.Time{}
	again, err := add(ctx, l, e)
	return first(err, same("the same with other stamps", kept, again), holds(ctx, l, got))
}

func appendGrows(ctx context.Context, l action.Log) error {
	var last int64
	for n := range 5 {
		e := began(fmt.Sprintf("a%d", n), "a", "k")
		kept, err := add(ctx, l, e, finished(e, true, ""))
		if err != nil {
			return err
		}
		for _, k := range kept {
			if k.Seq <= last {
				return fmt.Errorf("the Seq %d follows %d", k.Seq, last)
			}
			last = k.Seq
		}
	}
	return nil
}

func appendText(ctx context.Context, l action.Log) error {
	long := strings.Repeat("0123456789abcde\n", action.MaxText/16)
	e := began("one", "a."+strings.Repeat("b", 300), strings.Repeat("k", 128))
	e.Command, e.User, e.Host = long, strings.Repeat("ü", action.MaxWho/2), strings.Repeat("h", action.MaxWho)
	quoted := began("two", "a", "k")
	quoted.Command = "printf '%s\\n' \"$QASIGHT_KEY\" `x` ; -- \t\r\n \x1b[31m \u2028 \U0001F600 {{.}} <b>&amp;"
	kept, err := add(ctx, l, e, finished(e, true, long), quoted, finished(quoted, false, quoted.Command))
	return first(err, holds(ctx, l, kept...), func() error {
		if kept[1].Detail != long || kept[0].Command != long || kept[3].Detail != quoted.Command || kept[0].User != e.User {
			return errors.New("a text changed on its way")
		}
		return nil
	}())
}

func appendPointer(ctx context.Context, l action.Log) error {
	e := began("one", "a", "k")
	end := finished(e, true, "")
	kept, err := add(ctx, l, e, end)
	if err != nil {
		return err
	}
	*end.OK, *kept[1].OK = false, false
	got, err := l.Entries(ctx, action.Query{Action: e.Action, Limit: 1})
	if err != nil || len(got) != 1 || got[0].OK == nil || !*got[0].OK {
		return fmt.Errorf("a caller changed what is kept: %+v, %w", got, err)
	}
	*got[0].OK = false
	again, err := l.Append(ctx, finished(e, true, ""))
	if err != nil || again.OK == nil || !*again.OK {
		return fmt.Errorf("a reader changed what is kept: %+v, %w", again, err)
	}
	return nil
}

func appendSame(ctx context.Context, l action.Log) error {
	one, two := began("one", "a", "k"), began("two", "a", "k")
	steps := []action.Entry{one, finished(one, false, "x"), two, resolved(two, "bob", "gone"), finished(two, true, "")}
	var kept []action.Entry
	for _, e := range steps {
		got, err := add(ctx, l, e)
		if err != nil {
			return err
		}
		kept = append(kept, got...)
		again, err := add(ctx, l, steps[:len(kept)]...)
		if err := first(err, same("all that was added so far, again", kept, again)); err != nil {
			return err
		}
	}
	return holds(ctx, l, kept...)
}

func appendExists(ctx context.Context, l action.Log) error {
	one := began("one", "a", "k")
	kept, err := add(ctx, l, one)
	if err != nil {
		return err
	}
	other := func(change func(*action.Entry)) action.Entry {
		e := one
		change(&e)
		return e
	}
	others := map[string]action.Entry{
		"pool":    other(func(e *action.Entry) { e.Pool = "b" }),
		"key":     other(func(e *action.Entry) { e.Key = "K" }),
		"verb":    other(func(e *action.Entry) { e.Verb = action.VerbCreate }),
		"user":    other(func(e *action.Entry) { e.User = "bob" }),
		"host":    other(func(e *action.Entry) { e.Host = "" }),
		"command": other(func(e *action.Entry) { e.Command += " " }),
	}
	for what, e := range others {
		if err := refused(ctx, l, "another "+what, e, fault.Conflict, action.CodeExists); err != nil {
			return err
		}
	}
	end, err := add(ctx, l, finished(one, true, ""))
	if err != nil {
		return err
	}
	return first(
		refused(ctx, l, "after its end", others["key"], fault.Conflict, action.CodeExists),
		holds(ctx, l, kept[0], end[0]),
	)
}

func appendUnknown(ctx context.Context, l action.Log) error {
	one, two := began("one", "a", "k"), began("two", "a", "k")
	kept, err := add(ctx, l, one)
	return first(
		err,
		refused(ctx, l, "finished", finished(two, true, ""), fault.NotFound, action.CodeAction),
		refused(ctx, l, "resolved", resolved(two, "bob", ""), fault.NotFound, action.CodeAction),
		holds(ctx, l, kept...),
	)
}

func appendEnded(ctx context.Context, l action.Log) error {
	one := began("one", "a", "k")
	kept, err := add(ctx, l, one, finished(one, false, "x"))
	return first(
		err,
		refused(ctx, l, "another outcome", finished(one, true, "x"), fault.Conflict, action.CodeEnded),
		refused(ctx, l, "another detail", finished(one, false, "y"), fault.Conflict, action.CodeEnded),
		refused(ctx, l, "resolved", resolved(one, "bob", ""), fault.Conflict, action.CodeEnded),
		holds(ctx, l, kept...),
	)
}

func appendLate(ctx context.Context, l action.Log) error {
	one, two := began("one", "a", "k"), began("two", "a", "k")
	kept, err := add(ctx, l, one, two, resolved(one, "bob", "gone"), resolved(two, "bob", "gone"))
	if err != nil {
		return err
	}
	err = first(
		refused(ctx, l, "resolved by somebody else", resolved(one, "cid", "gone"), fault.Conflict, action.CodeEnded),
		refused(ctx, l, "resolved with another note", resolved(one, "bob", "there"), fault.Conflict, action.CodeEnded),
		holds(ctx, l, kept...),
	)
	if err != nil {
		return err
	}
	late, err := add(ctx, l, finished(one, true, "slow"))
	return first(
		err,
		refused(ctx, l, "another end then", finished(one, false, "slow"), fault.Conflict, action.CodeEnded),
		holds(ctx, l, append(kept, late...)...),
	)
}

func appendDiffers(ctx context.Context, l action.Log) error {
	one := began("one", "a", "k")
	kept, err := add(ctx, l, one)
	if err != nil {
		return err
	}
	for what, change := range map[string]func(*action.Entry){
		"pool": func(e *action.Entry) { e.Pool = "b" },
		"key":  func(e *action.Entry) { e.Key = "K" },
		"verb": func(e *action.Entry) { e.Verb = action.VerbCreate },
	} {
		f, r := finished(one, true, ""), resolved(one, "bob", "")
		change(&f)
		change(&r)
		err := first(
			refused(ctx, l, "finished with another "+what, f, fault.Conflict, action.CodeDiffers),
			refused(ctx, l, "resolved with another "+what, r, fault.Conflict, action.CodeDiffers),
		)
		if err != nil {
			return err
		}
	}
	for what, change := range map[string]func(*action.Entry){
		"user":    func(e *action.Entry) { e.User = "bob" },
		"host":    func(e *action.Entry) { e.Host = "elsewhere" },
		"command": func(e *action.Entry) { e.Command = "true" },
	} {
		f := finished(one, true, "")
		change(&f)
		if err := refused(ctx, l, "finished with another "+what, f, fault.Conflict, action.CodeDiffers); err != nil {
			return err
		}
	}
	return holds(ctx, l, kept...)
}

func appendInvalid(ctx context.Context, l action.Log) error {
	one := began("one", "a", "k")
	kept, err := add(ctx, l, one)
	if err != nil {
		return err
	}
	for what, change := range map[string]func(*action.Entry){
		"no id":           func(e *action.Entry) { e.Action = "" },
		"a short id":      func(e *action.Entry) { e.Action = "abc" },
		"no phase":        func(e *action.Entry) { e.Phase = "" },
		"no pool":         func(e *action.Entry) { e.Pool = "" },
		"no key":          func(e *action.Entry) { e.Key = "" },
		"a key with a /":  func(e *action.Entry) { e.Key = "a/b" },
		"no verb":         func(e *action.Entry) { e.Verb = "reboot" },
		"no user":         func(e *action.Entry) { e.User = "" },
		"no command":      func(e *action.Entry) { e.Command = "" },
		"a known outcome": func(e *action.Entry) { e.OK = new(bool) },
		"a NUL":           func(e *action.Entry) { e.Command = "a\x00b" },
		"no UTF-8":        func(e *action.Entry) { e.Command = "a\xffb" },
		"a long command":  func(e *action.Entry) { e.Command = strings.Repeat("x", action.MaxText+1) },
	} {
		e := began("two", "a", "k")
		change(&e)
		if err := refused(ctx, l, what, e, fault.Invalid, ""); err != nil {
			return err
		}
	}
	unknown := finished(one, true, "")
	unknown.OK = nil
	return first(
		refused(ctx, l, "an end without an outcome", unknown, fault.Invalid, ""),
		holds(ctx, l, kept...),
	)
}

func appendBytes(ctx context.Context, l action.Log) error {
	lower, upper := began("one", "a", "k"), began("ONE", "a", "k")
	kept, err := add(ctx, l, lower, upper, finished(upper, true, ""))
	return first(err, holds(ctx, l, kept...))
}

// racers is how many callers a race has: more than a small pool of connections
// holds.
const racers = 24

// race runs f racers times at once.
func race(f func(n int)) {
	ready := make(chan struct{})
	var all sync.WaitGroup
	for n := range racers {
		all.Go(func() {
			<-ready
			f(n)
		})
	}
	close(ready)
	all.Wait()
}

func appendRaceSame(ctx context.Context, l action.Log) error {
	one := began("one", "a", "k")
	var kept []action.Entry
	for _, e := range []action.Entry{one, finished(one, true, "x")} {
		got, errs := make([]action.Entry, racers), make([]error, racers)
		race(func(n int) { got[n], errs[n] = l.Append(ctx, e) })
		if err := first(errs...); err != nil {
			return fmt.Errorf("the same %s entry: %w", e.Phase, err)
		}
		if err := same("the same entry by many", slices.Repeat(got[:1], racers), got); err != nil {
			return err
		}
		kept = append(kept, got[0])
	}
	return holds(ctx, l, kept...)
}

func appendRaceOther(ctx context.Context, l action.Log) error {
	one := began("one", "a", "k")
	kept, err := add(ctx, l, one)
	if err != nil {
		return err
	}
	got, errs := make([]action.Entry, racers), make([]error, racers)
	race(func(n int) {
		if n%2 == 0 {
			got[n], errs[n] = l.Append(ctx, finished(one, true, fmt.Sprint(n)))
		} else {
			got[n], errs[n] = l.Append(ctx, resolved(one, "bob", fmt.Sprint(n)))
		}
	})
	won := map[action.Phase]int{}
	for n, err := range errs {
		switch {
		case err == nil:
			won[got[n].Phase]++
			kept = append(kept, got[n])
		case fault.Of(err) != fault.Conflict:
			return fmt.Errorf("a loser: %w", err)
		}
	}
	// A resolved entry may have come first, and then a finished one.
	if won[action.PhaseFinished] != 1 || won[action.PhaseResolved] > 1 {
		return fmt.Errorf("%d finished and %d resolved entries were taken", won[action.PhaseFinished], won[action.PhaseResolved])
	}
	slices.SortFunc(kept, func(a, b action.Entry) int { return cmp.Compare(a.Seq, b.Seq) })
	return holds(ctx, l, kept...)
}

func appendRaceOrder(ctx context.Context, l action.Log) error {
	errs := make([]error, racers)
	var writers sync.WaitGroup
	writers.Add(racers - 1)
	written := make(chan struct{})
	go func() {
		writers.Wait()
		close(written)
	}()
	race(func(n int) {
		if n > 0 {
			defer writers.Done()
			for m := range 8 {
				if _, err := l.Append(ctx, began(fmt.Sprintf("a%d-%d", n, m), "a", "k")); err != nil {
					errs[n] = err
					return
				}
			}
			return
		}
		// Whoever has read up to a number sees nothing new below it later.
		var seen []int64
		for rest := 3; rest > 0; { // and a few times when all is written
			select {
			case <-written:
				rest--
			default:
			}
			page, err := l.Entries(ctx, action.Query{Limit: racers * 8})
			if err != nil {
				errs[0] = err
				return
			}
			var now []int64
			for _, e := range slices.Backward(page) {
				now = append(now, e.Seq)
			}
			if len(now) < len(seen) || !slices.Equal(now[:len(seen)], seen) {
				errs[0] = fmt.Errorf("what was read as %v reads %v now", seen, now)
				return
			}
			seen = now
		}
	})
	<-written
	return first(errs...)
}
