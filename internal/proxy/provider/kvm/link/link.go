// Package link keeps one connection for each host and shares it between the
// reconciler, uploads and the health check, so that none of them takes it away
// from the others.
package link

import (
	"context"

	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// Link is an open connection to one libvirt daemon.
type Link interface {
	virt.Conn
	// Done is closed when the connection has ended, for whatever reason.
	Done() <-chan struct{}
	// Err says why it ended, classed; nil while it lives.
	Err() error
	// Close ends it at once, without asking the peer, and frees all that wait.
	Close() error
}

// Dialer opens links. Its errors are [*DialError] inside, with a class; it
// honours ctx.
type Dialer interface {
	Dial(ctx context.Context, host string) (Link, error)
}
