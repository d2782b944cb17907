// Package sshd is an SSH server in the test's own process that forwards to unix
// sockets, as OpenSSH's does for direct-streamlocal@openssh.com, and nothing
// else. It listens on the loopback address and ends with the test:
//
//	host := sshd.Start(t, sshd.Options{})
//	os.WriteFile(keyFile, host.ClientKey(), 0o600)
//	os.WriteFile(knownHosts, []byte(host.KnownHosts()), 0o600)
//	dial(host.Addr(), host.User(), ...)
//
// Its faults are set while it runs: see [Server.Mute], [Server.Freeze],
// [Server.Refuse], [Server.MuteKeepalive] and [Server.Drop].
package sshd

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

// DefaultUser is the user that is let in when [Options] names none.
const DefaultUser = "libvirt"

// Options of a [Server].
type Options struct {
	// HostKeys are the host's keys, of different kinds; none for one ed25519 key
	// that is made. Certificates are signers too (ssh.NewCertSigner).
	HostKeys []ssh.Signer
	// Users are the keys that each user may log in with; nil for [DefaultUser]
	// with the key of [Server.ClientKey].
	Users map[string][]ssh.PublicKey
	// Dial connects to the socket that a client asks for; nil for the unix
	// socket of that path. Its error becomes "open failed", as with OpenSSH.
	Dial func(path string) (net.Conn, error)
	// Config changes the server's own configuration, such as its algorithms; nil
	// for none.
	Config func(*ssh.ServerConfig)
}

// Refusal is how a forwarding is refused.
type Refusal string

// Refusals.
const (
	// NotRefused: sockets are forwarded.
	NotRefused Refusal = ""
	// Prohibited is RFC 4254's "administratively prohibited".
	Prohibited Refusal = "prohibited"
	// Failed is "connect failed" with the text "open failed": what OpenSSH
	// answers for a missing socket, one without permission, and with forwarding
	// switched off, all alike.
	Failed Refusal = "failed"
	// Silent: no answer at all.
	Silent Refusal = "silent"
)

// Server is a running server.
type Server struct {
	t         testing.TB
	ln        net.Listener
	clientKey []byte
	dial      func(path string) (net.Conn, error)
	config    func(*ssh.ServerConfig)
	wg        sync.WaitGroup

	mu            sync.Mutex
	hostKeys      []ssh.Signer
	users         map[string][]ssh.PublicKey
	conns         map[*gate]bool
	mute          bool
	muteKeepalive bool
	refuse        Refusal
	accepted      int
	keepalives    int
	paths         []string
	stopped       bool
}

// Start starts a server; it stops when the test ends.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	s := &Server{t: t, dial: o.Dial, config: o.Config, hostKeys: o.HostKeys, users: o.Users, conns: map[*gate]bool{}}
	if s.dial == nil {
		s.dial = func(path string) (net.Conn, error) { return net.Dial("unix", path) }
	}
	if len(s.hostKeys) == 0 {
		s.hostKeys = []ssh.Signer{Signer(t, ED25519)}
	}
	if s.users == nil {
		key := Key(t, ED25519)
		s.clientKey = PEM(t, key)
		s.users = map[string][]ssh.PublicKey{DefaultUser: {Wrap(t, key).PublicKey()}}
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.ln = ln
	s.wg.Go(s.accept)
	t.Cleanup(s.stop)
	return s
}

// Addr is its address, host:port.
func (s *Server) Addr() string { return s.ln.Addr().String() }

// Port is its port on 127.0.0.1.
func (s *Server) Port() int {
	_, port, _ := net.SplitHostPort(s.Addr())
	n, _ := strconv.Atoi(port)
	return n
}

// User is [DefaultUser].
func (s *Server) User() string { return DefaultUser }

// ClientKey is the private key of [DefaultUser] in OpenSSH's format, when
// Options.Users named nobody.
func (s *Server) ClientKey() []byte { return bytes.Clone(s.clientKey) }

// KnownHosts is a known_hosts file with all its host keys, certificates aside.
func (s *Server) KnownHosts() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	for _, k := range s.hostKeys {
		if _, ok := k.PublicKey().(*ssh.Certificate); !ok {
			b.WriteString(knownhosts.Line([]string{s.Addr()}, k.PublicKey()) + "\n")
		}
	}
	return b.String()
}

// SetHostKeys replaces the host's keys for later connections: a host that was
// installed anew.
func (s *Server) SetHostKeys(keys ...ssh.Signer) { s.set(func() { s.hostKeys = keys }) }

// SetUsers replaces who may log in later.
func (s *Server) SetUsers(users map[string][]ssh.PublicKey) { s.set(func() { s.users = users }) }

// Mute has it accept later connections and say nothing.
func (s *Server) Mute(on bool) { s.set(func() { s.mute = on }) }

// MuteKeepalive has it leave keepalive requests without an answer.
func (s *Server) MuteKeepalive(on bool) { s.set(func() { s.muteKeepalive = on }) }

// Refuse has it refuse later forwardings.
func (s *Server) Refuse(r Refusal) { s.set(func() { s.refuse = r }) }

// Freeze has it neither read nor write on any connection, as a host that was
// cut off, until it is called with false.
func (s *Server) Freeze(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.freeze(on)
	}
}

// Drop closes all connections.
func (s *Server) Drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.Close()
	}
}

// Accepted is how many connections it has had, Open how many are open.
func (s *Server) Accepted() int { return get(s, func() int { return s.accepted }) }

// Open is how many connections are open.
func (s *Server) Open() int { return get(s, func() int { return len(s.conns) }) }

// Keepalives is how many keepalive requests came.
func (s *Server) Keepalives() int { return get(s, func() int { return s.keepalives }) }

// Paths are the sockets that were asked for.
func (s *Server) Paths() []string {
	return get(s, func() []string { return append([]string(nil), s.paths...) })
}

func (s *Server) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func get[T any](s *Server, f func() T) T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return f()
}

func (s *Server) stop() {
	s.set(func() { s.stopped = true })
	s.ln.Close()
	s.Drop()
	s.wg.Wait()
}

func (s *Server) accept() {
	for {
		c, err := s.ln.Accept()
		if err != nil {
			return
		}
		g := newGate(c)
		s.mu.Lock()
		if s.stopped {
			s.mu.Unlock()
			c.Close()
			return
		}
		s.accepted++
		s.conns[g] = true
		mute := s.mute
		s.mu.Unlock()
		s.wg.Go(func() {
			defer s.set(func() { delete(s.conns, g) })
			defer g.Close()
			if mute {
				_, _ = io.Copy(io.Discard, g)
				return
			}
			s.serve(g)
		})
	}
}

// errRefused is what a user that is not let in gets.
var errRefused = errors.New("sshd: refused")

func (s *Server) serve(c net.Conn) {
	cfg := &ssh.ServerConfig{PublicKeyCallback: func(m ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		for _, k := range get(s, func() []ssh.PublicKey { return s.users[m.User()] }) {
			if bytes.Equal(k.Marshal(), key.Marshal()) {
				return nil, nil
			}
		}
		return nil, errRefused
	}}
	for _, k := range get(s, func() []ssh.Signer { return s.hostKeys }) {
		cfg.AddHostKey(k)
	}
	if s.config != nil {
		s.config(cfg)
	}
	sc, channels, requests, err := ssh.NewServerConn(c, cfg)
	if err != nil {
		return
	}
	defer sc.Close()
	s.wg.Go(func() { s.requests(requests) })
	for nc := range channels {
		s.wg.Go(func() { s.channel(nc) })
	}
}

// requests answers global requests with "no", as OpenSSH answers those that it
// does not know; keepalives are such.
func (s *Server) requests(requests <-chan *ssh.Request) {
	for r := range requests {
		s.mu.Lock()
		mute := s.muteKeepalive
		if r.Type == "keepalive@openssh.com" {
			s.keepalives++
		}
		s.mu.Unlock()
		if r.WantReply && !mute {
			_ = r.Reply(false, nil)
		}
	}
}

func (s *Server) channel(nc ssh.NewChannel) {
	if nc.ChannelType() != "direct-streamlocal@openssh.com" {
		_ = nc.Reject(ssh.UnknownChannelType, "unsupported channel type")
		return
	}
	var msg struct {
		Path     string
		Reserved string
		Number   uint32
	}
	if err := ssh.Unmarshal(nc.ExtraData(), &msg); err != nil {
		_ = nc.Reject(ssh.ConnectionFailed, "open failed")
		return
	}
	s.mu.Lock()
	s.paths = append(s.paths, msg.Path)
	refuse := s.refuse
	s.mu.Unlock()
	switch refuse {
	case Prohibited:
		_ = nc.Reject(ssh.Prohibited, "open failed")
		return
	case Failed:
		_ = nc.Reject(ssh.ConnectionFailed, "open failed")
		return
	case Silent:
		return
	}
	target, err := s.dial(msg.Path)
	if err != nil {
		_ = nc.Reject(ssh.ConnectionFailed, "open failed")
		return
	}
	defer target.Close()
	ch, requests, err := nc.Accept()
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	s.wg.Go(func() {
		_, _ = io.Copy(target, ch)
		// The client is gone, or sends no more.
		if cw, ok := target.(interface{ CloseWrite() error }); ok {
			_ = cw.CloseWrite()
		} else {
			target.Close()
		}
	})
	_, _ = io.Copy(ch, target)
	ch.Close()
}
