package service

import (
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
)

// Secret is the secret of a lease. However it is printed, logged or marshalled
// it reads ***; [Secret.Reveal] is the one way to the text, so that a search for
// it finds every place that hands one out.
type Secret struct {
	// A pointer, because fmt prints an unexported field of somebody's struct
	// without asking its methods; it then prints an address.
	text *string
}

// NewSecret wraps the text of a secret.
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
