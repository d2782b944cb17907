package local

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"fleetdesk/internal/core/fault"
)

// tries bounds the probe sequence of one UID. With addresses drawn from four
// million, sixteen in a row are taken only when something listens on the port
// for all addresses.
const tries = 16

// Candidate returns number n (from 0) of the probe sequence of a UID: the
// address that its proxy gets when those before are taken. It depends on
// nothing else, so that a rebuilt Proxy comes back where it was.
func Candidate(uid string, n int) netip.Addr {
	h := sha256.New()
	var num [4]byte
	binary.BigEndian.PutUint32(num[:], uint32(n))
	h.Write(num[:])
	h.Write([]byte(uid))
	sum := h.Sum(nil)
	base := block.Addr().As4()
	return netip.AddrFrom4([4]byte{
		base[0],
		base[1] | sum[0]&0x3f, // ten bits of prefix leave six here
		sum[1],
		1 + sum[2]%254, // never .0 or .255, which read like a network or broadcast
	})
}

// listen opens the instance's own socket: on keep when that is valid and free,
// else on the first candidate that no other instance has and whose port is
// free. The caller holds the allocation lock.
func (p *Provider) listen(ctx context.Context, name string, keep netip.Addr, port int) (*net.TCPListener, error) {
	uid, _, _ := splitFolder(name)
	taken, err := p.taken(name)
	if err != nil {
		return nil, err
	}
	order := make([]netip.Addr, 0, tries+1)
	if keep.IsValid() {
		order = append(order, keep)
	}
	for n := range tries {
		order = append(order, Candidate(uid, n))
	}
	var last error
	for _, addr := range order {
		if taken[addr] {
			continue
		}
		at := netip.AddrPortFrom(addr, uint16(port))
		var lc net.ListenConfig
		ln, err := lc.Listen(ctx, "tcp4", at.String())
		switch {
		case err == nil:
			return ln.(*net.TCPListener), nil
		case errors.Is(err, unix.EADDRINUSE):
			last = err
		case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
			return nil, fault.Errorf(fault.Permanent, "port %d: this user may not listen on it; set the Proxy's port to 1024 or above: %w", port, err)
		case errors.Is(err, unix.EADDRNOTAVAIL):
			return nil, fault.Errorf(fault.Permanent, "%s is not a local address here; the local provider needs all of 127.0.0.0/8 on the loopback interface: %w", addr, err)
		default:
			return nil, fault.Errorf(fault.Transient, "cannot listen on %s: %w", at, err)
		}
	}
	if last == nil {
		last = errors.New("each belongs to another instance")
	}
	return nil, fault.Errorf(fault.Transient, "port %d is not free on any of %d addresses of %s; when another program listens on it for all addresses, set another port in the Proxy: %w", port, tries, block, last)
}

// taken returns the addresses of all instances but that of the named folder,
// running or not: a stopped proxy comes back where it was.
func (p *Provider) taken(name string) (map[netip.Addr]bool, error) {
	names, err := p.folders()
	if err != nil {
		return nil, err
	}
	taken := make(map[netip.Addr]bool, len(names))
	for _, other := range names {
		if other == name {
			continue
		}
		v, err := p.look(other)
		if err != nil || v.absent {
			continue // what cannot be read still holds its port if it lives
		}
		if v.rec != nil {
			taken[v.rec.Address] = true
		} else if v.run != nil {
			taken[v.run.Address] = true
		}
	}
	return taken, nil
}
