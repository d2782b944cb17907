package poolcmd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fleetdesk/client"
)

// fifty is a project of 50 pools whose lists write down that they ran, and then do
// what rest says before they print.
func fifty(t testing.TB, keys int, rest string) *project {
	t.Helper()
	p := newProject(t, "")
	var file strings.Builder
	file.WriteString("project: shop\npools:\n")
	for i := range 50 {
		var names []string
		for j := range keys {
			names = append(names, fmt.Sprintf("p%02d-%04d", i, j))
		}
		name := fmt.Sprintf("names-%d", i)
		if err := os.WriteFile(filepath.Join(p.dir, name), []byte(strings.Join(names, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&file, "\tp%d: {items: [%s], provider: {list: 'echo $QASIGHT_POOL >> journal; %s; cat %s'}}\n", i, strings.Join(names, ", "), rest, name)
	}
	p.file(file.String())
	return p
}

// ran counts the lists that ran, and fails unless each ran as often as the others.
func (p *project) ran(times int) {
	p.t.Helper()
	text, err := os.ReadFile(filepath.Join(p.dir, "journal"))
	if err != nil {
		p.t.Fatal(err)
	}
	count := map[string]int{}
	for _, name := range strings.Fields(string(text)) {
		count[name]++
	}
	for i := range 50 {
		if name := fmt.Sprintf("p%d", i); count[name] != times {
			p.t.Errorf("the list of %s ran %d times, want %d", name, count[name], times)
		}
	}
}

type fiftySeen struct {
	Pools []struct {
		List struct {
			Names   int
			Seconds client.Seconds
		}
		Keys []struct{ Exists, State string }
	}
}

// sum is how long the lists took one by one.
func (s *fiftySeen) sum() time.Duration {
	var sum time.Duration
	for _, p := range s.Pools {
		sum += p.List.Seconds.Duration()
	}
	return sum
}

// Each list runs once, and they do not wait for each other: here each waits until
// sixteen have begun.
func TestStatusOfFiftyPools(t *testing.T) {
	t.Parallel()
	p := fifty(t, 40, `until [ "$(wc -l <journal)" -ge 16 ]; do sleep 0.05; done`)
	var s fiftySeen
	p.json(0, &s, "status")
	p.ran(1)
	if len(s.Pools) != 50 || len(s.Pools[49].Keys) != 40 {
		t.Errorf("%d pools", len(s.Pools))
	}
}

// napping is how long a list takes in the benchmark.
const napping = "sleep 0.2"

// BenchmarkStatus prints BENCH lines: the wall time of status over 50 pools whose
// lists take 0.2 s each, against the sum of the lists' own times; with 2,000 keys in
// all, and with 2,000 in each pool.
func BenchmarkStatus(b *testing.B) {
	for b.Loop() {
		for _, each := range []int{40, 2000} {
			p := fifty(b, each, napping)
			measure := func(name string, times int) {
				begun := time.Now()
				var s fiftySeen
				p.json(0, &s, "status")
				wall := time.Since(begun)
				p.ran(times)
				keys := 0
				for _, one := range s.Pools {
					keys += len(one.Keys)
				}
				if keys != 50*each {
					b.Fatalf("%d keys", keys)
				}
				name = fmt.Sprintf("qasight.status.pools50.keys%d.%s", keys, name)
				emit(name+".wall_s", wall.Seconds(), "s")
				emit(name+".sum_s", s.sum().Seconds(), "s")
				emit(name+".speedup", s.sum().Seconds()/wall.Seconds(), "x")
			}
			measure("no_database", 1)
			// Over a database that knows all of the keys.
			broker := p.local()
			p.prepare(broker)
			measure("database", 2)
			broker.Close()
		}
	}
}

// emit prints one line for machines.
func emit(name string, value float64, unit string) {
	fmt.Printf("BENCH %s %.4g %s\n", name, value, unit)
}
