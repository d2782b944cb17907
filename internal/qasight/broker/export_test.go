package broker

import (
	"net/http"

	"fleetdesk/client"
)

// Inside is the transport to a handler of this process.
func Inside(h http.Handler) http.RoundTripper { return inside{h} }

// ClientOf is what a broker of this package speaks through.
func ClientOf(b Broker) *client.Client { return b.(*desk).client }

// ID is the change's.
func (c *Change) ID() string { return c.id }

// Replayed is whether an earlier request got the lease.
func (l *Lease) Replayed() bool { return l.lease.Replayed() }
