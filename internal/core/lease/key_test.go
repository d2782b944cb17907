package lease_test

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"fleetdesk/internal/core/lease"
)

var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// row is a free key that was changed.
func row(change func(k *lease.Key)) lease.Key {
	k := lease.Key{Name: "a", Pools: []string{"p"}, UsedAt: noon.Add(-time.Hour)}
	change(&k)
	return k
}

func held(until time.Duration) *lease.Lease {
	return &lease.Lease{Fence: 7, Pool: "p", Taken: noon.Add(-time.Minute), Expires: noon.Add(until)}
}

func TestState(t *testing.T) {
	bar := func(until time.Duration, action string) []lease.Bar {
		return []lease.Bar{{Change: "c", By: "ann", Until: noon.Add(until), Action: action}}
	}
	for name, tc := range map[string]struct {
		reason string
		key    lease.Key
		want   lease.State
		// free is when it may be a candidate, counted from noon; -1 for now, -2 for never.
		free time.Duration
	}{
		"free":               {"nothing stands against it", row(func(*lease.Key) {}), lease.Free, -1},
		"held":               {"somebody has it", row(func(k *lease.Key) { k.Lease = held(time.Minute) }), lease.Held, time.Minute},
		"held, ends now":     {"the end itself is outside", row(func(k *lease.Key) { k.Lease = held(0) }), lease.Free, 0},
		"expired":            {"its time is over, swept or not", row(func(k *lease.Key) { k.Lease = held(-time.Second) }), lease.Free, -time.Second},
		"expired with reset": {"nobody reset it", row(func(k *lease.Key) { k.Lease = held(-time.Second); k.Lease.Hooks.Reset = true }), lease.NeedsReset, -time.Second},
		"expired with check": {"a check leaves nothing behind", row(func(k *lease.Key) { k.Lease = held(-time.Second); k.Lease.Hooks.Check = true }), lease.Free, -time.Second},
		"unclaimed":          {"nobody used it", row(func(k *lease.Key) { k.Lease = held(-time.Second); k.Lease.Hooks.Reset, k.Lease.Unclaimed = true, true }), lease.Free, -time.Second},
		"released":           {"its lease is one of the past", row(func(k *lease.Key) { k.Lease = held(time.Minute); k.Lease.End = lease.Released }), lease.Free, -1},
		"resetting":          {"its holder resets it", row(func(k *lease.Key) { k.Lease = held(time.Minute); k.Lease.Resetting = true }), lease.Resetting, time.Minute},
		"resetting, expired": {"its holder vanished in the middle of it", row(func(k *lease.Key) {
			k.Lease = held(-time.Second)
			k.Lease.Resetting, k.Lease.Hooks.Reset = true, true
		}), lease.NeedsReset, -time.Second},
		"needs reset":      {"its last holder left it so", row(func(k *lease.Key) { k.NeedsReset = true }), lease.NeedsReset, -1},
		"cooling":          {"it rests", row(func(k *lease.Key) { k.CoolUntil = noon.Add(time.Second) }), lease.Cooling, time.Second},
		"cooled":           {"the end itself is outside", row(func(k *lease.Key) { k.CoolUntil = noon }), lease.Free, 0},
		"held and cooling": {"whatever ends last", row(func(k *lease.Key) { k.Lease, k.CoolUntil = held(time.Second), noon.Add(time.Minute) }), lease.Held, time.Minute},
		"unhealthy":        {"its controller says so", row(func(k *lease.Key) { k.Unfit = "ill" }), lease.Unhealthy, -2},
		"disabled":         {"a person says so", row(func(k *lease.Key) { k.Disabled = &lease.Disabled{} }), lease.DisabledSt, -2},
		"disabled, held":   {"it stays with its holder", row(func(k *lease.Key) { k.Disabled, k.Lease = &lease.Disabled{}, held(time.Minute) }), lease.Held, -2},
		"barred":           {"somebody changes it", row(func(k *lease.Key) { k.Bars = bar(time.Second, "") }), lease.Barred, -1},
		"barred before":    {"the end itself is outside", row(func(k *lease.Key) { k.Bars = bar(0, "") }), lease.Free, -1},
		"action":           {"an action bars beyond the change", row(func(k *lease.Key) { k.Bars = bar(-time.Hour, "act") }), lease.Barred, -1},
		"left, held":       {"it goes when its holder does", row(func(k *lease.Key) { k.Pools, k.Lease = nil, held(time.Minute) }), lease.Held, -2},
		"left":             {"nothing keeps it", row(func(k *lease.Key) { k.Pools = nil }), lease.Gone, -2},
		"disabled and all": {"what a person did comes first", row(func(k *lease.Key) {
			k.Disabled, k.Unfit, k.CoolUntil, k.NeedsReset, k.Bars = &lease.Disabled{}, "ill", noon.Add(time.Hour), true, bar(time.Hour, "")
		}), lease.DisabledSt, -2},
		"barred and ill": {"a change before the controller", row(func(k *lease.Key) { k.Unfit, k.Bars = "ill", bar(time.Hour, "") }), lease.Barred, -2},
		"cooling, dirty": {"the rest before the reset", row(func(k *lease.Key) { k.NeedsReset, k.CoolUntil = true, noon.Add(time.Hour) }), lease.Cooling, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.key.State(noon); got != tc.want {
				t.Errorf("%s: the state is %s, want %s", tc.reason, got, tc.want)
			}
			want := noon.Add(tc.free)
			switch tc.free {
			case -1:
				want = time.Time{}
			case -2:
				want = lease.Never()
			}
			if got := tc.key.FreeAt(); !got.Equal(want) {
				t.Errorf("%s: free at %v, want %v", tc.reason, got, want)
			}
			// The index may offer a key in vain, but never misses one.
			usable := tc.want == lease.Free || tc.want == lease.NeedsReset
			if usable && tc.key.FreeAt().After(noon) {
				t.Errorf("%s: the index does not offer it", tc.reason)
			}
			pool := lease.Pool{Name: "p"}
			if got := tc.key.Eligible(pool, lease.Take{}, noon); got != usable {
				t.Errorf("%s: eligible %v", tc.reason, got)
			}
			if tc.key.Eligible(lease.Pool{Name: "q"}, lease.Take{}, noon) {
				t.Errorf("%s: eligible through a pool that does not list it", tc.reason)
			}
		})
	}
}

func TestSettleLeavesItsReceiver(t *testing.T) {
	k := row(func(k *lease.Key) { k.Lease = held(-time.Second); k.Lease.Hooks.Reset = true })
	before := *k.Lease
	s := k.Settle(noon)
	if *k.Lease != before || k.NeedsReset || !k.UsedAt.Equal(noon.Add(-time.Hour)) {
		t.Errorf("the key became %+v", k)
	}
	want := before
	want.End, want.EndedAt = lease.Expired, noon.Add(-time.Second)
	if d := cmp.Diff(&want, s.Lease); d != "" || !s.UsedAt.Equal(want.EndedAt) || !s.NeedsReset {
		t.Errorf("settled (-want +got):\n%s\nused %v, needs reset %v", d, s.UsedAt, s.NeedsReset)
	}
	if again := s.Settle(noon.Add(time.Hour)); again.Lease != s.Lease {
		t.Error("what is settled is settled again")
	}
}

func TestRank(t *testing.T) {
	for errors, want := range map[int]time.Duration{0: 0, 1: time.Minute, 2: 2 * time.Minute, 4: 8 * time.Minute, 7: 64 * time.Minute, 8: 64 * time.Minute, math.MaxInt: 64 * time.Minute} {
		k := lease.Key{UsedAt: noon, Errors: errors}
		if got := k.Rank().Sub(noon); got != want {
			t.Errorf("after %d errors it comes %v later, want %v", errors, got, want)
		}
	}
	k := lease.Key{Errors: 1 << 20}
	if never := k.Rank(); never.After(noon) {
		t.Errorf("a key that was never used ranks %v", never)
	}
}

// Keys are ordered whatever they are: no two lists of the same keys differ.
func TestLessIsTotal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.Custom(func(t *rapid.T) lease.Key {
			return lease.Key{
				Name: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name"), Errors: rapid.IntRange(0, 2).Draw(t, "errors"),
				UsedAt: noon.Add(time.Duration(rapid.IntRange(0, 2).Draw(t, "used")) * time.Minute),
			}
		})
		a, b, c := key.Draw(t, "a"), key.Draw(t, "b"), key.Draw(t, "c")
		if lease.Less(&a, &b) && lease.Less(&b, &a) || lease.Less(&a, &a) {
			t.Fatalf("%+v and %+v come before each other", a, b)
		}
		if lease.Less(&a, &b) && lease.Less(&b, &c) && !lease.Less(&a, &c) {
			t.Fatalf("%+v, %+v, %+v are in no order", a, b, c)
		}
		if a.Name != b.Name && !lease.Less(&a, &b) && !lease.Less(&b, &a) {
			t.Fatalf("%+v and %+v have no order", a, b)
		}
	})
}

func TestBanRest(t *testing.T) {
	b := lease.Ban{Initial: 10 * time.Minute, Factor: 2, Max: time.Hour}
	for name, tc := range map[string]struct {
		reason string
		ban    lease.Ban
		n      int
		want   time.Duration
	}{
		"none":      {"no ban rests nothing", b, 0, 0},
		"first":     {"the first rests for Initial", b, 1, 10 * time.Minute},
		"second":    {"the factor once", b, 2, 20 * time.Minute},
		"third":     {"the factor twice", b, 3, 40 * time.Minute},
		"bounded":   {"never more than Max", b, 4, time.Hour},
		"overflow":  {"however many there were", b, math.MaxInt, time.Hour},
		"off":       {"Initial 0 switches bans off", lease.Ban{Factor: 2, Max: time.Hour}, 3, 0},
		"constant":  {"a factor of 1 does not grow", lease.Ban{Initial: time.Minute, Factor: 1, Max: time.Hour}, 50, time.Minute},
		"shrinking": {"no factor below 1 counts", lease.Ban{Initial: time.Minute, Factor: 0.1, Max: time.Hour}, 5, time.Minute},
		"fraction":  {"cut to what stores keep", lease.Ban{Initial: time.Microsecond, Factor: 1.5, Max: time.Hour}, 2, time.Microsecond},
	} {
		if got := tc.ban.Rest(tc.n); got != tc.want {
			t.Errorf("%s: %s: %v, want %v", name, tc.reason, got, tc.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		b := lease.Ban{
			Initial: time.Duration(rapid.Int64Range(0, int64(lease.MaxCooldown)).Draw(t, "initial")), Factor: rapid.Float64Range(1, 100).Draw(t, "factor"),
			Max: lease.MaxCooldown,
		}
		n := rapid.IntRange(1, 1000).Draw(t, "n")
		if a, c := b.Rest(n), b.Rest(n+1); a < 0 || a > b.Max || c < a-time.Microsecond {
			t.Fatalf("ban %d rests for %v, the next for %v", n, a, c)
		}
	})
}

func TestPoolDefaults(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		pool    lease.Pool
		ttl, mx time.Duration
	}{
		"nothing":   {"ten minutes, and a day at most", lease.Pool{}, 10 * time.Minute, 24 * time.Hour},
		"short max": {"the usual time is no longer than the longest", lease.Pool{MaxTTL: time.Minute}, time.Minute, time.Minute},
		"ttl":       {"what is given stays", lease.Pool{TTL: time.Hour}, time.Hour, 24 * time.Hour},
		"both":      {"what is given stays", lease.Pool{TTL: time.Minute, MaxTTL: time.Hour}, time.Minute, time.Hour},
		"fraction":  {"cut to what stores keep", lease.Pool{TTL: time.Minute + 1, MaxTTL: time.Hour + 999}, time.Minute, time.Hour},
	} {
		tc.pool.Name, tc.pool.Kind = "p", lease.Fixed
		p := tc.pool.WithDefaults()
		if p.TTL != tc.ttl || p.MaxTTL != tc.mx || p.Validate() != nil {
			t.Errorf("%s: %s: %v and %v, want %v and %v (%v)", name, tc.reason, p.TTL, p.MaxTTL, tc.ttl, tc.mx, p.Validate())
		}
		if again := p.WithDefaults(); again != p {
			t.Errorf("%s: the defaults of what has them: %+v", name, again)
		}
	}
	good := lease.Pool{Name: "p", Kind: lease.Managed}.WithDefaults()
	bad := map[string]func(p *lease.Pool){
		"kind": func(p *lease.Pool) { p.Kind = "x" }, "no kind": func(p *lease.Pool) { p.Kind = "" },
		"NaN": func(p *lease.Pool) { p.Ban.Factor = math.NaN() }, "infinite": func(p *lease.Pool) { p.Ban.Factor = math.Inf(1) },
		"factor": func(p *lease.Pool) { p.Ban.Factor = 101 }, "ban": func(p *lease.Pool) { p.Ban.Initial = -1 },
		"long ban": func(p *lease.Pool) { p.Ban.Max = lease.MaxCooldown + 1 }, "scope": func(p *lease.Pool) { p.Scope = "" },
	}
	for name, change := range bad {
		p := good
		change(&p)
		if p.Validate() == nil {
			t.Errorf("%s: a bad pool passes: %+v", name, p)
		}
	}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
}

func TestMatches(t *testing.T) {
	k := lease.Key{Attributes: map[string]string{"country": "de", "empty": ""}}
	for name, tc := range map[string]struct {
		where map[string]string
		want  bool
	}{
		"nothing": {nil, true}, "one": {map[string]string{"country": "de"}, true}, "other": {map[string]string{"country": "fr"}, false},
		"all": {map[string]string{"country": "de", "empty": ""}, true}, "missing": {map[string]string{"city": ""}, false},
		"one of two": {map[string]string{"country": "de", "city": "x"}, false},
	} {
		if got := k.Matches(tc.where); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if !(&lease.Key{}).Matches(nil) {
		t.Error("a key without attributes does not match nothing")
	}
}
