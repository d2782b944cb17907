// Package target gives the sites that keys are used for one name each. Rests,
// bans and the order of use are per target, so that "Shop.Example.com." and
// "https://shop.example.com:443/cart" must not be two.
package target

import (
	"strconv"
	"strings"

	"golang.org/x/net/idna"
	"golang.org/x/net/publicsuffix"

	"fleetdesk/internal/core/fault"
)

// MaxHost bounds a host name, and MaxLabel each part of it, in bytes: what DNS
// can carry.
const (
	MaxHost  = 253
	MaxLabel = 63
)

// maxInput bounds what is looked at: a URL with a long path still names a host.
const maxInput = 2048

// Code is the code of every error of this package; their class is Invalid.
const Code = "target"

// Normalize returns the host name of a target: in lower case, without the dot at
// its end, in ASCII (IDNA, as browsers look names up). Of a URL it takes the host
// alone: scheme, user, port, path and query are dropped. The result is at most
// [MaxHost] bytes of a-z, 0-9, '-', '_' and '.', and normalizes to itself.
//
// An empty target, an IP address in whatever spelling, a wildcard, and what is no
// host name are Invalid.
func Normalize(s string) (string, error) {
	switch {
	case s == "":
		return "", refused("the target is empty: name the site's host, such as shop.example.com, or leave it out")
	case len(s) > maxInput:
		return "", refused("the target has %d bytes: name the site's host alone; at most %d bytes are possible", len(s), MaxHost)
	}
	host, err := hostOf(s)
	if err != nil {
		return "", err
	}
	ascii, err := lookup.ToASCII(host)
	if err != nil {
		return "", refused("the target %.80q is no host name in IDNA (%s): check its spelling", host, why(host))
	}
	ascii = strings.ToLower(strings.TrimSuffix(ascii, "."))
	if err := check(ascii); err != nil {
		return "", err
	}
	// What decodes to something else than it says would be two names of one site.
	if again, err := lookup.ToASCII(ascii); err != nil || again != ascii {
		return "", refused("the target %.80q is no host name in IDNA: check its spelling", host)
	}
	return ascii, nil
}

// lookup is how browsers make ASCII of a name: no rule about hyphens, which
// names in use break ("r3---sn-example.example.com"), and none about ASCII,
// which check has.
var lookup = idna.New(idna.MapForLookup(), idna.BidiRule(), idna.Transitional(false), idna.StrictDomainName(false), idna.CheckHyphens(false))

// hostOf cuts the host out of a URL, or of a host with a port.
func hostOf(s string) (string, error) {
	rest := s
	if front, after, ok := cutSlashes(rest); ok && isScheme(front) {
		rest = after
	} else if rest = strings.TrimPrefix(rest, "//"); slashAfterColon(rest) {
		return "", refused("the target is no URL and no host name: write https:// and the host, such as https://shop.example.com/, or the host alone")
	}
	if i := strings.IndexAny(rest, `/\?#`); i >= 0 { // browsers take both slashes
		rest = rest[:i]
	}
	// A user may hold a password, which no error must show.
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		rest = rest[i+1:]
	}
	switch n := strings.Count(rest, ":"); {
	case strings.HasPrefix(rest, "["), n > 1:
		return "", refused("the target %.80q is an IP address: name the site's host, such as shop.example.com", rest)
	case n == 1:
		host, port, _ := strings.Cut(rest, ":")
		if port == "" && !strings.Contains(host, ".") { // "https:" is no host
			return "", refused("the target %.80q ends in a colon: name the site's host, such as shop.example.com", rest)
		}
		if _, err := strconv.ParseUint(port, 10, 16); err != nil && port != "" {
			return "", refused("the target %.80q has a port that is no number from 0 to 65535: leave it out", rest)
		}
		rest = host
	}
	switch {
	case strings.TrimSuffix(rest, ".") == "":
		return "", refused("the target names no host: give one, such as shop.example.com")
	case strings.Contains(rest, "*"):
		return "", refused("the target %.80q is a wildcard: name one host; a pool with targets: site counts by the registrable domain", rest)
	}
	return rest, nil
}

// cutSlashes cuts a text at a colon with two slashes behind it, of either kind:
// browsers take both.
func cutSlashes(s string) (front, after string, ok bool) {
	front, after, ok = strings.Cut(s, ":")
	if !ok || len(after) < 2 || !isSlash(after[0]) || !isSlash(after[1]) {
		return "", "", false
	}
	return front, after[2:], true
}

// slashAfterColon reports whether the host, or what looks like it, ends in a colon
// with a slash behind it: browsers find another host there than the text before it.
func slashAfterColon(s string) bool {
	i := strings.IndexAny(s, `/\?#`)
	return i > 0 && isSlash(s[i]) && s[i-1] == ':'
}

func isSlash(c byte) bool { return c == '/' || c == '\\' }

func isScheme(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z':
		case i > 0 && ('0' <= c && c <= '9' || c == '+' || c == '-' || c == '.'):
		default:
			return false
		}
	}
	return s != ""
}

// check refuses what is no host name in ASCII.
func check(host string) error {
	if len(host) > MaxHost {
		return refused("the target has %d bytes as a host name; at most %d are possible", len(host), MaxHost)
	}
	last := host
	for rest, more := host, true; more; {
		last, rest, more = strings.Cut(rest, ".")
		switch {
		case last == "":
			return refused("the target %.80q has an empty part between two dots: check its spelling", host)
		case len(last) > MaxLabel:
			return refused("the target has a part of %d bytes (%.20q…) between two dots; at most %d are possible", len(last), last, MaxLabel)
		}
	}
	for i := range len(host) {
		if c := host[i]; !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.') {
			return refused("the target %.80q has a character that no host name has, at byte %d: name the site's host, such as shop.example.com", host, i+1)
		}
	}
	// Browsers read every name that ends in a number as an IPv4 address, in all of
	// its spellings: 127.1, 0x7f000001.
	if isNumber(last) {
		return refused("the target %.80q is an IP address: name the site's host, such as shop.example.com", host)
	}
	return nil
}

func isNumber(label string) bool {
	digits := "0123456789"
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		label, digits = hex, "0123456789abcdef"
	}
	return strings.Trim(label, digits) == ""
}

// why says what IDNA refuses.
func why(host string) string {
	for part := range strings.SplitSeq(strings.ToLower(host), ".") {
		if strings.HasPrefix(part, "xn--") {
			if _, err := lookup.ToASCII(part); err != nil {
				return "its punycode does not decode"
			}
		}
	}
	return "it has a character that no host name has"
}

// Site returns the registrable domain of a normalized host, by the public suffix
// list: "example.co.uk" of "shop.example.co.uk". A host that has none, such as
// "localhost" or "co.uk", is its own.
func Site(host string) string {
	site, err := publicsuffix.EffectiveTLDPlusOne(host)
	if err != nil {
		return host
	}
	return site
}

func refused(format string, args ...any) error {
	return fault.WithCode(fault.Errorf(fault.Invalid, format, args...), Code)
}
