package selection_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A stall counts for every request that was due in it, as those who wait in a
// shop count the break of the cashier: a load that asks only after it was
// answered would have seen it once.
func TestOpenLoadCountsFromWhenItWasDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turn := make(chan struct{}, 1) // one request at a time
		stalled := false
		f, err := open(t.Context(), 100, 20*time.Second, func(_ context.Context, n int) error {
			turn <- struct{}{}
			defer func() { <-turn }()
			if n > 1500 && !stalled {
				stalled = true
				time.Sleep(2 * time.Second)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if f.done < 1800 || f.done > 2200 {
			t.Errorf("%d requests in 20 s, want about 2,000: the rate is not that of the load", f.done)
		}
		// About 200 of 2,000 were due within the two seconds.
		if p95 := f.ms(0.95); p95 < 500 {
			t.Errorf("the 95th of a hundred took %.0f ms: the stall of 2 s was left out", p95)
		}
		if p80 := f.ms(0.8); p80 > 1 {
			t.Errorf("the 80th of a hundred took %.3f ms, want nothing: most were not held up", p80)
		}
	})
}
