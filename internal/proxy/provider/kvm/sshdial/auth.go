package sshdial

import (
	"fmt"
	"log/slog"
	"sync"
)

// lazyAuth is the SSH material, read when it is needed and cached once it works.
type lazyAuth struct {
	keyFile, knownHostsFile string
	log                     *slog.Logger

	mu    sync.Mutex
	key   *keyMaterial
	known *knownHosts
}

// material is what a handshake needs.
type material struct {
	*keyMaterial
	known *knownHosts
}

// load returns what the files hold now. Files are read each time, which is
// cheap beside a dial, and parsed when their content changed: neither times nor
// inodes tell that of a mounted Secret. A file that vanished after it worked
// counts as it was, since a Secret that is being replaced may be away for a
// moment; one that does not parse does not.
func (a *lazyAuth) load() (*material, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	key, err := a.loadKey()
	if err != nil {
		return nil, err
	}
	known, err := a.loadKnownHosts()
	if err != nil {
		return nil, err
	}
	return &material{keyMaterial: key, known: known}, nil
}

func (a *lazyAuth) loadKey() (*keyMaterial, error) {
	data, err := readFile(keyKind, a.keyFile, maxKeyFile)
	if isMissing(err) && a.key != nil {
		return a.key, nil
	}
	if err != nil {
		return nil, err
	}
	if a.key != nil && a.key.digest == digest(data) {
		return a.key, nil
	}
	key, err := parseKey(a.keyFile, data)
	if err != nil {
		return nil, err
	}
	a.key = key
	return key, nil
}

func (a *lazyAuth) loadKnownHosts() (*knownHosts, error) {
	data, err := readFile(knownHostsKind, a.knownHostsFile, maxKnownHostsFile)
	if isMissing(err) && a.known != nil {
		return a.known, nil
	}
	if err != nil {
		return nil, err
	}
	if a.known != nil && a.known.digest == digest(data) {
		return a.known, nil
	}
	known, err := readKnownHosts(a.knownHostsFile)
	if err != nil {
		return nil, err
	}
	for _, w := range known.warnings {
		a.log.Warn("a line of known_hosts is skipped", "file", a.knownHostsFile, "error", w)
	}
	a.known = known
	return known, nil
}

// stamp names the content of both files.
func (a *lazyAuth) stamp() string {
	key, kerr := readFile(keyKind, a.keyFile, maxKeyFile)
	known, nerr := readFile(knownHostsKind, a.knownHostsFile, maxKnownHostsFile)
	return fmt.Sprintf("%x %v %x %v", digest(key), kerr, digest(known), nerr)
}
