package probe

import (
	"io"
	"net/netip"
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
