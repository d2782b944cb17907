package sweep

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/proxy/provider"
)

func claimed(host string, others ...provider.OtherClaim) provider.HostClaims {
	return provider.HostClaims{Host: host, Others: others}
}

func other(beat uint64) provider.OtherClaim {
	return provider.OtherClaim{Holder: "other000", Beat: beat, Period: time.Minute}
}

// scene is one look: what was answered, so long after the first.
type scene struct {
	after time.Duration
	rows  []provider.HostClaims
	err   error
}

func TestClaims(t *testing.T) {
	mute := errors.New("mute")
	quiet := claimed("h1")
	for name, tc := range map[string]struct {
		reason string
		scenes []scene
		// barred are words of why nothing may go on h1; empty when it may.
		barred    string
		conflicts []Conflict
		dead      []string
	}{
		"first look":          {reason: "who started at the same moment does not show yet", scenes: []scene{{0, []provider.HostClaims{quiet}, nil}}, barred: "just begun"},
		"second look":         {reason: "nobody else", scenes: []scene{{0, []provider.HostClaims{quiet}, nil}, {1, []provider.HostClaims{quiet}, nil}}},
		"no row":              {reason: "nothing was claimed there", scenes: []scene{{0, nil, nil}, {1, nil, nil}}, barred: "no claim"},
		"row failed":          {reason: "the claim was not made", scenes: []scene{{0, []provider.HostClaims{quiet}, nil}, {1, []provider.HostClaims{quiet}, nil}, {2, []provider.HostClaims{{Host: "h1", Err: mute}}, nil}}, barred: "could not claim the host: mute"},
		"a second row failed": {reason: "one failure is enough", scenes: []scene{{0, []provider.HostClaims{quiet}, nil}, {1, []provider.HostClaims{quiet}, nil}, {2, []provider.HostClaims{{Host: "h1", Err: mute}, quiet}, nil}}, barred: "could not claim the host: mute"},
		"back after it failed": {
			reason: "another may have started meanwhile: two looks again",
			scenes: []scene{{0, []provider.HostClaims{quiet}, nil}, {1, []provider.HostClaims{quiet}, nil}, {2, []provider.HostClaims{{Host: "h1", Err: mute}}, nil}, {3, []provider.HostClaims{quiet}, nil}},
			barred: "just begun",
		},
		"all failed": {reason: "no claim was renewed", scenes: []scene{{0, []provider.HostClaims{quiet}, nil}, {1, []provider.HostClaims{quiet}, nil}, {2, nil, mute}}, barred: "could not claim the hosts: mute"},
		"back after all failed": {
			reason: "two looks again",
			scenes: []scene{{0, []provider.HostClaims{quiet}, nil}, {1, []provider.HostClaims{quiet}, nil}, {2, nil, mute}, {3, []provider.HostClaims{quiet}, nil}},
			barred: "just begun",
		},
		"another's": {
			reason: "whether it lives is not known yet",
			scenes: []scene{{0, []provider.HostClaims{claimed("h1", other(1))}, nil}, {3 * time.Minute, []provider.HostClaims{claimed("h1", other(1))}, nil}},
			barred: "has a claim there", conflicts: []Conflict{{"h1", "other000", false}},
		},
		"another's on another host": {
			reason:    "undecided, so it bars its own host only",
			scenes:    []scene{{0, []provider.HostClaims{quiet, claimed("h2", other(1))}, nil}, {1, []provider.HostClaims{quiet, claimed("h2", other(1))}, nil}},
			conflicts: []Conflict{{"h2", "other000", false}},
		},
		"alive on another host": {
			reason: "a live one bars every host",
			scenes: []scene{{0, []provider.HostClaims{quiet, claimed("h2", other(1))}, nil}, {1, []provider.HostClaims{quiet, claimed("h2", other(2))}, nil}},
			barred: "is alive", conflicts: []Conflict{{"h2", "other000", true}},
		},
		"beats that fall": {
			reason: "a restart of the same holder's count is life, too",
			scenes: []scene{{0, []provider.HostClaims{claimed("h1", other(9))}, nil}, {1, []provider.HostClaims{claimed("h1", other(1))}, nil}},
			barred: "is alive", conflicts: []Conflict{{"h1", "other000", true}},
		},
		"two of one holder": {
			reason: "a renewal leaves two for a moment, and the newest counts: no change is made up",
			scenes: []scene{{0, []provider.HostClaims{claimed("h1", other(2), other(1))}, nil}, {1, []provider.HostClaims{claimed("h1", other(1), other(2))}, nil}},
			barred: "has a claim there", conflicts: []Conflict{{"h1", "other000", false}},
		},
		"dead": {
			reason: "it stood still for more than three times its period",
			scenes: []scene{{0, []provider.HostClaims{claimed("h1", other(1))}, nil}, {3*time.Minute + 3, []provider.HostClaims{claimed("h1", other(1))}, nil}},
			dead:   []string{"other000"},
		},
		"dead after life": {
			reason: "it lived and then stood still",
			scenes: []scene{{0, []provider.HostClaims{claimed("h1", other(1))}, nil}, {time.Minute, []provider.HostClaims{claimed("h1", other(2))}, nil}, {4*time.Minute + 3, []provider.HostClaims{claimed("h1", other(2))}, nil}},
			dead:   []string{"other000"},
		},
		"not dead yet after life": {
			reason: "the time counts from its last beat",
			scenes: []scene{{0, []provider.HostClaims{claimed("h1", other(1))}, nil}, {time.Minute, []provider.HostClaims{claimed("h1", other(2))}, nil}, {4 * time.Minute, []provider.HostClaims{claimed("h1", other(2))}, nil}},
			barred: "is alive", conflicts: []Conflict{{"h1", "other000", true}},
		},
		"back from the dead": {
			reason: "it was only suspended",
			scenes: []scene{{0, []provider.HostClaims{claimed("h1", other(1))}, nil}, {time.Hour, []provider.HostClaims{claimed("h1", other(1))}, nil}, {time.Hour + 1, []provider.HostClaims{claimed("h1", other(2))}, nil}},
			barred: "is alive", conflicts: []Conflict{{"h1", "other000", true}},
		},
		"dead, and then on a host that comes back": {
			reason: "a claim where there was none needs its own time",
			scenes: []scene{
				{0, []provider.HostClaims{{Host: "h1", Err: mute}, claimed("h2", other(1))}, nil},
				{time.Hour, []provider.HostClaims{claimed("h1"), claimed("h2", other(1))}, nil},
				{time.Hour + 1, []provider.HostClaims{claimed("h1", other(1)), claimed("h2", other(1))}, nil},
			},
			barred: "has a claim there", conflicts: []Conflict{{"h1", "other000", false}, {"h2", "other000", false}},
		},
		"dead after life, and then on a host that comes back": {
			reason: "an old claim there is no new life",
			scenes: []scene{
				{0, []provider.HostClaims{{Host: "h1", Err: mute}, claimed("h2", other(1))}, nil},
				{1, []provider.HostClaims{{Host: "h1", Err: mute}, claimed("h2", other(2))}, nil},
				{time.Hour, []provider.HostClaims{claimed("h1"), claimed("h2", other(2))}, nil},
				{time.Hour + 1, []provider.HostClaims{claimed("h1", other(1)), claimed("h2", other(2))}, nil},
			},
			barred: "has a claim there", conflicts: []Conflict{{"h1", "other000", false}, {"h2", "other000", false}},
		},
		"gone": {
			reason: "its claim was taken away",
			scenes: []scene{{0, []provider.HostClaims{claimed("h1", other(1))}, nil}, {1, []provider.HostClaims{claimed("h1", other(2))}, nil}, {2, []provider.HostClaims{quiet}, nil}},
		},
		"alive, and its host falls silent": {
			reason: "silence is no death",
			scenes: []scene{
				{0, []provider.HostClaims{quiet, claimed("h2", other(1))}, nil},
				{1, []provider.HostClaims{quiet, claimed("h2", other(2))}, nil},
				{2, []provider.HostClaims{quiet, {Host: "h2", Err: mute}}, nil},
			},
			barred: "is alive", conflicts: []Conflict{{"h2", "other000", true}},
		},
		"alive, and all claims fail": {
			reason: "the conflict is still told",
			scenes: []scene{{0, []provider.HostClaims{claimed("h1", other(1))}, nil}, {1, []provider.HostClaims{claimed("h1", other(2))}, nil}, {2, nil, mute}},
			barred: "is alive", conflicts: []Conflict{{"h1", "other000", true}},
		},
		"a huge promise": {
			reason: "an hour of it is believed",
			scenes: []scene{
				{0, []provider.HostClaims{claimed("h1", provider.OtherClaim{Holder: "other000", Period: 1 << 62})}, nil},
				{3 * time.Hour, []provider.HostClaims{claimed("h1", provider.OtherClaim{Holder: "other000", Period: 1 << 62})}, nil},
			},
			barred: "has a claim there", conflicts: []Conflict{{"h1", "other000", false}},
		},
		"a huge promise that is over": {
			reason: "an hour of it is believed",
			scenes: []scene{
				{0, []provider.HostClaims{claimed("h1", provider.OtherClaim{Holder: "other000", Period: 72 * time.Hour})}, nil},
				{3*time.Hour + 3, []provider.HostClaims{claimed("h1", provider.OtherClaim{Holder: "other000", Period: 72 * time.Hour})}, nil},
			},
			dead: []string{"other000"},
		},
		"until when": {
			reason:    "who waits is told for whom and until when, and a later look does not move it",
			scenes:    []scene{{0, []provider.HostClaims{claimed("h1", other(1))}, nil}, {2 * time.Minute, []provider.HostClaims{claimed("h1", other(1))}, nil}},
			barred:    "operator other000 has a claim there, and is taken for dead when that has not changed until " + start.Add(3*time.Minute).UTC().Format(time.RFC3339),
			conflicts: []Conflict{{"h1", "other000", false}},
		},
		"no promise at all": {
			reason: "a second is the least",
			scenes: []scene{{0, []provider.HostClaims{claimed("h1", provider.OtherClaim{Holder: "other000"})}, nil}, {time.Second, []provider.HostClaims{claimed("h1", provider.OtherClaim{Holder: "other000"})}, nil}},
			barred: "has a claim there", conflicts: []Conflict{{"h1", "other000", false}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var c claims
			var s seen
			for _, sc := range tc.scenes {
				c, s = c.look(start.Add(sc.after), time.Minute, sc.rows, sc.err)
			}
			why := s.bars.why("h1")
			if (why == "") != (tc.barred == "") || !strings.Contains(why, tc.barred) {
				t.Errorf("%s: h1 is barred by %q, want %q", tc.reason, why, tc.barred)
			}
			if diff := cmp.Diff(tc.conflicts, s.conflicts); diff != "" {
				t.Errorf("%s: conflicts (-want +got):\n%s", tc.reason, diff)
			}
			if !slices.Equal(s.dead, tc.dead) {
				t.Errorf("%s: dead %q, want %q", tc.reason, s.dead, tc.dead)
			}
		})
	}
}

// TestToldOnce: a live holder is new once, however often it is seen.
func TestToldOnce(t *testing.T) {
	var c claims
	var s seen
	told := 0
	for i := range 10 {
		rows := []provider.HostClaims{claimed("h1", other(uint64(i)))}
		if i == 5 {
			rows = []provider.HostClaims{claimed("h1")}
		}
		c, s = c.look(start.Add(time.Duration(i)*time.Minute), time.Minute, rows, nil)
		told += len(s.fresh)
	}
	if told != 1 {
		t.Errorf("told %d times", told)
	}
}

// TestOwnLongPromise: two that sweep seldom believe each other what they promise.
func TestOwnLongPromise(t *testing.T) {
	rows := []provider.HostClaims{claimed("h1", provider.OtherClaim{Holder: "other000", Period: 3 * time.Hour})}
	c, _ := claims{}.look(start, 2*time.Hour, rows, nil)
	for after, dead := range map[time.Duration]bool{6 * time.Hour: false, 6*time.Hour + 3: true} {
		if _, s := c.look(start.Add(after), 2*time.Hour, rows, nil); (len(s.dead) == 1) != dead {
			t.Errorf("after %v: dead %q", after, s.dead)
		}
	}
}

// TestNoClaims: a provider whose hosts know no claims needs none.
func TestNoClaims(t *testing.T) {
	if why := (bars{}).why("h1"); why != "" {
		t.Error(why)
	}
}
