//go:build !linux

package client

import "time"

// newClock returns a clock that measures how time passes. It stands still while
// the machine is suspended where the system's monotonic clock does.
func newClock() func() time.Duration {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}
