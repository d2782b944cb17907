package leases_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// pair takes a key and gives it back; took is how long the take lasted.
type pair func(ctx context.Context, client int) (took time.Duration, err error)

// errNone is the answer that no key was free, which is no failure of a pair.
var errNone = errors.New("no key is free")

// figures are what a load measured.
type figures struct {
	pairs   int
	none    int
	elapsed time.Duration
	takes   []time.Duration // sorted
}

func (f figures) perSecond() float64 { return float64(f.pairs) / f.elapsed.Seconds() }

func (f figures) quantile(q float64) time.Duration {
	if len(f.takes) == 0 {
		return 0
	}
	return f.takes[min(len(f.takes)-1, int(q*float64(len(f.takes))))]
}

// load runs pairs by so many clients for a while, after a short time to warm
// up. The first error ends it.
func load(ctx context.Context, clients int, warm, span time.Duration, do pair) (figures, error) {
	ctx, stop := context.WithTimeout(ctx, warm+span+30*time.Second)
	defer stop()
	var (
		measuring, over atomic.Bool
		none            atomic.Int64
		first           error
		once            sync.Once
		group           sync.WaitGroup
		takes           = make([][]time.Duration, clients)
	)
	for c := range clients {
		group.Go(func() {
			for !over.Load() && ctx.Err() == nil {
				took, err := do(ctx, c)
				switch {
				case errors.Is(err, errNone):
					if measuring.Load() {
						none.Add(1)
					}
				case err != nil:
					if !over.Load() {
						once.Do(func() { first = fmt.Errorf("client %d: %w", c, err); stop() })
					}
					return
				case measuring.Load():
					takes[c] = append(takes[c], took)
				}
			}
		})
	}
	sleep := func(d time.Duration) {
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
	}
	sleep(warm)
	measuring.Store(true)
	begin := time.Now()
	sleep(span)
	measuring.Store(false)
	f := figures{elapsed: time.Since(begin), none: int(none.Load())}
	over.Store(true)
	group.Wait()
	for _, t := range takes {
		f.takes = append(f.takes, t...)
	}
	f.pairs = len(f.takes)
	slices.Sort(f.takes)
	return f, first
}
