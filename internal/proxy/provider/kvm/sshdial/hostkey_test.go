package sshdial_test

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/link"
	"fleetdesk/internal/proxy/provider/kvm/sshdial"
	"fleetdesk/internal/testkit/sshd"
)

// keyText is the type and the base64 of a key, as a line ends with.
func keyText(k ssh.PublicKey) string {
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(k)))
}

func hostCert(t *testing.T, key, ca ssh.Signer, change func(c *ssh.Certificate)) ssh.Signer {
	t.Helper()
	c := &ssh.Certificate{
		Key: key.PublicKey(), CertType: ssh.HostCert, ValidPrincipals: []string{"127.0.0.1"},
		ValidAfter: uint64(time.Now().Add(-time.Hour).Unix()), ValidBefore: uint64(time.Now().Add(time.Hour).Unix()),
	}
	if change != nil {
		change(c)
	}
	check(t, c.SignCert(rand.Reader, ca))
	return must(ssh.NewCertSigner(c, key))
}

// What known_hosts may hold for a host with keys of three kinds. Among them is
// golang/go 29286: a mismatch although known_hosts has the host's other key.
func TestKnownHosts(t *testing.T) {
	ed, ec, rs := sshd.Signer(t, sshd.ED25519), sshd.Signer(t, sshd.ECDSA), sshd.Signer(t, sshd.RSA)
	ed2, ec2, rs2, ca := sshd.Signer(t, sshd.ED25519), sshd.Signer(t, sshd.ECDSA), sshd.Signer(t, sshd.RSA), sshd.Signer(t, sshd.ED25519)
	all := []ssh.Signer{ed, ec, rs}
	good := want{}
	refused := func(says ...string) want { return want{link.StageSSH, fault.Permanent, says} }
	fp := func(s ssh.Signer) string { return ssh.FingerprintSHA256(s.PublicKey()) }
	for name, tc := range map[string]struct {
		reason string
		keys   []ssh.Signer
		// lines are known_hosts; ADDR stands for [127.0.0.1]:port, PORT for the port.
		lines []string
		want  want
	}{
		"ed25519 alone":               {"the host has others too", all, []string{"ADDR " + keyText(ed.PublicKey())}, good},
		"ecdsa alone (go 29286)":      {"the host's other key", all, []string{"ADDR " + keyText(ec.PublicKey())}, good},
		"rsa alone (go 29286)":        {"ssh-rsa is a key type; the algorithm is rsa-sha2", all, []string{"ADDR " + keyText(rs.PublicKey())}, good},
		"all three":                   {"ssh-keyscan", all, []string{"ADDR " + keyText(ed.PublicKey()), "ADDR " + keyText(ec.PublicKey()), "ADDR " + keyText(rs.PublicKey())}, good},
		"two of a kind":               {"a key that is being replaced", all, []string{"ADDR " + keyText(ed2.PublicKey()), "ADDR " + keyText(ed.PublicKey())}, good},
		"hashed":                      {"ssh's HashKnownHosts", all, []string{"HASH " + keyText(rs.PublicKey())}, good},
		"several hosts on a line":     {"as ssh writes it", all, []string{"box-1.example.com,ADDR,192.0.2.1 " + keyText(ec.PublicKey())}, good},
		"a pattern":                   {"a whole network", all, []string{"[127.*]:PORT " + keyText(ed.PublicKey())}, good},
		"a pattern for every host":    {"of this port", all, []string{"[*]:PORT " + keyText(ed.PublicKey())}, good},
		"a comment at the end":        {"as ssh-keygen writes it", all, []string{"ADDR " + keyText(ed.PublicKey()) + " root@box-1"}, good},
		"tabs and blanks":             {"typed by hand", all, []string{"", "  # box", "\tADDR\t" + strings.ReplaceAll(keyText(ed.PublicKey()), " ", " \t ") + "  "}, good},
		"CRLF":                        {"edited on Windows", all, []string{"ADDR " + keyText(ed.PublicKey()) + "\r", "\r"}, good},
		"one malformed line":          {"must not make the file unusable", all, []string{"garbage line here", "ADDR " + keyText(ed.PublicKey())}, good},
		"malformed line of the host":  {"the next one counts", all, []string{"ADDR ssh-ed25519 AAAA", "ADDR " + keyText(ed.PublicKey())}, good},
		"empty":                       {"every host is unknown; the wanted line is told", all, nil, refused("is not in known_hosts", "ADDR "+keyText(ed.PublicKey()), fp(ed), "ssh-keygen -lf", "ed25519")},
		"another host's":              {"issue 5: known_hosts of another host", all, []string{"[192.0.2.5]:PORT " + keyText(ed.PublicKey())}, refused("is not in known_hosts", "ADDR "+keyText(ed.PublicKey()), fp(ed))},
		"negated":                     {"excluded by the pattern", all, []string{"[127.*]:PORT,!ADDR " + keyText(ed.PublicKey())}, refused("is not in known_hosts")},
		"without the port":            {"a bare name is for port 22", all, []string{"127.0.0.1 " + keyText(ed.PublicKey())}, refused("is not in known_hosts", "without the port", "ADDR "+keyText(ed.PublicKey()))},
		"with another port":           {"another server", all, []string{"[127.0.0.1]:1 " + keyText(ed.PublicKey())}, refused("is not in known_hosts")},
		"only rsa on the host":        {"the wanted line has the key that the host has", []ssh.Signer{rs}, nil, refused("ADDR "+keyText(rs.PublicKey()), fp(rs), "ssh_host_rsa_key.pub")},
		"only ecdsa on the host":      {"the wanted line has the key that the host has", []ssh.Signer{ec}, nil, refused("ADDR "+keyText(ec.PublicKey()), "ssh_host_ecdsa_key.pub")},
		"mismatch":                    {"an attack, or a host installed anew", all, []string{"# x", "ADDR " + keyText(ed2.PublicKey())}, refused("line 2", "FILE", fp(ed2), fp(ed), "attack", "installed anew", "ADDR "+keyText(ed.PublicKey()))},
		"mismatch of rsa":             {"the other keys do not help", all, []string{"ADDR " + keyText(rs2.PublicKey())}, refused("line 1", "ssh-rsa", fp(rs2), fp(rs))},
		"mismatch, same kind first":   {"the line of the kind that the host showed", []ssh.Signer{rs}, []string{"ADDR " + keyText(ec2.PublicKey()), "ADDR " + keyText(rs2.PublicKey())}, refused("line 2", fp(rs2))},
		"the known kind is gone":      {"installed anew with other kinds of keys", []ssh.Signer{rs}, []string{"ADDR " + keyText(ed2.PublicKey())}, refused("line 1 has the ssh-ed25519 key "+fp(ed2), "shows the ssh-rsa key "+fp(rs))},
		"revoked":                     {"never again", []ssh.Signer{ed}, []string{"@revoked * " + keyText(ed.PublicKey()), "ADDR " + keyText(ed.PublicKey())}, refused("@revoked", "line 1", fp(ed))},
		"revoked, another is good":    {"the host's other key counts", all, []string{"@revoked * " + keyText(ed.PublicKey()), "ADDR " + keyText(ed.PublicKey()), "ADDR " + keyText(rs.PublicKey())}, good},
		"certificate":                 {"@cert-authority", []ssh.Signer{hostCert(t, ed, ca, nil), rs}, []string{"@cert-authority [127.*]:PORT " + keyText(ca.PublicKey())}, good},
		"certificate of rsa":          {"rsa-sha2 certificates", []ssh.Signer{hostCert(t, rs, ca, nil)}, []string{"@cert-authority ADDR " + keyText(ca.PublicKey())}, good},
		"certificate and key":         {"both lines, the host has the key alone", []ssh.Signer{ec}, []string{"@cert-authority ADDR " + keyText(ca.PublicKey()), "ADDR " + keyText(ec.PublicKey())}, good},
		"certificate, unasked":        {"a host with a certificate is known by its key", []ssh.Signer{hostCert(t, ed, ca, nil), ed}, []string{"ADDR " + keyText(ed.PublicKey())}, good},
		"certificate of another":      {"signed by a stranger", []ssh.Signer{hostCert(t, ed, ed2, nil)}, []string{"@cert-authority ADDR " + keyText(ca.PublicKey())}, refused("host certificate", fp(ed2))},
		"certificate, expired":        {"its time is over", []ssh.Signer{hostCert(t, ed, ca, func(c *ssh.Certificate) { c.ValidBefore = c.ValidAfter + 60 })}, []string{"@cert-authority ADDR " + keyText(ca.PublicKey())}, refused("host certificate", "expired")},
		"certificate of another name": {"made for another host", []ssh.Signer{hostCert(t, ed, ca, func(c *ssh.Certificate) { c.ValidPrincipals = []string{"box-2"} })}, []string{"@cert-authority ADDR " + keyText(ca.PublicKey())}, refused("host certificate")},
		"certificate, revoked":        {"its key is revoked", []ssh.Signer{hostCert(t, ed, ca, nil)}, []string{"@cert-authority ADDR " + keyText(ca.PublicKey()), "@revoked * " + keyText(ed.PublicKey())}, refused("host certificate", "revoked")},
		"certificate wanted":          {"the host has none", []ssh.Signer{ec}, []string{"@cert-authority ADDR " + keyText(ca.PublicKey())}, refused("is not in known_hosts", "certificate authority", "ADDR "+keyText(ec.PublicKey()))},
		"the authority's own key":     {"an authority is no host", []ssh.Signer{ca}, []string{"@cert-authority ADDR " + keyText(ca.PublicKey())}, refused("is not in known_hosts", "certificate authority")},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, sshd.Options{HostKeys: tc.keys})
			_, port, _ := net.SplitHostPort(r.Addr())
			put := strings.NewReplacer("ADDR", "[127.0.0.1]:"+port, "PORT", port, "HASH", knownhosts.HashHostname("[127.0.0.1]:"+port), "FILE", r.o.KnownHostsFile)
			var lines []string
			for _, l := range tc.lines {
				lines = append(lines, put.Replace(l))
			}
			r.known(t, lines...)
			for i, s := range tc.want.says {
				tc.want.says[i] = put.Replace(s)
			}
			err := r.dial(t)
			tc.want.check(t, tc.reason, err)
			if err != nil && !strings.Contains(err.Error(), r.o.KnownHostsFile) {
				t.Errorf("it does not name the file: %v", err)
			}
			if strings.Contains(name, "malformed line") && !strings.Contains(r.log.String(), "line 1 of known_hosts file") {
				t.Errorf("the skipped line is not told:\n%s", r.log)
			}
		})
	}
}

// A mismatch names the line of the kind that the host showed, and no other.
func TestMismatchNamesTheLineThatDiffers(t *testing.T) {
	rs, rs2, ec2 := sshd.Signer(t, sshd.RSA), sshd.Signer(t, sshd.RSA), sshd.Signer(t, sshd.ECDSA)
	r := newRig(t, sshd.Options{HostKeys: []ssh.Signer{rs}})
	addr := knownhosts.Normalize(r.Addr())
	r.known(t, addr+" "+keyText(ec2.PublicKey()), addr+" "+keyText(rs2.PublicKey()))
	err := r.dial(t)
	want{link.StageSSH, fault.Permanent, []string{"line 2"}}.check(t, "the rsa line", err)
	if strings.Contains(err.Error(), "line 1") {
		t.Errorf("the ecdsa line is not what differs: %v", err)
	}
}

// terraform-provider-libvirt 944: the wanted line is told, in the exact form
// that the file needs: adding it heals.
func TestTheWantedLineHeals(t *testing.T) {
	for _, kind := range []string{sshd.ED25519, sshd.ECDSA, sshd.RSA} {
		r := newRig(t, sshd.Options{HostKeys: []ssh.Signer{sshd.Signer(t, kind)}})
		r.known(t, "# nothing")
		err := r.dial(t)
		if err == nil {
			t.Fatal("an unknown host is trusted")
		}
		_, rest, ok := strings.Cut(err.Error(), "The line wanted is: ")
		line, _, ok2 := strings.Cut(rest, " (")
		if !ok || !ok2 {
			t.Fatalf("no line: %v", err)
		}
		r.known(t, line)
		if err := r.dial(t); err != nil {
			t.Errorf("%s: with the line %q: %v", kind, line, err)
		}
	}
}

func TestHostKeyAlgorithms(t *testing.T) {
	ed, ec, rs := sshd.Signer(t, sshd.ED25519), sshd.Signer(t, sshd.ECDSA), sshd.Signer(t, sshd.RSA)
	h := sshdial.Host{Address: "Box-1.example.com", Port: 22}
	v6 := sshdial.Host{Address: "2001:db8::5", Port: 22}
	for name, tc := range map[string]struct {
		reason string
		host   sshdial.Host
		lines  []string
		first  []string
	}{
		"unknown host":   {"the shortest key to compare", h, nil, []string{"ssh-ed25519"}},
		"rsa":            {"SHA-2 alone, before all others", h, []string{"Box-1.example.com " + keyText(rs.PublicKey())}, []string{"rsa-sha2-512", "rsa-sha2-256", "ssh-ed25519"}},
		"in their order": {"as in the file", h, []string{"Box-1.example.com " + keyText(ec.PublicKey()), "Box-1.example.com " + keyText(ed.PublicKey())}, []string{"ecdsa-sha2-nistp256", "ssh-ed25519"}},
		"lower case":     {"ssh writes names in lower case", h, []string{"box-1.example.com " + keyText(rs.PublicKey())}, []string{"rsa-sha2-512"}},
		"hashed":         {"lower case too", h, []string{knownhosts.HashHostname("box-1.example.com") + " " + keyText(ec.PublicKey())}, []string{"ecdsa-sha2-nistp256"}},
		"IPv6":           {"without brackets on port 22", v6, []string{"2001:db8::5 " + keyText(ec.PublicKey())}, []string{"ecdsa-sha2-nistp256"}},
		"revoked":        {"not asked for first", h, []string{"@revoked * " + keyText(rs.PublicKey()), "Box-1.example.com " + keyText(rs.PublicKey())}, []string{"ssh-ed25519"}},
		"another host's": {"does not count", h, []string{"box-2.example.com " + keyText(rs.PublicKey())}, []string{"ssh-ed25519"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir() + "/kh"
			write(t, path, []byte(strings.Join(tc.lines, "\n")+"\n"))
			got, err := sshdial.Algorithms(path, tc.host)
			check(t, err)
			if fmt.Sprint(got[:len(tc.first)]) != fmt.Sprint(tc.first) {
				t.Errorf("%s: %v, want %v first", tc.reason, got, tc.first)
			}
			seen := map[string]bool{}
			for _, a := range got {
				if seen[a] || a == ssh.KeyAlgoRSA || strings.Contains(a, "cert") {
					t.Errorf("%q is asked for: %v", a, got)
				}
				seen[a] = true
			}
			for _, a := range []string{"ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512"} {
				if !seen[a] {
					t.Errorf("%q is missing: a host with such a key alone could not be named", a)
				}
			}
		})
	}
}

// Package knownhosts reads the file itself. When the file is exchanged in that
// moment, what it read and what was looked at beside it must be the same.
func TestKnownHostsThatChangesWhileItIsRead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "known_hosts")
	h := sshdial.Host{Address: "192.0.2.5", Port: 22}
	var lines, blobs [2]string
	for i := range lines {
		k := sshd.Signer(t, sshd.ED25519).PublicKey()
		lines[i], blobs[i] = "192.0.2.5 "+keyText(k), string(k.Marshal())
	}
	var keys sync.Map // digest -> key
	put := func(i int) {
		// Never the same content twice.
		data := fmt.Appendf(nil, "# %d\n%s\n", i, lines[i%2])
		keys.Store(sha256.Sum256(data), blobs[i%2])
		write(t, path+".new", data)
		check(t, os.Rename(path+".new", path))
	}
	put(0)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 1; ; i++ {
			select {
			case <-stop:
				return
			default:
				put(i)
			}
		}
	})
	for range 500 {
		sum, key, err := sshdial.KnownKey(path, h)
		if err != nil {
			if fault.Of(err) != fault.Transient {
				t.Error(err)
			}
			continue
		}
		if want, _ := keys.Load(sum); want != key {
			t.Error("the key is of another content than the digest")
			break
		}
	}
	close(stop)
	wg.Wait()
}

func FuzzKnownHosts(f *testing.F) {
	ed := "[192.0.2.5]:2222 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKvhpd9TdBVFvYTl8AsdOUJpYGpXkQNbgbOEJHHhGMUA"
	for _, s := range []string{
		ed, ed + "\r\n", "@revoked * " + ed[len("[192.0.2.5]:2222 "):], "@cert-authority *.example.com " + ed[len("[192.0.2.5]:2222 "):], "# x\n\n" + ed + "\ngarbage",
		"@revoked [x " + ed[len("[192.0.2.5]:2222 "):], "[x " + ed[len("[192.0.2.5]:2222 "):], "!, " + ed[len("[192.0.2.5]:2222 "):],
		"|1|AAAA|BBBB ssh-ed25519 AAAA", "!", "a,!,b c d", "[x c d", "@a b c d", "@revoked", "\x00\xff", "a b AAAA=", "a ssh-rsa " + ed[len("[192.0.2.5]:2222 ssh-ed25519 "):],
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, content string) {
		if len(content) > 4<<10 {
			return
		}
		path := t.TempDir() + "/kh"
		write(t, path, []byte(content))
		if _, err := sshdial.CheckKnownHosts(path); err != nil && (!fault.Classed(err) || strings.ContainsAny(err.Error(), "\n\r\x00\x1b")) {
			t.Errorf("%q", err)
		}
		// What is told to be skipped is what package knownhosts skips.
		line, _, _ := strings.Cut(content, "\n")
		line = strings.Trim(strings.TrimSuffix(line, "\r"), " \t")
		if line == "" || line[0] == '#' {
			return
		}
		write(t, path, []byte(line+"\n"))
		_, theirs := knownhosts.New(path)
		if ours := sshdial.ScanLine(line); (ours == nil) != (theirs == nil) {
			t.Errorf("%q: %v here, %v in package knownhosts", line, ours, theirs)
		}
	})
}

func FuzzParseKey(f *testing.F) {
	f.Add([]byte("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n"))
	f.Add([]byte("-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nAAAA\n-----END EC PRIVATE KEY-----"))
	f.Add([]byte("ssh-ed25519 AAAA"))
	f.Add([]byte("\ufeff \n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 8<<10 {
			return
		}
		if err := sshdial.ParseKey(data); err != nil && (fault.Of(err) != fault.Permanent || len(err.Error()) > 2<<10 || strings.ContainsAny(err.Error(), "\n\r\x00\x1b")) {
			t.Errorf("%s: %q", fault.Of(err), err)
		}
	})
}
