package proxyset

import (
	"slices"
	"time"

	"fleetdesk/api/v1alpha1"
)

// cause is why a Proxy is replaced; it is also the metric's label.
type cause string

// The causes, the one that counts first: a Proxy is replaced for one of them.
const (
	causeTemplate  cause = "template"
	causeUnhealthy cause = "unhealthy"
	causeBan       cause = "ban"
	causeAge       cause = "age"
)

// state is what a plan is made from.
type state struct {
	now time.Time
	// replicas is how many Proxies there are to be; maxUnavailable and maxSurge
	// bound replacements, in Proxies.
	replicas, maxUnavailable, maxSurge int
	// provider and host are the template's; host is "" when it names none.
	provider, host string
	// members are the set's Proxies, also those that are being deleted.
	members []member
	bans    bans
	// refused is why the Kubernetes API did not make a Proxy; "" when it did.
	refused string
}

// floor is how many Ready ones replacing leaves at least.
func (s *state) floor() int { return max(0, s.replicas-s.maxUnavailable) }

// ceiling is how many Proxies there are at most because of us.
func (s *state) ceiling() int { return s.replicas + s.maxSurge }

// deletion is a Proxy to delete, and why. Without a cause it is one too many.
type deletion struct {
	*member
	cause cause
}

// decision is what a plan comes to.
type decision struct {
	counts counts
	// deletions and creations are to be done now; both keep the bounds also when
	// only some of them succeed, in whatever order.
	deletions []deletion
	creations int
	// decided are the decisions to replace for bans that are to be remembered,
	// new ones among them: they must be stored before anything is done.
	decided []v1alpha1.BanDecision
	// asked are Ready ones between which it chose, the first to go first: who
	// holds them matters. There are none when it had no choice.
	asked []*member
	// next is when to look again although nothing changed; zero for never.
	next time.Time
	verdict
}

// counts are Proxies by what is known of them.
type counts struct {
	// live are those that are not being deleted; all others count those.
	live, ready, updated, banned int
	terminating                  int
}

// due is a Proxy to replace.
type due struct {
	*member
	cause cause
	// waits says why it is not replaced now; "" when it is.
	waits string
}

// planner makes one plan.
type planner struct {
	state
	decision
	// due are to be replaced, those to go first first.
	due []due
	// queued counts those that fail by themselves and wait for others that are
	// being replaced for it.
	queued int
	// held are reasons why something that might be replaced is not.
	held []string
	// blocked says why nothing at all is replaced now; "" when it may.
	blocked string
	// making counts those that are to stay and never were Ready so far, ready
	// all that are, live and all those that are left after the deletions so far.
	making, ready, live, all int
	// leaving are due, gone deleted.
	leaving, gone map[*member]bool
	// neighbours are the exit IPs of the template's provider's Proxies by host,
	// counted.
	neighbours map[string]map[string]int
	rows       []row
}

// plan decides what to do. It never
//   - makes more than replicas + maxSurge in all, those counted that are being
//     deleted, or
//   - deletes a Ready one when fewer than replicas − maxUnavailable were left,
//
// and it does nothing that the next plan, made from the outcome, would undo.
func plan(s state) decision {
	p := &planner{state: s, leaving: map[*member]bool{}, gone: map[*member]bool{}, rows: victims()}
	p.count()
	p.bans.decide(p)
	p.judge()
	p.giveUp()
	p.replace()
	p.create()
	p.explain()
	return p.decision
}

func (p *planner) count() {
	for i := range p.members {
		m := &p.members[i]
		p.all++
		if m.terminating {
			p.counts.terminating++
			continue
		}
		p.live++
		if m.ready {
			p.ready++
		}
		if !m.outdated {
			p.counts.updated++
		}
		if m.banned >= p.bans.counted() {
			p.counts.banned++
		}
	}
	p.counts.live, p.counts.ready = p.live, p.ready
}

// judge says which Proxies are to be replaced, and which of them not now.
func (p *planner) judge() {
	failing, sick := p.failing()
	for i := range p.members {
		m := &p.members[i]
		if m.terminating {
			continue
		}
		d := due{member: m}
		switch {
		case m.outdated:
			// Somebody asked for this, so a provider that is away does not hold it
			// up; such Proxies only come last.
			d.cause = causeTemplate
		case failing[m]:
			d.cause, d.waits = causeUnhealthy, sick
		case p.bans.chosen(m):
			d.cause = causeBan
		case !m.limit.IsZero() && !p.now.Before(m.limit):
			d.cause = causeAge
		default:
			p.again(m.limit)
			continue
		}
		if m.trouble != "" && d.cause != causeTemplate {
			d.waits = "Proxy " + m.name + " is not replaced while its provider cannot be relied on: " + m.trouble
		}
		p.due = append(p.due, d)
	}
	slices.SortStableFunc(p.due, func(a, b due) int {
		if c := first(a.trouble == "", b.trouble == ""); c != 0 {
			return c // the deletion of others ends sooner
		}
		return p.order(a.member, b.member)
	})
	for _, d := range p.due {
		p.leaving[d.member] = true
	}
	for i := range p.members {
		if m := &p.members[i]; m.isMaking() && !p.leaving[m] {
			p.making++
		}
	}
	p.blocked = p.block()
}

// failing are the Proxies to replace because they do not work while their
// provider does, as many at once as may be missing and one at least; the text
// is why not now. A check that is wrong itself fails them all, so while more
// than half of the set does not work, none is replaced for it.
func (p *planner) failing() (chosen map[*member]bool, waits string) {
	var all []*member
	sick := 0
	for i := range p.members {
		m := &p.members[i]
		if m.terminating {
			continue
		}
		if m.failed {
			sick++
		}
		switch {
		case m.repairAt.IsZero() || m.outdated:
		case p.now.Before(m.repairAt):
			p.again(m.repairAt)
		default:
			all = append(all, m)
		}
	}
	if len(all) == 0 {
		return nil, ""
	}
	slices.SortFunc(all, func(a, b *member) int {
		if c := a.repairAt.Compare(b.repairAt); c != 0 {
			return c
		}
		return byName(a, b)
	})
	if sick > max(1, p.live/2) {
		waits = plural(sick, "Proxy does", "Proxies do") + " not work, which is more than half of the set: that is a fault of the check, of the network or of the template rather than of the machines, so none is replaced for it"
	}
	n := min(len(all), max(1, p.maxUnavailable))
	p.queued = len(all) - n
	chosen = map[*member]bool{}
	for _, m := range all[:n] {
		chosen[m] = true
	}
	return chosen, waits
}

// block says why nothing is to be replaced now: what would come instead does
// not work. A quota is no such reason, since giving up an old one may be what
// makes room for the new one.
func (p *planner) block() string {
	if len(p.due) == 0 {
		return ""
	}
	for i := range p.members {
		switch m := &p.members[i]; {
		case m.terminating:
		case m.wide && m.provider == p.provider:
			return "nothing is replaced while provider " + p.provider + " cannot be relied on: " + m.trouble
		case m.ready || p.leaving[m] || m.worked:
		case m.failed, m.trouble != "" && !m.quota:
			return "nothing more is replaced until Proxy " + m.name + ", made from the present template, works: " + m.message
		}
	}
	return ""
}

// going are the Proxies that may be replaced now.
func (p *planner) going() (now []due, waiting int) {
	for _, d := range p.due {
		switch {
		case p.gone[d.member]:
		case d.waits != "" || p.blocked != "":
			waiting++
		default:
			now = append(now, d)
		}
	}
	return now, waiting
}

// giveUp deletes those that are too many: first such as are replaced anyway,
// then by the order of victims. What stands in for one that is being replaced
// is not too many.
func (p *planner) giveUp() {
	now, waiting := p.going()
	standIns := min(p.maxSurge, len(now)+min(p.making, waiting))
	surplus := p.live - p.replicas - standIns
	if surplus <= 0 {
		return
	}
	for _, d := range now {
		if surplus > 0 && p.remove(d.member, "") {
			surplus--
		}
	}
	var rest []*member
	for i := range p.members {
		if m := &p.members[i]; !m.terminating && m.seen && !p.gone[m] {
			rest = append(rest, m)
		}
	}
	slices.SortFunc(rest, p.order)
	p.ask(rest, surplus)
	for _, m := range rest {
		if surplus > 0 && p.remove(m, "") {
			surplus--
		}
	}
}

// replace deletes those that are due: Ready ones while enough others are Ready,
// and others while there are enough, for which those that are still being made
// do not count: what does not work is not all made anew at once either.
func (p *planner) replace() {
	now, _ := p.going()
	may := make([]*member, len(now))
	for i, d := range now {
		may[i] = d.member
	}
	p.ask(may, p.live-p.making-p.floor())
	for _, d := range now {
		if p.live-p.making <= p.floor() {
			return
		}
		p.remove(d.member, d.cause)
	}
}

// remove deletes a Proxy unless too few Ready ones were left, and says so.
func (p *planner) remove(m *member, why cause) bool {
	if m.ready {
		if p.ready <= p.floor() {
			return false
		}
		p.ready--
	}
	p.live--
	p.gone[m] = true
	p.deletions = append(p.deletions, deletion{member: m, cause: why})
	return true
}

// create makes those that are missing, and those that will stand in for the
// ones to be replaced.
func (p *planner) create() {
	now, _ := p.going()
	missing := p.replicas - (p.live - len(now))
	p.creations = max(0, min(missing, p.ceiling()-p.all))
}

// ask notes between which Ready ones it is chosen when n are to go, those that
// are not Ready before them.
func (p *planner) ask(from []*member, n int) {
	var ready []*member
	for _, m := range from {
		if m.ready {
			ready = append(ready, m)
		} else {
			n--
		}
	}
	if n > 0 && n < len(ready) {
		p.asked = append(p.asked, ready...)
	}
}

// again has the set looked at then, if that is to come.
func (p *planner) again(at time.Time) {
	if at.After(p.now) && (p.next.IsZero() || at.Before(p.next)) {
		p.next = at
	}
}
