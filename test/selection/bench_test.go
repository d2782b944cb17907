package selection_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	length = flag.Duration("span", 5*time.Second, "how long one figure is measured")
	figure = flag.String("figure", "", "measure only databases and sizes whose name contains this, such as postgres.p100.")
	rate   = flag.Float64("rate", 2000, "requests a second of the open load")
)

// emit prints one line for machines.
func emit(name string, value float64, unit string) {
	fmt.Printf("BENCH %s %.4g %s\n", name, value, unit)
}

// BenchmarkSelect prints BENCH lines; `make bench-select` says how it is run.
func BenchmarkSelect(b *testing.B) {
	for b.Loop() {
		ctx := b.Context()
		emit("select.fsync.p50_us", fsync(b), "us")
		for _, kind := range []string{"sqlite", "postgres"} {
			cost := map[int]figures{}
			for _, proxies := range []int{100, 10_000} {
				name := fmt.Sprintf("select.%s.p%d.t1000", kind, proxies)
				if strings.Contains(name+".", *figure) {
					cost[proxies] = measure(ctx, b, kind, name, proxies, 1000)
				}
			}
			if few, many := cost[100], cost[10_000]; few.done > 0 && many.done > 0 {
				emit("select."+kind+".p10000_over_p100", few.perSecond()/many.perSecond(), "times the time of a pick (8 clients; goal: at most 1.5)")
				emit("select."+kind+".p10000_over_p100.cpu", float64(many.cpu)/float64(few.cpu), "times the processor's time of a pick")
			}
			// Few targets, each asked for so often that all its proxies have been met.
			if name := fmt.Sprintf("select.%s.p10000.t10", kind); strings.Contains(name+".", *figure) {
				aged(ctx, b, kind, name)
			}
		}
	}
}

// measure prints the figures of one database and size, and returns those of 8
// clients.
func measure(ctx context.Context, b *testing.B, kind, name string, proxies, targets int) figures {
	begin := time.Now()
	w, err := newWorld(ctx, kind, b, proxies, targets)
	if err != nil {
		b.Fatalf("%s: %v", name, err)
	}
	defer w.stop()
	emit(name+".fill_s", time.Since(begin).Seconds(), "s")

	// The first request for a target makes its line.
	var first []time.Duration
	for n := range targets {
		begin := time.Now()
		if err := w.picks(ctx, n); err != nil {
			b.Fatalf("%s: the first pick for %s: %v", name, w.target(n), err)
		}
		first = append(first, time.Since(begin))
	}
	slices.Sort(first)
	emit(name+".first_p50_ms", float64(first[len(first)/2].Microseconds())/1000, "ms")

	var cost figures
	for _, clients := range []int{8, 64} {
		f := clientsOf(ctx, b, fmt.Sprintf("%s.c%d", name, clients), clients, w.picks)
		if clients == 8 {
			cost = f
		} else {
			emit(name+".per_s", f.perSecond(), "1/s (64 clients)")
		}
	}
	openLoad(ctx, b, name, w)

	// A target for which nothing is to be had: the first answer looks at every
	// proxy, later ones must not.
	begin = time.Now()
	longest, parts := time.Duration(0), 0
	for err := errShed; errors.Is(err, errShed); parts++ { // it looks at some of them at a time
		part := time.Now()
		if err = w.none(ctx, 0); !errors.Is(err, errNone) && (!errors.Is(err, errShed) || parts > proxies) {
			b.Fatalf("%s: %v", name, err)
		}
		longest = max(longest, time.Since(part))
	}
	emit(name+".none.first_ms", float64(time.Since(begin).Microseconds())/1000, fmt.Sprintf("ms (in %d parts, the longest %.4g)", parts, float64(longest.Microseconds())/1000))
	for _, clients := range []int{8, 64} {
		for _, what := range []struct {
			name string
			do   job
		}{{"rounds", w.rounds}, {"leases", w.leases}, {"none", w.none}} {
			clientsOf(ctx, b, fmt.Sprintf("%s.%s.c%d", name, what.name, clients), clients, what.do)
		}
	}
	return cost
}

// clientsOf prints the figures of clients that each wait for their answer.
func clientsOf(ctx context.Context, b *testing.B, name string, clients int, do job) figures {
	f, err := closed(ctx, clients, *length, do)
	if err != nil {
		b.Fatalf("%s: %v", name, err)
	}
	if f.done == 0 {
		b.Fatalf("%s: nothing was answered in %s", name, *length)
	}
	emit(name+".per_s", f.perSecond(), "1/s")
	emit(name+".p99_ms", f.ms(0.99), "ms")
	emit(name+".cpu_us", float64(f.cpu.Microseconds()), "us of the processor, each")
	if f.none > 0 && !strings.Contains(name, ".none.") {
		emit(name+".told_none", float64(f.none), "requests")
	}
	return f
}

// aged measures picks when the lines are as long as they get.
func aged(ctx context.Context, b *testing.B, kind, name string) {
	w, err := newWorld(ctx, kind, b, 10_000, 10)
	if err != nil {
		b.Fatalf("%s: %v", name, err)
	}
	defer w.stop()
	// As often as it takes for each address to be picked for each target.
	for left := 10 * 10_000; left > 0; {
		f, err := closed(ctx, 64, *length, w.picks)
		if err != nil {
			b.Fatalf("%s: %v", name, err)
		}
		left -= f.done
	}
	clientsOf(ctx, b, name+".aged.c8", 8, w.picks)
	openLoad(ctx, b, name+".aged", w)
}

// openLoad measures picks at a rate that does not wait for answers.
func openLoad(ctx context.Context, b *testing.B, name string, w *world) {
	f, err := open(ctx, *rate, *length, w.picks)
	if err != nil {
		b.Fatalf("%s: %v", name, err)
	}
	at := fmt.Sprintf("ms (open load, %.0f/s wanted, %.0f/s done)", *rate, f.perSecond())
	emit(name+".p50_ms", f.ms(0.5), at)
	emit(name+".p99_ms", f.ms(0.99), at)
	emit(name+".p999_ms", f.ms(0.999), at)
	emit(name+".cpu_us", float64(f.cpu.Microseconds()), "us of the processor, each, in the open load")
	if f.shed > 0 {
		emit(name+".shed", float64(f.shed), "requests that were told that too many wait")
	}
}

// fsync measures what durability costs on this disk: one page written and synced.
func fsync(b *testing.B) float64 {
	f, err := os.CreateTemp(b.TempDir(), "")
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	page := make([]byte, 8192)
	var all []time.Duration
	for range 200 {
		begin := time.Now()
		if _, err := f.WriteAt(page, 0); err != nil {
			b.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
		all = append(all, time.Since(begin))
	}
	slices.Sort(all)
	return float64(all[len(all)/2].Microseconds())
}
