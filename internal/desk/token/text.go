package token

import (
	"crypto/subtle"
	"encoding/base32"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// Secret is the whole text of a token. However it is printed, logged or
// marshalled it reads ***; [Secret.Reveal] is the one way to the text, so that a
// search for it finds every place that hands a token out.
type Secret struct {
	// A pointer, because fmt prints an unexported field of somebody's struct
	// without asking its methods; it then prints an address.
	text *string
}

// NewSecret wraps the text of a token.
func NewSecret(text string) Secret { return Secret{&text} }

// Reveal returns the text; "" for the zero Secret.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// Equal compares the texts, in constant time.
func (s Secret) Equal(o Secret) bool {
	return subtle.ConstantTimeCompare([]byte(s.Reveal()), []byte(o.Reveal())) == 1
}

const hidden = "***"

// String implements fmt.Stringer.
func (Secret) String() string { return hidden }

// Format implements fmt.Formatter, since some verbs (%d) pass a Stringer over.
func (Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }

// LogValue implements slog.LogValuer.
func (Secret) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText implements encoding.TextMarshaler (JSON, YAML, XML, flags).
func (Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// The text of a token is fdt_<id>_<secret>: the prefix lets scanners find lost
// tokens, the id is public, the secret is 256 random bits.
const (
	prefix     = "fdt_"
	alphabet   = "abcdefghijklmnopqrstuvwxyz234567"
	idLength   = 12 // 60 bits: ids meet by chance once in 2^30 tokens
	secretSize = 32
)

// encoding has no padding and no capital letters, and none of its letters is the
// separator.
func encoding() *base32.Encoding {
	return base32.NewEncoding(alphabet).WithPadding(base32.NoPadding)
}

// format returns the text of a token.
func format(id string, secret [secretSize]byte) Secret {
	return NewSecret(prefix + id + "_" + encoding().EncodeToString(secret[:]))
}

// parse takes the text of a token apart. It accepts exactly what format returns:
// one token has one text.
func parse(text string) (id string, secret [secretSize]byte, ok bool) {
	if len(text) != len(prefix)+idLength+1+encoding().EncodedLen(secretSize) {
		return "", secret, false
	}
	rest, found := strings.CutPrefix(text, prefix)
	if !found || rest[idLength] != '_' {
		return "", secret, false
	}
	id = rest[:idLength]
	for i := range len(id) {
		if strings.IndexByte(alphabet, id[i]) < 0 {
			return "", secret, false
		}
	}
	b, err := encoding().DecodeString(rest[idLength+1:])
	if err != nil || len(b) != secretSize {
		return "", secret, false
	}
	copy(secret[:], b)
	// The decoder passes over line breaks and over the bits that the last letter
	// has too many.
	if format(id, secret).Reveal() != text {
		return "", [secretSize]byte{}, false
	}
	return id, secret, true
}
