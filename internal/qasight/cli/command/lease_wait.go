package command

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/hooks"
)

const (
	// waitQuiet is how long a wait is nothing to speak of, waitAgain how often a
	// terminal hears of it after that.
	waitQuiet = 2 * time.Second
	waitAgain = 30 * time.Second
	// lookTime bounds one look at why.
	lookTime = 5 * time.Second
)

// Waiting tells, while a key of a pool is waited for, that and why: after two
// seconds, and on a terminal each 30 seconds more. What it returns runs until its
// ctx ends; holder is who waits, as the request says.
func (f *Factory) Waiting(b broker.Viewer, pool, holder string, say func(text string)) func(ctx context.Context) {
	next := time.Now().Add(waitQuiet)
	return func(ctx context.Context) {
		for {
			timer := time.NewTimer(time.Until(next))
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-timer.C:
			}
			text := why(ctx, b, pool, holder)
			if ctx.Err() != nil {
				return
			}
			say(text)
			if next = time.Now().Add(waitAgain); !f.Streams.ErrTerminal {
				next = next.Add(24 * time.Hour) // one line is enough for a log
			}
		}
	}
}

// why says in a line why a pool's keys are waited for.
func why(ctx context.Context, b broker.Viewer, pool, holder string) string {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	text := "waiting for a key of " + pool
	v, err := b.Pool(ctx, pool)
	if err != nil {
		return text + ": why cannot be told now: " + err.Error()
	}
	counts := map[string]int{}
	var due time.Duration
	for _, k := range v.Members {
		counts[k.State]++
		if left := k.SecondsLeft.Duration(); left > 0 && (due == 0 || left < due) {
			due = left
		}
	}
	var parts []string
	for _, s := range []string{
		client.StateHeld, client.StateResetting, client.StateCooling, client.StateFree, client.StateNeedsReset,
		client.StateBarred, client.StateUnhealthy, client.StateDisabled,
	} {
		if n := counts[s]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	if due > 0 {
		parts = append(parts, "next due in "+Duration(due))
	}
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	if stuck(v) != "" {
		text += "; no key comes free by itself: see `qasight pool why " + pool + "`"
	}
	if place := placeOf(ctx, b, pool, holder); place > 0 {
		text += fmt.Sprintf(" (place %d)", place)
	}
	return text
}

// placeOf is a waiter's place in line; 0 when it cannot be told.
func placeOf(ctx context.Context, b broker.Viewer, pool, holder string) int {
	waiters, err := b.Waiters(ctx, pool)
	if err != nil {
		return 0
	}
	place := 0
	for _, w := range waiters {
		switch {
		case w.Holder != holder:
		case place > 0:
			return 0 // two of one name
		default:
			place = w.Position
		}
	}
	return place
}

// stuck says why no key of a pool comes free by itself, such as "all 3 are
// disabled"; "" when one is free or may become so.
func stuck(v broker.View) string {
	counts := map[string]int{}
	n := 0
	for _, k := range v.Members {
		if slices.Contains(k.Leaving, v.Name) {
			continue // whoever holds it is its last user
		}
		n++
		switch {
		case k.Disabled != nil: // also when somebody holds it still
			counts[client.StateDisabled]++
		case k.State == client.StateUnhealthy:
			counts[client.StateUnhealthy]++
		case k.State == client.StateBarred && endless(k.Bars):
			counts["barred by an action without an end"]++
		default:
			return ""
		}
	}
	if n == 0 {
		return "it has none"
	}
	var parts []string
	for _, state := range slices.Sorted(maps.Keys(counts)) {
		switch c := counts[state]; {
		case n == 1:
			return "its only one is " + state
		case c == n:
			return fmt.Sprintf("all %d are %s", n, state)
		default:
			parts = append(parts, fmt.Sprintf("%d %s", c, state))
		}
	}
	return strings.Join(parts, ", ")
}

// endless reports whether one of the bars ends only when a person resolves it.
func endless(bars []client.Bar) bool {
	return slices.ContainsFunc(bars, func(b client.Bar) bool { return b.Action != "" })
}

// noneFree says that no key came free in time, who holds them, and what a person
// could do. Stuck is why waiting is of no use; "" when it may be.
func noneFree(e *client.Error, pool string, waited time.Duration, tried []hooks.Failure, stuck string) string {
	var b strings.Builder
	switch {
	case stuck != "":
		fmt.Fprintf(&b, "no key of %s can come free: %s", pool, stuck)
		if len(tried) == 0 {
			fmt.Fprintf(&b, "; see `qasight pool why %s`", pool)
		}
	case waited < time.Second:
		fmt.Fprintf(&b, "no key of %s is free", pool)
	default:
		fmt.Fprintf(&b, "no key of %s came free in %s", pool, Duration(waited))
	}
	for _, h := range e.Holders {
		fmt.Fprintf(&b, "\n  %s is %s", h.Key, h.State)
		if h.Account != "" {
			b.WriteString(" by " + Plain(h.Account))
		}
		if h.Holder != "" {
			b.WriteString(" (" + Plain(h.Holder) + ")")
		}
		if left := h.SecondsLeft.Duration(); left > 0 {
			fmt.Fprintf(&b, ", for at most %s", Duration(left))
		}
	}
	for _, f := range tried {
		b.WriteString("\n  tried before: " + f.String())
	}
	switch {
	case stuck == "":
		fmt.Fprintf(&b, "\nwait longer (--wait), or see `qasight pool why %s`", pool)
	case len(tried) > 0:
		fmt.Fprintf(&b, "\nsee `qasight pool why %s`", pool)
	}
	return b.String()
}
