package sweep

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"fleetdesk/internal/proxy/provider"
)

// model is what an onlooker knows who writes everything down and reads the
// rules' plans, without a memory of theirs.
type model struct {
	now time.Time
	// orphanSince is when a thing was first met as an orphan, without having
	// been met otherwise since; times is how often.
	orphanSince map[thing]time.Time
	times       map[thing]int
	// offered are the sets that the fuse held, by hash; granted the ids of those
	// that a person released.
	offered map[string][]string
	granted map[string]bool
}

var hostNames = []string{"h1", "h2", "h3"}

// world draws what a sweep reads. The parts come from one seed: rapid's own
// draws lean to zero, and a world of zeros is all rare cases.
func (m *model) world(t *rapid.T, last string) view {
	seed := rapid.Uint64().Draw(t, "world")
	rnd := rand.New(rand.NewPCG(seed, 1))
	pick := func(of int) bool { return rnd.IntN(of+1) == 0 }
	m.now = m.now.Add([]time.Duration{time.Second, time.Minute, grace / 2, grace}[rnd.IntN(4)])
	v := view{now: m.now, installation: ours, grace: grace, owners: map[string]bool{}}
	v.dryRun = pick(9)
	v.page.Abandoned, v.page.Elsewhere = map[string]AbandonedInstance{}, map[string]string{}
	nobody := pick(15)
	for i := range 24 {
		uid := fmt.Sprintf("u-%02d", i)
		// The first ones mostly have owners, so that the fuse lets some pass.
		if !nobody && (i < 14 && !pick(40) || pick(12)) {
			v.owners[uid] = true
		}
		if pick(20) {
			v.page.Abandoned[uid] = AbandonedInstance{}
			if pick(1) {
				v.page.Remove = append(v.page.Remove, uid)
			}
		} else if pick(20) {
			v.page.Remove = append(v.page.Remove, uid)
		} else if pick(20) {
			v.page.Elsewhere[uid] = "other"
		}
	}
	few := pick(5)
	for h, host := range hostNames {
		r := provider.HostList{Host: host}
		if pick(8) {
			r.Err = errors.New("mute")
		}
		for i := range 24 {
			// Also beside an error: nothing of it may count.
			if i%3 != h && !pick(80) || pick(15) || few && !pick(6) {
				continue
			}
			in := inst(host, fmt.Sprintf("u-%02d", i))
			switch {
			case pick(25):
				in.State = provider.Unknown
			case pick(25):
				in.Owner.Installation = "other"
			case pick(40):
				in.Owner = provider.Owner{}
			case pick(15):
				in.Created = m.now.Add(-[]time.Duration{0, grace - 1, grace, -time.Hour}[rnd.IntN(4)])
			}
			r.Instances = append(r.Instances, in)
		}
		v.hosts = append(v.hosts, r)
		v.leftovers = append(v.leftovers, provider.HostLeftovers{Host: host, Leftovers: []provider.Leftover{{ID: "img", What: "image"}}})
	}
	if pick(20) {
		v.hosts = v.hosts[1:]
	}
	v.page.Release = []string{"", "0123456789abcdef", last, last}[rnd.IntN(4)]
	if pick(5) {
		v.bars = bars{needed: true, open: set(hostNames[rnd.IntN(3)])}
		if pick(3) {
			v.bars.all = "a conflict"
		}
	}
	return v
}

// witness brings the onlooker's book up to date with a view.
func (m *model) witness(v view) {
	whole := wholeHosts(v.hosts)
	here := map[thing]bool{}
	for _, h := range v.hosts {
		for _, in := range h.Instances {
			key := thing{h.Host, Instance, in.ID, in.Owner.UID}
			_, left := v.page.Abandoned[in.Owner.UID]
			_, other := v.page.Elsewhere[in.Owner.UID]
			orphan := whole[h.Host] && in.Owner.Installation == ours && !v.owners[in.Owner.UID] && !left && !other && in.State != provider.Unknown
			if !orphan {
				continue
			}
			here[key] = true
			if m.times[key] == 0 {
				m.orphanSince[key] = v.now
			}
			m.times[key]++
		}
	}
	for key := range m.times {
		if w, listed := whole[key.host]; !here[key] && (w || !listed) {
			delete(m.times, key)
			delete(m.orphanSince, key)
		}
	}
	if v.page.Release == "" {
		clear(m.granted)
	}
	for _, id := range m.offered[v.page.Release] {
		m.granted[id] = true
	}
}

// TestNothingWrongEverGoes draws histories of sweeps and checks each plan
// against the rules as people state them.
func TestNothingWrongEverGoes(t *testing.T) {
	seen := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		m := &model{now: start, orphanSince: map[thing]time.Time{}, times: map[thing]int{}, offered: map[string][]string{}, granted: map[string]bool{}}
		var mem memory
		last := ""
		for range rapid.IntRange(1, 8).Draw(t, "sweeps") {
			v := m.world(t, last)
			m.witness(v)
			var p plan
			before := fmt.Sprint(mem)
			old := mem
			p, mem = judge(v, mem)
			if fmt.Sprint(old) != before {
				t.Fatal("judge changed the memory that it was given")
			}
			m.check(t, v, p, seen)
			if last = p.hash; last != "" {
				var ids []string
				for _, f := range p.findings {
					if f.Verdict == Held && f.What == Instance && !f.Left && !m.granted[f.ID] {
						ids = append(ids, f.ID)
					}
				}
				m.offered[last] = ids
			}
		}
	})
	for _, what := range []string{"orphan", "abandoned", "leftover", "held", "dry", "released", "barred", "elsewhere"} {
		if seen[what] == 0 {
			t.Errorf("no history had a case of %q: the test proves nothing of it", what)
		}
	}
}

func (m *model) check(t *rapid.T, v view, p plan, seen map[string]int) {
	whole := wholeHosts(v.hosts)
	fresh, due, readable := 0, 0, map[thing]bool{}
	for _, h := range v.hosts {
		for _, in := range h.Instances {
			if whole[h.Host] && in.Owner.Installation == ours && in.State != provider.Unknown {
				readable[thing{h.Host, Instance, in.ID, in.Owner.UID}] = true
			}
		}
	}
	for _, f := range p.findings {
		if f.instance.Owner.Installation == "other" {
			t.Fatalf("another installation's is in the report: %+v", f.Item)
		}
		ripe := m.times[f.thing()] >= 2 && v.now.Sub(m.orphanSince[f.thing()]) >= grace &&
			(f.instance.Created.IsZero() || f.instance.Created.After(v.now) || v.now.Sub(f.instance.Created) >= grace)
		orphan := f.What == Instance && !f.Left && f.Verdict != Unreadable
		if orphan && ripe {
			due++
			if f.act == removeOrphan && !m.granted[f.ID] {
				fresh++
			}
			if f.Verdict != Due && f.Verdict != Held {
				t.Fatalf("it waits though nothing is to wait for: %+v", f.Item)
			}
			barred := v.bars.why(f.Host) != ""
			if p.hash == "" && !barred && !v.dryRun && f.act != removeOrphan {
				t.Fatalf("nothing holds it and it stays: %+v", f.Item)
			}
			if barred {
				seen["barred"]++
			}
			if f.Verdict == Held && p.hash != "" {
				seen["held"]++
			}
		}
		_, other := v.page.Elsewhere[f.UID]
		if other {
			seen["elsewhere"]++
		}
		if f.act == nothing {
			continue
		}
		switch {
		case v.dryRun:
			t.Fatalf("a dry run acts: %+v", f.Item)
		case v.owners[f.UID]:
			t.Fatalf("its Proxy exists: %+v", f.Item)
		case f.act != strike && !whole[f.Host]:
			t.Fatalf("its host was not whole: %+v", f.Item)
		case f.act != strike && v.bars.why(f.Host) != "":
			t.Fatalf("a claim forbids it: %+v", f.Item)
		case f.act != strike && f.act != removeLeftover && !readable[f.thing()]:
			t.Fatalf("it is not readable and ours: %+v", f.Item)
		}
		_, left := v.page.Abandoned[f.UID]
		switch f.act {
		case strike:
			if !slices.Contains(v.page.Remove, f.UID) {
				t.Fatalf("nobody asked for its record to go: %+v", f.Item)
			}
		case removeOrphan:
			if left || other || !ripe {
				t.Fatalf("abandoned %v, ripe %v: %+v", left, ripe, f.Item)
			}
			seen["orphan"]++
			if m.granted[f.ID] {
				seen["released"]++
			}
		case removeAbandoned:
			if !left || !slices.Contains(v.page.Remove, f.UID) {
				t.Fatalf("nobody asked for it: %+v", f.Item)
			}
			seen["abandoned"]++
		case removeLeftover:
			seen["leftover"]++
		}
	}
	if v.dryRun {
		seen["dry"]++
	}
	if fresh > 0 && (fresh > max(3, len(readable)*20/100) || due == len(readable) || len(v.owners) == 0) {
		t.Fatalf("the fuse let %d go that nobody released: %d due of %d, %d Proxies", fresh, due, len(readable), len(v.owners))
	}
	if p.hash != "" && v.dryRun {
		t.Fatal("a dry run has a hash to release")
	}
}

// TestClaimsProperty draws histories of what another operator's claim does on
// two hosts, and checks that a look opens no host too early.
func TestClaimsProperty(t *testing.T) {
	opened, conflicts := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		type claim struct {
			beat  uint64
			there bool
		}
		other := map[string]*claim{"h1": {}, "h2": {}}
		lastSeen := map[string]uint64{}
		known := map[string]bool{}
		looks := map[string]int{}
		var quietSince time.Time
		alive := false
		now := start
		period := time.Minute
		var c claims
		for range rapid.IntRange(1, 12).Draw(t, "looks") {
			now = now.Add(rapid.SampledFrom([]time.Duration{time.Second, time.Minute, 3 * time.Minute, 3*time.Minute + time.Second}).Draw(t, "pause"))
			var rows []provider.HostClaims
			for _, host := range slices.Sorted(maps.Keys(other)) {
				o := other[host]
				switch rapid.IntRange(0, 5).Draw(t, "what it does") {
				case 0:
					o.there, o.beat = true, o.beat+1
				case 1:
					o.there = false
				}
				r := provider.HostClaims{Host: host}
				if rapid.IntRange(0, 6).Draw(t, "mute") == 0 {
					r.Err = errors.New("mute")
					looks[host] = 0
				} else {
					looks[host]++
					if o.there {
						r.Others = []provider.OtherClaim{{Holder: "other000", Beat: o.beat, Period: period}}
					}
					if !o.there {
						known[host] = false
					} else if !known[host] || lastSeen[host] != o.beat {
						alive = alive || known[host]
						quietSince, known[host], lastSeen[host] = now, true, o.beat
					}
				}
				rows = append(rows, r)
			}
			if !known["h1"] && !known["h2"] {
				alive = false
			}
			dead := now.Sub(quietSince) > 3*period
			if dead {
				alive = false
			}
			var s seen
			c, s = c.look(now, period, rows, nil)
			for _, r := range rows {
				want := r.Err == nil && looks[r.Host] >= 2 && !alive && (!known[r.Host] || dead)
				if got := s.bars.why(r.Host) == ""; got != want {
					t.Fatalf("host %s: open %v, want %v; looks %d, alive %v, known %v, dead %v", r.Host, got, want, looks[r.Host], alive, known[r.Host], dead)
				}
				if want {
					opened++
				}
			}
			if alive {
				conflicts++
			}
		}
	})
	if opened == 0 || conflicts == 0 {
		t.Errorf("%d hosts were open, %d conflicts: the test proves nothing", opened, conflicts)
	}
}
