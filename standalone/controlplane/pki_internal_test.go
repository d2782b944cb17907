package controlplane

import (
	"crypto/x509"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
)

var (
	testNow  = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	testLoop = serverNames("127.0.0.1")
)

func cutShort(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	write(t, path, b[:len(b)/2])
}

// An authority that is there is kept whatever happens to the rest, and what is
// made anew serves.
func TestEnsurePKI(t *testing.T) {
	const year = 366 * 24 * time.Hour
	cases := map[string]struct {
		reason string
		// spoil changes the folder between two starts.
		spoil func(t *testing.T, p *pki)
		names names
		later time.Duration
		// anew are the files that the second start makes; all others stay.
		anew []string
		// warns is in the log at level WARN; empty for no such line.
		warns string
	}{
		"again":        {reason: "nothing changes without need", names: testLoop},
		"bind address": {reason: "a certificate without the new address fails every client", names: serverNames("192.0.2.7"), anew: []string{"server.crt"}},
		"late": {
			reason: "a leaf that is about to end is renewed, the authority still serves",
			names:  testLoop, later: (leafYears - 1) * year, anew: []string{"server.crt", "admin.crt"},
		},
		"ended": {
			reason: "a machine that was off for years",
			names:  testLoop, later: (leafYears + 1) * year, anew: []string{"server.crt", "admin.crt"}, warns: "server.crt ended",
		},
		"authority late": {
			reason: "what depends on it outside cannot be changed from here: a person is told in good time",
			names:  testLoop, later: (caYears-1)*year + 24*time.Hour, anew: []string{"server.crt", "admin.crt"}, warns: "about to end",
		},
		"server certificate cut short": {
			reason: "half a file after a power cut is renewed alone",
			names:  testLoop, anew: []string{"server.crt"}, warns: "server.crt",
			spoil: func(t *testing.T, p *pki) { cutShort(t, p.serverCert) },
		},
		"server key cut short": {
			reason: "the certificate needs a new key, and nothing else does",
			names:  testLoop, anew: []string{"server.crt", "server.key"}, warns: "server.key",
			spoil: func(t *testing.T, p *pki) { cutShort(t, p.serverKey) },
		},
		"administrator lost": {
			reason: "copies of the former kubeconfig still work, since the authority is the same",
			names:  testLoop, anew: []string{"admin.crt", "admin.key"}, warns: "admin.key",
			spoil: func(t *testing.T, p *pki) { must(t, os.Remove(p.adminKey)); must(t, os.Remove(p.adminCert)) },
		},
		"unreadable key": {
			reason: "what cannot be opened, here a link to nothing, is replaced",
			names:  testLoop, anew: []string{"admin.crt", "admin.key"}, warns: "admin.key",
			spoil: func(t *testing.T, p *pki) {
				must(t, os.Remove(p.adminKey))
				must(t, os.Symlink(filepath.Join(filepath.Dir(p.ca), "gone"), p.adminKey))
			},
		},
		"crash after a new key": {
			reason: "a key without its certificate is what a crash between the two leaves",
			names:  testLoop, anew: []string{"server.crt", "server.key"}, warns: "another authority or key",
			spoil: func(t *testing.T, p *pki) { _, err := newKey(p.serverKey); must(t, err) },
		},
		"interrupted attempt": {
			reason: "what a killed attempt left beside is removed",
			names:  testLoop,
			spoil: func(t *testing.T, p *pki) {
				d := filepath.Dir(p.ca)
				must(t, os.Mkdir(filepath.Join(filepath.Dir(d), ".pki.new-123"), 0o700))
			},
		},
		"crash between two renames": {
			reason: "the former folder is the one that everybody has certificates of",
			names:  testLoop,
			spoil: func(t *testing.T, p *pki) {
				d := filepath.Dir(p.ca)
				must(t, os.Rename(d, filepath.Join(filepath.Dir(d), ".pki.old")))
			},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "pki")
			p, err := ensurePKI(dir, testLoop, testNow, slog.New(slog.DiscardHandler))
			must(t, err)
			before := readAll(t, p)
			if c.spoil != nil {
				c.spoil(t, p)
			}
			var log strings.Builder
			p, err = ensurePKI(dir, c.names, testNow.Add(c.later), slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})))
			must(t, err)
			after := readAll(t, p)
			for path, b := range after {
				if anew := before[path] != b; anew != slices.Contains(c.anew, filepath.Base(path)) {
					t.Errorf("%s: made anew = %v: %s", filepath.Base(path), anew, c.reason)
				}
			}
			for _, want := range strings.Fields(c.warns) {
				if !strings.Contains(log.String(), want) {
					t.Errorf("the log lacks %q: %s", want, log.String())
				}
			}
			if c.warns == "" && log.Len() > 0 {
				t.Errorf("nothing is wrong, and the log says: %s", log.String())
			}
			verify(t, p, c.names.ips, testNow.Add(c.later))
		})
	}
}

// What only a backup can bring back stops the start, and nothing is touched.
func TestEnsurePKIRefuses(t *testing.T) {
	cases := map[string]struct {
		reason string
		spoil  func(t *testing.T, p *pki)
		later  time.Duration
		says   []string
		class  fault.Class
	}{
		"authority cut short": {
			"half a key is no reason to end every kubeconfig", func(t *testing.T, p *pki) { cutShort(t, p.caKey) }, 0,
			[]string{"ca.key", "backup", "move ", "kubeconfigs"},
			fault.Permanent,
		},
		"certificate lost": {
			"the same for its other half", func(t *testing.T, p *pki) { must(t, os.Remove(p.ca)) }, 0,
			[]string{"ca.crt", "backup", "move "},
			fault.Permanent,
		},
		"other PEM": {
			"a person put another file there", func(t *testing.T, p *pki) { write(t, p.caKey, []byte("-----BEGIN X-----\n-----END X-----\n")) }, 0,
			[]string{"ca.key", "EC PRIVATE KEY", "backup"},
			fault.Permanent,
		},
		"mixed authority": {
			"a key of another authority signs certificates that nobody accepts", func(t *testing.T, p *pki) { _, err := newKey(p.caKey); must(t, err) }, 0,
			[]string{"ca.key", "does not belong to", "backup"},
			fault.Permanent,
		},
		"token key cut short": {
			"a new one would end every service account token", func(t *testing.T, p *pki) { cutShort(t, p.saKey) }, 0,
			[]string{"sa.key", "backup", "move ", "tokens"},
			fault.Permanent,
		},
		"token key lost": {
			"the same", func(t *testing.T, p *pki) { must(t, os.Remove(p.saKey)) }, 0,
			[]string{"sa.key", "backup"},
			fault.Permanent,
		},
		"unreadable": {
			"an error of the disk or of rights is not absence", func(t *testing.T, p *pki) { must(t, os.Remove(p.caKey)); must(t, os.Mkdir(p.caKey, 0o700)) }, 0,
			[]string{"ca.key", "backup"},
			fault.Permanent,
		},
		"emptied folder": {
			"a mount that is missing looks like this", func(t *testing.T, p *pki) {
				for _, f := range []string{p.ca, p.caKey, p.serverCert, p.serverKey, p.saKey, p.adminCert, p.adminKey} {
					must(t, os.Remove(f))
				}
			}, 0, []string{"ca.crt", "backup"}, fault.Permanent,
		},
		"link to nothing": {
			"the keys are on a disk that is not there now", func(t *testing.T, p *pki) {
				d := filepath.Dir(p.ca)
				must(t, os.RemoveAll(d))
				must(t, os.Symlink(filepath.Join(filepath.Dir(d), "vault"), d))
			}, 0, []string{"ca.crt", "backup"}, fault.Permanent,
		},
		"authority ended": {
			"nobody accepts it any more, unless the clock is wrong", nil, (caYears + 1) * 366 * 24 * time.Hour,
			[]string{"ca.crt", "clock", "move "},
			fault.Permanent,
		},
		"clock behind": {
			"a machine without a battery learns the time a moment later", nil, -30 * 366 * 24 * time.Hour,
			[]string{"clock", "ca.crt"},
			fault.Transient,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			data := t.TempDir()
			dir := filepath.Join(data, "pki")
			p, err := ensurePKI(dir, testLoop, testNow, slog.New(slog.DiscardHandler))
			must(t, err)
			if c.spoil != nil {
				c.spoil(t, p)
			}
			before := contents(t, data)
			_, err = ensurePKI(dir, testLoop, testNow.Add(c.later), slog.New(slog.DiscardHandler))
			if err == nil {
				t.Fatal("no error: " + c.reason)
			}
			for _, want := range c.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q: %s", err, want, c.reason)
				}
			}
			if fault.Of(err) != c.class {
				t.Errorf("class %q, want %q", fault.Of(err), c.class)
			}
			if after := contents(t, data); !maps.Equal(before, after) {
				t.Errorf("touched something: %s", c.reason)
			}
			if c.spoil == nil {
				return
			}
			// The remedy that the error names works.
			must(t, os.Rename(dir, filepath.Join(data, "away")))
			p, err = ensurePKI(dir, testLoop, testNow, slog.New(slog.DiscardHandler))
			must(t, err)
			verify(t, p, testLoop.ips, testNow)
		})
	}
}

// contents are all files below dir, by path; a link has its target.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	m := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			m[path] = "folder"
		case d.Type()&fs.ModeSymlink != 0:
			m[path], err = os.Readlink(path)
		default:
			var b []byte
			b, err = os.ReadFile(path)
			m[path] = string(b)
		}
		return err
	}))
	return m
}

func TestFileFault(t *testing.T) {
	for err, want := range map[error]fault.Class{
		syscall.ENOSPC: fault.Transient, syscall.EMFILE: fault.Transient,
		syscall.EACCES: fault.Permanent, syscall.EIO: fault.Permanent, syscall.EROFS: fault.Permanent,
	} {
		if got := fault.Of(fileFault(&fs.PathError{Op: "open", Path: "x", Err: err})); got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
	if fileFault(nil) != nil {
		t.Error("no error became one")
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
		if e.Name() != "pki" {
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
