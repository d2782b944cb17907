// Package egress guards requests to URLs that somebody else wrote.
//
// Whoever may write a URL into an object or a file must not reach, through this
// process, what only this process can reach: loopback, link-local, metadata,
// private and other special ranges are refused unless the configuration allows
// them. What counts is the address that is really dialled, after name
// resolution and for each redirect anew, so that no name points past it.
package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"

	"fleetdesk/internal/core/fault"
)

// Guard says which addresses may be dialled. The zero Guard refuses every
// range that holds no public host.
type Guard struct {
	// Allow are the ranges that may be dialled besides the public ones; see
	// [Prefixes].
	Allow []netip.Prefix
	// Hint completes a refusal's text: what a person does to allow the range,
	// in the words of the flag or field that Allow comes from. Nil adds nothing.
	Hint func(netip.Prefix) string
}

// Prefixes returns the ranges of a flag or field, masked, or an Invalid error
// that names it. The caller owns the slice.
func Prefixes(name string, allow []netip.Prefix) ([]netip.Prefix, error) {
	masked := make([]netip.Prefix, 0, len(allow))
	for _, p := range allow {
		if !p.IsValid() {
			return nil, fault.Errorf(fault.Invalid, "%s holds an invalid prefix; write it as 192.0.2.0/24", name)
		}
		masked = append(masked, p.Masked())
	}
	return masked, nil
}

// refusedRanges are the ranges that hold no public host. The first that fits
// names the refusal.
var refusedRanges = [...]struct {
	prefix netip.Prefix
	name   string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "an unspecified address"},
	{netip.MustParsePrefix("::/128"), "an unspecified address"},
	{netip.MustParsePrefix("127.0.0.0/8"), "a loopback address"},
	{netip.MustParsePrefix("::1/128"), "a loopback address"},
	{netip.MustParsePrefix("169.254.169.254/32"), "a cloud's metadata address"},
	{netip.MustParsePrefix("fd00:ec2::254/128"), "a cloud's metadata address"},
	{netip.MustParsePrefix("100.100.100.200/32"), "a cloud's metadata address"},
	{netip.MustParsePrefix("192.0.0.192/32"), "a cloud's metadata address"},
	{netip.MustParsePrefix("169.254.0.0/16"), "a link-local address"},
	{netip.MustParsePrefix("fe80::/10"), "a link-local address"},
	{netip.MustParsePrefix("10.0.0.0/8"), "a private address"},
	{netip.MustParsePrefix("172.16.0.0/12"), "a private address"},
	{netip.MustParsePrefix("192.168.0.0/16"), "a private address"},
	{netip.MustParsePrefix("fc00::/7"), "a private address"},
	{netip.MustParsePrefix("fec0::/10"), "a private address"},
	{netip.MustParsePrefix("100.64.0.0/10"), "a carrier's shared address"},
	{netip.MustParsePrefix("192.0.0.0/24"), "a protocol's own address"},
	{netip.MustParsePrefix("198.18.0.0/15"), "a benchmark address"},
	{netip.MustParsePrefix("224.0.0.0/4"), "a multicast address"},
	{netip.MustParsePrefix("ff00::/8"), "a multicast address"},
	{netip.MustParsePrefix("240.0.0.0/4"), "a reserved address"},
}

// embedding ranges carry an IPv4 address at a byte offset: a NAT64 or 6to4
// gateway would turn the packet into one to that address.
var embedding = [...]struct {
	prefix netip.Prefix
	offset int
}{
	{netip.MustParsePrefix("64:ff9b::/96"), 12},
	{netip.MustParsePrefix("64:ff9b:1::/48"), 12},
	{netip.MustParsePrefix("2002::/16"), 2},
	{netip.MustParsePrefix("::/96"), 12},
}

// Refusal is the error of an address that may not be dialled.
type Refusal struct {
	// IP is the address, Kind what it is ("a private address").
	IP   netip.Addr
	Kind string

	hint string
}

func (r *Refusal) Error() string {
	text := fmt.Sprintf("%s is %s", r.IP, r.Kind)
	if r.hint != "" {
		text += "; " + r.hint
	}
	return text
}

// Look returns nil when ip may be dialled.
func (g Guard) Look(ip netip.Addr) *Refusal {
	ip = ip.Unmap().WithZone("")
	kind := g.kind(ip)
	if kind == "" {
		return nil
	}
	r := &Refusal{IP: ip, Kind: kind}
	if g.Hint != nil {
		r.hint = g.Hint(netip.PrefixFrom(ip, ip.BitLen()))
	}
	return r
}

// kind names the range for which ip is refused.
func (g Guard) kind(ip netip.Addr) string {
	for _, p := range g.Allow {
		if p.Contains(ip) {
			return ""
		}
	}
	for _, r := range refusedRanges {
		if r.prefix.Contains(ip) {
			return r.name
		}
	}
	for _, e := range embedding {
		if e.prefix.Contains(ip) {
			b := ip.As16()
			if kind := g.kind(netip.AddrFrom4([4]byte(b[e.offset : e.offset+4]))); kind != "" {
				return kind + " inside IPv6"
			}
		}
	}
	return ""
}

// Control is a net.Dialer's Control hook: it sees the address that is really
// dialled. It calls note with each verdict, nil for an address that is fine;
// note may be called from several goroutines, as [Verdicts.Note] may.
func (g Guard) Control(note func(*Refusal)) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		ap, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("the address to dial cannot be read: %w", err)
		}
		r := g.Look(ap.Addr())
		note(r)
		if r != nil {
			return r
		}
		return nil
	}
}

// Verdicts are what a guard said of the addresses of one request. The zero
// value is ready.
type Verdicts struct {
	mu      sync.Mutex
	refused *Refusal
	tried   bool
}

// Note takes a verdict; it is the note of [Guard.Control].
func (v *Verdicts) Note(r *Refusal) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if r == nil {
		v.tried = true
	} else if v.refused == nil {
		v.refused = r
	}
}

// Refused returns the first refusal when no address at all was tried: then it
// is why the request failed.
func (v *Verdicts) Refused() *Refusal {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.tried {
		return nil
	}
	return v.refused
}

// Transport returns the way of one request, or of several that end with ctx:
// HTTP/1.1 over connections that d dials. Its connections are closed when ctx
// ends, whatever they are doing, so ctx must outlive the reading of the answer.
//
// Nothing but d decides where it connects to: the environment's HTTP proxies,
// which would hide the far end's address from d's Control, are not used.
// Bodies come as they are sent, and no connection is kept for another request.
// The caller adds the TLS configuration and limits.
func Transport(ctx context.Context, d *net.Dialer) *http.Transport {
	return &http.Transport{
		Proxy: nil,
		// The context that net/http hands out is detached from the request's.
		DialContext: func(_ context.Context, network, addr string) (net.Conn, error) {
			conn, err := d.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			context.AfterFunc(ctx, func() { _ = conn.Close() })
			return conn, nil
		},
		DisableKeepAlives:  true,
		DisableCompression: true,
	}
}

// FromDial reports whether err is that of opening a TCP connection: nothing
// was sent.
func FromDial(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}
