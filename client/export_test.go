package client

import "time"

// SetClock gives a client another clock than the machine's.
func SetClock(c *Client, clock func() time.Duration) { c.clock = clock }

// NewClock is the machine's clock.
var NewClock = newClock

// WholeSeconds is how a time goes over the wire where whole seconds are asked
// for.
var WholeSeconds = wholeSeconds
