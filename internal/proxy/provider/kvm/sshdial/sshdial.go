// Package sshdial reaches libvirt daemons by SSH: it logs in to a host with a
// key, has the host's own SSH server forward to the daemon's unix socket, and
// opens the link over that stream.
//
// Host keys are always verified with a known_hosts file; there is no switch
// against it. Key and known_hosts are files of a Secret, which may come late
// and change at any time: they are read when a dial begins, so each change
// counts with the next dial, without a restart.
package sshdial

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/link"
)

// Defaults of [Options] and [Host].
const (
	DefaultPort              = 22
	DefaultSocket            = "/var/run/libvirt/libvirt-sock"
	DefaultDialTimeout       = 10 * time.Second
	DefaultHandshakeTimeout  = 15 * time.Second
	DefaultKeepaliveInterval = 5 * time.Second
	DefaultKeepaliveMisses   = 3
)

// Host is one host to reach.
type Host struct {
	// Address is its IP address or DNS name, without a port.
	Address string
	// Port is that of its SSH server; 0 for [DefaultPort].
	Port int
	// Socket is the path of libvirtd's unix socket on the host; "" for
	// [DefaultSocket].
	Socket string
	// User logs in.
	User string
}

// addr is host:port, as known_hosts is asked for it.
func (h Host) addr() string {
	return net.JoinHostPort(h.Address, strconv.Itoa(h.Port))
}

// Options of a [Dialer].
type Options struct {
	// Hosts are those that can be dialled, by their names in the configuration.
	Hosts map[string]Host
	// KeyFile is the private key: OpenSSH or PEM (PKCS#1, PKCS#8, SEC1), ed25519,
	// ecdsa or rsa, without a passphrase.
	KeyFile string
	// KnownHostsFile is an OpenSSH known_hosts file.
	KnownHostsFile string
	// Open makes the link over the stream to the daemon's socket (rpc.Open). It
	// owns the stream: closing it ends the whole SSH connection, frees all that
	// read or write, and is needed also when the stream has ended by itself. The
	// stream has no deadlines (its Set…Deadline return an error): a limit is kept
	// by closing it. Its Read says why the SSH connection ended, Unavailable; EOF
	// means that the daemon closed its socket. ctx is the dial's alone; the link
	// outlives it.
	Open func(ctx context.Context, host string, conn net.Conn) (link.Link, error)
	// DialTimeout bounds the TCP connect; 0 for [DefaultDialTimeout].
	DialTimeout time.Duration
	// HandshakeTimeout bounds the SSH handshake with the log-in, and then once
	// more the opening of the socket; 0 for [DefaultHandshakeTimeout].
	HandshakeTimeout time.Duration
	// KeepaliveInterval is how often the host is asked for a sign of life, and
	// KeepaliveMisses how many intervals may pass without a single byte from it
	// before the connection is closed; 0 for the defaults. Any byte counts, so an
	// upload on a slow line does not end it.
	KeepaliveInterval time.Duration
	KeepaliveMisses   int
	// DialContext replaces net.Dialer's in tests.
	DialContext func(ctx context.Context, network, addr string) (net.Conn, error)
	// Log gets warnings about the two files when they are read anew; nil for none.
	Log *slog.Logger
}

// Dialer opens links by SSH. It implements [link.Dialer] and [link.Stamper].
type Dialer struct {
	o    Options
	auth lazyAuth
}

var (
	_ link.Dialer  = (*Dialer)(nil)
	_ link.Stamper = (*Dialer)(nil)
)

// New returns a dialer. It reads no file: see [Dialer.Warnings].
func New(o Options) *Dialer {
	if o.DialTimeout <= 0 {
		o.DialTimeout = DefaultDialTimeout
	}
	if o.HandshakeTimeout <= 0 {
		o.HandshakeTimeout = DefaultHandshakeTimeout
	}
	if o.KeepaliveInterval <= 0 {
		o.KeepaliveInterval = DefaultKeepaliveInterval
	}
	if o.KeepaliveMisses <= 0 {
		o.KeepaliveMisses = DefaultKeepaliveMisses
	}
	if o.DialContext == nil {
		o.DialContext = new(net.Dialer).DialContext
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	hosts := make(map[string]Host, len(o.Hosts))
	for name, h := range o.Hosts {
		if h.Port == 0 {
			h.Port = DefaultPort
		}
		if h.Socket == "" {
			h.Socket = DefaultSocket
		}
		h.Address = strings.Trim(h.Address, "[]")
		hosts[name] = h
	}
	o.Hosts = hosts
	return &Dialer{o: o, auth: lazyAuth{keyFile: o.KeyFile, knownHostsFile: o.KnownHostsFile, log: o.Log}}
}

// Warnings returns what is wrong with the two files now: one that is missing,
// unreadable or does not parse, lines of known_hosts that are skipped, and
// hosts that it does not know. They are for a warning at construction, never an
// error: a Secret may come later.
func (d *Dialer) Warnings() []string {
	var out []string
	if _, err := readKey(d.o.KeyFile); err != nil {
		out = append(out, err.Error())
	}
	known, err := readKnownHosts(d.o.KnownHostsFile)
	if err != nil {
		return append(out, err.Error())
	}
	out = append(out, known.warnings...)
	var strangers []string
	for name, h := range d.o.Hosts {
		if _, want := known.want(h.addr()); len(want) == 0 {
			strangers = append(strangers, fmt.Sprintf("%s (%s)", name, h.addr()))
		}
	}
	if slices.Sort(strangers); len(strangers) > 0 {
		out = append(out, fmt.Sprintf("known_hosts file %s has no entry for %s", d.o.KnownHostsFile, strings.Join(strangers, ", ")))
	}
	return out
}

// Stamp changes with the content of the two files.
func (d *Dialer) Stamp() string { return d.auth.stamp() }

// Dial opens a link to the host. All its errors are a [*link.DialError]. Their
// classes, stage by stage:
//   - SSH material: a missing file is Transient, since a Secret may come later;
//     one that is unusable is Permanent.
//   - TCP: Unavailable.
//   - SSH handshake: a host key that is unknown, differs or is revoked, and a
//     user that is not let in, are Permanent until a file or the host changes;
//     silence is Timeout; everything else is Unavailable.
//   - libvirt connect: a forwarding that the server calls prohibited is
//     Permanent; a socket that cannot be opened is Unavailable; then whatever
//     Options.Open answers.
//
// When ctx is cancelled the class is Transient.
func (d *Dialer) Dial(ctx context.Context, host string) (link.Link, error) {
	h, ok := d.o.Hosts[host]
	if !ok {
		return nil, &link.DialError{Host: host, Stage: link.StageMaterial, Err: fault.New(fault.Permanent, "this host is not in the configuration")}
	}
	m, err := d.auth.load()
	if err != nil {
		return nil, &link.DialError{Host: host, Stage: link.StageMaterial, Err: err}
	}
	conn, err := d.connect(ctx, h)
	if err != nil {
		return nil, &link.DialError{Host: host, Stage: link.StageTCP, Err: err}
	}
	s, err := d.handshake(ctx, h, m, conn)
	if err != nil {
		return nil, &link.DialError{Host: host, Stage: link.StageSSH, Err: err}
	}
	if err := d.forward(ctx, h, s); err != nil {
		_ = s.Close()
		return nil, &link.DialError{Host: host, Stage: link.StageLibvirt, Err: err}
	}
	l, err := d.o.Open(ctx, host, s)
	if err != nil {
		_ = s.Close()
		return nil, &link.DialError{Host: host, Stage: link.StageLibvirt, Err: err}
	}
	return l, nil
}

// connect makes the TCP connection.
func (d *Dialer) connect(ctx context.Context, h Host) (net.Conn, error) {
	dctx, cancel := context.WithTimeout(ctx, d.o.DialTimeout)
	defer cancel()
	conn, err := d.o.DialContext(dctx, "tcp", h.addr())
	if err == nil {
		tune(conn, time.Duration(d.o.KeepaliveMisses+1)*d.o.KeepaliveInterval)
		return conn, nil
	}
	if cancelled(ctx) {
		return nil, gaveUp(err)
	}
	if dnsErr, ok := errors.AsType[*net.DNSError](err); ok {
		return nil, says(fault.Unavailable, err, "the name %q does not resolve: %s", h.Address, clean(dnsErr.Err))
	}
	if dctx.Err() != nil || timedOut(err) {
		return nil, says(fault.Unavailable, err, "%s does not answer: is the host up, and does a firewall let this connection through?", h.addr())
	}
	return nil, says(fault.Unavailable, err, "%s: %s: is the host up, and does its SSH server listen there?", h.addr(), reason(err))
}

// handshake makes it an SSH connection. It owns conn.
func (d *Dialer) handshake(ctx context.Context, h Host, m *material, conn net.Conn) (*stream, error) {
	hctx, cancel := context.WithTimeout(ctx, d.o.HandshakeTimeout)
	defer cancel()
	// The library's own timeout does not cover the handshake. The deadline ends
	// it, and so does a context that ends earlier.
	deadline, _ := hctx.Deadline()
	_ = conn.SetDeadline(deadline)
	stop := context.AfterFunc(hctx, func() { conn.Close() })
	defer stop()

	counted := &countingConn{Conn: conn}
	check := m.known.checker(h)
	sc, channels, requests, err := ssh.NewClientConn(counted, h.addr(), clientConfig(h, m, check))
	if err != nil {
		conn.Close()
		return nil, handshakeError(ctx, hctx, h, m, check, err)
	}
	if !stop() {
		_ = sc.Close()
		return nil, handshakeError(ctx, hctx, h, m, check, hctx.Err())
	}
	_ = conn.SetDeadline(time.Time{})
	return newStream(h, counted, ssh.NewClient(sc, channels, requests), d.o.KeepaliveInterval, d.o.KeepaliveMisses), nil
}

// clientConfig says how this side speaks SSH: nothing that the library calls
// insecure, and rsa keys with SHA-2 alone.
func clientConfig(h Host, m *material, check *hostCheck) *ssh.ClientConfig {
	can := ssh.SupportedAlgorithms()
	return &ssh.ClientConfig{
		Config:            ssh.Config{KeyExchanges: can.KeyExchanges, Ciphers: can.Ciphers, MACs: can.MACs},
		User:              h.User,
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(m.signer)},
		HostKeyCallback:   check.callback,
		HostKeyAlgorithms: check.algorithms(),
		ClientVersion:     "SSH-2.0-fleetdesk",
	}
}

// handshakeError says why a handshake failed.
func handshakeError(ctx, hctx context.Context, h Host, m *material, check *hostCheck, err error) error {
	passed, refused := check.verdict()
	var negotiation *ssh.AlgorithmNegotiationError
	switch text := err.Error(); {
	case refused != nil:
		return refused
	case cancelled(ctx):
		return gaveUp(err)
	case hctx.Err() != nil || timedOut(err):
		return says(fault.Timeout, err, "%s accepted the connection but did not finish the SSH handshake in time: is it an SSH server, and is the host overloaded?", h.addr())
	case passed && (strings.Contains(text, "unable to authenticate") || strings.Contains(text, "Too many authentication failures")):
		return says(fault.Permanent, err, "%s does not let user %q in with the key %s: add the public key to that user's authorized_keys on the host; the log of its SSH server has the reason (%s)",
			h.addr(), h.User, m.fingerprint, reason(err))
	case errors.As(err, &negotiation):
		return says(fault.Permanent, err, "%s and this program have no common %s: the SSH server offers %s", h.addr(), clean(negotiation.What), clean(strings.Join(negotiation.RequestedAlgorithms, ", ")))
	case passed:
		return says(fault.Unavailable, err, "%s ended the connection while user %q logged in: %s", h.addr(), h.User, reason(err))
	default:
		return says(fault.Unavailable, err, "%s ended the SSH handshake: %s (too many connections at once, an address that is banned there, or no SSH server on that port)", h.addr(), reason(err))
	}
}

// forward opens the stream to the daemon's socket.
func (d *Dialer) forward(ctx context.Context, h Host, s *stream) error {
	fctx, cancel := context.WithTimeout(ctx, d.o.HandshakeTimeout)
	defer cancel()
	stop := context.AfterFunc(fctx, func() { s.end(nil) })
	defer stop()
	err := s.open(h.Socket)
	if err == nil && !stop() {
		err = fctx.Err()
	}
	if err == nil {
		return nil
	}
	cause := s.why()
	refused, ok := errors.AsType[*ssh.OpenChannelError](err)
	switch {
	case ok && refused.Reason == ssh.Prohibited:
		return says(fault.Permanent, err, "the SSH server of %s forbids the forwarding to socket %s (administratively prohibited): allow it with %s; its answer was %q", h.addr(), h.Socket, allow, clean(refused.Message))
	case ok:
		return says(fault.Unavailable, err, "the SSH server of %s did not open the socket %s (%s: %q). OpenSSH answers this alike when libvirtd does not run or has its socket elsewhere, "+
			"when user %q may not use the socket (put it into the group libvirt, then log in anew), and when forwarding is off (needed: %s); its log tells them apart",
			h.addr(), h.Socket, reasonName(refused.Reason), clean(refused.Message), h.User, allow)
	case cancelled(ctx):
		return gaveUp(err)
	case fctx.Err() != nil:
		return says(fault.Timeout, err, "the SSH server of %s did not answer for socket %s in time", h.addr(), h.Socket)
	case cause != nil:
		return cause
	default:
		return says(fault.Unavailable, err, "the SSH connection to %s ended while socket %s was opened: %s", h.addr(), h.Socket, reason(err))
	}
}

// allow is what OpenSSH's server needs to forward to a socket. AllowTcpForwarding
// and PermitOpen count for sockets too: version 9.2 refuses them without.
const allow = "AllowStreamLocalForwarding and AllowTcpForwarding yes (or local), DisableForwarding no, no PermitOpen none in sshd_config, and neither restrict nor no-port-forwarding before the key in authorized_keys"

func reasonName(r ssh.RejectionReason) string {
	switch r {
	case ssh.ConnectionFailed:
		return "connect failed"
	case ssh.UnknownChannelType:
		return "unknown channel type"
	case ssh.ResourceShortage:
		return "resource shortage"
	default:
		return "reason " + strconv.FormatUint(uint64(r), 10)
	}
}
