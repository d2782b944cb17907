package hooks

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/platform/proc"
)

// reason says in one line how a hook failed: what happened and the end of its
// output, which mostly says why. It is fit for a release's reason: at most
// lease.MaxText bytes of UTF-8 without control characters.
func reason(what, output string) string {
	what, output = oneLine(what), oneLine(output)
	switch {
	case output == "":
		return tail(what, lease.MaxText)
	case len(what)+len(": ")+len(output) <= lease.MaxText:
		return what + ": " + output
	}
	const mark = ": … "
	what = what[:min(len(what), lease.MaxText/2)]
	what = strings.ToValidUTF8(what, "")
	return what + mark + tail(output, lease.MaxText-len(what)-len(mark))
}

// Clean makes any text fit for a release's reason: one line, at most lease.MaxText
// bytes, of which it keeps the end.
func Clean(text string) string { return tail(oneLine(text), lease.MaxText) }

// oneLine makes each run of blanks, control and format characters one blank.
// U+FFFD, which no reason may hold, becomes "?".
func oneLine(s string) string {
	var b strings.Builder
	gap := false
	for _, r := range s {
		switch {
		case unicode.IsSpace(r) || unicode.IsControl(r) || unicode.Is(unicode.Cf, r):
			gap = b.Len() > 0
			continue
		case r == utf8.RuneError:
			r = '?'
		}
		if gap {
			b.WriteByte(' ')
			gap = false
		}
		b.WriteRune(r)
	}
	return b.String()
}

// tail is the end of s: as many bytes as there is room for.
func tail(s string, most int) string {
	if len(s) <= most {
		return s
	}
	s = s[len(s)-most:]
	for s != "" && !utf8.RuneStart(s[0]) {
		s = s[1:]
	}
	return strings.TrimSpace(s)
}

// ending says how a hook that failed ended.
func ending(hook string, r proc.Result) string {
	if r.Signal != 0 {
		return fmt.Sprintf("%s was ended by a signal (%s)", hook, r.Signal)
	}
	return fmt.Sprintf("%s ended with exit code %d", hook, r.Code)
}
