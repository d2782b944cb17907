// Package pool is what a fixed pool is to everybody but its owner: its keys, its
// times, and whether it has hooks. It has no field for the text of a hook or for
// a provider, so whatever is made of it cannot hold them: what is published to a
// team server, and what takes keys.
package pool

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/lease"
)

// mostNamed is how many keys are named of those that differ.
const mostNamed = 4

// Pool is a fixed pool.
type Pool struct {
	Name string
	// Items are its keys, each once, in the file's order.
	Items []string
	// TTL is a lease's time, Cooldown the rest after each use.
	TTL, Cooldown time.Duration
	// Check and Reset are whether the pool has such a hook.
	Check, Reset bool
}

// Hooks are the pool's as the rules know them.
func (p Pool) Hooks() lease.Hooks { return lease.Hooks{Check: p.Check, Reset: p.Reset} }

// Request is the pool's wire form: the whole of what is sent when it is
// published.
func (p Pool) Request() client.PublishRequest {
	return client.PublishRequest{
		Items: slices.Clone(p.Items),
		PoolSettings: client.PoolSettings{
			TTL: client.SecondsOf(p.TTL), Cooldown: client.SecondsOf(p.Cooldown), Hooks: client.Hooks{Check: p.Check, Reset: p.Reset},
		},
	}
}

// Published is what a desk says of a published pool.
type Published struct {
	Revision int64
	By       string
	At       time.Time
	Pool     Pool
}

// Short is a time as people write it in the file: 10m, not 10m0s.
func Short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// Differences says in words how the file's pool differs from what was published,
// a line each; nil when it does not. The order of items is none, and of many items
// the first by name stand for the rest.
func (p Pool) Differences(published Pool) []string {
	out := slices.Concat(
		only(p.Items, published.Items, "is in the file and was not published", "are in the file and were not published"),
		only(published.Items, p.Items, "was published and is not in the file", "were published and are not in the file"),
	)
	times := func(field string, file, there time.Duration) {
		if file != there {
			out = append(out, fmt.Sprintf("%s is %s in the file and %s as published", field, Short(file), Short(there)))
		}
	}
	times("lease_ttl", p.TTL, published.TTL)
	times("cooldown", p.Cooldown, published.Cooldown)
	has := func(hook string, file, there bool) {
		if file && !there {
			out = append(out, hook+" is in the file and was not published")
		}
		if !file && there {
			out = append(out, hook+" was published and is not in the file")
		}
	}
	has("on_check", p.Check, published.Check)
	has("on_reset", p.Reset, published.Reset)
	return out
}

// only says of which names it is true that they are in one list and not in the
// other.
func only(in, notIn []string, one, many string) []string {
	others := make(map[string]bool, len(notIn))
	for _, n := range notIn {
		others[n] = true
	}
	var names, out []string
	for _, n := range in {
		if !others[n] {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	for i, n := range names {
		// A line for the rest never stands for a single one.
		if i == mostNamed-1 && len(names) > mostNamed {
			return append(out, fmt.Sprintf("%d more keys %s", len(names)-i, many))
		}
		out = append(out, n+" "+one)
	}
	return out
}
