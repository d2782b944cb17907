package proxyset

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"fleetdesk/api/v1alpha1"
)

// world is a fleet in time, which plans are made for and carried out on.
type world struct {
	t     *rapid.T
	state state
	// age is rotation.maxAge, the template's number is generation.
	age        time.Duration
	generation int
	made       map[string]int // the template each was made from
	serial     int
	away       bool
	bannedIPs  map[string]int
	// created counts Proxies made.
	created int
}

func newWorld(t *rapid.T) *world {
	w := &world{t: t, made: map[string]int{}, bannedIPs: map[string]int{}, age: 10 * time.Hour}
	w.state = state{now: time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC), provider: "home"}
	w.scale()
	w.state.bans = bans{targets: 3, perHour: rapid.IntRange(1, 5).Draw(t, "perHour"), known: true}
	return w
}

func (w *world) scale() {
	w.state.replicas = rapid.IntRange(0, 12).Draw(w.t, "replicas")
	w.state.maxUnavailable = min(w.state.replicas, rapid.IntRange(0, 4).Draw(w.t, "maxUnavailable"))
	w.state.maxSurge = rapid.IntRange(0, 4).Draw(w.t, "maxSurge")
	if w.state.maxUnavailable == 0 && w.state.maxSurge == 0 {
		w.state.maxUnavailable = min(1, w.state.replicas)
	}
}

func (w *world) create() {
	w.serial++
	w.created++
	name := fmt.Sprintf("p-%03d", w.serial)
	m := member{
		name: name, uid: types.UID(name), seen: true, created: w.state.now, provider: "home",
		host: fmt.Sprintf("h%d", w.serial%3), lot: lot(types.UID(name)),
	}
	m.limit = ageLimit(m.created, m.lot, &v1alpha1.Rotation{MaxAge: v1alpha1.Duration(w.age.String())})
	w.made[name] = w.generation
	w.state.members = append(w.state.members, m)
}

func (w *world) plan() decision {
	for i := range w.state.members {
		m := &w.state.members[i]
		m.outdated = w.made[m.name] != w.generation
		m.banned = w.bannedIPs[m.exitIP]
		m.wide = w.away
		m.trouble = ""
		if w.away {
			m.trouble = "connection refused"
		}
		if m.ready || m.trouble != "" || !m.failed {
			m.repairAt = time.Time{}
		} else if m.repairAt.IsZero() {
			m.repairAt = w.state.now.Add(repairAfter)
		}
	}
	return plan(w.state)
}

// apply carries out some of a plan, in any order, and checks each step.
func (w *world) apply(d decision, some bool) {
	s := &w.state
	s.bans.decided = d.decided
	live, ready, all := 0, 0, len(s.members)
	for _, m := range s.members {
		if !m.terminating {
			live++
			if m.ready {
				ready++
			}
		}
	}
	surplus := 0
	for _, v := range d.deletions {
		if v.cause == "" {
			surplus++
		}
	}
	if surplus > max(0, live-s.replicas) {
		w.t.Fatalf("%d are too many of %d, and %d are wanted", surplus, live, s.replicas)
	}
	steps := make([]int, 0, len(d.deletions)+d.creations)
	for i := range d.deletions {
		steps = append(steps, i)
	}
	for range d.creations {
		steps = append(steps, -1)
	}
	if some {
		steps = rapid.Permutation(steps).Draw(w.t, "order")
		steps = steps[:rapid.IntRange(0, len(steps)).Draw(w.t, "steps")]
	}
	for _, i := range steps {
		if i < 0 {
			if all++; all > s.ceiling() {
				w.t.Fatalf("one more made: %d of at most %d", all, s.ceiling())
			}
			w.create()
			continue
		}
		v := d.deletions[i]
		at := slices.IndexFunc(s.members, func(m member) bool { return m.name == v.name })
		m := &s.members[at]
		switch {
		case m.terminating:
			w.t.Fatalf("%s is deleted twice", v.name)
		case w.away && v.cause != "":
			w.t.Fatalf("%s is replaced (%s) while the provider is away", v.name, v.cause)
		case v.cause == causeAge && s.now.Before(m.limit):
			w.t.Fatalf("%s is not old", v.name)
		case m.ready:
			if ready--; ready < s.floor() {
				w.t.Fatalf("%s goes (%q): %d Ready, at least %d", v.name, v.cause, ready, s.floor())
			}
		}
		m.terminating, m.ready = true, false
	}
}

// advance lets time pass: machines are made, and deletions end.
func (w *world) advance(d time.Duration, everything bool) {
	w.state.now = w.state.now.Add(d)
	luck := func(what string) bool { return everything || rapid.Bool().Draw(w.t, what) }
	w.state.members = slices.DeleteFunc(w.state.members, func(m member) bool {
		return m.terminating && !w.away && luck("gone")
	})
	for i := range w.state.members {
		m := &w.state.members[i]
		if !m.terminating && !m.ready && !w.away && (everything || !m.failed) && luck("works") {
			m.ready, m.worked, m.placed, m.failed = true, true, true, false
			if m.exitIP == "" {
				m.exitIP = "192.0.2." + strings.TrimPrefix(m.host, "h")
				if luck("own address") {
					m.exitIP = "198.51.100." + m.name[2:]
				}
			}
		}
	}
}

// Whatever happens, in whatever order, and however little of a plan is carried
// out: the bounds hold at each step, and when all is well again the set settles.
func TestPlansKeepTheBoundsAndSettle(t *testing.T) {
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		if err := checks.Value.Set("5000"); err != nil { // each takes a tenth of a millisecond
			t.Fatal(err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		t.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { w.apply(w.plan(), true) },
			"time": func(t *rapid.T) {
				w.advance(time.Duration(rapid.IntRange(0, 400).Draw(t, "minutes"))*time.Minute, false)
			},
			"all":      func(*rapid.T) { w.advance(time.Minute, true) },
			"scale":    func(*rapid.T) { w.scale() },
			"template": func(*rapid.T) { w.generation++ },
			"away":     func(*rapid.T) { w.away = !w.away },
			"fails": func(t *rapid.T) {
				for i := range w.state.members {
					if m := &w.state.members[i]; !m.terminating && rapid.IntRange(0, 3).Draw(t, "fails") == 0 {
						m.ready, m.failed = false, true
					}
				}
			},
			"bans": func(t *rapid.T) {
				for _, m := range w.state.members {
					if m.exitIP != "" {
						w.bannedIPs[m.exitIP] = rapid.IntRange(0, 4).Draw(t, "targets")
					}
				}
				w.state.bans.known = rapid.Bool().Draw(t, "known")
			},
			"deleted by a person": func(t *rapid.T) {
				if n := len(w.state.members); n > 0 {
					m := &w.state.members[rapid.IntRange(0, n-1).Draw(t, "which")]
					m.terminating, m.ready = true, false
				}
			},
		})
		w.away, w.bannedIPs, w.state.bans.known = false, map[string]int{}, true
		made := w.created
		settled := false
		for n := 0; !settled && n < 200; n++ {
			d := w.plan()
			settled = d.settled
			if settled != (d.reason == v1alpha1.ReasonSettled) || settled && len(d.deletions)+d.creations > 0 {
				t.Fatalf("settled, and %d to delete and %d to make: %s", len(d.deletions), d.creations, d.message)
			}
			w.apply(d, false)
			w.advance(time.Minute, true)
		}
		d := w.plan()
		if !settled || d.counts.ready != w.state.replicas || d.counts.updated != w.state.replicas || len(w.state.members) != w.state.replicas {
			t.Fatalf("does not settle: %s (%s), %d Proxies", d.reason, d.message, len(w.state.members))
		}
		if n := w.created - made; n > w.state.replicas {
			t.Fatalf("%d were made to settle %d", n, w.state.replicas)
		}
	})
}
