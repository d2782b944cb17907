package sshdial_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/link"
	"fleetdesk/internal/proxy/provider/kvm/sshdial"
	"fleetdesk/internal/testkit/sshd"
)

func connect(t *testing.T, r *rig) *pipe {
	t.Helper()
	l, err := sshdial.New(r.o).Dial(t.Context(), "box-1")
	if err != nil {
		t.Fatal(err)
	}
	p := l.(*pipe)
	t.Cleanup(func() { p.Close() })
	return p
}

func (p *pipe) ping(t *testing.T) {
	t.Helper()
	if _, err := p.conn.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	select {
	case b := <-p.got:
		if string(b) != "ping" {
			t.Fatalf("%q", b)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("no answer")
	}
}

func TestDialReachesTheSocket(t *testing.T) {
	r := newRig(t, sshd.Options{})
	p := connect(t, r)
	p.ping(t)
	if got := r.Paths(); len(got) != 1 || got[0] != r.o.Hosts["box-1"].Socket {
		t.Errorf("%v", got)
	}
	if err := p.Err(); err != nil {
		t.Error(err)
	}
	check(t, p.Close())
	eventually(t, "the end of the connection at the host", func() bool { return r.Open() == 0 })
}

func TestDefaultSocketAndPort(t *testing.T) {
	r := newRig(t, sshd.Options{Dial: func(string) (net.Conn, error) { return nil, errors.New("none") }})
	var addr string
	r.o.DialContext = func(ctx context.Context, network, a string) (net.Conn, error) {
		addr = a
		return new(net.Dialer).DialContext(ctx, network, r.Addr())
	}
	r.host(func(h *sshdial.Host) { h.Port, h.Socket, h.Address = 0, "", "[::1]" })
	r.known(t, "::1 "+strings.SplitN(r.KnownHosts(), " ", 2)[1])
	want{link.StageLibvirt, fault.Unavailable, []string{"/var/run/libvirt/libvirt-sock", "[::1]:22"}}.check(t, "defaults", r.dial(t))
	if addr != "[::1]:22" {
		t.Errorf("it dialled %s", addr)
	}
}

func TestTCPFailures(t *testing.T) {
	r := newRig(t, sshd.Options{})
	refused, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	closed := refused.Addr().(*net.TCPAddr).Port
	refused.Close()
	hang := func(ctx context.Context, _, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }
	fail := func(err error) func(context.Context, string, string) (net.Conn, error) {
		return func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Source: &net.TCPAddr{Port: 43210}, Addr: &net.TCPAddr{Port: 22}, Err: err}
		}
	}
	for name, tc := range map[string]struct {
		reason string
		port   int
		dial   func(context.Context, string, string) (net.Conn, error)
		says   []string
	}{
		"refused":    {"no SSH server on the port", closed, nil, []string{"connection refused", "SSH server"}},
		"no answer":  {"packets are dropped", 22, hang, []string{"does not answer", "firewall"}},
		"no route":   {"another network", 22, fail(os.NewSyscallError("connect", syscall.EHOSTUNREACH)), []string{"no route to host"}},
		"unresolved": {"a typo in the address", 22, fail(&net.DNSError{Err: "no such host", Name: "127.0.0.1", IsNotFound: true}), []string{"does not resolve", "no such host"}},
	} {
		t.Run(name, func(t *testing.T) {
			r.host(func(h *sshdial.Host) { h.Port = tc.port })
			r.o.DialContext = tc.dial
			r.o.DialTimeout = 0
			if name == "no answer" {
				r.o.DialTimeout = 50 * time.Millisecond
			}
			err := r.dial(t)
			want{link.StageTCP, fault.Unavailable, append(tc.says, "127.0.0.1")}.check(t, tc.reason, err)
			if strings.Contains(err.Error(), "43210") {
				t.Errorf("a port of this side, which changes each time, is in the text: %v", err)
			}
		})
	}
}

// golang/go 51926: the library's timeout does not cover the handshake.
func TestHandshakeHangsForEver(t *testing.T) {
	r := newRig(t, sshd.Options{})
	r.Mute(true)
	r.o.HandshakeTimeout = 50 * time.Millisecond
	want{link.StageSSH, fault.Timeout, []string{"did not finish the SSH handshake"}}.check(t, "a mute server", r.dial(t))
}

// The same in the middle of the handshake: the host stops after its first bytes.
func TestHandshakeHangsInTheMiddle(t *testing.T) {
	r := newRig(t, sshd.Options{})
	r.o.HandshakeTimeout = 100 * time.Millisecond
	for name, banner := range map[string]string{"after its version": "SSH-2.0-OpenSSH_9.2\r\n", "in its version": "SSH-"} {
		t.Run(name, func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			check(t, err)
			defer ln.Close()
			go func() {
				c, err := ln.Accept()
				if err == nil {
					_, _ = io.WriteString(c, banner)
					_, _ = io.Copy(io.Discard, c)
					c.Close()
				}
			}()
			r.host(func(h *sshdial.Host) { h.Port = ln.Addr().(*net.TCPAddr).Port })
			want{link.StageSSH, fault.Timeout, nil}.check(t, name, r.dial(t))
		})
	}
}

func TestHandshakeFailures(t *testing.T) {
	other := sshd.Key(t, sshd.RSA)
	for name, tc := range map[string]struct {
		reason string
		so     sshd.Options
		change func(t *testing.T, r *rig)
		want   want
	}{
		"another user": {
			"a typo in the user",
			sshd.Options{},
			func(_ *testing.T, r *rig) { r.host(func(h *sshdial.Host) { h.User = "libvrt" }) },
			want{link.StageSSH, fault.Permanent, []string{`does not let user "libvrt" in`, "127.0.0.1:", "authorized_keys", "ssh-ed25519 SHA256:"}},
		},
		"another key": {
			"not in authorized_keys",
			sshd.Options{},
			func(t *testing.T, r *rig) { t.Helper(); write(t, r.o.KeyFile, sshd.PEM(t, other)) },
			want{link.StageSSH, fault.Permanent, []string{"ssh-rsa " + ssh.FingerprintSHA256(public(t, other))}},
		},
		"too many tries": {
			"MaxAuthTries 1",
			sshd.Options{Config: func(c *ssh.ServerConfig) { c.MaxAuthTries = 1 }},
			func(t *testing.T, r *rig) { t.Helper(); write(t, r.o.KeyFile, sshd.PEM(t, other)) },
			want{link.StageSSH, fault.Permanent, []string{"does not let user"}},
		},
		"no common algorithm": {
			"a server of another age",
			sshd.Options{Config: func(c *ssh.ServerConfig) { c.KeyExchanges = []string{ssh.InsecureKeyExchangeDH14SHA1} }},
			nil,
			want{link.StageSSH, fault.Permanent, []string{"no common key exchange", "diffie-hellman-group14-sha1"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, tc.so)
			if tc.change != nil {
				tc.change(t, r)
			}
			tc.want.check(t, tc.reason, r.dial(t))
			eventually(t, "the end of the connection", func() bool { return r.Open() == 0 })
		})
	}
}

func TestPeersThatAreNoSSHServer(t *testing.T) {
	r := newRig(t, sshd.Options{})
	for name, tc := range map[string]struct {
		reason, answer string
		class          fault.Class
	}{
		"closes":     {"too many connections (MaxStartups), or banned", "", fault.Unavailable},
		"HTTP":       {"the port of another service", "HTTP/1.1 400 Bad Request\r\n\r\n", fault.Unavailable},
		"refusal":    {"sshd's own text before its version", "Not allowed at this time\r\n", fault.Unavailable},
		"noise":      {"control characters", strings.Repeat("\x1b[31m\x00\xff", 500), fault.Unavailable},
		"SSH 1":      {"a version of old", "SSH-1.5-x\r\n", fault.Unavailable},
		"bad packet": {"nonsense after the version", "SSH-2.0-x\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", fault.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			check(t, err)
			defer ln.Close()
			go func() {
				c, err := ln.Accept()
				if err == nil {
					_, _ = io.WriteString(c, tc.answer)
					_ = c.(*net.TCPConn).CloseWrite()
					_, _ = io.Copy(io.Discard, c)
					c.Close()
				}
			}()
			r.host(func(h *sshdial.Host) { h.Port = ln.Addr().(*net.TCPAddr).Port })
			err = r.dial(t)
			want{link.StageSSH, tc.class, []string{"127.0.0.1:"}}.check(t, tc.reason, err)
			if len(err.Error()) > 600 {
				t.Errorf("%d bytes: %v", len(err.Error()), err)
			}
		})
	}
}

// terraform-provider-libvirt 915: "administratively prohibited", and the other
// answers for a socket.
func TestForwardingFailures(t *testing.T) {
	socketText := []string{"libvirtd", "group libvirt", "AllowStreamLocalForwarding", "its log tells them apart"}
	for name, tc := range map[string]struct {
		reason  string
		refusal sshd.Refusal
		change  func(h *sshdial.Host)
		want    want
	}{
		"prohibited (tpl 915)": {"AllowStreamLocalForwarding no", sshd.Prohibited, nil, want{link.StageLibvirt, fault.Permanent, []string{
			"administratively prohibited", "AllowStreamLocalForwarding", "DisableForwarding", "AllowTcpForwarding", "PermitOpen", "no-port-forwarding",
		}}},
		"OpenSSH's answer to all": {"open failed", sshd.Failed, nil, want{link.StageLibvirt, fault.Unavailable, socketText}},
		"missing socket":          {"libvirtd is not installed", sshd.NotRefused, func(h *sshdial.Host) { h.Socket += "-none" }, want{link.StageLibvirt, fault.Unavailable, append([]string{"-none"}, socketText...)}},
		"no answer":               {"a server that hangs", sshd.Silent, nil, want{link.StageLibvirt, fault.Timeout, []string{"did not answer for socket"}}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, sshd.Options{})
			r.Refuse(tc.refusal)
			if tc.refusal == sshd.Silent {
				r.o.HandshakeTimeout = time.Second
			}
			if tc.change != nil {
				r.host(tc.change)
			}
			tc.want.check(t, tc.reason, r.dial(t))
			eventually(t, "the end of the connection", func() bool { return r.Open() == 0 })
		})
	}
}

func TestFailureOfOpenKeepsItsClass(t *testing.T) {
	r := newRig(t, sshd.Options{})
	cause := fault.New(fault.Unsupported, "libvirt is too old")
	r.o.Open = func(context.Context, string, net.Conn) (link.Link, error) { return nil, cause }
	err := r.dial(t)
	want{link.StageLibvirt, fault.Unsupported, []string{"libvirt is too old"}}.check(t, "Open's own verdict", err)
	if !errors.Is(err, cause) {
		t.Error("the cause is out of reach")
	}
	eventually(t, "the end of the connection", func() bool { return r.Open() == 0 })
}

func TestContextEndsEveryStage(t *testing.T) {
	blocked := func(ctx context.Context, _ string, conn net.Conn) (link.Link, error) {
		<-ctx.Done()
		conn.Close()
		return nil, fault.Wrap(fault.Transient, ctx.Err())
	}
	for stage, set := range map[string]func(r *rig){
		link.StageTCP: func(r *rig) {
			r.o.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }
		},
		link.StageSSH:     func(r *rig) { r.Mute(true) },
		link.StageLibvirt: func(r *rig) { r.Refuse(sshd.Silent) },
		"Open":            func(r *rig) { r.o.Open = blocked },
	} {
		t.Run(stage, func(t *testing.T) {
			r := newRig(t, sshd.Options{})
			set(r)
			d := sshdial.New(r.o)
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				// Wherever it is by then: each stage must end.
				if stage != link.StageTCP {
					for r.Accepted() == 0 && ctx.Err() == nil {
						time.Sleep(time.Millisecond)
					}
				}
				if stage == link.StageLibvirt {
					for len(r.Paths()) == 0 && ctx.Err() == nil {
						time.Sleep(time.Millisecond)
					}
				}
				cancel()
			}()
			start := time.Now()
			_, err := d.Dial(ctx, "box-1")
			if fault.Of(err) != fault.Transient || !errors.Is(err, context.Canceled) || time.Since(start) > 5*time.Second {
				t.Errorf("after %v: %v", time.Since(start), err)
			}
			eventually(t, "the end of the connection", func() bool { return r.Open() == 0 })
		})
	}
}

// golang/go 19338: no keepalive.
func TestNoKeepalive(t *testing.T) {
	t.Parallel()
	r := newRig(t, sshd.Options{})
	r.o.KeepaliveInterval, r.o.KeepaliveMisses = 20*time.Millisecond, 25
	p := connect(t, r)
	// More than may be missed: their answers count.
	eventually(t, "the 40th keepalive", func() bool { return r.Keepalives() >= 40 })
	p.ping(t)
	if err := p.Err(); err != nil {
		t.Errorf("an answered keepalive ended the link: %v", err)
	}
}

func TestDeadKeepaliveClosesTheLink(t *testing.T) {
	for name, fault := range map[string]func(r *rig){
		"host cut off":        func(r *rig) { r.Freeze(true) },
		"keepalives are mute": func(r *rig) { r.MuteKeepalive(true) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, sshd.Options{})
			r.o.KeepaliveInterval, r.o.KeepaliveMisses = 100*time.Millisecond, 5
			p := connect(t, r)
			p.ping(t)
			fault(r)
			select {
			case <-p.Done():
			case <-time.After(10 * time.Second):
				t.Fatal("a dead link lives")
			}
			wantDead(t, p.Err())
		})
	}
}

func wantDead(t *testing.T, err error) {
	t.Helper()
	if fault.Of(err) != fault.Unavailable || err == nil || !strings.Contains(err.Error(), "keepalives") || !strings.Contains(err.Error(), "127.0.0.1:") {
		t.Errorf("the end says %v", err)
	}
}

// Bytes from the host are a sign of life also when it does not answer
// keepalives for a while, as behind a long queue.
func TestKeepaliveCountsSilenceInARow(t *testing.T) {
	for name, tc := range map[string]struct {
		reason   string
		received []int64
		want     []int
	}{
		"idle at first":   {"the host was not asked yet", []int64{0, 0, 0}, []int{0, 1, 2}},
		"answers":         {"each interval has one", []int64{0, 36, 72}, []int{0, 0, 0}},
		"a late answer":   {"it starts from the beginning", []int64{0, 0, 0, 36, 36, 36}, []int{0, 1, 2, 0, 1, 2}},
		"dead in traffic": {"as with an upload", []int64{900, 1800, 1800, 1800}, []int{0, 0, 1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, sshdial.Missed(tc.received...)); diff != "" {
				t.Errorf("%s: %s", tc.reason, diff)
			}
		})
	}
}

// A host that is cut off while an upload fills the socket's buffer: the
// keepalive cannot even be sent.
func TestHostCutOffDuringAnUpload(t *testing.T) {
	t.Parallel()
	r := newRig(t, sshd.Options{})
	r.o.KeepaliveInterval, r.o.KeepaliveMisses = 100*time.Millisecond, 5
	r.host(func(h *sshdial.Host) { h.Socket = serve(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }) })
	p := connect(t, r)
	sent := make(chan int, 1)
	result := make(chan error, 1)
	go func() {
		b := make([]byte, 64<<10)
		for n := 0; ; n++ {
			if _, err := p.conn.Write(b); err != nil {
				result <- err
				return
			}
			if n == 100 {
				sent <- n
			}
		}
	}()
	<-sent
	r.Freeze(true)
	select {
	case err := <-result:
		wantDead(t, err)
	case <-time.After(10 * time.Second):
		t.Fatal("the upload hangs")
	}
	<-p.Done()
	wantDead(t, p.Err())
}

func TestEndsSayWhy(t *testing.T) {
	t.Run("the host closes the connection", func(t *testing.T) {
		r := newRig(t, sshd.Options{})
		p := connect(t, r)
		p.ping(t)
		r.Drop()
		<-p.Done()
		if err := p.Err(); fault.Of(err) != fault.Unavailable || !strings.Contains(err.Error(), "SSH connection") || !strings.Contains(err.Error(), "127.0.0.1:") {
			t.Errorf("%v", err)
		}
	})
	t.Run("the daemon closes its socket", func(t *testing.T) {
		r := newRig(t, sshd.Options{})
		r.host(func(h *sshdial.Host) { h.Socket = serve(t, func(c net.Conn) { _, _ = c.Read(make([]byte, 1)) }) })
		p := connect(t, r)
		_, err := p.conn.Write([]byte("x"))
		check(t, err)
		<-p.Done()
		if err := p.Err(); !errors.Is(err, io.EOF) || fault.Classed(err) {
			t.Errorf("%v, want a bare EOF: the SSH connection lives", err)
		}
	})
	t.Run("closed by this side", func(t *testing.T) {
		r := newRig(t, sshd.Options{})
		p := connect(t, r)
		check(t, p.Close())
		if err := p.Err(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%v", err)
		}
		if _, err := p.conn.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a write after Close: %v", err)
		}
	})
}

// Closing frees a reader and a writer that is stuck in a full socket, at once,
// and may be repeated.
func TestCloseFreesReadersAndWriters(t *testing.T) {
	r := newRig(t, sshd.Options{})
	p := connect(t, r)
	r.Freeze(true)
	stuck := make(chan error, 1)
	var mu sync.Mutex
	written := 0
	go func() {
		b := make([]byte, 64<<10)
		for {
			n, err := p.conn.Write(b)
			mu.Lock()
			written += n
			mu.Unlock()
			if err != nil {
				stuck <- err
				return
			}
		}
	}()
	count := func() int { mu.Lock(); defer mu.Unlock(); return written }
	for last := -1; last != count(); time.Sleep(50 * time.Millisecond) {
		last = count()
	}
	start := time.Now()
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { check(t, p.conn.Close()) })
	}
	wg.Wait()
	if err := <-stuck; !errors.Is(err, net.ErrClosed) {
		t.Errorf("the writer: %v", err)
	}
	<-p.Done()
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

// The stream has no deadlines, and says so.
func TestStreamHasNoDeadlines(t *testing.T) {
	r := newRig(t, sshd.Options{})
	p := connect(t, r)
	if err := p.conn.SetDeadline(time.Now()); err == nil {
		t.Error("SetDeadline does nothing and says nothing")
	}
	p.ping(t)
	if p.conn.LocalAddr() == nil || p.conn.RemoteAddr() == nil {
		t.Error("no addresses")
	}
}

// The context of the dial does not end the link.
func TestLinkOutlivesTheDialsContext(t *testing.T) {
	r := newRig(t, sshd.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	l, err := sshdial.New(r.o).Dial(ctx, "box-1")
	check(t, err)
	cancel()
	p := l.(*pipe)
	defer p.Close()
	p.ping(t)
}

// deadlineConn keeps the last deadline that was set.
type deadlineConn struct {
	net.Conn
	mu  sync.Mutex
	all []time.Time
}

func (c *deadlineConn) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, t)
	return c.Conn.SetDeadline(t)
}

// The handshake has a deadline on the connection, which is gone afterwards.
func TestDeadlineIsTheHandshakesAlone(t *testing.T) {
	r := newRig(t, sshd.Options{})
	var conn *deadlineConn
	r.o.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		conn = &deadlineConn{Conn: c}
		return conn, err
	}
	p := connect(t, r)
	conn.mu.Lock()
	if n := len(conn.all); n != 2 || conn.all[0].IsZero() || !conn.all[1].IsZero() {
		t.Errorf("deadlines %v, want one and then none", conn.all)
	}
	conn.mu.Unlock()
	p.ping(t)
}

func TestSocketOptions(t *testing.T) {
	r := newRig(t, sshd.Options{})
	r.o.KeepaliveInterval, r.o.KeepaliveMisses = 5*time.Second, 3
	var tcp *net.TCPConn
	r.o.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err == nil {
			tcp = c.(*net.TCPConn)
		}
		return c, err
	}
	p := connect(t, r)
	wantSocketOptions(t, tcp)
	p.ping(t)
}

func TestTextsOfTheFarSideAreCleaned(t *testing.T) {
	for name, tc := range map[string]struct{ reason, in, want string }{
		"plain":      {"as it is", `Not allowed: "x" – ü`, `Not allowed: "x" – ü`},
		"control":    {"a log line stays one line", "a\r\nb\x1b[31mc\x00d\u2028e\u202ef", "a  b [31mc d e f"},
		"not UTF-8":  {"conditions are JSON", "a\xff\xfeb", "a�b"},
		"too long":   {"bounded", strings.Repeat("x", 1000), strings.Repeat("x", 300) + "…"},
		"in a rune":  {"cut between runes", strings.Repeat("x", 299) + "ü" + strings.Repeat("x", 300), strings.Repeat("x", 299) + "…"},
		"only space": {"nothing", " \n\t ", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, sshdial.Clean(tc.in)); diff != "" {
				t.Errorf("%s: %s", tc.reason, diff)
			}
		})
	}
}

func TestFileErrors(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want fault.Class
	}{
		{fs.ErrNotExist, fault.Transient},
		{fs.ErrPermission, fault.Permanent},
		{syscall.EIO, fault.Transient},
		{syscall.ENAMETOOLONG, fault.Permanent},
	} {
		err := sshdial.FileError("/etc/kvm/id", &fs.PathError{Op: "open", Path: "/etc/kvm/id", Err: tc.err})
		if fault.Of(err) != tc.want || !errors.Is(err, tc.err) || strings.Count(err.Error(), "/etc/kvm/id") != 1 {
			t.Errorf("%v: %s, want %s: %v", tc.err, fault.Of(err), tc.want, err)
		}
	}
}

// Many dials at once, of a host that is dropped again and again, leave nothing.
func TestManyDialsLeaveNothing(t *testing.T) {
	r := newRig(t, sshd.Options{})
	d := sshdial.New(r.o)
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			l, err := d.Dial(t.Context(), "box-1")
			if err != nil {
				if c := fault.Of(err); c != fault.Unavailable {
					t.Errorf("%s: %v", c, err)
				}
				return
			}
			if i%3 == 0 {
				r.Drop()
			}
			l.Close()
		})
	}
	wg.Wait()
	eventually(t, "the end of all connections", func() bool { return r.Open() == 0 })
}
