package sshdial_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/dsa" //nolint:staticcheck // to be refused
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/crypto/ssh"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/link"
	"fleetdesk/internal/proxy/provider/kvm/sshdial"
	"fleetdesk/internal/proxy/provider/kvm/virt"
	"fleetdesk/internal/testkit/sshd"
)

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// terraform-provider-libvirt 916, 864, 1108: rsa-sha2, ed25519 and formats.
func TestKeyFormatsLogIn(t *testing.T) {
	rsaKey := sshd.Key(t, sshd.RSA).(*rsa.PrivateKey)
	ecKey := sshd.Key(t, sshd.ECDSA).(*ecdsa.PrivateKey)
	edKey := sshd.Key(t, sshd.ED25519)
	p384 := must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))
	for name, tc := range map[string]struct {
		reason string
		key    crypto.Signer
		pem    []byte
	}{
		"OpenSSH ed25519":       {"ssh-keygen's default", edKey, sshd.PEM(t, edKey)},
		"OpenSSH ecdsa":         {"ssh-keygen -t ecdsa", ecKey, sshd.PEM(t, ecKey)},
		"OpenSSH rsa":           {"ssh-keygen -t rsa", rsaKey, sshd.PEM(t, rsaKey)},
		"PKCS#1 rsa":            {"ssh-keygen -m PEM", rsaKey, block("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(rsaKey))},
		"PKCS#8 rsa":            {"openssl genpkey", rsaKey, block("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(rsaKey)))},
		"PKCS#8 ed25519":        {"openssl genpkey -algorithm ed25519", edKey, block("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(edKey)))},
		"PKCS#8 ecdsa":          {"openssl genpkey", p384, block("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(p384)))},
		"SEC1 ecdsa":            {"ssh-keygen -m PEM -t ecdsa", ecKey, block("EC PRIVATE KEY", must(x509.MarshalECPrivateKey(ecKey)))},
		"SEC1 with parameters":  {"openssl ecparam -genkey writes a block before it", ecKey, append(block("EC PARAMETERS", []byte{6, 1, 0}), block("EC PRIVATE KEY", must(x509.MarshalECPrivateKey(ecKey)))...)},
		"CRLF":                  {"edited on Windows", edKey, bytes.ReplaceAll(sshd.PEM(t, edKey), []byte("\n"), []byte("\r\n"))},
		"no newline at the end": {"pasted into a Secret", edKey, bytes.TrimSpace(sshd.PEM(t, edKey))},
		"a byte order mark":     {"edited on Windows", edKey, append([]byte("\ufeff"), sshd.PEM(t, edKey)...)},
		"text before":           {"openssl writes attributes", edKey, append([]byte("Bag Attributes\n\n"), sshd.PEM(t, edKey)...)},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, sshd.Options{
				Users: users(public(t, tc.key)),
				// As OpenSSH: no SHA-1 from anybody.
				Config: func(c *ssh.ServerConfig) {
					c.PublicKeyAuthAlgorithms = []string{ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSASHA512}
				},
			})
			write(t, r.o.KeyFile, tc.pem)
			want{}.check(t, tc.reason, r.dial(t))
		})
	}
}

func TestBadKeyFiles(t *testing.T) {
	edKey := sshd.Key(t, sshd.ED25519)
	ecKey := sshd.Key(t, sshd.ECDSA).(*ecdsa.PrivateKey)
	rsaKey := sshd.Key(t, sshd.RSA).(*rsa.PrivateKey)
	good := sshd.PEM(t, edKey)
	content := func(b []byte) func(t *testing.T, path string) {
		return func(t *testing.T, path string) { t.Helper(); write(t, path, b) }
	}
	legacy := must(x509.EncryptPEMBlock(rand.Reader, "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(rsaKey), []byte("s3cret-canary"), x509.PEMCipherAES256)) //nolint:staticcheck // files such as this exist
	material := func(class fault.Class, says ...string) want { return want{link.StageMaterial, class, says} }
	for name, tc := range map[string]struct {
		reason string
		put    func(t *testing.T, path string)
		want   want
	}{
		"missing":           {"the Secret may come later", func(t *testing.T, path string) {}, material(fault.Transient, "does not exist", "Secret")},
		"dangling link":     {"a Secret's key that is not there", func(t *testing.T, path string) { t.Helper(); check(t, os.Symlink(path+"-gone", path)) }, material(fault.Transient, "does not exist")},
		"missing folder":    {"the Secret is not mounted yet", func(t *testing.T, path string) {}, material(fault.Transient, "does not exist")},
		"directory":         {"keyFile names the mount", func(t *testing.T, path string) { t.Helper(); check(t, os.Mkdir(path, 0o755)) }, material(fault.Permanent, "is a directory", "name the file in it")},
		"below a file":      {"a path through a file", func(t *testing.T, path string) { t.Helper(); write(t, path+"-f", nil) }, material(fault.Permanent, "cannot be read", "not a directory")},
		"a loop of links":   {"links that lead to themselves", func(t *testing.T, path string) { t.Helper(); check(t, os.Symlink(path, path)) }, material(fault.Permanent, "cannot be read")},
		"a pipe":            {"opening it would block", func(t *testing.T, path string) { t.Helper(); check(t, syscall.Mkfifo(path, 0o600)) }, material(fault.Permanent, "no regular file")},
		"empty":             {"touch", content(nil), material(fault.Permanent, "is empty")},
		"blank":             {"only space", content([]byte(" \n\n\t")), material(fault.Permanent, "is empty")},
		"no PEM":            {"another file", content([]byte("hello\n")), material(fault.Permanent, "no PEM block")},
		"public key":        {"the .pub file", content(ssh.MarshalAuthorizedKey(public(t, edKey))), material(fault.Permanent, "a public key", ".pub")},
		"ecdsa public key":  {"the .pub file", content(ssh.MarshalAuthorizedKey(public(t, ecKey))), material(fault.Permanent, "a public key")},
		"PuTTY":             {"PuTTY's own format", content([]byte("PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\n")), material(fault.Permanent, "PuTTY", "puttygen")},
		"PEM public key":    {"openssl pkey -pubout", content(block("PUBLIC KEY", must(x509.MarshalPKIXPublicKey(ecKey.Public())))), material(fault.Permanent, "no private key", "PUBLIC KEY")},
		"certificate":       {"a TLS certificate", content(block("CERTIFICATE", []byte{1, 2, 3})), material(fault.Permanent, "no private key", "CERTIFICATE")},
		"truncated":         {"cut off when it was copied", content(good[:len(good)/2]), material(fault.Permanent, "damaged PEM block")},
		"on one line":       {"newlines lost when it was pasted", content(bytes.ReplaceAll(good, []byte("\n"), []byte(" "))), material(fault.Permanent, "damaged PEM block")},
		"damaged":           {"bytes changed", content(block("OPENSSH PRIVATE KEY", []byte("openssh-key-v1\x00garbage"))), material(fault.Permanent, "does not parse", "OPENSSH PRIVATE KEY")},
		"foreign block":     {"a key of something else", content(block("PGP PRIVATE KEY", []byte{1, 2, 3})), material(fault.Permanent, "does not parse", "PGP PRIVATE KEY")},
		"DSA":               {"ssh-keygen -t dsa of old", content(dsaPEM(t)), material(fault.Permanent, "does not parse", "DSA PRIVATE KEY")},
		"X25519":            {"no key for signatures", content(block("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(must(ecdh.X25519().GenerateKey(rand.Reader)))))), material(fault.Permanent, "kind of key")},
		"P-224":             {"a curve that SSH has not", content(block("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(must(ecdsa.GenerateKey(elliptic.P224(), rand.Reader)))))), material(fault.Permanent, "kind of key")},
		"encrypted OpenSSH": {"terraform-provider-libvirt 864", content(encryptedPEM(t, edKey)), material(fault.Permanent, "passphrase", "ssh-keygen -p")},
		"encrypted PEM":     {"ssh-keygen -m PEM with a passphrase", content(pem.EncodeToMemory(legacy)), material(fault.Permanent, "passphrase")},
		"encrypted PKCS#8":  {"openssl genpkey -aes256", content(block("ENCRYPTED PRIVATE KEY", []byte{1, 2, 3})), material(fault.Permanent, "passphrase")},
		"too large":         {"an image in its place", content(bytes.Repeat([]byte("x"), 65<<10)), material(fault.Permanent, "larger than 64 KiB")},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, sshd.Options{})
			check(t, os.Remove(r.o.KeyFile))
			tc.put(t, r.o.KeyFile)
			switch name {
			case "missing folder":
				r.o.KeyFile = filepath.Join(t.TempDir(), "none", "id")
			case "below a file":
				r.o.KeyFile += "-f/id"
			}
			err := r.dial(t)
			tc.want.check(t, tc.reason, err)
			if err != nil && !strings.Contains(err.Error(), r.o.KeyFile) {
				t.Errorf("it does not name the file: %v", err)
			}
			if r.Accepted() != 0 {
				t.Error("the host was dialled without a key")
			}
			if w := sshdial.New(r.o).Warnings(); len(w) != 1 || !strings.Contains(w[0], r.o.KeyFile) || !strings.Contains(err.Error(), w[0]) {
				t.Errorf("warnings at construction: %q", w)
			}
		})
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func encryptedPEM(t *testing.T, key crypto.Signer) []byte {
	t.Helper()
	return pem.EncodeToMemory(must(ssh.MarshalPrivateKeyWithPassphrase(key, "c", []byte("s3cret-canary"))))
}

func dsaPEM(t *testing.T) []byte {
	t.Helper()
	var k dsa.PrivateKey
	check(t, dsa.GenerateParameters(&k.Parameters, rand.Reader, dsa.L1024N160))
	check(t, dsa.GenerateKey(&k, rand.Reader))
	return block("DSA PRIVATE KEY", must(asn1.Marshal(struct {
		Version       int
		P, Q, G, Y, X *big.Int
	}{0, k.P, k.Q, k.G, k.Y, k.X})))
}

// A file that this process may not read is Permanent: waiting does not help.
func TestUnreadableFiles(t *testing.T) {
	r := newRig(t, sshd.Options{})
	for name, tc := range map[string]struct {
		reason string
		path   string
		mode   os.FileMode
		want   want
	}{
		"readable":    {"as Secrets are mounted", r.o.KeyFile, 0o644, want{}},
		"key":         {"owned by another user", r.o.KeyFile, 0, want{link.StageMaterial, fault.Permanent, []string{"cannot be read by this process's user", r.o.KeyFile}}},
		"known_hosts": {"owned by another user", r.o.KnownHostsFile, 0, want{link.StageMaterial, fault.Permanent, []string{"cannot be read by this process's user", r.o.KnownHostsFile}}},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, os.Chmod(tc.path, tc.mode))
			t.Cleanup(func() { check(t, os.Chmod(tc.path, 0o644)) })
			bound(t, func() { tc.want.check(t, tc.reason, r.dial(t)) }, r.o.KeyFile, r.o.KnownHostsFile)
		})
	}
}

func TestBadKnownHostsFiles(t *testing.T) {
	r := newRig(t, sshd.Options{})
	line := strings.TrimSpace(r.KnownHosts())
	long := strings.Repeat("x", 70<<10)
	for name, tc := range map[string]struct {
		reason string
		put    func(t *testing.T, path string)
		want   want
	}{
		"missing":         {"the Secret may come later", func(t *testing.T, path string) {}, want{link.StageMaterial, fault.Transient, []string{"does not exist"}}},
		"directory":       {"knownHostsFile names the mount", func(t *testing.T, path string) { t.Helper(); check(t, os.Mkdir(path, 0o755)) }, want{link.StageMaterial, fault.Permanent, []string{"is a directory"}}},
		"all malformed":   {"another file", func(t *testing.T, path string) { t.Helper(); write(t, path, []byte("# x\nnothing\n")) }, want{link.StageMaterial, fault.Permanent, []string{"line 2", "HOSTS KEYTYPE KEY"}}},
		"too large":       {"another file", func(t *testing.T, path string) { t.Helper(); write(t, path, bytes.Repeat([]byte("#\n"), 1<<20)) }, want{link.StageMaterial, fault.Permanent, []string{"larger than 1024 KiB"}}},
		"an endless line": {"it cannot be read past it", func(t *testing.T, path string) { t.Helper(); write(t, path, []byte(line+"\n"+long+"\n")) }, want{link.StageMaterial, fault.Permanent, []string{"line 2", "longer than 64 KiB"}}},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, os.RemoveAll(r.o.KnownHostsFile))
			tc.put(t, r.o.KnownHostsFile)
			err := r.dial(t)
			tc.want.check(t, tc.reason, err)
			if err != nil && !strings.Contains(err.Error(), r.o.KnownHostsFile) {
				t.Errorf("it does not name the file: %v", err)
			}
			if w := sshdial.New(r.o).Warnings(); len(w) != 1 || !strings.Contains(err.Error(), w[0]) {
				t.Errorf("warnings: %q", w)
			}
			check(t, os.RemoveAll(r.o.KnownHostsFile))
		})
	}
}

func TestNoFilesConfigured(t *testing.T) {
	d := sshdial.New(sshdial.Options{Hosts: map[string]sshdial.Host{"box-1": {Address: "192.0.2.5"}}, Open: open})
	_, err := d.Dial(t.Context(), "box-1")
	want{link.StageMaterial, fault.Permanent, []string{"no SSH key file is configured"}}.check(t, "neither", err)
	_, err = d.Dial(t.Context(), "box-9")
	want{link.StageMaterial, fault.Permanent, []string{"box-9", "not in the configuration"}}.check(t, "an unknown host", err)
	if w := d.Warnings(); len(w) != 2 {
		t.Errorf("%q", w)
	}
}

func TestWarningsNameSkippedLinesAndStrangers(t *testing.T) {
	r := newRig(t, sshd.Options{})
	if w := sshdial.New(r.o).Warnings(); len(w) != 0 {
		t.Errorf("all is well, and it warns: %q", w)
	}
	r.known(t, strings.TrimSpace(r.KnownHosts()), "garbage", "a b c", "x ssh-ed25519 AAAA", "@what a b c", "h ssh-rsa "+strings.Fields(r.KnownHosts())[2],
		"|1|x|y ssh-ed25519 "+strings.Fields(r.KnownHosts())[2], "more")
	h := r.o.Hosts["box-1"]
	r.o.Hosts = map[string]sshdial.Host{"box-1": h, "box-2": {Address: "192.0.2.6"}}
	w := sshdial.New(r.o).Warnings()
	joined := strings.Join(w, "\n")
	for _, s := range []string{"line 2 ", "line 3 ", "line 4 ", "line 5 ", "line 6 ", "2 more lines", "no entry for box-2 (192.0.2.6:22)", `unknown marker "@what"`, "was it cut off", `it says "ssh-rsa"`} {
		if !strings.Contains(joined, s) {
			t.Errorf("no %q in\n%s", s, joined)
		}
	}
	if len(w) != 7 || strings.Contains(joined, "box-1") {
		t.Errorf("%d warnings:\n%s", len(w), joined)
	}
}

// secretMount is a folder as Kubernetes mounts a Secret: links to a folder that
// is exchanged as a whole, with mode 0644.
type secretMount struct {
	dir string
	n   int
}

func (m *secretMount) put(t *testing.T, files map[string][]byte) {
	t.Helper()
	m.n++
	gen := filepath.Join(m.dir, "..gen"+string(rune('0'+m.n)))
	check(t, os.Mkdir(gen, 0o755))
	for name, data := range files {
		write(t, filepath.Join(gen, name), data)
		// Sizes and times tell nothing.
		check(t, os.Chtimes(filepath.Join(gen, name), epoch, epoch))
		if m.n == 1 {
			check(t, os.Symlink(filepath.Join("..data", name), filepath.Join(m.dir, name)))
		}
	}
	check(t, os.Symlink(filepath.Base(gen), filepath.Join(m.dir, "..tmp")))
	check(t, os.Rename(filepath.Join(m.dir, "..tmp"), filepath.Join(m.dir, "..data")))
}

func newPool(t *testing.T, o sshdial.Options) *link.Pool {
	t.Helper()
	p := link.New(link.Options{Hosts: []string{"box-1"}, Dialer: sshdial.New(o), Log: o.Log})
	t.Cleanup(func() { check(t, p.Close()) })
	return p
}

func call(t *testing.T, p *link.Pool) error {
	t.Helper()
	return p.Call(t.Context(), "box-1", func(context.Context, virt.Conn) error { return nil })
}

// 20-kvm: a Secret that is created later heals without a restart, at once.
func TestSecretCreatedLate(t *testing.T) {
	r := newRig(t, sshd.Options{})
	m := &secretMount{dir: t.TempDir()}
	r.o.KeyFile, r.o.KnownHostsFile = filepath.Join(m.dir, "id"), filepath.Join(m.dir, "known_hosts")
	p := newPool(t, r.o)
	for range 3 {
		err := call(t, p)
		if fault.Of(err) != fault.Transient || !strings.Contains(err.Error(), r.o.KeyFile) {
			t.Fatalf("before the Secret: %v", err)
		}
	}
	m.put(t, map[string][]byte{"id": r.ClientKey(), "known_hosts": []byte(r.KnownHosts())})
	if err := call(t, p); err != nil {
		t.Errorf("with the Secret: %v", err)
	}
	if n := strings.Count(r.log.String(), "cannot be reached"); n != 1 {
		t.Errorf("the missing Secret was logged %d times, want once:\n%s", n, r.log)
	}
}

// 20-kvm: a rotated Secret is picked up: a new key and new host keys, while it
// runs, at once and also right after a refusal.
func TestSecretRotated(t *testing.T) {
	r := newRig(t, sshd.Options{})
	m := &secretMount{dir: t.TempDir()}
	r.o.KeyFile, r.o.KnownHostsFile = filepath.Join(m.dir, "id"), filepath.Join(m.dir, "known_hosts")
	m.put(t, map[string][]byte{"id": r.ClientKey(), "known_hosts": []byte(r.KnownHosts())})
	p := newPool(t, r.o)
	if err := call(t, p); err != nil {
		t.Fatal(err)
	}

	next := sshd.Key(t, sshd.ED25519)
	r.SetUsers(users(public(t, next)))
	r.SetHostKeys(sshd.Signer(t, sshd.ECDSA))
	if err := call(t, p); err != nil {
		t.Errorf("the link that is open does not care: %v", err)
	}
	redial := func(what string, class fault.Class, text string) {
		t.Helper()
		r.Drop()
		var err error
		eventually(t, "a redial", func() bool { err = call(t, p); return err != nil })
		if fault.Of(err) != class || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", what, err)
		}
	}
	redial("new host keys, old known_hosts", fault.Permanent, "is not the one in known_hosts")
	m.put(t, map[string][]byte{"id": r.ClientKey(), "known_hosts": []byte(r.KnownHosts())})
	if err := call(t, p); fault.Of(err) != fault.Permanent || !strings.Contains(err.Error(), "does not let user") {
		t.Errorf("new known_hosts, old key: %v", err)
	}
	m.put(t, map[string][]byte{"id": sshd.PEM(t, next), "known_hosts": []byte(r.KnownHosts())})
	if err := call(t, p); err != nil {
		t.Errorf("all new: %v", err)
	}
	if p.Generation("box-1") != 2 {
		t.Errorf("generation %d, want 2", p.Generation("box-1"))
	}
}

// 20-kvm: cached once it works. A file that is away for a moment, while a
// Secret is replaced, does not fail a dial; one with another content counts.
func TestMaterialThatWorkedIsKeptWhileItsFileIsMissing(t *testing.T) {
	r := newRig(t, sshd.Options{})
	d := sshdial.New(r.o)
	dial := func() error {
		l, err := d.Dial(t.Context(), "box-1")
		if err == nil {
			l.Close()
		}
		return err
	}
	check(t, dial())
	check(t, os.Remove(r.o.KeyFile))
	check(t, os.Remove(r.o.KnownHostsFile))
	check(t, dial())
	write(t, r.o.KeyFile, []byte("broken"))
	want{link.StageMaterial, fault.Permanent, []string{"no PEM block"}}.check(t, "broken", dial())
	write(t, r.o.KeyFile, r.ClientKey())
	r.known(t, "# nothing")
	want{link.StageSSH, fault.Permanent, []string{"is not in known_hosts"}}.check(t, "emptied", dial())
}

func TestStampChangesWithContentAlone(t *testing.T) {
	r := newRig(t, sshd.Options{})
	d := sshdial.New(r.o)
	first := d.Stamp()
	check(t, os.Chtimes(r.o.KeyFile, epoch, epoch))
	if d.Stamp() != first {
		t.Error("it changes with times")
	}
	seen := []string{first}
	for what, change := range map[string]func(){
		"another key":         func() { write(t, r.o.KeyFile, []byte("x")) },
		"another known_hosts": func() { write(t, r.o.KnownHostsFile, []byte("x")) },
		"no key":              func() { check(t, os.Remove(r.o.KeyFile)) },
	} {
		change()
		if s := d.Stamp(); slices.Contains(seen, s) {
			t.Errorf("%s is not seen", what)
		} else {
			seen = append(seen, s)
		}
	}
}

// No error, warning or log line holds a part of a key or a passphrase.
func TestNoSecretIsTold(t *testing.T) {
	edKey, rsaKey := sshd.Key(t, sshd.ED25519), sshd.Key(t, sshd.RSA).(*rsa.PrivateKey)
	whole := sshd.PEM(t, edKey)
	r := newRig(t, sshd.Options{})
	for name, data := range map[string][]byte{
		"refused":        whole,
		"refused rsa":    block("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(rsaKey)),
		"truncated":      whole[:len(whole)-60],
		"on one line":    bytes.ReplaceAll(whole, []byte("\n"), []byte(" ")),
		"without a head": bytes.Join(bytes.Split(whole, []byte("\n"))[1:], []byte("\n")),
		"wrong kind":     bytes.ReplaceAll(whole, []byte("OPENSSH"), []byte("RSA")),
		"wrong kind 2":   bytes.ReplaceAll(whole, []byte("OPENSSH "), nil),
		"encrypted":      encryptedPEM(t, edKey),
		"as known_hosts": nil,
	} {
		t.Run(name, func(t *testing.T) {
			secret := data
			if data == nil {
				secret = whole
				write(t, r.o.KeyFile, r.ClientKey())
				write(t, r.o.KnownHostsFile, append([]byte(r.KnownHosts()), whole...))
				defer write(t, r.o.KnownHostsFile, []byte(r.KnownHosts()))
				r.SetHostKeys(sshd.Signer(t, sshd.ED25519))
			} else {
				write(t, r.o.KeyFile, data)
			}
			err := r.dial(t)
			if err == nil {
				t.Fatal("no error")
			}
			p := newPool(t, r.o)
			told := err.Error() + strings.Join(sshdial.New(r.o).Warnings(), "\n") + r.log.String()
			if perr := call(t, p); perr != nil {
				told += perr.Error()
			}
			told += r.log.String()
			for _, f := range strings.Fields(string(secret)) {
				if len(f) >= 16 && !strings.Contains(f, "-----") && strings.Contains(told, f[:16]) {
					t.Errorf("%.6s… of the key is told: %s", f, told)
				}
			}
			for _, f := range []string{"s3cret-canary", "PRIVATE KEY-----\n"} {
				if strings.Contains(told, f) {
					t.Errorf("%q is told", f)
				}
			}
		})
	}
}
