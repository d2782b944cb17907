// Package obs sets up what operators look at: logs, metrics and the build's
// version. It knows no product, and nothing secret passes through it.
package obs

import (
	"io"
	"log/slog"
	"strings"

	"github.com/go-logr/logr"
)

// Options say how log lines look and which are written.
type Options struct {
	// Level is the least level written; nil for slog.LevelInfo. A
	// *slog.LevelVar lets it change while the program runs.
	Level slog.Leveler
	// JSON writes one JSON object per line; otherwise key=value text.
	JSON bool
}

// NewLogger returns a logger that writes to w. Attributes whose key names a
// secret (token, password, secret, authorization, cookie, also as the end of a
// longer key such as admin_token) show stars instead of their value. That is a
// net under the rule that nobody logs a secret, not a licence to do so: text
// inside a message or a struct is not looked at.
func NewLogger(w io.Writer, opts Options) *slog.Logger {
	ho := &slog.HandlerOptions{Level: opts.Level, ReplaceAttr: redact}
	if opts.JSON {
		return slog.New(slog.NewJSONHandler(w, ho))
	}
	return slog.New(slog.NewTextHandler(w, ho))
}

// Logr returns the same logger for libraries that speak logr. V(n) there is
// level -n here; see [Verbosity].
func Logr(log *slog.Logger) logr.Logger { return logr.FromSlogHandler(log.Handler()) }

// Verbosity is the level that lets logr's V(n) and everything above it
// through: 0 is slog.LevelInfo, 1 shows V(1), and so on.
func Verbosity(n int) slog.Level { return slog.LevelInfo - slog.Level(n) }

const stars = "***"

func redact(groups []string, a slog.Attr) slog.Attr {
	if secretKey(a.Key) {
		return slog.String(a.Key, stars)
	}
	for _, g := range groups {
		if secretKey(g) {
			return slog.String(a.Key, stars)
		}
	}
	return a
}

// secretKey looks at the end of the key, so that admin_token is hidden while
// token_id, which is public, is not.
func secretKey(key string) bool {
	key = strings.ToLower(key)
	for _, word := range [...]string{"token", "password", "secret", "authorization", "cookie"} {
		if strings.HasSuffix(key, word) {
			return true
		}
	}
	return false
}
