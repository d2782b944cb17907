package sqldb

import "time"

// WithClock makes leases live by another clock: what it makes of the database's.
func WithClock(o Options, clock func(time.Time) time.Time) Options {
	o.clock = clock
	return o
}
