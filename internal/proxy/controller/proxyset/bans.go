package proxyset

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fleetdesk/api/v1alpha1"
)

const (
	// budgetTime is the time in which so many Proxies may be replaced for bans as
	// rotation.byBan.perHour says.
	budgetTime = time.Hour
	// defaultTargets is by how many targets a Proxy counts as banned where
	// rotation.byBan does not say.
	defaultTargets = 3
	// maxDecided bounds the decisions that are remembered; perHour is not above.
	maxDecided = 1000
)

// bans are what a plan knows of bans.
type bans struct {
	// targets and perHour are the spec's; 0 targets: nothing is replaced for
	// bans.
	targets, perHour int
	// known is false while nobody can be asked who is banned.
	known bool
	// decided are the decisions so far, the oldest first.
	decided []v1alpha1.BanDecision
}

// counted is from how many targets on a Proxy counts as banned.
func (b *bans) counted() int { return cmp.Or(b.targets, defaultTargets) }

// chosen says whether it was decided to replace a Proxy for its bans. Once
// decided, it stands while the bans do, whatever comes in between.
func (b *bans) chosen(m *member) bool {
	return b.targets > 0 && (!b.known || m.banned >= b.targets) && b.has(m.name)
}

func (b *bans) has(proxy string) bool {
	return slices.ContainsFunc(b.decided, func(d v1alpha1.BanDecision) bool { return d.Proxy == proxy })
}

// decide drops decisions that say nothing any more, and makes new ones.
func (b *bans) decide(p *planner) {
	b.decided = slices.DeleteFunc(slices.Clone(b.decided), func(d v1alpha1.BanDecision) bool { return !b.needed(p, d) })
	if b.targets > 0 && b.known {
		var all []*member
		for i := range p.members {
			if m := &p.members[i]; !m.terminating && !m.outdated && m.banned >= b.targets && !b.has(m.name) {
				all = append(all, m)
			}
		}
		slices.SortFunc(all, func(x, y *member) int {
			return cmp.Or(cmp.Compare(y.banned, x.banned), byName(x, y))
		})
		for _, m := range all {
			b.consider(p, m)
		}
	}
	b.decided = b.decided[max(0, len(b.decided)-maxDecided):]
	p.decided = b.decided
}

// consider decides whether a banned Proxy is to be replaced, and if so writes
// it down; else it notes why not where that may last.
func (b *bans) consider(p *planner, m *member) {
	spent, oldest := 0, time.Time{}
	for _, d := range b.decided {
		if left := d.At.Add(budgetTime); p.now.Before(left) {
			spent++
			if oldest.IsZero() || left.Before(oldest) {
				oldest = left
			}
		}
	}
	last := b.of(m.exitIP)
	switch {
	case m.trouble != "":
		p.hold("Proxy %s is banned, and not replaced while its provider cannot be relied on: %s", m.name, m.trouble)
	case p.company(m):
		p.hold("Proxy %s is banned, and not replaced: what would come instead would leave by the same address, %s, as all its neighbours do", m.name, m.exitIP)
	case last != nil && p.same(last):
		p.hold("Proxy %s is banned, and not replaced: what came instead of Proxy %s leaves by the same address, %s", m.name, last.Proxy, m.exitIP)
	case last != nil && p.open(last):
		// One at a time for an address: whether that helps is not known yet.
	case spent >= b.perHour:
		p.hold("Proxy %s is banned, and not replaced before %s: as many as rotation.byBan.perHour allows were replaced for bans", m.name, clock(oldest))
		p.again(oldest)
	default:
		b.decided = append(b.decided, v1alpha1.BanDecision{Proxy: m.name, ExitIP: m.exitIP, At: metav1.NewTime(p.now.Truncate(time.Second))})
	}
}

// of returns the last decision for an address; nil for none.
func (b *bans) of(exitIP string) *v1alpha1.BanDecision {
	for _, d := range slices.Backward(b.decided) {
		if exitIP != "" && d.ExitIP == exitIP {
			return &d
		}
	}
	return nil
}

// needed says whether a decision is to be remembered: for the hour that it
// counts, until it is carried out, and while it keeps others back.
func (b *bans) needed(p *planner, d v1alpha1.BanDecision) bool {
	if p.now.Before(d.At.Add(budgetTime)) {
		return true
	}
	for i := range p.members {
		m := &p.members[i]
		switch {
		case m.terminating:
		case m.name == d.Proxy:
			return b.chosen(m)
		case m.exitIP == d.ExitIP && d.ExitIP != "" && (!b.known || m.banned >= b.counted()):
			return true
		}
	}
	return false
}

// company says whether a Proxy has neighbours that all leave by its address:
// those of the template's provider on the host where the one in its place would
// be, as far as that is known.
func (p *planner) company(m *member) bool {
	if p.neighbours == nil {
		p.neighbours = map[string]map[string]int{}
		for i := range p.members {
			o := &p.members[i]
			if o.terminating || o.provider != p.provider || o.exitIP == "" {
				continue
			}
			if p.neighbours[o.host] == nil {
				p.neighbours[o.host] = map[string]int{}
			}
			p.neighbours[o.host][o.exitIP]++
		}
	}
	host := cmp.Or(p.host, m.host)
	there := p.neighbours[host]
	others := there[m.exitIP]
	if host == m.host && m.provider == p.provider {
		others-- // itself
	}
	return m.exitIP != "" && len(there) == 1 && others > 0
}

// same says whether one that was made after a decision leaves by the address
// for which it was taken.
func (p *planner) same(d *v1alpha1.BanDecision) bool {
	return slices.ContainsFunc(p.members, func(m member) bool {
		return !m.terminating && m.name != d.Proxy && m.exitIP == d.ExitIP && !m.created.Before(d.At.Time)
	})
}

// open says whether the outcome of a decision is not known yet: the Proxy is
// still there, or one that was made since does not work yet.
func (p *planner) open(d *v1alpha1.BanDecision) bool {
	return slices.ContainsFunc(p.members, func(m member) bool {
		return m.name == d.Proxy || !m.terminating && !m.ready && !m.created.Before(d.At.Time)
	})
}

// hold notes why something that might be replaced is not.
func (p *planner) hold(format string, args ...any) {
	p.held = append(p.held, fmt.Sprintf(format, args...))
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 MST") }
