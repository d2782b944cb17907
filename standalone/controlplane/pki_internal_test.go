package controlplane

import (
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestEnsurePKI(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	loop := serverNames("127.0.0.1")
	cases := map[string]struct {
		reason string
		// spoil changes the folder between two starts.
		spoil      func(t *testing.T, p *pki)
		names      names
		later      time.Duration
		keepCA     bool
		keepServer bool
		keepAdmin  bool
	}{
		"again":        {reason: "nothing changes without need", names: loop, keepCA: true, keepServer: true, keepAdmin: true},
		"bind address": {reason: "a certificate without the new address fails every client", names: serverNames("192.0.2.7"), keepCA: true, keepAdmin: true},
		"late":         {reason: "a leaf that is about to end is renewed, the authority still serves", names: loop, later: (leafYears - 1) * 366 * 24 * time.Hour, keepCA: true},
		"authority late": {
			reason: "an authority that is about to end is made anew with everything under it",
			names:  loop, later: (caYears - 1) * 366 * 24 * time.Hour,
		},
		"server cert cut short": {
			reason: "an empty file after a power cut is renewed alone",
			names:  loop, keepCA: true, keepAdmin: true,
			spoil: func(t *testing.T, p *pki) { write(t, p.serverCert, nil) },
		},
		"key lost": {
			reason: "a folder that is not whole is made anew as a whole",
			names:  loop,
			spoil:  func(t *testing.T, p *pki) { must(t, os.Remove(p.saKey)) },
		},
		"authority cut short": {
			reason: "half a file must not stop every later start",
			names:  loop,
			spoil: func(t *testing.T, p *pki) {
				b, err := os.ReadFile(p.caKey)
				must(t, err)
				write(t, p.caKey, b[:len(b)/2])
			},
		},
		"mixed authority": {
			reason: "a key of another authority signs certificates that nobody accepts",
			names:  loop,
			spoil:  func(t *testing.T, p *pki) { _, err := newKey(p.caKey); must(t, err) },
		},
		"interrupted attempt": {
			reason: "what a killed attempt left beside is removed",
			names:  loop, keepCA: true, keepServer: true, keepAdmin: true,
			spoil: func(t *testing.T, p *pki) {
				d := filepath.Dir(p.ca)
				must(t, os.Mkdir(filepath.Join(filepath.Dir(d), ".pki.new-123"), 0o700))
			},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "pki")
			p, err := ensurePKI(dir, loop, now)
			must(t, err)
			before := readAll(t, p)
			if c.spoil != nil {
				c.spoil(t, p)
			}
			p, err = ensurePKI(dir, c.names, now.Add(c.later))
			must(t, err)
			after := readAll(t, p)
			for _, f := range []struct {
				path string
				keep bool
			}{{p.ca, c.keepCA}, {p.saKey, c.keepCA}, {p.serverKey, c.keepCA}, {p.serverCert, c.keepServer}, {p.adminCert, c.keepAdmin}} {
				if same := before[f.path] == after[f.path]; same != f.keep {
					t.Errorf("%s: kept = %v, want %v: %s", filepath.Base(f.path), same, f.keep, c.reason)
				}
			}
			verify(t, p, c.names.ips, now.Add(c.later))
		})
	}
}

// verify does what a TLS client and the API server do.
func verify(t *testing.T, p *pki, ips []net.IP, now time.Time) {
	t.Helper()
	ca, err := readCert(p.ca)
	must(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	for _, leaf := range []struct {
		cert, key string
		use       x509.ExtKeyUsage
	}{{p.serverCert, p.serverKey, x509.ExtKeyUsageServerAuth}, {p.adminCert, p.adminKey, x509.ExtKeyUsageClientAuth}} {
		c, err := readCert(leaf.cert)
		must(t, err)
		if _, err := c.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{leaf.use}}); err != nil {
			t.Errorf("%s: %v", leaf.cert, err)
		}
		k, err := readKey(leaf.key)
		must(t, err)
		if !k.PublicKey.Equal(c.PublicKey) {
			t.Errorf("%s does not belong to %s", leaf.key, leaf.cert)
		}
	}
	server, err := readCert(p.serverCert)
	must(t, err)
	for _, ip := range ips {
		if err := server.VerifyHostname(ip.String()); err != nil {
			t.Error(err)
		}
	}
	fi, err := os.Stat(filepath.Dir(p.ca))
	must(t, err)
	if fi.Mode().Perm() != 0o700 {
		t.Errorf("folder of keys has mode %o", fi.Mode().Perm())
	}
	for _, f := range []string{p.caKey, p.serverKey, p.saKey, p.adminKey} {
		fi, err := os.Stat(f)
		must(t, err)
		if fi.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %o", f, fi.Mode().Perm())
		}
	}
}

func TestServerNamesOfAllAddresses(t *testing.T) {
	n := serverNames("0.0.0.0")
	for _, ip := range n.ips {
		if ip.IsUnspecified() {
			t.Error("a certificate for the unspecified address is good for nobody")
		}
	}
	if serverURL(Options{Bind: "0.0.0.0", Port: 1}) != "https://127.0.0.1:1" || serverURL(Options{Bind: "::", Port: 1}) != "https://[::1]:1" {
		t.Error("a client cannot dial the unspecified address")
	}
}

func TestRemoveStaleSockets(t *testing.T) {
	base := t.TempDir()
	mk := func(name string) string {
		d := filepath.Join(base, name)
		must(t, os.Mkdir(d, 0o700))
		return d
	}
	ours, other := mk(socketPrefix+"1"), mk("other")
	link := filepath.Join(base, socketPrefix+"link")
	must(t, os.Symlink(other, link))
	for _, d := range []string{ours, other, link, "", "/", ours + "/../other"} {
		removeStaleSockets(d)
	}
	if _, err := os.Stat(ours); !os.IsNotExist(err) {
		t.Error("the sockets of a killed process stay for ever")
	}
	if _, err := os.Stat(other); err != nil {
		t.Error("a folder that is not ours was removed")
	}
}

func readAll(t *testing.T, p *pki) map[string]string {
	t.Helper()
	m := map[string]string{}
	for _, f := range []string{p.ca, p.caKey, p.serverCert, p.serverKey, p.saKey, p.adminCert, p.adminKey} {
		b, err := os.ReadFile(f)
		must(t, err)
		m[f] = string(b)
	}
	entries, err := os.ReadDir(filepath.Dir(filepath.Dir(p.ca)))
	must(t, err)
	for _, e := range entries {
		if e.Name() != "pki" && e.Name() != ".pki.new-123" {
			t.Errorf("left behind: %s", e.Name())
		}
	}
	return m
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	must(t, os.WriteFile(path, b, 0o600))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
