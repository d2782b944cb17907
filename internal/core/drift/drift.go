// Package drift compares the names that are wanted with those that exist. It does
// no I/O, and guesses nothing: where a list could not be had, nothing is missing
// and nothing is left over.
package drift

import (
	"slices"
	"strings"
)

// World is what exists. Its zero value is that nobody knows.
type World struct {
	names []string
	known bool
}

// Exactly is a world of these names and no others; none of them is an empty world,
// which is another thing than an unknown one. The names stay the caller's own and
// must not change while the world is used.
func Exactly(names []string) World { return World{names, true} }

// Known reports whether it is known what exists.
func (w World) Known() bool { return w.known }

// State is whether a name that is wanted exists.
type State string

// The states.
const (
	Present State = "present"
	Missing State = "missing"
	// Unknown: nobody could tell.
	Unknown State = "?"
)

// Question is what is compared. Names in any of its lists may come in any order,
// and more than once.
type Question struct {
	// Wanted are the names that should exist.
	Wanted []string
	// World is what exists.
	World World
	// Elsewhere are names that others want: they are nobody's leftovers.
	Elsewhere []string
	// Used are names that somebody uses now. One that is left over is told, and
	// marked: it must not be taken away.
	Used []string
	// Prefix is what the names of one's own begin with; with "" none is one's
	// own for certain.
	Prefix string
}

// Wanted is a name that should exist.
type Wanted struct {
	Name  string
	State State
}

// Leftover is a name that exists and that nobody wants.
type Leftover struct {
	Name string
	// Whose says whether it may be one's own.
	Whose Owner
	// Use says whether somebody uses it.
	Use Use
}

// Owner is whose a leftover is.
type Owner string

// The owners.
const (
	// Ours: it has the prefix.
	Ours Owner = "ours"
	// Foreign: it has not, or there is none to tell by.
	Foreign Owner = "foreign"
)

// Use is whether a leftover is in use.
type Use string

// The uses.
const (
	Idle Use = "idle"
	Busy Use = "busy"
)

// May reports whether a leftover may be swept, as far as names tell: it is one's
// own, and nobody uses it.
func (l Leftover) May() bool { return l.Whose == Ours && l.Use == Idle }

// Answer is how the two differ.
type Answer struct {
	// Wanted are the wanted names, each once, in the order of the question.
	Wanted []Wanted
	// Leftovers are sorted by name; nil in an unknown world.
	Leftovers []Leftover
}

// Compare answers the question, in O(n log n) of all names.
func Compare(q Question) Answer {
	var a Answer
	exist := set(q.World.names)
	wanted := make(map[string]bool, len(q.Wanted))
	for _, n := range q.Wanted {
		if wanted[n] {
			continue
		}
		wanted[n] = true
		a.Wanted = append(a.Wanted, Wanted{n, q.World.state(exist, n)})
	}
	// An unknown world has no names, so nothing is left over in it.
	elsewhere, used := set(q.Elsewhere), set(q.Used)
	for n := range exist {
		if wanted[n] || elsewhere[n] {
			continue
		}
		l := Leftover{Name: n, Whose: Foreign, Use: Idle}
		if q.Prefix != "" && strings.HasPrefix(n, q.Prefix) {
			l.Whose = Ours
		}
		if used[n] {
			l.Use = Busy
		}
		a.Leftovers = append(a.Leftovers, l)
	}
	slices.SortFunc(a.Leftovers, func(x, y Leftover) int { return strings.Compare(x.Name, y.Name) })
	return a
}

func (w World) state(exist map[string]bool, name string) State {
	switch {
	case !w.known:
		return Unknown
	case exist[name]:
		return Present
	}
	return Missing
}

// Count counts the wanted names in a state.
func (a Answer) Count(s State) int {
	n := 0
	for _, w := range a.Wanted {
		if w.State == s {
			n++
		}
	}
	return n
}

func set(names []string) map[string]bool {
	s := make(map[string]bool, len(names))
	for _, n := range names {
		s[n] = true
	}
	return s
}
