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
	// clockSlack is how far our clock, which decisions have, may be ahead of the
	// API server's, which Proxies have.
	clockSlack = 5 * time.Minute
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
	index   banIndex
}

// banIndex finds what a plan asks of its decisions again and again: a fleet may
// be banned as a whole.
type banIndex struct {
	// proxies are those of the decisions; last is an address's last decision, by
	// its place among them.
	proxies map[string]bool
	last    map[string]int
	// spent counts the decisions of the hour, of which oldest is the first to
	// count no more.
	spent  int
	oldest time.Time
	// there are the members by name, ours those that are not being deleted by
	// exit IP, and unready is when the youngest of these was made that does not
	// work.
	there   map[string]bool
	ours    map[string][]*member
	unready time.Time
	// same has an address's answer, until it has another last decision.
	same map[string]bool
}

// reindex makes the index anew.
func (b *bans) reindex(p *planner) {
	x := banIndex{
		proxies: map[string]bool{}, last: map[string]int{}, same: map[string]bool{},
		there: make(map[string]bool, len(p.members)), ours: map[string][]*member{},
	}
	for i := range p.members {
		m := &p.members[i]
		x.there[m.name] = true
		if m.terminating {
			continue
		}
		x.ours[m.exitIP] = append(x.ours[m.exitIP], m)
		if !m.ready && m.created.After(x.unready) {
			x.unready = m.created
		}
	}
	b.index = x
	for i := range b.decided {
		b.note(p, i)
	}
}

// note takes a decision into the index.
func (b *bans) note(p *planner, i int) {
	d, x := &b.decided[i], &b.index
	x.proxies[d.Proxy] = true
	if d.ExitIP != "" {
		x.last[d.ExitIP] = i
		delete(x.same, d.ExitIP)
	}
	if left := d.At.Add(budgetTime); p.now.Before(left) {
		if x.spent++; x.oldest.IsZero() || left.Before(x.oldest) {
			x.oldest = left
		}
	}
}

// counted is from how many targets on a Proxy counts as banned.
func (b *bans) counted() int { return cmp.Or(b.targets, defaultTargets) }

// chosen says whether it was decided to replace a Proxy for its bans. Once
// decided, it stands while the bans do, whatever comes in between.
func (b *bans) chosen(m *member) bool {
	return b.targets > 0 && (!b.known || m.banned >= b.targets) && b.has(m.name)
}

func (b *bans) has(proxy string) bool { return b.index.proxies[proxy] }

// decide drops decisions that say nothing any more, and makes new ones.
func (b *bans) decide(p *planner) {
	b.reindex(p)
	needed := b.needed(p)
	b.decided = slices.DeleteFunc(slices.Clone(b.decided), func(d v1alpha1.BanDecision) bool { return !needed(d) })
	b.reindex(p)
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
	if more := len(b.decided) - maxDecided; more > 0 {
		b.decided = b.decided[more:]
		b.reindex(p)
	}
	p.decided = b.decided
}

// consider decides whether a banned Proxy is to be replaced, and if so writes
// it down; else it notes why not where that may last.
func (b *bans) consider(p *planner, m *member) {
	last, oldest := b.of(m.exitIP), b.index.oldest
	switch {
	case m.trouble != "":
		p.hold("Proxy %s is banned, and not replaced while its provider cannot be relied on: %s", m.name, m.trouble)
	case p.company(m):
		p.hold("Proxy %s is banned, and not replaced: what would come instead would leave by the same address, %s, as all its neighbours do", m.name, m.exitIP)
	case last != nil && b.same(last):
		p.hold("Proxy %s is banned, and not replaced: what came instead of Proxy %s leaves by the same address, %s", m.name, last.Proxy, m.exitIP)
	case last != nil && b.open(last):
		// One at a time for an address: whether that helps is not known yet.
	case b.index.spent >= b.perHour:
		p.hold("Proxy %s is banned, and not replaced before %s: as many as rotation.byBan.perHour allows were replaced for bans", m.name, clock(oldest))
		p.again(oldest)
	default:
		b.decided = append(b.decided, v1alpha1.BanDecision{Proxy: m.name, ExitIP: m.exitIP, At: metav1.NewTime(p.now.Truncate(time.Second))})
		b.note(p, len(b.decided)-1)
	}
}

// of returns the last decision for an address; nil for none.
func (b *bans) of(exitIP string) *v1alpha1.BanDecision {
	if i, ok := b.index.last[exitIP]; ok {
		return &b.decided[i]
	}
	return nil
}

// needed says which decisions are to be remembered: for the hour that they
// count, until they are carried out, and while they keep others back.
func (b *bans) needed(p *planner) func(v1alpha1.BanDecision) bool {
	chosen, kept := map[string]bool{}, map[string]bool{} // names, and addresses
	for i := range p.members {
		m := &p.members[i]
		if m.terminating {
			continue
		}
		if b.chosen(m) {
			chosen[m.name] = true
		}
		if m.exitIP != "" && (!b.known || m.banned >= b.counted()) {
			kept[m.exitIP] = true
		}
	}
	return func(d v1alpha1.BanDecision) bool {
		return p.now.Before(d.At.Add(budgetTime)) || chosen[d.Proxy] || kept[d.ExitIP]
	}
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

// same says whether one that was made after an address's last decision leaves
// by it again.
func (b *bans) same(d *v1alpha1.BanDecision) bool {
	is, ok := b.index.same[d.ExitIP]
	if !ok {
		is = slices.ContainsFunc(b.index.ours[d.ExitIP], func(m *member) bool { return m.name != d.Proxy && !m.created.Before(since(d)) })
		b.index.same[d.ExitIP] = is
	}
	return is
}

// open says whether the outcome of a decision is not known yet: the Proxy is
// still there, or one that was made since does not work yet.
func (b *bans) open(d *v1alpha1.BanDecision) bool {
	return b.index.there[d.Proxy] || !b.index.unready.Before(since(d))
}

// since is when one was made at the earliest that came after a decision.
func since(d *v1alpha1.BanDecision) time.Time { return d.At.Add(-clockSlack) }

// hold notes why something that might be replaced is not.
func (p *planner) hold(format string, args ...any) {
	p.held = append(p.held, fmt.Sprintf(format, args...))
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 MST") }
