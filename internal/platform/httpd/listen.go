package httpd

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"fleetdesk/internal/core/fault"
)

// Listen binds a TCP address, host:port. An IPv4 literal takes IPv4 alone and an
// IPv6 literal IPv6 alone, also 0.0.0.0 and ::, whose sockets would otherwise
// take both; an empty host takes both. flag is the command line's name for the
// address in error texts; it may be empty.
//
// Errors: Conflict for a used address, Denied for a port that needs
// privileges, Invalid for an address that this machine does not have or that
// is none, Transient for too many open files.
func Listen(ctx context.Context, address, flag string) (net.Listener, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, network(address), address)
	if err != nil {
		return nil, listenError(address, named(flag, listenAddress), err)
	}
	return l, nil
}

// network is the network of a host:port for package net, which makes 0.0.0.0
// on "tcp" a socket of both families: an address that was meant to be IPv4
// alone would be open to IPv6, where other firewall rules hold.
func network(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return "tcp" // told by the listener
	}
	ip, err := netip.ParseAddr(host)
	switch {
	case err != nil:
		return "tcp" // a name, or every address
	case ip.Unmap().Is4():
		return "tcp4"
	default:
		return "tcp6"
	}
}

// listen binds the address and holds the rule that only TLS, or an explicit
// wish, may leave loopback.
func listen(o Options) (net.Listener, error) {
	host, _, err := net.SplitHostPort(o.Address)
	if err != nil {
		return nil, fault.Errorf(fault.Invalid, "listen %q: %w: set %s as host:port", o.Address, err, o.Flags.address())
	}
	guarded := o.TLS == TLSFiles{} && !o.AllowPlaintext
	// Literals are refused before anything is bound; a name only shows its
	// address once it is.
	if ip, err := netip.ParseAddr(host); guarded && (host == "" || err == nil && !ip.Unmap().IsLoopback()) {
		return nil, notLoopback(o)
	}
	l, err := Listen(context.Background(), o.Address, o.Flags.Address)
	if err != nil {
		return nil, err
	}
	if tcp, ok := l.Addr().(*net.TCPAddr); guarded && (!ok || !tcp.IP.IsLoopback()) {
		return nil, errors.Join(notLoopback(o), l.Close())
	}
	return l, nil
}

func listenError(address, flag string, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fault.Errorf(fault.Conflict,
			"listen %s: another program uses this address: stop it, or choose another with %s: %w", address, flag, err)
	case errors.Is(err, syscall.EACCES):
		return fault.Errorf(fault.Denied,
			"listen %s: this user may not use the port: choose one above 1023 with %s: %w", address, flag, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fault.Errorf(fault.Invalid,
			"listen %s: this machine has no such address: choose another with %s: %w", address, flag, err)
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return fault.Errorf(fault.Transient, "listen %s: too many open files: %w", address, err)
	}
	return fault.Errorf(fault.Invalid, "listen %s: %w: check %s", address, err, flag)
}
