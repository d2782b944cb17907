package lease

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"strconv"
	"strings"

	"fleetdesk/internal/core/fault"
)

const (
	// MaxFixedName bounds the names of fixed pools and of their keys, in bytes.
	MaxFixedName = 128
	// MaxName bounds any name: a namespace, a dot and an object's name.
	MaxName = 63 + 1 + 253
	// MaxText bounds a holder, a target and a reason, in bytes.
	MaxText = 512
)

// ValidName refuses what is no name of a pool or key: the grammar is
// [A-Za-z0-9][A-Za-z0-9._-]*, at most [MaxName] bytes.
func ValidName(s string) error { return validName(s, MaxName) }

func validName(s string, most int) error {
	switch {
	case s == "":
		return fault.WithCode(fault.New(fault.Invalid, "a name is missing"), "name")
	case len(s) > most:
		return fault.WithCode(fault.Errorf(fault.Invalid, "the name %.32q… has %d bytes; at most %d are possible", s, len(s), most), "name")
	case !alnum(s[0]):
		return fault.WithCode(fault.Errorf(fault.Invalid, "the name %.80q must begin with a letter or digit", s), "name")
	}
	for i := range len(s) {
		if c := s[i]; !alnum(c) && c != '.' && c != '_' && c != '-' {
			return fault.WithCode(fault.Errorf(fault.Invalid, "the name %.80q has a character other than letters, digits, '.', '_' and '-'", s), "name")
		}
	}
	return nil
}

func alnum(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// validText bounds what people write: no control characters, at most MaxText.
func validText(what, s string) error {
	if len(s) > MaxText {
		return fault.WithCode(fault.Errorf(fault.Invalid, "%s has %d bytes; at most %d are possible", what, len(s), MaxText), "text")
	}
	if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' }) {
		return fault.WithCode(fault.Errorf(fault.Invalid, "%s holds a control character or is not UTF-8", what), "text")
	}
	return nil
}

// ID is the public name of a lease: its key, "~" and its fence.
type ID struct {
	Key   string
	Fence int64
}

func (id ID) String() string { return id.Key + "~" + strconv.FormatInt(id.Fence, 10) }

// ParseID reads a lease's public id.
func ParseID(s string) (ID, error) {
	key, digits, ok := strings.Cut(s, "~")
	fence, err := strconv.ParseInt(digits, 10, 64)
	if !ok || err != nil || fence < 1 || ValidName(key) != nil || strconv.FormatInt(fence, 10) != digits {
		return ID{}, fault.WithCode(fault.Errorf(fault.NotFound, "there is no lease %.80q", s), "lease")
	}
	return ID{key, fence}, nil
}

// Hash is the SHA-256 of a secret: the form in which it is kept.
type Hash [sha256.Size]byte

// HashOf hashes a lease's secret.
func HashOf(secret string) Hash { return sha256.Sum256([]byte(secret)) }

// equal compares in constant time.
func (h Hash) equal(o Hash) bool { return hmac.Equal(h[:], o[:]) }

// Secret derives a lease's secret from the database's root key, the account and
// the Idempotency-Key of the request, so that a replay of the request gets the
// same one though only its hash is kept.
func Secret(root []byte, account, request string) string {
	m := hmac.New(sha256.New, root)
	parts(m, "fleetdesk lease secret", account, request)
	return base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

// TicketID names the request of an account with an Idempotency-Key: 64 hex
// digits. The Idempotency-Key itself is not kept.
func TicketID(account, request string) string {
	h := sha256.New()
	parts(h, "fleetdesk ticket", account, request)
	return hex.EncodeToString(h.Sum(nil))
}

// parts writes texts with their lengths, so that no two lists hash alike.
func parts(h hash.Hash, all ...string) {
	var n [8]byte
	for _, s := range all {
		binary.BigEndian.PutUint64(n[:], uint64(len(s)))
		_, _ = h.Write(n[:])
		_, _ = h.Write([]byte(s))
	}
}
