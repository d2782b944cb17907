package proxyset

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"fleetdesk/api/v1alpha1"
)

// What came instead of a banned one is known as such also when the API server's
// clock, by which it was made, is behind ours.
func TestWhatCameInsteadIsKnownWhicheverClockIsAhead(t *testing.T) {
	const inVain = "what came instead of Proxy q leaves by the same address"
	for name, tc := range map[string]struct {
		who   string
		made  time.Duration // after the decision, by the API server's clock
		ready bool
		want  string
	}{
		"in vain":              {"c", time.Minute, true, inVain},
		"in vain, skewed":      {"c", -time.Minute, true, inVain},
		"not known":            {"c", time.Minute, false, ""},
		"not known, skewed":    {"c", -time.Minute, false, ""},
		"was there before, by": {"c", -clockSlack - time.Second, true, "decided"},
		"is there still":       {"q", -time.Minute, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := decided("q", "192.0.2.1", 20*time.Minute)
			came := px(tc.who, at("h2", "192.0.2.1"), func(m *member) { m.created = d.At.Add(tc.made) })
			if !tc.ready {
				unplaced(&came)
			}
			s := state{
				now: noon, replicas: 3, maxSurge: 1, provider: "home", bans: bans{targets: 3, perHour: 5, known: true, decided: []v1alpha1.BanDecision{d}},
				members: with(fleet(1, banned(3)), came, px("x", at("h3", "192.0.2.3"))),
			}
			got := plan(s)
			if (len(got.decided) == 2) != (tc.want == "decided") {
				t.Errorf("decided %v", got.decided)
			}
			if strings.Contains(got.message, inVain) != (tc.want == inVain) {
				t.Errorf("says %q", got.message)
			}
		})
	}
}

// Of a fleet that is banned as a whole, on few addresses, one at a time is
// replaced for each of them, the hour's share in all.
func TestAFleetThatIsBannedAsAWhole(t *testing.T) {
	const replicas, addresses, perHour = 3000, 50, 30
	s := state{now: noon, replicas: replicas, maxSurge: perHour, provider: "home", bans: bans{targets: 3, perHour: perHour, known: true}}
	for i := range replicas {
		s.members = append(s.members, px(fmt.Sprintf("p%04d", i), banned(5), at(fmt.Sprint("h", i%7), fmt.Sprint("192.0.2.", i%addresses))))
	}
	for range 2 {
		d := plan(s)
		by := map[string]int{}
		for _, b := range d.decided {
			by[b.ExitIP]++
		}
		if len(d.decided) != perHour || len(by) != perHour || d.creations != perHour {
			t.Errorf("%d decided for %d addresses, %d made", len(d.decided), len(by), d.creations)
		}
		s.bans.decided = d.decided
	}
	s.now = noon.Add(2 * time.Hour) // none was carried out
	if d := plan(s); len(d.decided) != 2*perHour-10 {
		t.Errorf("%d are decided in the second hour, want one for each address", len(d.decided))
	}
}
