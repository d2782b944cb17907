package proxyset

import (
	"cmp"
	"strings"
)

// row is one line of the order of victims.
type row struct {
	// text says who goes first, in the words of docs/proxysets.md.
	text  string
	first func(p *planner, m *member) bool
}

// victims is the order in which Proxies are given up when there are too many.
// Each row decides between those that the rows above it do not tell apart; what
// is left is decided by the Proxies' own age limits and, without such, by lot.
func victims() []row {
	return []row{
		{"no machine was begun for it", func(_ *planner, m *member) bool { return !m.ready && !m.placed }},
		{"its machine is being made or repaired", func(_ *planner, m *member) bool { return !m.ready && !m.failed }},
		{"it is `Failed` or `Unhealthy`", func(_ *planner, m *member) bool { return !m.ready }},
		{"so many targets ban it as `rotation.byBan.targets` says (3 without it)", func(p *planner, m *member) bool { return m.banned >= p.bans.counted() }},
		{"it was made from an earlier template", func(_ *planner, m *member) bool { return m.outdated }},
		{"nobody holds it", func(_ *planner, m *member) bool { return !m.held }},
	}
}

// order says which of two goes first.
func (p *planner) order(a, b *member) int {
	for _, r := range p.rows {
		if c := first(r.first(p, a), r.first(p, b)); c != 0 {
			return c
		}
	}
	if c := a.limit.Compare(b.limit); c != 0 {
		return c
	}
	if c := cmp.Compare(a.lot, b.lot); c != 0 {
		return c
	}
	return byName(a, b)
}

// first puts what is so before what is not.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func byName(a, b *member) int { return strings.Compare(a.name, b.name) }
