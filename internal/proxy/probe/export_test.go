package probe

import (
	"context"
	"io"
	"net/netip"
	"time"

	"fleetdesk/internal/core/health"
)

// Refused returns why a control request may not go to ip, or nil.
func Refused(allow []netip.Prefix, ip netip.Addr) error {
	if r := (guard{allow}).look(ip); r != nil {
		return r
	}
	return nil
}

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
