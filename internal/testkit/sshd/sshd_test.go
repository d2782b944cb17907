package sshd_test

import (
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	"fleetdesk/internal/testkit/sshd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo serves a unix socket that answers each line with itself.
func echo(t *testing.T) string {
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
			go func() { _, _ = io.Copy(c, c); c.Close() }()
		}
	}()
	return path
}

func dial(t *testing.T, s *sshd.Server, user string, key []byte) (*ssh.Client, error) {
	t.Helper()
	signer, err := ssh.ParsePrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return ssh.Dial("tcp", s.Addr(), &ssh.ClientConfig{
		User: user, Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	})
}

func connect(t *testing.T, s *sshd.Server) *ssh.Client {
	t.Helper()
	c, err := dial(t, s, s.User(), s.ClientKey())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func ping(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := c.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "ping" {
		t.Fatalf("%q %v", b, err)
	}
}

func TestForwards(t *testing.T) {
	path := echo(t)
	s := sshd.Start(t, sshd.Options{})
	c, err := connect(t, s).Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ping(t, c)
	if got := s.Paths(); len(got) != 1 || got[0] != path || s.Accepted() != 1 || s.Open() != 1 {
		t.Errorf("%v, accepted %d, open %d", got, s.Accepted(), s.Open())
	}
}

func TestRefusesUsersAndForwardings(t *testing.T) {
	path := echo(t)
	s := sshd.Start(t, sshd.Options{})
	if _, err := dial(t, s, "nobody", s.ClientKey()); err == nil {
		t.Error("another user is let in")
	}
	if _, err := dial(t, s, s.User(), sshd.PEM(t, sshd.Key(t, sshd.ED25519))); err == nil {
		t.Error("another key is let in")
	}
	c := connect(t, s)
	for refusal, want := range map[sshd.Refusal]ssh.RejectionReason{sshd.Prohibited: ssh.Prohibited, sshd.Failed: ssh.ConnectionFailed} {
		s.Refuse(refusal)
		_, err := c.Dial("unix", path)
		if oe, ok := errors.AsType[*ssh.OpenChannelError](err); !ok || oe.Reason != want {
			t.Errorf("%s: %v", refusal, err)
		}
	}
	s.Refuse(sshd.NotRefused)
	if _, err := c.Dial("unix", path+"-missing"); err == nil {
		t.Error("a missing socket is there")
	}
	if _, err := c.Dial("tcp", "127.0.0.1:1"); err == nil {
		t.Error("it forwards TCP")
	}
}

func TestFreezeAndDrop(t *testing.T) {
	s := sshd.Start(t, sshd.Options{})
	c, err := connect(t, s).Dial("unix", echo(t))
	if err != nil {
		t.Fatal(err)
	}
	ping(t, c)
	s.Freeze(true)
	if _, err := c.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		_, err := io.ReadFull(c, make([]byte, 4))
		got <- err
	}()
	select {
	case err := <-got:
		t.Fatalf("a frozen host answered: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	s.Freeze(false)
	if err := <-got; err != nil {
		t.Errorf("thawed: %v", err)
	}
	s.Drop()
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("a dropped connection reads")
	}
}
