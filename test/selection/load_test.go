package selection_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// job is one request of a load; n counts them.
type job func(ctx context.Context, n int) error

var (
	// errNone is the answer that no proxy was to be had, which is no failure.
	errNone = errors.New("no proxy is free")
	// errShed is what the service tells when too many requests wait already.
	errShed = errors.New("too many requests wait")
)

// figures are what a load measured.
type figures struct {
	done, none, shed int
	elapsed          time.Duration
	// took are sorted; a request that was shed took for ever.
	took []time.Duration
	// cpu is the processor's time of one request, the database's included.
	cpu time.Duration
}

func (f figures) perSecond() float64 { return float64(f.done) / f.elapsed.Seconds() }

// ms is a quantile of the times in milliseconds.
func (f figures) ms(q float64) float64 {
	if len(f.took) == 0 {
		return 0
	}
	return float64(f.took[min(len(f.took)-1, int(q*float64(len(f.took))))].Microseconds()) / 1000
}

func isAnswer(err error) bool {
	return err == nil || errors.Is(err, errNone) || errors.Is(err, errShed)
}

// note counts the answer of one request; not nil ends the load.
func (f *figures) note(took time.Duration, err error) error {
	switch {
	case errors.Is(err, errNone):
		f.none++
	case errors.Is(err, errShed):
		f.shed++
		f.took = append(f.took, time.Hour)
		return nil
	case err != nil:
		return err
	}
	f.done++
	f.took = append(f.took, took)
	return nil
}

// closed runs jobs by so many clients, each of which asks again as soon as it
// has its answer, after a third of the span to warm up.
func closed(ctx context.Context, clients int, span time.Duration, do job) (figures, error) {
	ctx, stop := context.WithTimeoutCause(ctx, span*4/3+time.Minute, errors.New("the load did not end"))
	defer stop()
	var (
		next            atomic.Int64
		measuring, over atomic.Bool
		first           error
		once            sync.Once
		group           sync.WaitGroup
		parts           = make([]figures, clients)
	)
	for c := range clients {
		group.Go(func() {
			for !over.Load() {
				begin := time.Now()
				err := do(ctx, int(next.Add(1)))
				if !measuring.Load() && isAnswer(err) {
					continue
				}
				if err := parts[c].note(time.Since(begin), err); err != nil {
					once.Do(func() { first = fmt.Errorf("client %d: %w", c, err) })
					over.Store(true)
				}
			}
		})
	}
	pause(ctx, span/3)
	used := processor()
	measuring.Store(true)
	begin := time.Now()
	pause(ctx, span)
	all := figures{elapsed: time.Since(begin)}
	over.Store(true)
	used = processor() - used
	group.Wait()
	all = all.with(parts)
	all.cpu = used / time.Duration(max(all.done, 1))
	return all, first
}

// open runs jobs at a rate, whether those before have ended or not: the times
// between them are exponential, as those of many crawlers that know nothing of
// each other. What a job took is counted from when it was due, so that a stall
// counts for all that were due in it.
func open(ctx context.Context, rate float64, span time.Duration, do job) (figures, error) {
	ctx, stop := context.WithTimeoutCause(ctx, span*4/3+time.Minute, errors.New("the load did not end"))
	defer stop()
	var (
		mu    sync.Mutex
		all   figures
		first error
		group sync.WaitGroup
		draw  = rand.New(rand.NewPCG(7, 7))
		due   = time.Now()
		warm  = due.Add(span / 3)
		end   = warm.Add(span)
		used  = processor()
		n     = 0
	)
	for ; due.Before(end) && ctx.Err() == nil; n++ {
		pause(ctx, time.Until(due))
		meant, n := due, n
		group.Go(func() {
			err := do(ctx, n)
			took := time.Since(meant)
			mu.Lock()
			defer mu.Unlock()
			if meant.Before(warm) && isAnswer(err) {
				return
			}
			if err := all.note(took, err); err != nil && first == nil {
				first = fmt.Errorf("request %d: %w", n, err)
				stop()
			}
		})
		due = due.Add(time.Duration(draw.ExpFloat64() / rate * float64(time.Second)))
	}
	group.Wait()
	all.elapsed = max(span, time.Since(warm)) // those that are behind belong to it
	all.cpu = (processor() - used) / time.Duration(max(n, 1))
	return all.with(nil), first
}

func (f figures) with(parts []figures) figures {
	for _, p := range parts {
		f.done, f.none, f.shed = f.done+p.done, f.none+p.none, f.shed+p.shed
		f.took = append(f.took, p.took...)
	}
	slices.Sort(f.took)
	return f
}

func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
