package probe

import (
	"math/bits"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"fleetdesk/internal/proxy/origin"
	"fleetdesk/internal/proxy/provider"
)

// Facts are what probes found out about a proxy over time, coarse enough that
// they seldom change. They are comparable.
type Facts struct {
	// ExitIP is the address that far ends see; the zero Addr while none told.
	ExitIP netip.Addr
	// Leaks are the headers with which it tells far ends that it is a proxy.
	Leaks Leaks
	// Latency is how long a request usually takes to its first byte, rounded up to
	// one of [latencySteps]; 0 while unknown.
	Latency time.Duration
	// Passed is how many of the last probes passed, in percent, rounded down to
	// one of [passedSteps]. It says nothing unless Counted.
	Passed  int
	Counted bool
}

// Leaks are header names with commas between them, "none", or "" while no far
// end told.
type Leaks string

// NoLeaks says that there are none.
const NoLeaks Leaks = "none"

// LeaksOf returns names as Leaks, in the order of [origin.Leaks] and without
// those that it lacks; names of which none is left say nothing.
func LeaksOf(names []string) Leaks {
	if len(names) == 0 {
		return NoLeaks
	}
	known := slices.DeleteFunc(origin.Leaks(), func(name string) bool { return !slices.Contains(names, name) })
	return Leaks(strings.Join(known, ","))
}

// leaks reads what the answer to a request through a proxy says of its headers.
// The tunnel that an HTTP proxy makes for https hides what it adds to a plain
// request: that nothing was seen then says nothing.
func leaks(h http.Header, t Target, scheme string) Leaks {
	names, known := origin.ParseLeaks(h)
	if !known || len(names) == 0 && scheme == "https" && t.Protocol != provider.SOCKS5 {
		return ""
	}
	return LeaksOf(names)
}

// Names are the headers, and whether anything is known of them.
func (l Leaks) Names() (names []string, known bool) {
	switch l {
	case "":
		return nil, false
	case NoLeaks:
		return []string{}, true
	}
	return strings.Split(string(l), ","), true
}

// and is what two answers say together.
func (l Leaks) and(o Leaks) Leaks {
	a, known := l.Names()
	b, _ := o.Names()
	if !known {
		return o
	}
	return LeaksOf(slices.Concat(a, b))
}

// within reports whether all that l names is in o.
func (l Leaks) within(o Leaks) bool {
	a, _ := l.Names()
	b, _ := o.Names()
	return !slices.ContainsFunc(a, func(name string) bool { return !slices.Contains(b, name) })
}

const (
	// window is how many probes facts are made from.
	window = 16
	// calm is how many answers in a row make facts that one of them alone does
	// not: that a header leaks no more, or another number than the one known.
	calm = 3
	// alike is how many answers in a row, all the same, make another exit IP.
	alike = 2
	// young is how many probes say something about a share or a usual time.
	young = 4
)

// latencySteps and passedSteps are the values that facts have.
var (
	latencySteps = [...]time.Duration{
		125 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
		time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second,
	}
	passedSteps = [...]int{100, 90, 75, 50, 25, 0}
)

// record are the last probes of one proxy, and the facts made from them. The
// facts have inertia: what goes to and fro at the border of two steps stays at
// one of them, or each probe would be a write of the Proxy's status.
type record struct {
	facts Facts
	// passes has a bit for each of the last probes, the newest lowest.
	passes uint16
	probes int
	// times are those of the last passed requests, newest last.
	times []time.Duration
	// moved is the exit IP of the last answers when it is not the known one, and
	// moves how many they are.
	moved netip.Addr
	moves int
	// softer are the answers in a row that told less than is known.
	softer Leaks
	soft   int
}

// before is a record of nothing that begins with facts known from elsewhere.
func before(f Facts) record { return record{facts: f} }

// again is the record for another test of the same proxy: what it was like
// stands until the new test has said enough.
func (r *record) again() record { return before(r.facts) }

// add takes a probe into account that counts: one that passed, or failed by the
// proxy's own fault.
func (r *record) add(res Result) {
	r.passes <<= 1
	if res.OK {
		r.passes |= 1
	}
	r.probes = min(r.probes+1, window)
	r.count()
	if res.OK && !res.Shallow {
		if r.times = append(r.times, res.Latency); len(r.times) > window {
			r.times = slices.Delete(r.times, 0, 1)
		}
		r.time()
		r.exit(res.ExitIP)
		r.leak(res.Leaks)
	}
}

// count sets Passed. It goes down when one failure less would still say so, and
// up only by a whole window: a single failure is no news, neither when it
// happens nor when it is forgotten.
func (r *record) count() {
	passed := bits.OnesCount16(r.passes)
	share := func(passed int) int { return roundDown(100 * min(passed, r.probes) / r.probes) }
	f := &r.facts
	switch {
	case !f.Counted && (passed == r.probes || r.probes >= young):
		f.Passed, f.Counted = share(passed), true
	case !f.Counted || r.probes < young:
	case share(passed+1) < f.Passed:
		f.Passed = share(passed + 1)
	case r.probes == window && share(passed) > f.Passed:
		f.Passed = share(passed)
	}
}

func roundDown(percent int) int {
	for _, step := range passedSteps {
		if percent >= step {
			return step
		}
	}
	return 0
}

// time sets Latency to the median's step, and leaves it only when the median is
// a quarter beyond the border.
func (r *record) time() {
	sorted := slices.Sorted(slices.Values(r.times))
	median := sorted[len(sorted)/2]
	f := &r.facts
	switch {
	case f.Latency == 0:
		f.Latency = roundUp(median)
	case len(r.times) < young:
	case roundUp(median*4/5) > f.Latency, roundUp(median*5/4) < f.Latency:
		f.Latency = roundUp(median)
	}
}

func roundUp(d time.Duration) time.Duration {
	for _, step := range latencySteps {
		if d <= step {
			return step
		}
	}
	return latencySteps[len(latencySteps)-1]
}

// exit sets ExitIP. The first one counts at once, another when answers in a row
// agree on it: a proxy with another address for each request has none that is
// worth a write. An answer that does not tell is none.
func (r *record) exit(told netip.Addr) {
	f := &r.facts
	switch {
	case !told.IsValid():
	case !f.ExitIP.IsValid():
		f.ExitIP = told
	case told == f.ExitIP:
		r.moves = 0
	default:
		if r.moves == 0 || told != r.moved {
			r.moved, r.moves = told, 0
		}
		if r.moves++; r.moves == alike {
			f.ExitIP, r.moves = told, 0
		}
	}
}

// leak sets Leaks. A leak counts at once; that there is one less, or that the
// far end does not tell any more, when several answers in a row say so.
func (r *record) leak(told Leaks) {
	f := &r.facts
	switch {
	case told == f.Leaks:
		r.soft = 0
	case f.Leaks == "" || !told.within(f.Leaks):
		f.Leaks, r.soft = f.Leaks.and(told), 0
	default:
		if r.soft == 0 {
			r.softer = ""
		}
		r.softer = r.softer.and(told)
		if r.soft++; r.soft == calm {
			f.Leaks, r.soft = r.softer, 0
		}
	}
}
