package local

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// scheme begins every providerID of this provider.
const scheme = "local://"

// maxName bounds a provider's name and a UID, in bytes.
const maxName = 128

// ID is a providerID in parts: local://<provider>/<uid>~<tag>.
type ID struct {
	// Provider is the provider's name in the configuration.
	Provider string
	// UID is the Proxy's UID.
	UID string
	// Tag stands for the installation ([TagOf]): a restored cluster has the
	// UIDs of the first one, and the instances of the two must not share a name.
	Tag string
}

// tagLen is the length of a tag: eight bytes in hex.
const tagLen = 16

// TagOf returns the tag of an installation.
func TagOf(installation string) string {
	sum := sha256.Sum256([]byte(installation))
	return hex.EncodeToString(sum[:tagLen/2])
}

// String returns the providerID.
func (id ID) String() string { return scheme + id.Provider + "/" + id.folder() }

// folder is the name of the instance's folder.
func (id ID) folder() string { return id.UID + "~" + id.Tag }

// folderOf is the name of the folder of an owner's instance.
func folderOf(o provider.Owner) string { return ID{UID: o.UID, Tag: TagOf(o.Installation)}.folder() }

// splitFolder takes a folder's name apart; other names are not ours.
func splitFolder(name string) (uid, tag string, ok bool) {
	uid, tag, ok = strings.Cut(name, "~")
	return uid, tag, ok && validName(uid) && validTag(tag)
}

// ParseID reads a providerID. Everything but exactly what [ID.String] writes is
// Invalid.
func ParseID(s string) (ID, error) {
	rest, ok := strings.CutPrefix(s, scheme)
	if !ok {
		return ID{}, fault.Errorf(fault.Invalid, "providerID %q does not begin with %s", short(s), scheme)
	}
	name, folder, ok := strings.Cut(rest, "/")
	uid, tag, two := splitFolder(folder)
	if !ok || !two || !validName(name) {
		return ID{}, fault.Errorf(fault.Invalid, "providerID %q is not of the form %s<provider>/<uid>~<tag>", short(s), scheme)
	}
	return ID{Provider: name, UID: uid, Tag: tag}, nil
}

func validTag(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return len(s) == tagLen
}

// validName reports whether s may be a provider's name or a UID. Both become
// parts of paths: a first letter or digit and no slash make "..", hidden names
// and every other way out of the state directory impossible.
func validName(s string) bool {
	if s == "" || len(s) > maxName || !alnum(s[0]) {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !alnum(c) && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return true
}

func alnum(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// short keeps a foreign text in an error message readable.
func short(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
