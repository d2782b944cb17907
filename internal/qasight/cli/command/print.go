package command

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// PrintJSON prints v as one indented document. --json only grows: fields are
// added, and none is ever renamed or removed.
func (f *Factory) PrintJSON(v any) error {
	e := json.NewEncoder(f.Out())
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// Table prints rows with aligned columns; the first row is the head.
func Table(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		for i := range r {
			r[i] = Plain(r[i])
		}
		fmt.Fprintln(t, strings.TrimRight(strings.Join(r, "\t"), " \t"))
	}
	return t.Flush()
}

// Plain makes a text that others wrote fit for one line of a terminal: control
// characters, which could move its cursor or change its colours, become U+FFFD,
// and line breaks and tabs blanks.
func Plain(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\r' || r == '\t':
			return ' '
		case unicode.IsControl(r) || unicode.Is(unicode.Cf, r):
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

// Duration shows a time for people: "42s", "3m10s", "1h05m".
func Duration(d time.Duration) string {
	switch d = d.Round(time.Second); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
}
