package waterfall_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"fleetdesk/internal/core/lease"
)

var (
	update = flag.Bool("update", false, "write the tables of docs/waterfall.md anew")
	show   = flag.Bool("print", false, "print the tables, and lines for machines")
)

const (
	// length is how long each simulation lasts, from a cold start.
	length = 15 * time.Minute
	// goal is the success wanted where the best plain chooser stays below low.
	goal, low = 0.95, 0.60
)

var seeds = []uint64{1, 2}

// loads are what is wanted of the busiest site, in parts of what it gives all
// addresses together.
var loads = []float64{0.1, 0.3, 0.5, 0.7, 0.8, 1, 1.5}

// way is a way to choose, with its name in tables and on lines.
type way struct {
	name, line string
	who        func(testing.TB) func(*run) chooser
}

func always(who func(*run) chooser) func(testing.TB) func(*run) chooser {
	return func(testing.TB) func(*run) chooser { return who }
}

// Plain ones are those that the goal is measured against.
var plainWays = []way{
	{"random", "random", always(newRandom)},
	{"round robin", "round_robin", always(newRoundRobin)},
	{"least recently used", "lru", always(newLeastRecent(0, 0))},
}

var (
	remembers = way{"… and remembers bans", "lru_memory", always(newLeastRecent(10*time.Minute, 0))}
	careful   = way{"… and waits 10 s", "lru_memory_delay", always(newLeastRecent(10*time.Minute, window/6))}
	ours      = engineWay("this project", "engine", func(*lease.Pool) {})
	ignorant  = engineWay("… without a cooldown", "engine_cooldown_0", func(p *lease.Pool) { p.Cooldown = 0 })
	knowing   = way{"oracle", "oracle", always(newOracle)}
)

func allWays() []way {
	return append(slices.Clone(plainWays), remembers, careful, ours, ignorant, knowing)
}

// engineWay is the engine with a change to the team's pool.
func engineWay(name, line string, change func(p *lease.Pool)) way {
	return way{name, line, func(t testing.TB) func(*run) chooser {
		p := team()
		change(&p)
		return inMemory(t, p)
	}}
}

// cells are simulations that were run, by way and load.
type cells struct {
	mu  sync.Mutex
	all map[string]tally
}

func cellOf(w way, load float64) string { return fmt.Sprintf("%s.l%03.0f", w.line, 100*load) }

func (c *cells) at(w way, load float64) tally { return c.all[cellOf(w, load)] }

// simulate runs each way at each load, over all seeds.
func simulate(t *testing.T, ways []way, loads []float64) *cells {
	t.Helper()
	c := &cells{all: map[string]tally{}}
	var group errgroup.Group
	group.SetLimit(2)
	for _, load := range loads {
		for _, seed := range seeds {
			w := newWorld(seed, load, length)
			for _, way := range ways {
				group.Go(func() error {
					r := newRun(w, way.who(t))
					got := r.simulate()
					if e, ok := r.who.(*engine); ok && e.broken != nil {
						return fmt.Errorf("%s at %.2f, seed %d: %w", way.name, load, seed, e.broken)
					}
					c.mu.Lock()
					defer c.mu.Unlock()
					sum := c.all[cellOf(way, load)]
					sum.add(got)
					c.all[cellOf(way, load)] = sum
					return nil
				})
			}
		}
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	return c
}

// bestPlain is the success of the best of the plain ways.
func (c *cells) bestPlain(load float64) float64 {
	best := 0.0
	for _, w := range plainWays {
		best = max(best, c.at(w, load).share(good))
	}
	return best
}

// hard is the least load at which all plain ways stay below [low].
func (c *cells) hard(t *testing.T) float64 {
	t.Helper()
	for _, load := range loads {
		if c.bestPlain(load) < low {
			return load
		}
	}
	t.Fatalf("at no load does the best plain way stay below %.0f %%: the world is too kind to prove anything", 100*low)
	return 0
}

// The tables of docs/waterfall.md are what is simulated; in them, the goal.
func TestWaterfall(t *testing.T) {
	c := simulate(t, allWays(), loads)
	hard := c.hard(t)
	mine, theirs, oracle := c.at(ours, hard).share(good), c.bestPlain(hard), c.at(knowing, hard).share(good)
	t.Logf("at a load of %.2f: this project %.1f %%, the best plain way %.1f %%, the oracle %.2f %%", hard, 100*mine, 100*theirs, 100*oracle)
	if oracle < 0.999 {
		t.Errorf("the oracle serves %.2f %% at a load of %.2f: the goal is for a load that can be served", 100*oracle, hard)
	}
	if mine < goal {
		t.Errorf("this project serves %.1f %% at a load of %.2f, want at least %.0f %%", 100*mine, hard, 100*goal)
	}
	for _, load := range loads {
		for _, w := range allWays() {
			if got, most := c.at(w, load).share(good), c.at(knowing, load).share(good); got > most {
				t.Errorf("%s serves %.1f %% at a load of %.2f, more than the oracle's %.1f %%: the oracle is none", w.name, 100*got, load, 100*most)
			}
		}
	}
	ends := simulate(t, otherWays(), []float64{hard})
	rows := slices.Insert(allWays(), len(allWays())-1, otherWays()...) // the oracle comes last
	for _, w := range allWays() {
		ends.all[cellOf(w, hard)] = c.at(w, hard)
	}
	for name, table := range map[string]string{"successes": c.successes(), "ends": ends.ends(rows, hard)} {
		if *show {
			fmt.Printf("\n%s\n", table)
		}
		compareDocument(t, name, table)
	}
	if *show {
		c.emit()
		ends.emit()
	}
}

// otherWays are this project's with other settings of the pool, and with less
// knowledge.
func otherWays() []way {
	return []way{
		engineWay("… cooldown 5 s, half of what is needed", "engine_cooldown_5", func(p *lease.Pool) { p.Cooldown = 5 * time.Second }),
		engineWay("… cooldown 20 s, twice what is needed", "engine_cooldown_20", func(p *lease.Pool) { p.Cooldown = 20 * time.Second }),
		engineWay("… no cap on uses in flight", "engine_no_cap", func(p *lease.Pool) { p.InFlight = 0 }),
		engineWay("… scope key: exit IPs unknown", "engine_scope_key", func(p *lease.Pool) { p.Scope = lease.ScopeKey }),
		engineWay("… scope key without a cooldown", "engine_scope_key_cooldown_0", func(p *lease.Pool) { p.Scope, p.Cooldown = lease.ScopeKey, 0 }),
	}
}

// A world is the same for everybody who chooses in it: what a comparison says
// is about the choice.
func TestWorldsAreTheSameForAll(t *testing.T) {
	a, b := newWorld(5, 0.5, length), newWorld(5, 0.5, length)
	if len(a.requests) == 0 || fmt.Sprint(a.requests, a.proxies, a.sites) != fmt.Sprint(b.requests, b.proxies, b.sites) {
		t.Error("the same seed makes two worlds")
	}
	if fmt.Sprint(a.requests) == fmt.Sprint(newWorld(6, 0.5, length).requests) {
		t.Error("two seeds make the same requests")
	}
	draw := rand.New(rand.NewPCG(1, 1))
	for range 1000 {
		n, p := draw.IntN(len(a.requests)), draw.IntN(len(a.proxies))
		tookA, lostA := a.chance(n, p)
		tookB, lostB := b.chance(n, p)
		if tookA != tookB || lostA != lostB {
			t.Fatalf("request %d fares differently through proxy %d: %s %t and %s %t", n, p, tookA, lostA, tookB, lostB)
		}
	}
}

// What a site does to an address, step by step.
func TestSite(t *testing.T) {
	s := &site{limit: 2}
	type step struct {
		at   moment
		want outcome
		open bool // it stays open
	}
	cases := map[string]struct {
		reason string
		steps  []step
	}{
		"within the limit": {
			"a request is let in when the one two before it left the window, and not earlier",
			[]step{
				{0, good, false},
				{time.Second, good, false},
				{time.Minute, good, false},
				{61 * time.Second, good, false},
				{119 * time.Second, banned, false},
			},
		},
		"over the limit": {
			"the third in a minute is refused, for five minutes",
			[]step{{0, good, false}, {0, good, false}, {59 * time.Second, banned, false}, {359 * time.Second, good, false}},
		},
		"asked again": {
			"a request during a ban begins it anew, twice as long",
			[]step{
				{0, good, false},
				{0, good, false},
				{0, banned, false},
				{299 * time.Second, banned, false},
				{898 * time.Second, banned, false},
				{899*time.Second + 20*time.Minute, good, false},
			},
		},
		"at most an hour": {
			"a ban that is doubled and doubled ends all the same",
			[]step{
				{0, good, false},
				{0, good, false},
				{0, banned, false},
				{1, banned, false},
				{2, banned, false},
				{3, banned, false},
				{4, banned, false},
				{5, banned, false},
				{5 + time.Hour, good, false},
			},
		},
		"too many at once": {
			"two may be open",
			[]step{{0, good, true}, {time.Minute, good, true}, {3 * time.Minute, banned, false}},
		},
		"forgiven": {
			"a ban an hour after the last one is a first one",
			[]step{
				{0, good, false},
				{0, good, false},
				{0, banned, false},
				{time.Second, banned, false},
				{2 * time.Hour, good, false},
				{2 * time.Hour, good, false},
				{2 * time.Hour, banned, false},
				{2*time.Hour + banFor, good, false},
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := &record{}
			for i, step := range tc.steps {
				can := r.lets(s, step.at)
				got := r.ask(s, step.at)
				if got != step.want || can != (got == good) {
					t.Fatalf("%s: step %d at %s ends as %d (foretold %t), want %d", tc.reason, i, step.at, got, can, step.want)
				}
				if step.open {
					r.open++
				}
			}
		})
	}
}

// emit prints lines for machines.
func (c *cells) emit() {
	for _, cell := range slices.Sorted(maps.Keys(c.all)) {
		fmt.Printf("BENCH waterfall.%s.good_pct %.2f %%\n", cell, 100*c.all[cell].share(good))
	}
}

// successes is the table of how many requests got a good answer, by load.
func (c *cells) successes() string {
	rows := [][]string{{"load"}}
	for _, w := range allWays() {
		rows[0] = append(rows[0], w.name)
	}
	for _, load := range loads {
		row := []string{fmt.Sprintf("%.2f", load)}
		for _, w := range allWays() {
			row = append(row, perCent(c.at(w, load), good))
		}
		rows = append(rows, row)
	}
	return table(rows)
}

// ends is the table of what became of the requests at one load.
func (c *cells) ends(ways []way, load float64) string {
	rows := [][]string{{fmt.Sprintf("at a load of %.2f", load), "good", "banned", "error", "none now"}}
	for _, w := range ways {
		got := c.at(w, load)
		rows = append(rows, []string{w.name, perCent(got, good), perCent(got, banned), perCent(got, failed), perCent(got, refused)})
	}
	return table(rows)
}

func perCent(t tally, o outcome) string { return fmt.Sprintf("%.1f", 100*t.share(o)) }
