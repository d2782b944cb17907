package actiontest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/fault"
)

func entriesEmpty(ctx context.Context, l action.Log) error {
	err := holds(ctx, l)
	if err != nil {
		return err
	}
	kept, err := add(ctx, l, began("one", "a", "k"))
	if err != nil {
		return err
	}
	for what, q := range map[string]action.Query{
		"before the first":  {Before: kept[0].Seq, Limit: 10},
		"an unknown pool":   {Pool: "b", Limit: 10},
		"an unknown action": {Action: id("two"), Limit: 10},
	} {
		got, err := l.Entries(ctx, q)
		if err != nil || len(got) > 0 {
			return fmt.Errorf("%s: %d entries, %w", what, len(got), err)
		}
	}
	return nil
}

func entriesNewest(ctx context.Context, l action.Log) error {
	one, two := began("one", "a", "k"), began("two", "a", "k")
	kept, err := add(ctx, l, one, two, finished(one, true, ""))
	if err != nil {
		return err
	}
	got, err := l.Entries(ctx, action.Query{Limit: 2})
	return first(err, same("the newest two", []action.Entry{kept[2], kept[1]}, got))
}

func entriesFilters(ctx context.Context, l action.Log) error {
	k1, k2, other, list := began("one", "a", "k1"), began("two", "a", "k2"), began("three", "b", "k1"), began("four", "a", "")
	list.Verb = action.VerbList
	upper := began("five", "A", "K1")
	kept, err := add(ctx, l, k1, k2, other, list, upper, finished(k1, true, ""))
	if err != nil {
		return err
	}
	pick := func(at ...int) (all []action.Entry) {
		for _, i := range slices.Backward(at) {
			all = append(all, kept[i])
		}
		return all
	}
	for what, c := range map[string]struct {
		q    action.Query
		want []action.Entry
	}{
		"all":               {action.Query{}, pick(0, 1, 2, 3, 4, 5)},
		"pool":              {action.Query{Pool: "a"}, pick(0, 1, 3, 5)},
		"key":               {action.Query{Key: "k1"}, pick(0, 2, 5)},
		"pool and key":      {action.Query{Pool: "a", Key: "k1"}, pick(0, 5)},
		"action":            {action.Query{Action: k1.Action}, pick(0, 5)},
		"action and before": {action.Query{Action: k1.Action, Before: kept[5].Seq}, pick(0)},
		"action elsewhere":  {action.Query{Action: k1.Action, Pool: "b"}, nil},
		"a pattern":         {action.Query{Pool: "%"}, nil},
	} {
		c.q.Limit = 100
		got, err := l.Entries(ctx, c.q)
		if err := first(err, same(what, c.want, got)); err != nil {
			return err
		}
	}
	return nil
}

func entriesPaging(ctx context.Context, l action.Log) error {
	var all []action.Entry
	for n := range 7 {
		kept, err := add(ctx, l, began(fmt.Sprintf("a%d", n), "a", "k"))
		if err != nil {
			return err
		}
		all = append(all, kept...)
	}
	want := slices.Clone(all)
	slices.Reverse(want)
	for _, limit := range []int{1, 2, 3, 7, 8} {
		var got []action.Entry
		var before int64
		for page := 0; ; page++ {
			part, err := l.Entries(ctx, action.Query{Before: before, Limit: limit})
			if err != nil {
				return err
			}
			if len(part) > limit {
				return fmt.Errorf("a page of %d has %d entries", limit, len(part))
			}
			got = append(got, part...)
			if len(part) < limit || page > 100 {
				break
			}
			before = part[len(part)-1].Seq
			// Entries that are added meanwhile are newer than any page.
			if _, err := add(ctx, l, began(fmt.Sprintf("late-%d-%d", limit, page), "b", "k")); err != nil {
				return err
			}
		}
		got = slices.DeleteFunc(got, func(e action.Entry) bool { return e.Pool == "b" })
		if err := same(fmt.Sprintf("pages of %d", limit), want, got); err != nil {
			return err
		}
	}
	return nil
}

func entriesInvalid(ctx context.Context, l action.Log) error {
	if _, err := add(ctx, l, began("one", "a", "k")); err != nil {
		return err
	}
	for what, q := range map[string]action.Query{
		"no limit":        {},
		"a limit below 0": {Limit: -1},
		"before below 0":  {Limit: 1, Before: -1},
	} {
		got, err := l.Entries(ctx, q)
		if err := class(what, err, fault.Invalid); err != nil {
			return err
		}
		if len(got) > 0 {
			return fmt.Errorf("%s: %d entries besides the error", what, len(got))
		}
	}
	return nil
}

func openUnfinished(ctx context.Context, l action.Log) error {
	one, two, three, four := began("one", "a", "k"), began("two", "a", "k"), began("three", "b", "k"), began("four", "a", "k")
	open := func(want ...action.Entry) error {
		got, err := l.Open(ctx, action.OpenQuery{Limit: 10})
		return first(err, same("what is open", want, got))
	}
	if err := open(); err != nil {
		return err
	}
	kept, err := add(ctx, l, one, two, three, four)
	if err := first(err, open(kept...)); err != nil {
		return err
	}
	_, err = add(ctx, l, finished(two, false, "x"))
	if err := first(err, open(kept[0], kept[2], kept[3])); err != nil {
		return err
	}
	_, err = add(ctx, l, resolved(one, "bob", ""))
	if err := first(err, open(kept[2], kept[3])); err != nil {
		return err
	}
	_, err = add(ctx, l, finished(one, true, "late"), resolved(three, "bob", ""))
	return first(err, open(kept[3]))
}

func openFilters(ctx context.Context, l action.Log) error {
	k1, k2, other, list, done := began("one", "a", "k1"), began("two", "a", "k2"), began("three", "b", "k1"), began("four", "a", ""), began("five", "a", "k1")
	list.Verb = action.VerbList
	kept, err := add(ctx, l, k1, k2, other, list, done, finished(done, true, ""))
	if err != nil {
		return err
	}
	pick := func(at ...int) (all []action.Entry) {
		for _, i := range at {
			all = append(all, kept[i])
		}
		return all
	}
	many := make([]string, action.MaxKeys)
	for i := range many {
		many[i] = fmt.Sprintf("no-%d", i)
	}
	many[action.MaxKeys-1] = "k2"
	for what, c := range map[string]struct {
		q    action.OpenQuery
		want []action.Entry
	}{
		"all":            {action.OpenQuery{}, pick(0, 1, 2, 3)},
		"pool":           {action.OpenQuery{Pool: "a"}, pick(0, 1, 3)},
		"key":            {action.OpenQuery{Keys: []string{"k1"}}, pick(0, 2)},
		"keys":           {action.OpenQuery{Keys: []string{"k2", "k1", "k2"}}, pick(0, 1, 2)},
		"pool and keys":  {action.OpenQuery{Pool: "a", Keys: []string{"k1", "none"}}, pick(0)},
		"many keys":      {action.OpenQuery{Pool: "a", Keys: many}, pick(1)},
		"keys and after": {action.OpenQuery{Keys: []string{"k1"}, After: kept[0].Seq}, pick(2)},
		"another case":   {action.OpenQuery{Pool: "A"}, nil},
		"a pattern":      {action.OpenQuery{Keys: []string{"k%"}}, nil},
	} {
		c.q.Limit = 100
		got, err := l.Open(ctx, c.q)
		if err := first(err, same(what, c.want, got)); err != nil {
			return err
		}
	}
	return nil
}

func openPaging(ctx context.Context, l action.Log) error {
	var all []action.Entry
	for n := range 7 {
		kept, err := add(ctx, l, began(fmt.Sprintf("a%d", n), "a", "k"))
		if err != nil {
			return err
		}
		all = append(all, kept...)
	}
	var got []action.Entry
	for after := int64(0); len(got) <= len(all); {
		page, err := l.Open(ctx, action.OpenQuery{After: after, Limit: 2})
		if err != nil {
			return err
		}
		if len(page) > 2 {
			return fmt.Errorf("a page of 2 has %d entries", len(page))
		}
		got = append(got, page...)
		if len(page) < 2 {
			break
		}
		after = page[1].Seq
		// The last one of the page ends: the next page is none the worse.
		if _, err := add(ctx, l, finished(page[1], true, "")); err != nil {
			return err
		}
	}
	return same("pages of 2", all, got)
}

func openInvalid(ctx context.Context, l action.Log) error {
	if _, err := add(ctx, l, began("one", "a", "k")); err != nil {
		return err
	}
	for what, q := range map[string]action.OpenQuery{
		"no limit":        {},
		"a limit below 0": {Limit: -1},
		"after below 0":   {Limit: 1, After: -1},
		"too many keys":   {Limit: 1, Keys: make([]string, action.MaxKeys+1)},
	} {
		got, err := l.Open(ctx, q)
		if err := class(what, err, fault.Invalid); err != nil {
			return err
		}
		if len(got) > 0 {
			return fmt.Errorf("%s: %d entries besides the error", what, len(got))
		}
	}
	return nil
}

func contextEnded(ctx context.Context, l action.Log) error {
	kept, err := add(ctx, l, began("one", "a", "k"))
	if err != nil {
		return err
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	expired, cancel := context.WithDeadline(ctx, time.Unix(0, 0))
	defer cancel()
	for _, dead := range []context.Context{cancelled, expired} {
		for name, call := range map[string]func() error{
			"Append":  func() error { _, err := l.Append(dead, began("two", "a", "k")); return err },
			"Entries": func() error { _, err := l.Entries(dead, action.Query{Limit: 1}); return err },
			"Open":    func() error { _, err := l.Open(dead, action.OpenQuery{Limit: 1}); return err },
		} {
			err := call()
			if err := class(name, err, fault.Timeout); err != nil {
				return err
			}
			if !errors.Is(err, dead.Err()) {
				return fmt.Errorf("%s: %w does not carry the context's own error %w", name, err, dead.Err())
			}
		}
	}
	return holds(ctx, l, kept...)
}
