package sshdial

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"strings"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"fleetdesk/internal/core/fault"
)

// knownHosts is a known_hosts file. Verdicts about keys are package
// knownhosts' own; what is read here beside it serves warnings, and the order
// of algorithms.
type knownHosts struct {
	digest [sha256.Size]byte
	path   string
	check  ssh.HostKeyCallback
	// authorities are the numbers of the lines marked @cert-authority.
	authorities map[int]bool
	// warnings name lines that are skipped.
	warnings []string
}

// maxWarnings bounds the lines that are named one by one.
const maxWarnings = 5

// readKnownHosts reads and parses the file. One malformed line is skipped with
// a warning; a file in which every line is malformed is Permanent. An empty one
// is fine: each host is unknown then, and the dial says which line is wanted.
func readKnownHosts(path string) (*knownHosts, error) {
	// Package knownhosts reads the file itself. It must see what is read here.
	for range 3 {
		data, err := readFile(knownHostsKind, path, maxKnownHostsFile)
		if err != nil {
			return nil, err
		}
		k, err := scanKnownHosts(path, data)
		if err != nil {
			return nil, err
		}
		check, newErr := knownhosts.New(path)
		again, err := readFile(knownHostsKind, path, maxKnownHostsFile)
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(data, again) {
			continue
		}
		if newErr != nil {
			why := clean(newErr.Error())
			if len(k.warnings) > 0 {
				why = k.warnings[0]
			}
			return nil, fault.Errorf(fault.Permanent, knownHostsKind+" %s has no line that parses: %s", path, why)
		}
		k.check = check
		return k, nil
	}
	return nil, fault.Errorf(fault.Transient, knownHostsKind+" %s changes while it is read", path)
}

// scanKnownHosts looks for what package knownhosts skips without a word, and
// for the lines of certificate authorities, which its errors do not tell from
// others.
func scanKnownHosts(path string, data []byte) (*knownHosts, error) {
	k := &knownHosts{digest: digest(data), path: path, authorities: map[int]bool{}}
	skipped := 0
	number := 0
	for line := range bytes.Lines(data) {
		number++
		if len(line) > bufio.MaxScanTokenSize-2 {
			return nil, fault.Errorf(fault.Permanent, "line %d of "+knownHostsKind+" %s is longer than %d KiB: remove it", number, path, bufio.MaxScanTokenSize>>10)
		}
		line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
		if line = bytes.Trim(line, " \t"); len(line) == 0 || line[0] == '#' {
			continue
		}
		marker, err := scanLine(string(line))
		switch {
		case err != nil:
			if skipped++; skipped <= maxWarnings {
				k.warnings = append(k.warnings, fmt.Sprintf("line %d of "+knownHostsKind+" %s is skipped: %s", number, path, clean(err.Error())))
			}
		case marker == "@cert-authority":
			k.authorities[number] = true
		}
	}
	if more := skipped - maxWarnings; more > 0 {
		k.warnings = append(k.warnings, fmt.Sprintf("%d more lines of "+knownHostsKind+" %s are skipped", more, path))
	}
	return k, nil
}

// scanLine parses one line as package knownhosts does.
func scanLine(line string) (marker string, err error) {
	word := func() string {
		i := strings.IndexAny(line, "\t ")
		if i < 0 {
			w := line
			line = ""
			return w
		}
		w := line[:i]
		line = strings.Trim(line[i:], " \t")
		return w
	}
	hosts := word()
	if hosts == "@cert-authority" || hosts == "@revoked" {
		marker, hosts = hosts, word()
	}
	if strings.HasPrefix(hosts, "@") {
		return "", fmt.Errorf("unknown marker %q", clean(hosts))
	}
	if hosts == "" || line == "" {
		return "", errors.New("it is not of the form HOSTS KEYTYPE KEY")
	}
	kind := word()
	if line == "" {
		return "", errors.New("it is not of the form HOSTS KEYTYPE KEY")
	}
	blob, err := base64.StdEncoding.DecodeString(word())
	if err != nil {
		return "", errors.New("its key is no base64: was it cut off?")
	}
	key, err := ssh.ParsePublicKey(blob)
	if err != nil {
		return "", fmt.Errorf("its key does not parse: %w", err)
	}
	if key.Type() != kind {
		return "", fmt.Errorf("it says %q, but its key is %s", clean(kind), key.Type())
	}
	if marker == "@revoked" {
		return marker, nil
	}
	return marker, scanHosts(hosts)
}

func scanHosts(hosts string) error {
	if strings.HasPrefix(hosts, "|") {
		parts := strings.Split(hosts, "|")
		if len(parts) != 4 || parts[1] != "1" {
			return errors.New("its hashed host is not of the form |1|SALT|HASH")
		}
		for _, p := range parts[2:] {
			if _, err := base64.StdEncoding.DecodeString(p); err != nil {
				return errors.New("its hashed host is no base64")
			}
		}
		return nil
	}
	for p := range strings.SplitSeq(hosts, ",") {
		if p == "" {
			continue
		}
		if p = strings.TrimPrefix(p, "!"); p == "" {
			return errors.New("it has a ! without a host")
		}
		if p[0] == '[' {
			if _, _, err := net.SplitHostPort(p); err != nil {
				return fmt.Errorf("its host %q is not of the form [HOST]:PORT", clean(p))
			}
		}
	}
	return nil
}

// noKey is a key that no line has: asking for it yields all keys of a host.
type noKey struct{}

func (noKey) Type() string                        { return "none" }
func (noKey) Marshal() []byte                     { return []byte("fleetdesk: no key") }
func (noKey) Verify([]byte, *ssh.Signature) error { return errors.New("no key") }

// nowhere stands for the connection's own address, which is not looked for:
// only what the configuration names counts.
var nowhere = &net.TCPAddr{IP: net.IPv4zero}

// want returns the lines of a host, and the spelling of the address under which
// they are found: ssh-keyscan writes names as they were typed.
func (k *knownHosts) want(addr string) (string, []knownhosts.KnownKey) {
	for _, a := range []string{addr, strings.ToLower(addr)} {
		if ke, ok := errors.AsType[*knownhosts.KeyError](k.check(a, nowhere, noKey{})); ok && len(ke.Want) > 0 {
			return a, ke.Want
		}
	}
	return addr, nil
}

// revoked reports whether a line says that the key is.
func (k *knownHosts) revoked(addr string, key ssh.PublicKey) bool {
	_, ok := errors.AsType[*knownhosts.RevokedError](k.check(addr, nowhere, key))
	return ok
}
