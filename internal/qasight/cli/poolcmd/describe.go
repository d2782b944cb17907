package poolcmd

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"fleetdesk/client"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/qasight/cli/command"
)

// States that are told of keys beside those of package lease.
const (
	// stateUnknown: the lease store did not say.
	stateUnknown = "?"
	// stateUnpublished: the key is in the file, and the team server does not know it.
	stateUnpublished = "not-published"
)

// told is when something is told to people: times are shown as seen from then.
type told struct{ now time.Time }

// at shows a time of the past or future: the hour, and the day unless it is today.
func (t told) at(when time.Time) string {
	when = when.In(t.now.Location())
	if y, m, d := when.Date(); y == t.now.Year() && m == t.now.Month() && d == t.now.Day() {
		return when.Format("15:04:05")
	}
	return when.Format("2006-01-02 15:04")
}

// until shows when so many seconds are over.
func (t told) until(left client.Seconds) string {
	return fmt.Sprintf("%s (%s left)", t.at(t.now.Add(left.Duration())), command.Duration(left.Duration()))
}

// who names an account, and what it said about itself.
func who(account, holder string) string {
	switch {
	case holder == "" || holder == account:
		return account
	case account == "":
		return holder
	}
	return account + " (" + holder + ")"
}

// why says why a key of the pool is not free, and what else is to be known of it;
// "" for a free one.
func (t told) why(k client.Key, pool string) string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if l := k.Lease; l != nil {
		since := ""
		if !l.Taken.IsZero() {
			since = " since " + t.at(l.Taken)
		}
		from := ""
		if l.Pool != pool {
			from = ", taken from pool " + l.Pool
		}
		add("by %s%s until %s%s", who(l.Account, l.Holder), since, t.until(l.SecondsLeft), from)
	}
	if slices.Contains(k.Leaving, pool) {
		add("leaves the pool when its lease ends")
	}
	switch d := k.Disabled; {
	case d == nil:
	case d.Auto:
		add("taken out of use in %s's name since %s: %s", d.By, t.at(d.At), d.Reason)
	case k.State == string(lease.DisabledSt):
		add("by %s since %s: %s", d.By, t.at(d.At), d.Reason)
	default:
		add("disabled by %s since %s: %s", d.By, t.at(d.At), d.Reason)
	}
	for _, b := range k.Bars {
		if b.Action != "" {
			add("barred by an action of %s without an end (%s)", b.By, b.Action)
		} else {
			add("barred by a change of %s until %s", b.By, t.until(b.SecondsLeft))
		}
	}
	switch lease.State(k.State) {
	case lease.Cooling:
		add("until %s", t.until(k.SecondsLeft))
	case lease.NeedsReset:
		add("whoever takes it next resets it first")
	case lease.Unhealthy:
		add("%s", k.Unhealthy)
	case lease.Gone:
		add("on no list any more")
	case lease.Free, lease.Held, lease.Resetting, lease.DisabledSt, lease.Barred:
	}
	if k.State == stateUnpublished {
		add("nobody can take it before it is published")
	}
	return strings.Join(parts, "; ")
}

// fence reads the number out of a lease's public id; 0 when it has none.
func fence(l *client.KeyLease) int64 {
	id, err := lease.ParseID(l.ID)
	if err != nil {
		return 0
	}
	return id.Fence
}

// plural is "1 key" or "3 keys".
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// some lists the first few names, and counts the rest.
func some(names []string, most int) string {
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// cut shortens a line to so many letters.
func cut(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-1]) + "…"
}
