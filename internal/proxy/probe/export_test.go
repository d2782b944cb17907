package probe

import (
	"context"
	"io"
	"time"

	"fleetdesk/internal/core/health"
)

// ExitIP and SOCKSConnect are tested apart from the network.
var ExitIP = exitIP

func SOCKSConnect(rw io.ReadWriter, t Target, addr string) error { return socksConnect(rw, t, addr) }

// Scripted replaces the request that a Direct makes.
func (d *Direct) Scripted(send func(context.Context, Check) (health.Control, error)) *Direct {
	d.send = send
	return d
}

// Hurried makes a Direct as impatient as a test that waits in earnest.
func (d *Direct) Hurried(patience time.Duration) *Direct {
	d.patience = patience
	return d
}
