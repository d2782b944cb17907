package drift_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"fleetdesk/internal/core/drift"
)

func TestCompare(t *testing.T) {
	t.Parallel()
	type q = drift.Question
	wanted := func(pairs ...string) []drift.Wanted {
		var out []drift.Wanted
		for i := 0; i < len(pairs); i += 2 {
			out = append(out, drift.Wanted{Name: pairs[i], State: drift.State(pairs[i+1])})
		}
		return out
	}
	for name, c := range map[string]struct {
		reason string
		q      q
		want   drift.Answer
	}{
		"nothing at all": {"no names, no differences", q{World: drift.Exactly(nil)}, drift.Answer{}},
		"all well": {
			"what is wanted exists",
			q{Wanted: []string{"b", "a"}, World: drift.Exactly([]string{"a", "b"})},
			drift.Answer{Wanted: wanted("b", "present", "a", "present")},
		},
		"missing": {
			"absent from a whole list",
			q{Wanted: []string{"a", "b"}, World: drift.Exactly([]string{"b"})},
			drift.Answer{Wanted: wanted("a", "missing", "b", "present")},
		},
		"empty world": {
			"an empty list is a list",
			q{Wanted: []string{"a"}, World: drift.Exactly([]string{})},
			drift.Answer{Wanted: wanted("a", "missing")},
		},
		"unknown world": {
			"a list that failed must not look empty",
			q{Wanted: []string{"a"}, Prefix: "q", Elsewhere: []string{"b"}, Used: []string{"c"}},
			drift.Answer{Wanted: wanted("a", "?")},
		},
		"leftovers": {
			"sorted, and told by their prefix",
			q{Wanted: []string{"qa-1"}, World: drift.Exactly([]string{"qa-9", "qa-1", "dev", "qa-"}), Prefix: "qa-"},
			drift.Answer{Wanted: wanted("qa-1", "present"), Leftovers: []drift.Leftover{
				{Name: "dev", Whose: drift.Foreign, Use: drift.Idle},
				{Name: "qa-", Whose: drift.Ours, Use: drift.Idle},
				{Name: "qa-9", Whose: drift.Ours, Use: drift.Idle},
			}},
		},
		"no prefix": {
			"everything has the empty prefix, which says nothing",
			q{World: drift.Exactly([]string{"a"})},
			drift.Answer{Leftovers: []drift.Leftover{{Name: "a", Whose: drift.Foreign, Use: drift.Idle}}},
		},
		"prefix in the middle": {
			"a prefix is at the beginning",
			q{World: drift.Exactly([]string{"my-qa-1"}), Prefix: "qa-"},
			drift.Answer{Leftovers: []drift.Leftover{{Name: "my-qa-1", Whose: drift.Foreign, Use: drift.Idle}}},
		},
		"case of a prefix": {
			"names are compared byte by byte",
			q{World: drift.Exactly([]string{"QA-1"}), Prefix: "qa-"},
			drift.Answer{Leftovers: []drift.Leftover{{Name: "QA-1", Whose: drift.Foreign, Use: drift.Idle}}},
		},
		"wanted elsewhere": {
			"another one's is no leftover, although it has our prefix",
			q{World: drift.Exactly([]string{"qa-1", "qa-2"}), Elsewhere: []string{"qa-2", "x"}, Prefix: "qa-"},
			drift.Answer{Leftovers: []drift.Leftover{{Name: "qa-1", Whose: drift.Ours, Use: drift.Idle}}},
		},
		"wanted here and elsewhere": {
			"who else wants it does not make it exist",
			q{Wanted: []string{"a"}, World: drift.Exactly(nil), Elsewhere: []string{"a"}},
			drift.Answer{Wanted: wanted("a", "missing")},
		},
		"in use": {
			"left over and in somebody's hands",
			q{World: drift.Exactly([]string{"qa-1"}), Used: []string{"qa-1"}, Prefix: "qa-"},
			drift.Answer{Leftovers: []drift.Leftover{{Name: "qa-1", Whose: drift.Ours, Use: drift.Busy}}},
		},
		"in use and gone": {
			"to use a name does not make it exist",
			q{World: drift.Exactly(nil), Used: []string{"qa-1"}, Prefix: "qa-"},
			drift.Answer{},
		},
		"twice": {
			"names count once",
			q{Wanted: []string{"b", "a", "b"}, World: drift.Exactly([]string{"a", "c", "a", "c"})},
			drift.Answer{
				Wanted:    wanted("b", "missing", "a", "present"),
				Leftovers: []drift.Leftover{{Name: "c", Whose: drift.Foreign, Use: drift.Idle}},
			},
		},
	} {
		if diff := cmp.Diff(c.want, drift.Compare(c.q)); diff != "" {
			t.Errorf("%s: %s (-want +got):\n%s", name, c.reason, diff)
		}
	}
}

func TestMay(t *testing.T) {
	t.Parallel()
	for _, whose := range []drift.Owner{drift.Ours, drift.Foreign} {
		for _, use := range []drift.Use{drift.Idle, drift.Busy} {
			want := whose == drift.Ours && use == drift.Idle
			if got := (drift.Leftover{Name: "a", Whose: whose, Use: use}).May(); got != want {
				t.Errorf("%s and %s: %v", whose, use, got)
			}
		}
	}
}

func TestWorld(t *testing.T) {
	t.Parallel()
	if (drift.World{}).Known() {
		t.Error("the zero world is known")
	}
	if !drift.Exactly(nil).Known() {
		t.Error("an empty world is not known")
	}
}

// Whatever is asked: each name has one answer, each answer is what its lists say
// when they are searched one by one, and the order of the lists is of no account.
func TestEachNameOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOf(rapid.SampledFrom([]string{"a", "b", "c", "qa-1", "qa-2", "qa-3", "q", "z"}))
		q := drift.Question{
			Wanted: names.Draw(t, "wanted"), Elsewhere: names.Draw(t, "elsewhere"), Used: names.Draw(t, "used"),
			Prefix: rapid.SampledFrom([]string{"", "q", "qa-"}).Draw(t, "prefix"),
		}
		exist, known := names.Draw(t, "exist"), rapid.Bool().Draw(t, "known")
		if known {
			q.World = drift.Exactly(exist)
		}
		a := drift.Compare(q)

		seen := map[string]bool{}
		for _, w := range a.Wanted {
			want := drift.Unknown
			if known {
				want = drift.Missing
				if slices.Contains(exist, w.Name) {
					want = drift.Present
				}
			}
			if seen[w.Name] || !slices.Contains(q.Wanted, w.Name) || w.State != want {
				t.Fatalf("wanted %+v of %+v", w, q)
			}
			seen[w.Name] = true
		}
		for _, n := range q.Wanted {
			if !seen[n] {
				t.Fatalf("%s has no answer in %+v", n, a)
			}
		}
		if !slices.IsSortedFunc(a.Leftovers, func(x, y drift.Leftover) int { return strings.Compare(x.Name, y.Name) }) {
			t.Fatalf("not sorted: %+v", a.Leftovers)
		}
		left := map[string]drift.Leftover{}
		for _, l := range a.Leftovers {
			left[l.Name] = l
		}
		if len(left) != len(a.Leftovers) {
			t.Fatalf("a name twice: %+v", a.Leftovers)
		}
		for _, n := range slices.Compact(slices.Sorted(slices.Values(exist))) {
			l, told := left[n]
			should := known && !slices.Contains(q.Wanted, n) && !slices.Contains(q.Elsewhere, n)
			ours := q.Prefix != "" && strings.HasPrefix(n, q.Prefix)
			if told != should || told && ((l.Whose == drift.Ours) != ours || (l.Use == drift.Busy) != slices.Contains(q.Used, n)) {
				t.Fatalf("%s: %+v, told %v of %+v", n, l, told, q)
			}
			delete(left, n)
		}
		if len(left) > 0 {
			t.Fatalf("left over without existing: %v", left)
		}
		if got := a.Count(drift.Present) + a.Count(drift.Missing) + a.Count(drift.Unknown); got != len(a.Wanted) {
			t.Fatalf("counts of %d, want %d", got, len(a.Wanted))
		}

		slices.Reverse(exist)
		slices.Reverse(q.Elsewhere)
		slices.Reverse(q.Used)
		if diff := cmp.Diff(a, drift.Compare(q)); diff != "" {
			t.Fatalf("another order, another answer (-want +got):\n%s", diff)
		}
	})
}

// The largest list that can be: what grows with the square would take minutes.
func TestLarge(t *testing.T) {
	t.Parallel()
	const n = 40_000
	var q drift.Question
	var exist []string
	for i := range n {
		q.Wanted = append(q.Wanted, fmt.Sprintf("w-%d", i))
		q.Elsewhere = append(q.Elsewhere, fmt.Sprintf("e-%d", i))
		q.Used = append(q.Used, fmt.Sprintf("l-%d", i))
		exist = append(exist, fmt.Sprintf("w-%d", 2*i), fmt.Sprintf("e-%d", i), fmt.Sprintf("l-%d", i))
	}
	q.World, q.Prefix = drift.Exactly(exist), "l-"
	a := drift.Compare(q)
	// Of w-0 to w-199998 every second exists, and half of those are wanted.
	if a.Count(drift.Present) != n/2 || a.Count(drift.Missing) != n/2 || len(a.Leftovers) != n+n/2 {
		t.Errorf("%d present, %d missing, %d left over", a.Count(drift.Present), a.Count(drift.Missing), len(a.Leftovers))
	}
}
