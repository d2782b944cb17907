package proxyset

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fleetdesk/api/v1alpha1"
)

var noon = time.Date(2031, 5, 1, 12, 0, 0, 0, time.UTC)

// a Proxy that works and was made an hour ago, changed.
func px(name string, change ...func(*member)) member {
	m := member{
		name: name, created: noon.Add(-time.Hour), seen: true, ready: true, worked: true, placed: true,
		provider: "home", host: "h1", exitIP: "192.0.2.1", message: "it is " + name, lot: lot("x"),
	}
	for _, c := range change {
		c(&m)
	}
	return m
}

func old(m *member)         { m.limit = noon.Add(-time.Second) }
func outdatedOne(m *member) { m.outdated = true }
func terminating(m *member) { m.terminating, m.ready = true, false }
func making(m *member)      { m.ready, m.worked = false, false }
func unplaced(m *member)    { m.ready, m.worked, m.placed, m.host, m.exitIP = false, false, false, "", "" }
func unhealthy(m *member)   { m.ready, m.failed = false, true }
func held(m *member)        { m.held = true }
func broken(m *member)      { m.ready, m.failed, m.repairAt = false, true, noon }
func away(m *member)        { m.trouble = "h1 does not answer" }
func wide(m *member)        { m.trouble, m.wide = "the check failed", true }
func quota(m *member)       { m.trouble, m.quota = "full", true }
func banned(n int) func(*member) {
	return func(m *member) { m.banned = n }
}

func at(host, exitIP string) func(*member) {
	return func(m *member) { m.host, m.exitIP = host, exitIP }
}
func limit(d time.Duration) func(*member)   { return func(m *member) { m.limit = noon.Add(d) } }
func created(d time.Duration) func(*member) { return func(m *member) { m.created = noon.Add(d) } }

func fleet(n int, change ...func(*member)) (all []member) {
	for i := range n {
		all = append(all, px(fmt.Sprintf("p%d", i), change...))
	}
	return all
}

func with(members []member, more ...member) []member { return append(members, more...) }

func decided(proxy, exitIP string, ago time.Duration) v1alpha1.BanDecision {
	return v1alpha1.BanDecision{Proxy: proxy, ExitIP: exitIP, At: metav1.NewTime(noon.Add(-ago))}
}

func TestPlan(t *testing.T) {
	byBan := bans{targets: 3, perHour: 2, known: true}
	for name, tc := range map[string]struct {
		reason                       string
		replicas, unavailable, surge int
		bans                         bans
		members                      []member
		deletes                      []string
		creates                      int
		condition, says              string
		next                         time.Duration
	}{
		"nothing there":            {"", 3, 0, 1, bans{}, nil, nil, 3, v1alpha1.ReasonScaling, "0 of 3 Ready", 0},
		"settled":                  {"", 2, 0, 1, bans{}, fleet(2), nil, 0, v1alpha1.ReasonSettled, "2 of 2 Ready", 0},
		"none wanted":              {"", 0, 0, 1, bans{}, nil, nil, 0, v1alpha1.ReasonSettled, "", 0},
		"one was deleted":          {"one manual deletion makes one", 3, 0, 1, bans{}, with(fleet(2), px("x", terminating)), nil, 1, v1alpha1.ReasonScaling, "x among them", 0},
		"deleted ones count":       {"no more than replicas + maxSurge until they are gone", 3, 0, 1, bans{}, with(fleet(2), px("x", terminating), px("y", terminating)), nil, 0, v1alpha1.ReasonScaling, "2 are being deleted", 0},
		"on their way":             {"those that are being made are not made again", 3, 0, 1, bans{}, with(fleet(1), px("x", making), px("y", unplaced)), nil, 0, v1alpha1.ReasonScaling, "x is being made: it is x", 0},
		"scale-up":                 {"it deletes nothing", 5, 0, 1, bans{}, with(fleet(2), px("x", unhealthy)), nil, 2, v1alpha1.ReasonScaling, "", 0},
		"scale-down":               {"the one that never worked goes first", 2, 0, 1, bans{}, with(fleet(2), px("x", making), px("y", unhealthy)), []string{"x", "y"}, 0, v1alpha1.ReasonScaling, "", 0},
		"scale-down by one":        {"", 3, 0, 1, bans{}, with(fleet(2), px("x", unplaced), px("y", making)), []string{"x"}, 0, v1alpha1.ReasonScaling, "", 0},
		"scale to zero":            {"", 0, 0, 1, bans{}, fleet(2), []string{"p0", "p1"}, 0, v1alpha1.ReasonScaling, "", 0},
		"never below the replicas": {"unready ones go instead of Ready ones", 2, 0, 1, bans{}, with(fleet(2, banned(9)), px("x", unhealthy)), []string{"x"}, 0, v1alpha1.ReasonScaling, "", 0},

		"surge":                      {"the new one is there before the old one goes", 3, 0, 1, bans{}, fleet(3, old), nil, 1, v1alpha1.ReasonRotating, "3 are to be replaced (too old: 3)", 0},
		"surge, being made":          {"it is waited for", 3, 0, 1, bans{}, with(fleet(3, old), px("x", making)), nil, 0, v1alpha1.ReasonRotating, "x is being made", 0},
		"surge, made":                {"one goes, and no other is made before it is gone", 3, 0, 1, bans{}, with(fleet(3, old), px("x")), []string{"p0: age"}, 0, v1alpha1.ReasonRotating, "", 0},
		"surge, going":               {"", 3, 0, 1, bans{}, with(fleet(2, old), px("x"), px("y", terminating)), nil, 0, v1alpha1.ReasonRotating, "", 0},
		"surge, gone":                {"", 3, 0, 1, bans{}, with(fleet(2, old), px("x")), nil, 1, v1alpha1.ReasonRotating, "", 0},
		"unavailable":                {"without surge the old ones go first", 4, 2, 0, bans{}, fleet(4, old), []string{"p0: age", "p1: age"}, 0, v1alpha1.ReasonRotating, "", 0},
		"unavailable, gone":          {"", 4, 2, 0, bans{}, fleet(2, old), nil, 2, v1alpha1.ReasonRotating, "", 0},
		"unavailable, one made":      {"as many go as came", 4, 2, 0, bans{}, with(fleet(2, old), px("x"), px("y", making)), []string{"p0: age"}, 0, v1alpha1.ReasonRotating, "", 0},
		"too few Ready":              {"what fails already counts as missing", 3, 1, 0, bans{}, with(fleet(2, old), px("x", unhealthy)), nil, 0, v1alpha1.ReasonHeldBack, "fewer than 2 were Ready", 0},
		"both":                       {"", 4, 1, 1, bans{}, fleet(4, old), []string{"p0: age"}, 1, v1alpha1.ReasonRotating, "", 0},
		"both, one missing":          {"the bounds hold whoever caused it", 4, 1, 1, bans{}, with(fleet(3, old), px("x", terminating)), nil, 1, v1alpha1.ReasonRotating, "", 0},
		"scaled down meanwhile":      {"old ones go, and new ones stay", 2, 0, 1, bans{}, with(fleet(3, old), px("x", making)), []string{"p0"}, 0, v1alpha1.ReasonRotating, "", 0},
		"scaled up meanwhile":        {"the floor is the new one", 5, 0, 1, bans{}, with(fleet(3, old), px("x")), nil, 2, v1alpha1.ReasonRotating, "", 0},
		"age to come":                {"", 1, 0, 1, bans{}, fleet(1, limit(time.Minute)), nil, 0, v1alpha1.ReasonSettled, "", time.Minute},
		"its own limit first":        {"the one that is due first goes first", 2, 1, 0, bans{}, with(nil, px("a", limit(-time.Second)), px("b", limit(-time.Minute))), []string{"b: age"}, 0, v1alpha1.ReasonRotating, "", 0},
		"held ones last":             {"", 3, 1, 0, bans{}, with(fleet(2, old, held), px("x", old)), []string{"x: age"}, 0, v1alpha1.ReasonRotating, "", 0},
		"unseen ones cannot go":      {"it is not known yet which one it is", 1, 0, 1, bans{}, with(fleet(2), member{name: "x"}), []string{"p0"}, 0, v1alpha1.ReasonScaling, "", 0},
		"unseen ones are on the way": {"what the cache does not show yet is not made twice", 2, 0, 1, bans{}, with(fleet(1), member{name: "x"}), nil, 0, v1alpha1.ReasonScaling, "", 0},

		"template":                             {"", 2, 0, 1, bans{}, fleet(2, outdatedOne), nil, 1, v1alpha1.ReasonUpdating, "the template changed: 2", 0},
		"template, unready first":              {"", 3, 0, 1, bans{}, with(fleet(1), px("a", outdatedOne), px("b", outdatedOne, making), px("x")), []string{"b: template"}, 0, v1alpha1.ReasonUpdating, "", 0},
		"template before age":                  {"one cause each", 1, 1, 0, bans{}, fleet(1, outdatedOne, old), []string{"p0: template"}, 0, v1alpha1.ReasonUpdating, "", 0},
		"never all at once":                    {"old ones that do not work are given up within the bounds", 4, 1, 0, bans{}, fleet(4, outdatedOne, unhealthy), []string{"p0: template"}, 0, v1alpha1.ReasonUpdating, "", 0},
		"nor while one is made":                {"what is being made cannot be relied on yet", 3, 0, 1, bans{}, with(fleet(3, outdatedOne, unhealthy), px("x", making)), nil, 0, v1alpha1.ReasonUpdating, "", 0},
		"a host away, template, one at a time": {"its deletion would hold up the others", 2, 1, 0, bans{}, with(fleet(1, outdatedOne, away, limit(-time.Hour)), px("x", outdatedOne, limit(time.Hour))), []string{"x: template"}, 0, v1alpha1.ReasonUpdating, "", 0},
		"ages to come":                         {"", 2, 0, 1, bans{}, with(fleet(1, limit(time.Hour)), px("x", limit(time.Minute)), px("y", terminating)), nil, 0, v1alpha1.ReasonScaling, "", time.Minute},
		"a new one fails":                      {"what would come instead does not work", 4, 2, 1, bans{}, with(fleet(4, outdatedOne), px("x", making, unhealthy)), nil, 0, v1alpha1.ReasonHeldBack, "until Proxy x, made from the present template, works: it is x", 0},
		"a new one cannot be made":             {"", 4, 2, 1, bans{}, with(fleet(4, outdatedOne), px("x", unplaced, away)), nil, 0, v1alpha1.ReasonHeldBack, "until Proxy x", 0},
		"a quota":                              {"giving one up makes room", 4, 1, 1, bans{}, with(fleet(4, outdatedOne), px("x", unplaced, quota)), []string{"p0: template"}, 0, v1alpha1.ReasonUpdating, "", 0},
		"a quota, and none spare":              {"", 4, 0, 1, bans{}, with(fleet(4, outdatedOne), px("x", unplaced, quota)), nil, 0, v1alpha1.ReasonHeldBack, "", 0},
		"it worked once":                       {"one that works no more is no sign against the template", 4, 2, 0, bans{}, with(fleet(3, outdatedOne), px("x", unhealthy)), []string{"p0: template"}, 0, v1alpha1.ReasonUpdating, "", 0},
		"provider away, by age":                {"", 2, 2, 2, bans{}, fleet(2, old, wide), nil, 0, v1alpha1.ReasonHeldBack, "provider home cannot be relied on", 0},
		"provider away, template":              {"what would come instead could not be made", 2, 2, 2, bans{}, fleet(2, outdatedOne, wide), nil, 0, v1alpha1.ReasonHeldBack, "provider home cannot be relied on", 0},
		"another provider":                     {"the template names one that works", 2, 1, 0, bans{}, fleet(2, outdatedOne, wide, func(m *member) { m.provider = "far" }), []string{"p0: template"}, 0, v1alpha1.ReasonUpdating, "", 0},
		"a host away, by age":                  {"its deletion would hang; others go on", 3, 1, 0, bans{}, with(fleet(1, old, away), px("x", old), px("y", old)), []string{"x: age"}, 0, v1alpha1.ReasonRotating, "", 0},
		"a host away, only":                    {"", 1, 1, 0, bans{}, fleet(1, old, away), nil, 0, v1alpha1.ReasonHeldBack, "p0 is not replaced while its provider cannot be relied on: h1", 0},
		"a host away, template":                {"somebody asked for it; such come last", 3, 1, 0, bans{}, with(fleet(1, outdatedOne, away), px("x", outdatedOne)), nil, 1, v1alpha1.ReasonUpdating, "", 0},
		"a host away, scaled":                  {"", 1, 0, 1, bans{}, fleet(2, old, away), []string{"p0"}, 0, v1alpha1.ReasonRotating, "", 0},
		"stands in for a held back":            {"a new one is kept while the old one waits", 1, 0, 1, bans{}, with(fleet(1, old, away), px("x", making)), nil, 0, v1alpha1.ReasonRotating, "", 0},
		"unready and not settled":              {"", 2, 0, 1, bans{}, with(fleet(1), px("x", unhealthy)), nil, 0, v1alpha1.ReasonNotReady, "x among them", 0},
		"provider away, unready":               {"never replaced for that", 2, 2, 2, bans{}, fleet(2, unhealthy, wide), nil, 0, v1alpha1.ReasonNotReady, "2 do not work", 0},

		"repair":                  {"", 3, 0, 1, bans{}, with(fleet(2), px("x", broken)), nil, 1, v1alpha1.ReasonRotating, "does not work: 1", 0},
		"repair, made":            {"", 3, 0, 1, bans{}, with(fleet(3), px("x", broken)), []string{"x: unhealthy"}, 0, v1alpha1.ReasonRotating, "", 0},
		"repair without surge":    {"one that does not work is not missed", 3, 1, 0, bans{}, with(fleet(2), px("x", broken)), []string{"x: unhealthy"}, 0, v1alpha1.ReasonRotating, "", 0},
		"repairs one at a time":   {"at least one, however small maxUnavailable", 6, 0, 3, bans{}, with(fleet(4), px("x", broken), px("y", broken)), nil, 1, v1alpha1.ReasonRotating, "does not work: 2", 0},
		"repairs within bounds":   {"", 9, 2, 4, bans{}, with(fleet(6), px("x", broken), px("y", broken), px("z", broken)), []string{"x: unhealthy", "y: unhealthy"}, 2, v1alpha1.ReasonRotating, "", 0},
		"repair to come":          {"", 2, 0, 1, bans{}, with(fleet(1), px("x", unhealthy, func(m *member) { m.repairAt = noon.Add(time.Minute) })), nil, 0, v1alpha1.ReasonNotReady, "", time.Minute},
		"the only one":            {"one is no mass", 1, 0, 1, bans{}, fleet(1, broken), nil, 1, v1alpha1.ReasonRotating, "", 0},
		"half of them":            {"", 4, 0, 1, bans{}, with(fleet(2), px("x", broken), px("y", broken)), nil, 1, v1alpha1.ReasonRotating, "", 0},
		"more than half of them":  {"one dead check must not destroy a fleet", 3, 3, 3, bans{}, with(fleet(1), px("x", broken), px("y", unhealthy)), nil, 0, v1alpha1.ReasonHeldBack, "more than half of the set", 0},
		"others fail for a while": {"they count as well", 4, 0, 1, bans{}, with(fleet(1), px("x", broken), px("y", unhealthy), px("z", unhealthy)), nil, 0, v1alpha1.ReasonHeldBack, "3 Proxies do not work", 0},

		"banned, not asked for": {"", 2, 0, 1, bans{known: true}, fleet(2, banned(9)), nil, 0, v1alpha1.ReasonSettled, "", 0},
		"banned":                {"", 2, 0, 1, byBan, with(fleet(1, banned(3)), px("x", at("h2", "192.0.2.2"))), nil, 1, v1alpha1.ReasonRotating, "banned: 1", 0},
		"banned too little":     {"", 2, 0, 1, byBan, fleet(2, banned(2)), nil, 0, v1alpha1.ReasonSettled, "", 0},
		"banned neighbours":     {"the next one would leave by the same address", 2, 0, 1, byBan, fleet(2, banned(3)), nil, 0, v1alpha1.ReasonHeldBack, "as all its neighbours do", 0},
		"nobody knows":          {"", 2, 0, 1, bans{targets: 3, perHour: 2}, fleet(2, banned(3)), nil, 0, v1alpha1.ReasonSettled, "", 0},
		"decided, nobody knows": {"what is decided stands", 1, 0, 1, bans{targets: 3, perHour: 1, decided: []v1alpha1.BanDecision{decided("p0", "192.0.2.1", time.Minute)}}, fleet(1), nil, 1, v1alpha1.ReasonRotating, "", 0},
		"decided, lifted":       {"", 1, 0, 1, bans{targets: 3, perHour: 1, known: true, decided: []v1alpha1.BanDecision{decided("p0", "192.0.2.1", time.Minute)}}, fleet(1), nil, 0, v1alpha1.ReasonSettled, "", 0},
		"spent":                 {"", 2, 0, 1, bans{targets: 3, perHour: 1, known: true, decided: []v1alpha1.BanDecision{decided("q", "192.0.2.9", 20*time.Minute)}}, with(fleet(1, banned(3)), px("x", at("h2", "192.0.2.2"))), nil, 0, v1alpha1.ReasonHeldBack, "p0 is banned, and not replaced before 2031-05-01 12:40:00 UTC", 40 * time.Minute},
		"banned, provider away": {"", 2, 0, 1, byBan, with(fleet(1, banned(3), away), px("x", at("h2", "192.0.2.2"))), nil, 0, v1alpha1.ReasonHeldBack, "while its provider cannot be relied on", 0},
		"in vain":               {"it came out with the same address", 2, 0, 1, bans{targets: 3, perHour: 2, known: true, decided: []v1alpha1.BanDecision{decided("q", "192.0.2.1", 5*time.Hour)}}, with(fleet(1, banned(3), created(-4*time.Hour)), px("x", at("h2", "192.0.2.2"))), nil, 0, v1alpha1.ReasonHeldBack, "what came instead of Proxy q leaves by the same address", 0},
		"not in vain":           {"another one of that address was there before", 2, 0, 1, bans{targets: 3, perHour: 2, known: true, decided: []v1alpha1.BanDecision{decided("q", "192.0.2.1", 5*time.Minute)}}, with(fleet(1, banned(3)), px("x", at("h2", "192.0.2.2"), created(-time.Minute))), nil, 1, v1alpha1.ReasonRotating, "", 0},
		"one for an address":    {"whether it helps is not known yet", 3, 0, 3, byBan, with(nil, px("a", banned(3)), px("b", banned(3), at("h2", "192.0.2.1")), px("x", at("h3", "192.0.2.3"))), nil, 1, v1alpha1.ReasonRotating, "banned: 1", 0},
		"outdated and banned":   {"it goes anyway, and costs nothing of the hour", 1, 1, 0, byBan, fleet(1, banned(3), outdatedOne), []string{"p0: template"}, 0, v1alpha1.ReasonUpdating, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			d := plan(state{
				now: noon, replicas: tc.replicas, maxUnavailable: tc.unavailable, maxSurge: tc.surge,
				provider: "home", members: tc.members, bans: tc.bans,
			})
			var deletes []string
			for _, v := range d.deletions {
				if v.cause == "" {
					deletes = append(deletes, v.name)
				} else {
					deletes = append(deletes, v.name+": "+string(v.cause))
				}
			}
			if diff := cmp.Diff(tc.deletes, deletes); diff != "" || d.creations != tc.creates {
				t.Errorf("%s: deletes (-want +got):\n%s%d to make, want %d", tc.reason, diff, d.creations, tc.creates)
			}
			if d.reason != tc.condition || !strings.Contains(d.message, tc.says) || d.settled != (d.reason == v1alpha1.ReasonSettled) {
				t.Errorf("%s: says %s (%s), want %s (… %s …)", tc.reason, d.reason, d.message, tc.condition, tc.says)
			}
			var next time.Duration
			if !d.next.IsZero() {
				next = d.next.Sub(noon)
			}
			if next != tc.next {
				t.Errorf("%s: looks again after %s, want %s", tc.reason, next, tc.next)
			}
		})
	}
}

// What is decided for bans is remembered for the hour that it counts, until it
// is carried out, and while it keeps others back.
func TestBanDecisions(t *testing.T) {
	known := bans{targets: 3, perHour: 5, known: true}
	for name, tc := range map[string]struct {
		reason  string
		members []member
		decided []v1alpha1.BanDecision
		want    []string
	}{
		"new":             {"", fleet(1, banned(3)), nil, []string{"p0"}},
		"outdated":        {"it is replaced anyway", fleet(1, banned(3), outdatedOne), nil, nil},
		"this hour":       {"a restart does not forget it", nil, []v1alpha1.BanDecision{decided("q", "192.0.2.9", 59*time.Minute)}, []string{"q"}},
		"over":            {"", nil, []v1alpha1.BanDecision{decided("q", "192.0.2.9", time.Hour)}, nil},
		"not carried out": {"", fleet(1, banned(3)), []v1alpha1.BanDecision{decided("p0", "192.0.2.1", 2*time.Hour)}, []string{"p0"}},
		"not carried out, without an address": {"it is not decided anew either", fleet(1, banned(3), at("h1", "")), []v1alpha1.BanDecision{
			decided("p0", "", 2*time.Hour), decided("q", "", time.Minute), decided("r", "", time.Minute), decided("s", "", time.Minute),
			decided("t", "", time.Minute), decided("u", "", time.Minute),
		}, []string{"p0", "q", "r", "s", "t", "u"}},
		"behind one that is dropped": {"it stands elsewhere now", fleet(1, banned(3)), []v1alpha1.BanDecision{
			decided("q", "192.0.2.9", 2*time.Hour), decided("r", "192.0.2.1", time.Minute),
		}, []string{"r", "p0"}},
		"lifted":          {"", fleet(1), []v1alpha1.BanDecision{decided("p0", "192.0.2.1", 2*time.Hour)}, nil},
		"keeps back":      {"", fleet(1, banned(3)), []v1alpha1.BanDecision{decided("q", "192.0.2.1", 2*time.Hour)}, []string{"q"}},
		"address is free": {"", fleet(1), []v1alpha1.BanDecision{decided("q", "192.0.2.1", 2*time.Hour)}, nil},
		"most banned first": {"", with(nil, px("a", banned(3), at("h1", "192.0.2.1")), px("b", banned(5), at("h2", "192.0.2.2"))), []v1alpha1.BanDecision{
			decided("q", "", time.Minute), decided("r", "", time.Minute), decided("s", "", time.Minute), decided("t", "", time.Minute),
		}, []string{"q", "r", "s", "t", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := state{now: noon, replicas: len(tc.members), maxSurge: 1, provider: "home", members: tc.members, bans: known}
			s.bans.decided = tc.decided
			if name == "keeps back" {
				s.members[0].created = noon.Add(-time.Minute)
			}
			before := slices.Clone(tc.decided)
			var got []string
			for _, d := range plan(s).decided {
				got = append(got, d.Proxy)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(before, tc.decided); diff != "" {
				t.Errorf("the status as it was read was changed:\n%s", diff)
			}
		})
	}
}

// Each row of the order decides between Proxies that the rows above it do not
// tell apart, and the document has the rows in this order and in these words.
func TestTheOrderOfVictims(t *testing.T) {
	first := []func(*member){unplaced, making, unhealthy, banned(3), outdatedOne, func(*member) {}}
	p := &planner{rows: victims()}
	if len(first) != len(p.rows) {
		t.Fatalf("%d rows, and %d are tested", len(p.rows), len(first))
	}
	for i := range first {
		for j := i; j < len(first); j++ {
			a, b := px("b", first[i]), px("a", first[j], held)
			b.limit = noon
			a.limit = noon.Add(time.Hour)
			if i < j || i == len(first)-1 {
				if p.order(&a, &b) >= 0 || p.order(&b, &a) <= 0 {
					t.Errorf("row %d does not come before row %d", i+1, j+1)
				}
			}
		}
	}
	early, late := px("z", limit(time.Minute)), px("a", limit(time.Hour))
	if p.order(&early, &late) >= 0 {
		t.Error("the one whose own age limit comes first does not go first")
	}
	doc, err := os.ReadFile("../../../../docs/proxysets.md")
	if err != nil {
		t.Fatal(err)
	}
	rest := string(doc)
	for i, r := range p.rows {
		row := fmt.Sprintf("\n%d. %s\n", i+1, r.text)
		_, after, ok := strings.Cut(rest, row)
		if !ok {
			t.Fatalf("docs/proxysets.md has no row %q, or not in its place", strings.TrimSpace(row))
		}
		rest = "\n" + after
	}
}

// Without age limits neither the oldest nor the youngest is always spared.
func TestByLotNeitherTheOldestNorTheYoungestSurvives(t *testing.T) {
	oldestGoes, youngestGoes := 0, 0
	const n = 200
	for i := range n {
		var all []member
		for j := range 4 {
			m := px(fmt.Sprint(j), created(time.Duration(j)*time.Minute))
			m.lot = lot(uid(i, j))
			all = append(all, m)
		}
		switch plan(state{now: noon, replicas: 3, maxSurge: 1, members: all}).deletions[0].name {
		case "0":
			oldestGoes++
		case "3":
			youngestGoes++
		}
	}
	for what, got := range map[string]int{"oldest": oldestGoes, "youngest": youngestGoes} {
		if got < n/10 || got > n/2 {
			t.Errorf("of four the %s goes %d times of %d", what, got, n)
		}
	}
}

// The desk is asked only when it makes a difference who holds them.
func TestItIsAskedWhoHoldsThem(t *testing.T) {
	for name, tc := range map[string]struct {
		replicas, unavailable int
		members               []member
		want                  int
	}{
		"no choice":              {0, 0, fleet(3), 0},
		"one of three":           {2, 0, fleet(3), 3},
		"an unready one goes":    {2, 0, with(fleet(2), px("x", making)), 0},
		"one of two to replace":  {2, 1, fleet(2, old), 2},
		"both are replaced":      {2, 2, fleet(2, old), 0},
		"none may be replaced":   {2, 0, fleet(2, old), 0},
		"the unready one of two": {2, 1, with(fleet(1, old), px("x", old, unhealthy)), 0},
	} {
		d := plan(state{now: noon, replicas: tc.replicas, maxUnavailable: tc.unavailable, members: tc.members, provider: "home"})
		if len(d.asked) != tc.want {
			t.Errorf("%s: asks for %d, want %d", name, len(d.asked), tc.want)
		}
	}
}
