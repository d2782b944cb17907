package kvm

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"fleetdesk/internal/core/fault"
)

// An upload that gets nowhere is ended and says so; one that is slow, and gets
// on, is not; and the watch ends with the upload.
func TestLeastRate(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		rate   int64 // bytes a second
		ends   bool
	}{
		"a byte now and then": {"it would keep other images off the host", 1, true},
		"just too slow":       {"the bound is what the text says", leastBytes/120 - 1, true},
		"slow":                {"a bad line is no reason to give up", leastBytes/120 + 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancelCause(t.Context())
				began := time.Now()
				end := leastRate(func() int64 { return int64(time.Since(began).Seconds()) * tc.rate }, stop)
				time.Sleep(time.Hour)
				synctest.Wait()
				if err := context.Cause(ctx); (err != nil) != tc.ends || tc.ends && fault.Of(err) != fault.Timeout {
					t.Errorf("%s: %v", tc.reason, err)
				}
				end()
			})
		})
	}
}
