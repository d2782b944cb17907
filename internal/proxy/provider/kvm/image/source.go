package image

import (
	"net/url"
	"strconv"
	"strings"

	"fleetdesk/internal/core/fault"
)

// Format is how a disk's content is laid out in an image.
type Format string

// The formats that are taken.
const (
	QCOW2 Format = "qcow2"
	Raw   Format = "raw"
)

// orDefault is the format that is expected when none was promised.
func (f Format) orDefault() Format {
	if f == "" {
		return QCOW2
	}
	return f
}

// sumLength is how many characters a SHA-256 has in hex.
const sumLength = 64

// maxURL bounds a source's and a redirect's URL, in bytes.
const maxURL = 8 << 10

// Source is where an image comes from, and what it has to be.
type Source struct {
	// URL is absolute, https, or http with a SHA256. It is never shown with its
	// query: what is signed is a secret.
	URL string
	// SHA256 is the digest of the image's bytes in hex; empty takes what comes.
	SHA256 string
	// Format is what is promised; empty, as for a URL that was given directly,
	// promises qcow2.
	Format Format
}

// Validate returns nil when s can be asked for, or an Invalid error that says
// what to change.
func (s Source) Validate() error {
	_, err := s.parse()
	return err
}

func (s Source) parse() (*url.URL, error) {
	u, err := parseURL(s.URL)
	if err != nil {
		return nil, err
	}
	switch f := s.Format; f {
	case "", QCOW2, Raw:
	default:
		return nil, fault.Errorf(fault.Invalid, "the image's format %q is not known; write qcow2 or raw", clip(string(f)))
	}
	switch n := len(s.SHA256); {
	case n == 0 && u.Scheme == "http":
		return nil, fault.Errorf(fault.Invalid, "%s comes over plain HTTP, where anybody on the way can change it: use https, or configure the image with its sha256", shown(u))
	case n == 0:
	case n != sumLength:
		return nil, fault.Errorf(fault.Invalid, "the sha256 of %s has %d characters, and a SHA-256 has %d in hex%s", shown(u), n, sumLength, looksLike(n))
	case !isHex(s.SHA256):
		return nil, fault.Errorf(fault.Invalid, "the sha256 of %s holds a character that is no hex digit", shown(u))
	}
	return u, nil
}

// looksLike names the digest that somebody may have given in place of a
// SHA-256.
func looksLike(n int) string {
	switch n {
	case 32:
		return "; this may be an MD5"
	case 40:
		return "; this may be a SHA-1"
	case 96:
		return "; this may be a SHA-384"
	case 128:
		return "; this may be a SHA-512"
	}
	return ""
}

func isHex(s string) bool {
	return strings.Trim(s, "0123456789abcdefABCDEF") == ""
}

// parseURL reads a URL that bytes may be asked from. Its errors are Invalid
// and repeat nothing that may be secret.
func parseURL(s string) (*url.URL, error) {
	if s == "" {
		return nil, fault.New(fault.Invalid, "the image has no URL")
	}
	if len(s) > maxURL {
		return nil, fault.Errorf(fault.Invalid, "the image's URL has %d bytes, and at most %d are taken", len(s), maxURL)
	}
	u, err := url.Parse(s)
	if err != nil { // it repeats the URL
		return nil, fault.New(fault.Invalid, "the image's URL cannot be read; write it as https://images.example.com/debian-13.qcow2")
	}
	return u, checkURL(u)
}

func checkURL(u *url.URL) error {
	switch {
	case u.Scheme == "":
		return fault.New(fault.Invalid, "the image's URL is not absolute; write it as https://images.example.com/debian-13.qcow2")
	case u.Scheme != "https" && u.Scheme != "http":
		return fault.Errorf(fault.Invalid, "the image's URL begins with %s:; only https and http can be fetched", clip(u.Scheme))
	case u.Opaque != "" || u.Hostname() == "":
		return fault.New(fault.Invalid, "the image's URL names no host; write it as https://images.example.com/debian-13.qcow2")
	case u.User != nil:
		return fault.Errorf(fault.Invalid, "the URL of %s holds a user or password, which would end up in status and logs; use one without", shown(u))
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return fault.Errorf(fault.Invalid, "the port of %s is not between 1 and 65535", shown(u))
		}
	}
	return nil
}

// shown is a URL as it may be read by anybody: without query, userinfo and
// fragment, bounded and in printable characters.
func shown(u *url.URL) string {
	return clip((&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}).String())
}

// clip makes a text that somebody else wrote short and printable.
func clip(s string) string {
	const limit = 200
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
	if len(s) > limit {
		s = s[:limit] + "..."
	}
	return s
}
