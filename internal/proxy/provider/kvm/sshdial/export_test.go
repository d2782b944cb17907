package sshdial

// FileError classes a failure to read a file.
func FileError(path string, err error) error { return fileError(keyKind, path, err) }

// ScanLine says whether a line of known_hosts parses.
func ScanLine(line string) error { _, err := scanLine(line); return err }

// CheckKnownHosts reads a known_hosts file.
func CheckKnownHosts(path string) (warnings []string, err error) {
	k, err := readKnownHosts(path)
	if err != nil {
		return nil, err
	}
	return k.warnings, nil
}

// ParseKey parses a private key.
func ParseKey(data []byte) error { _, err := parseKey("id", data); return err }

// Algorithms are the host key algorithms that are asked for, for a host.
func Algorithms(path string, h Host) ([]string, error) {
	k, err := readKnownHosts(path)
	if err != nil {
		return nil, err
	}
	return k.checker(h).algorithms(), nil
}

// Missed returns what the keepalive counts after each interval, given how much
// had come by its end; nothing had come before.
func Missed(received ...int64) []int {
	var p pulse
	out := make([]int, 0, len(received))
	for _, r := range received {
		out = append(out, p.tick(r))
	}
	return out
}

// Clean makes a text of the far side fit for an error.
func Clean(s string) string { return clean(s) }

// KnownKey reads a known_hosts file. It returns the digest of what was read and
// the first key that the host has in what package knownhosts read.
func KnownKey(path string, h Host) (sum [32]byte, key string, err error) {
	k, err := readKnownHosts(path)
	if err != nil {
		return sum, "", err
	}
	_, want := k.want(h.addr())
	return k.digest, string(want[0].Key.Marshal()), nil
}
