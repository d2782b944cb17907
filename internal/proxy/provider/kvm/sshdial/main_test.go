package sshdial_test

import (
	"bytes"
	"context"
	"crypto"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/link"
	"fleetdesk/internal/proxy/provider/kvm/sshdial"
	"fleetdesk/internal/proxy/provider/kvm/virt"
	"fleetdesk/internal/testkit/sshd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pipe is a link over the stream: what comes is kept, and its end ends the link.
type pipe struct {
	virt.Conn
	conn net.Conn
	done chan struct{}
	got  chan []byte
	err  error
}

func open(_ context.Context, _ string, conn net.Conn) (link.Link, error) {
	p := &pipe{conn: conn, done: make(chan struct{}), got: make(chan []byte, 1024)}
	go func() {
		defer close(p.done)
		for {
			b := make([]byte, 32<<10)
			n, err := conn.Read(b)
			if err != nil {
				p.err = err
				conn.Close()
				return
			}
			select {
			case p.got <- b[:n]:
			default:
			}
		}
	}()
	return p, nil
}

func (p *pipe) Done() <-chan struct{} { return p.done }

func (p *pipe) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

func (p *pipe) Close() error { err := p.conn.Close(); <-p.done; return err }

// syncLog keeps a log that many goroutines write.
type syncLog struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *syncLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *syncLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// rig is a host, the two files and the options to dial it.
type rig struct {
	*sshd.Server
	o   sshdial.Options
	log *syncLog
}

func newRig(t *testing.T, so sshd.Options) *rig {
	t.Helper()
	dir := t.TempDir()
	r := &rig{Server: sshd.Start(t, so), log: &syncLog{}}
	r.o = sshdial.Options{
		Hosts:          map[string]sshdial.Host{"box-1": {Address: "127.0.0.1", Port: r.Port(), User: r.User(), Socket: echo(t)}},
		KeyFile:        filepath.Join(dir, "id"),
		KnownHostsFile: filepath.Join(dir, "known_hosts"),
		Open:           open,
		Log:            slog.New(slog.NewTextHandler(r.log, nil)),
	}
	if key := r.ClientKey(); key != nil {
		write(t, r.o.KeyFile, key)
	}
	write(t, r.o.KnownHostsFile, []byte(r.KnownHosts()))
	return r
}

// socket changes the socket that is asked for.
func (r *rig) host(change func(h *sshdial.Host)) {
	h := r.o.Hosts["box-1"]
	change(&h)
	r.o.Hosts = map[string]sshdial.Host{"box-1": h}
}

func (r *rig) known(t *testing.T, lines ...string) {
	t.Helper()
	write(t, r.o.KnownHostsFile, []byte(strings.Join(lines, "\n")+"\n"))
}

// dial dials and closes what it got.
func (r *rig) dial(t *testing.T) error {
	t.Helper()
	l, err := sshdial.New(r.o).Dial(t.Context(), "box-1")
	if err == nil {
		l.Close()
	}
	return err
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// echo serves a unix socket that answers with what it gets.
func echo(t *testing.T) string {
	t.Helper()
	return serve(t, func(c net.Conn) { _, _ = io.Copy(c, c) })
}

func serve(t *testing.T, handle func(c net.Conn)) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); handle(c) }()
		}
	}()
	return path
}

// want is what an error must be.
type want struct {
	stage string
	class fault.Class
	// says are parts of the text.
	says []string
}

func (w want) check(t *testing.T, reason string, err error) {
	t.Helper()
	if w.stage == "" {
		if err != nil {
			t.Errorf("%s: %v", reason, err)
		}
		return
	}
	if err == nil {
		t.Errorf("%s: no error", reason)
		return
	}
	de, ok := err.(*link.DialError)
	if !ok {
		t.Fatalf("%s: no DialError: %v", reason, err)
	}
	if de.Stage != w.stage || fault.Of(err) != w.class || !fault.Classed(err) {
		t.Errorf("%s: stage %q class %q, want %q %q: %v", reason, de.Stage, fault.Of(err), w.stage, w.class, err)
	}
	for _, s := range w.says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%s: it does not say %q: %v", reason, s, err)
		}
	}
	if strings.ContainsAny(err.Error(), "\n\r\x00\x1b") {
		t.Errorf("%s: control characters: %q", reason, err)
	}
}

func users(keys ...ssh.PublicKey) map[string][]ssh.PublicKey {
	return map[string][]ssh.PublicKey{sshd.DefaultUser: keys}
}

func public(t *testing.T, key crypto.Signer) ssh.PublicKey {
	t.Helper()
	return sshd.Wrap(t, key).PublicKey()
}

// eventually polls for something that real I/O brings about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("%s did not come", what)
}

// epoch is the time of each file of a mounted Secret, in these tests.
var epoch = time.Unix(0, 0)
