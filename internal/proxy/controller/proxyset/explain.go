package proxyset

import (
	"fmt"
	"slices"
	"strings"

	"fleetdesk/api/v1alpha1"
)

// verdict is the condition Settled.
type verdict struct {
	settled         bool
	reason, message string
}

// explain says what the set waits for.
func (p *planner) explain() {
	var progress *member // the first that is on its way
	var idle *member     // the first that does not work
	idles, terminating := 0, (*member)(nil)
	for i := range p.members {
		m := &p.members[i]
		switch {
		case m.terminating:
			if terminating == nil {
				terminating = m
			}
		case m.ready || p.leaving[m]:
		case !m.failed && m.trouble == "" && !m.worked:
			if progress == nil {
				progress = m
			}
		default:
			idles++
			if idle == nil {
				idle = m
			}
		}
	}
	moving := len(p.deletions) > 0 || p.creations > 0 || progress != nil || terminating != nil
	p.reason = p.why(moving, progress != nil || terminating != nil, idle)
	p.settled = p.reason == v1alpha1.ReasonSettled
	said := []string{fmt.Sprintf("%d of %d Ready", p.counts.ready, p.replicas)}
	say := func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
	if n := len(p.due) + p.queued; n > 0 {
		say("%s replaced (%s)", plural(n, "is to be", "are to be"), p.causes())
	}
	if p.refused != "" && p.creations > 0 {
		say("no Proxy can be made: %s", p.refused)
	}
	switch {
	case p.blocked != "":
		say("%s", p.blocked)
	case len(p.due) > 0 && p.waits() != "":
		say("%s", p.waits())
	}
	if progress != nil {
		say("Proxy %s is being made: %s", progress.name, progress.message)
	}
	if terminating != nil {
		say("%s being deleted, %s among them: %s", plural(p.counts.terminating, "is", "are"), terminating.name, terminating.message)
	}
	if idle != nil {
		say("%s not work, %s among them: %s", plural(idles, "does", "do"), idle.name, idle.message)
		if len(p.due) > 0 && !moving && p.blocked == "" && p.waits() == "" {
			say("nothing is replaced before that, since fewer than %d were Ready", p.floor())
		}
	}
	for i, text := range p.held {
		if i == maxHeld {
			say("and %d more", len(p.held)-maxHeld)
			break
		}
		say("%s", text)
	}
	p.message = strings.Join(said, "; ")
}

// maxHeld is how many of the Proxies that are not replaced are named.
const maxHeld = 2

// why is the condition's reason.
func (p *planner) why(moving, underway bool, idle *member) string {
	switch {
	case p.refused != "" && p.creations > 0:
		return v1alpha1.ReasonHeldBack
	case len(p.due) > 0 && !moving:
		return v1alpha1.ReasonHeldBack
	case len(p.due) > 0 && p.blocked != "":
		return v1alpha1.ReasonHeldBack
	case slices.ContainsFunc(p.due, func(d due) bool { return d.cause == causeTemplate }):
		return v1alpha1.ReasonUpdating
	case len(p.due) > 0:
		return v1alpha1.ReasonRotating
	case p.counts.live != p.replicas || underway:
		return v1alpha1.ReasonScaling
	case idle != nil:
		return v1alpha1.ReasonNotReady
	case len(p.held) > 0:
		return v1alpha1.ReasonHeldBack
	}
	return v1alpha1.ReasonSettled
}

// causes counts what is due by cause.
func (p *planner) causes() string {
	n := map[cause]int{causeUnhealthy: p.queued}
	for _, d := range p.due {
		n[d.cause]++
	}
	var said []string
	for _, c := range []struct {
		cause
		text string
	}{
		{causeTemplate, "the template changed: %d"},
		{causeUnhealthy, "does not work: %d"},
		{causeBan, "banned: %d"},
		{causeAge, "too old: %d"},
	} {
		if n[c.cause] > 0 {
			said = append(said, fmt.Sprintf(c.text, n[c.cause]))
		}
	}
	return strings.Join(said, ", ")
}

// waits is why nothing of what is due is replaced now; "" when something is.
func (p *planner) waits() string {
	for _, d := range p.due {
		if d.waits == "" {
			return ""
		}
	}
	return p.due[0].waits
}

func plural(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}
