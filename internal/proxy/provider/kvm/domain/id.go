package domain

import (
	"strings"

	"fleetdesk/internal/core/fault"
)

// scheme begins every providerID of this provider.
const scheme = "kvm://"

// maxName bounds the names of providers and hosts, in bytes.
const maxName = 128

// ID is a providerID in parts: kvm://<provider>/<host>/<uuid>.
type ID struct {
	// Provider and Host are names of the configuration.
	Provider, Host string
	// UUID is the domain's, in the canonical form.
	UUID string
}

// String returns the providerID.
func (id ID) String() string { return scheme + id.Provider + "/" + id.Host + "/" + id.UUID }

// ParseID reads a providerID. Everything but exactly what [ID.String] writes is
// Invalid: a second spelling of one instance would be a second instance to
// whatever compares ids.
func ParseID(s string) (ID, error) {
	rest, ok := strings.CutPrefix(s, scheme)
	if !ok {
		return ID{}, fault.Errorf(fault.Invalid, "providerID %.100q does not begin with %s: it is of another provider, or damaged", s, scheme)
	}
	parts := strings.SplitN(rest, "/", 4)
	if len(parts) != 3 || !validName(parts[0]) || !validName(parts[1]) || !validUUID(parts[2]) {
		return ID{}, fault.Errorf(fault.Invalid,
			"providerID %.100q is not of the form %s<provider>/<host>/<uuid>, with a lower-case UUID: it is damaged", s, scheme)
	}
	return ID{Provider: parts[0], Host: parts[1], UUID: parts[2]}, nil
}

// validName reports whether s may be the name of a provider or host.
func validName(s string) bool {
	if s == "" || len(s) > maxName || s[0] == '.' || s[0] == '_' || s[0] == '-' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if !lowerAlnum(c) && (c < 'A' || c > 'Z') && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return true
}

// validUUID reports whether s is a UUID in the canonical form: lower case, with
// dashes.
func validUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case i == 8 || i == 13 || i == 18 || i == 23:
			if c != '-' {
				return false
			}
		case (c < '0' || c > '9') && (c < 'a' || c > 'f'):
			return false
		}
	}
	return true
}
