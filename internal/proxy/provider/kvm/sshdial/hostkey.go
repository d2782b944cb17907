package sshdial

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"fleetdesk/internal/core/fault"
)

// hostCheck verifies the key of one host during one connection, also when keys
// are exchanged again.
type hostCheck struct {
	known *knownHosts
	host  Host
	// addr is the spelling that known_hosts has.
	addr string
	want []knownhosts.KnownKey

	mu      sync.Mutex
	passed  bool
	refused error
}

func (k *knownHosts) checker(h Host) *hostCheck {
	c := &hostCheck{known: k, host: h}
	c.addr, c.want = k.want(h.addr())
	return c
}

// verdict returns whether a key was accepted, or the last refusal.
func (c *hostCheck) verdict() (passed bool, refused error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.passed, c.refused
}

// algorithms are the host key algorithms to ask for: those of the keys that
// known_hosts has for the host come first, since the server may have keys of
// other kinds too and shows one of the first kind that both sides have. The
// others follow, so that a host without a known key still shows one, to be
// named in the error. SHA-1 is never among them.
func (c *hostCheck) algorithms() []string {
	var certs, plain []string
	for _, a := range ssh.SupportedAlgorithms().HostKeys {
		if strings.Contains(a, "-cert-") {
			certs = append(certs, a)
		} else {
			plain = append(plain, a)
		}
	}
	// What people have in known_hosts is what ssh-keyscan prints; ed25519 is the
	// shortest to compare.
	slices.SortStableFunc(plain, func(a, b string) int { return preference(a) - preference(b) })
	var out []string
	add := func(algorithms ...string) {
		for _, a := range algorithms {
			if !slices.Contains(out, a) {
				out = append(out, a)
			}
		}
	}
	for _, w := range c.want {
		if c.known.authorities[w.Line] {
			add(certs...)
		}
	}
	for _, w := range c.want {
		if c.known.authorities[w.Line] || c.known.revoked(c.addr, w.Key) {
			continue
		}
		if t := w.Key.Type(); t == ssh.KeyAlgoRSA {
			add(ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256)
		} else if slices.Contains(plain, t) {
			add(t)
		}
	}
	add(plain...)
	return out
}

func preference(algorithm string) int {
	switch algorithm {
	case ssh.KeyAlgoED25519:
		return 0
	case ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521:
		return 1
	case ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256:
		return 2
	default:
		return 3
	}
}

// callback is the ssh.HostKeyCallback. The signature of the key has been
// verified when it is called.
func (c *hostCheck) callback(_ string, _ net.Addr, key ssh.PublicKey) error {
	err := c.judge(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.refused = err
		return err
	}
	c.passed = true
	return nil
}

// judge returns nil for the host's key, or why it is refused: Permanent.
func (c *hostCheck) judge(key ssh.PublicKey) error {
	err := c.known.check(c.addr, nowhere, key)
	cert, isCert := key.(*ssh.Certificate)
	if err == nil && (isCert || c.listed(key)) {
		return nil
	}
	if re, ok := errors.AsType[*knownhosts.RevokedError](err); ok {
		return says(fault.Permanent, err, "%s shows a %s key that line %d of %s marks as @revoked (%s): do not trust this host before it has a new key",
			c.host.addr(), key.Type(), re.Revoked.Line, c.known.path, ssh.FingerprintSHA256(key))
	}
	if isCert {
		return says(fault.Permanent, orUnknown(err), "%s shows a host certificate that known_hosts file %s does not accept: %s (signed by the %s key %s)",
			c.host.addr(), c.known.path, reason(orUnknown(err)), cert.SignatureKey.Type(), ssh.FingerprintSHA256(cert.SignatureKey))
	}
	if ke, ok := errors.AsType[*knownhosts.KeyError](err); err != nil && !ok {
		return says(fault.Permanent, err, "the key of %s cannot be looked up in known_hosts file %s: %s", c.host.addr(), c.known.path, reason(err))
	} else if ok && len(ke.Want) > 0 && !c.onlyAuthorities() {
		return c.mismatch(key, ke)
	}
	return c.unknown(key, orUnknown(err))
}

func orUnknown(err error) error {
	if err == nil {
		return &knownhosts.KeyError{}
	}
	return err
}

// listed reports whether a line has this key as a host's own. Package
// knownhosts also takes an authority's key for the host's, which OpenSSH does
// not.
func (c *hostCheck) listed(key ssh.PublicKey) bool {
	return slices.ContainsFunc(c.want, func(w knownhosts.KnownKey) bool {
		return !c.known.authorities[w.Line] && bytes.Equal(w.Key.Marshal(), key.Marshal())
	})
}

func (c *hostCheck) onlyAuthorities() bool {
	return !slices.ContainsFunc(c.want, func(w knownhosts.KnownKey) bool { return !c.known.authorities[w.Line] })
}

// compare is what a person does before trusting a key.
const compare = "compare it first with what the host itself says (there: ssh-keygen -lf /etc/ssh/ssh_host_%s_key.pub)"

// maxLine bounds a wanted line in an error, in bytes; a longer one is named by
// its fingerprint alone.
const maxLine = 4 << 10

// wanted is the line that known_hosts needs for the key.
func (c *hostCheck) wanted(key ssh.PublicKey) string {
	line := knownhosts.Line([]string{c.host.addr()}, key)
	if len(line) > maxLine {
		line = "(too long to show: see ssh-keyscan)"
	}
	return line
}

func (c *hostCheck) unknown(key ssh.PublicKey, cause error) error {
	hint := ""
	switch {
	case len(c.want) > 0:
		hint = "; it has a certificate authority for it, but the host shows a key without a certificate"
	case c.host.Port != DefaultPort && c.known.check(net.JoinHostPort(c.host.Address, strconv.Itoa(DefaultPort)), nowhere, key) == nil:
		hint = "; it has this key for the host without the port, which does not count for port " + strconv.Itoa(c.host.Port)
	}
	return says(fault.Permanent, cause, "the host key of %s is not in known_hosts file %s%s. The line wanted is: %s (the key that the host has just shown, %s; "+compare+", then add the line)",
		c.host.addr(), c.known.path, hint, c.wanted(key), ssh.FingerprintSHA256(key), family(key))
}

func (c *hostCheck) mismatch(key ssh.PublicKey, ke *knownhosts.KeyError) error {
	var same, others []string
	for _, w := range ke.Want {
		if c.known.authorities[w.Line] {
			continue
		}
		text := fmt.Sprintf("line %d has the %s key %s", w.Line, w.Key.Type(), ssh.FingerprintSHA256(w.Key))
		if w.Key.Type() == key.Type() {
			same = append(same, text)
		} else {
			others = append(others, text)
		}
	}
	if len(same) == 0 {
		same = others
	}
	if len(same) > 3 {
		same = append(same[:3], "…")
	}
	return says(fault.Permanent, ke, "the host key of %s is not the one in known_hosts file %s: %s, and the host shows the %s key %s. "+
		"Either the host was installed anew, or somebody sits between and reads along (an attack): "+compare+". If it is the host's, replace that line with: %s",
		c.host.addr(), c.known.path, strings.Join(same, ", "), key.Type(), ssh.FingerprintSHA256(key), family(key), c.wanted(key))
}

// family is the name that OpenSSH's files have for the kind of key.
func family(key ssh.PublicKey) string {
	switch t := key.Type(); {
	case t == ssh.KeyAlgoED25519:
		return "ed25519"
	case t == ssh.KeyAlgoRSA:
		return "rsa"
	case strings.HasPrefix(t, "ecdsa-"):
		return "ecdsa"
	default:
		return "*"
	}
}
