package token

import (
	"crypto/sha256"
	"strings"

	"fleetdesk/internal/core/fault"
)

// The limits of names and ids, in bytes.
const (
	MaxAccountName = 128
	MaxTokenID     = 64
)

// Validate reports, as [fault.Invalid], what keeps an account from being
// stored: a name that is empty, longer than [MaxAccountName], or holds anything
// but ASCII letters, digits and `. _ - @ :` (a letter or digit first); or an
// unknown role.
func (a Account) Validate() error {
	if !validName(a.Name, ".-_@:", MaxAccountName) {
		return fault.Errorf(fault.Invalid, "account name %.140q: use 1 to %d letters, digits and . _ - @ :, a letter or digit first",
			a.Name, MaxAccountName)
	}
	if !a.Role.Valid() {
		return fault.Errorf(fault.Invalid, "account %s: role %.40q is none of %s, %s, %s", a.Name, string(a.Role), Viewer, Runner, Admin)
	}
	return nil
}

// Validate reports, as [fault.Invalid], what keeps a token from being stored:
// an id that is empty, longer than [MaxTokenID], or holds anything but ASCII
// letters, digits, `-` and `_`; no account; or a hash that is not a SHA-256.
func (r Record) Validate() error {
	if !validName(r.ID, "-_", MaxTokenID) {
		return fault.Errorf(fault.Invalid, "token id %.80q: use 1 to %d letters, digits, - and _, a letter or digit first", r.ID, MaxTokenID)
	}
	if !validName(r.Account, ".-_@:", MaxAccountName) {
		return fault.Errorf(fault.Invalid, "token %s: account name %.140q cannot exist", r.ID, r.Account)
	}
	if len(r.Hash) != sha256.Size {
		return fault.Errorf(fault.Invalid, "token %s: the hash has %d bytes, a SHA-256 has %d", r.ID, len(r.Hash), sha256.Size)
	}
	return nil
}

// ValidateFirstAdmin reports, as [fault.Invalid], what keeps the pair from
// being a first admin and its token.
func ValidateFirstAdmin(a Account, r Record) error {
	if err := a.Validate(); err != nil {
		return err
	}
	if err := r.Validate(); err != nil {
		return err
	}
	if a.Role != Admin {
		return fault.Errorf(fault.Invalid, "account %s: the first account must be an %s, not a %s", a.Name, Admin, a.Role)
	}
	if r.Account != a.Name {
		return fault.Errorf(fault.Invalid, "token %s belongs to account %s, not to the first admin %s", r.ID, r.Account, a.Name)
	}
	return nil
}

// Codes of errors (see fault.WithCode).
const (
	// CodeLastAdmin: see [CheckAdminLeft].
	CodeLastAdmin = "last_admin"
	// CodeAccount: an account that does not exist.
	CodeAccount = "account"
	// CodeToken: a token that does not exist, or is not valid.
	CodeToken = "token"
)

// CheckAdminLeft reports, as [fault.Conflict] with [CodeLastAdmin], a change of
// an account to a after which no enabled admin exists: nobody could then undo
// it. others is whether an enabled admin besides a's name exists.
func CheckAdminLeft(a Account, others bool) error {
	if others || a.Role == Admin && !a.Disabled {
		return nil
	}
	return fault.WithCode(fault.Errorf(fault.Conflict,
		"account %s: no enabled %s would be left: make another one first", a.Name, Admin), CodeLastAdmin)
}

func validName(s, extra string, most int) bool {
	if s == "" || len(s) > most {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case i > 0 && strings.IndexByte(extra, c) >= 0:
		default:
			return false
		}
	}
	return true
}
