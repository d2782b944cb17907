package hooks_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/qasight/hooks"
)

func TestReason(t *testing.T) {
	long := strings.Repeat("x", 600)
	for name, tc := range map[string]struct{ reason, what, output, want string }{
		"nothing":   {"a silent hook has its end alone", "on_check ended with exit code 1", "", "on_check ended with exit code 1"},
		"blank":     {"so has one that prints blanks", "ended", " \n\t\n", "ended"},
		"lines":     {"a reason is one line", "ended", "one\n two\r\n\tthree\n", "ended: one two three"},
		"control":   {"nothing moves a cursor", "ended", "a\x1b[2Jb\u009bc\u202ed\x00", "ended: a [2Jb c d"},
		"no UTF-8":  {"what was no UTF-8 is marked", "ended", "a\ufffdb", "ended: a?b"},
		"end":       {"of a long output the end counts", "ended", long + " the cause", "ended: … " + strings.Repeat("x", lease.MaxText-len("ended: … the cause")-1) + " the cause"},
		"long what": {"the beginning keeps half", strings.Repeat("w", 600), long, strings.Repeat("w", 256) + ": … " + strings.Repeat("x", 250)},
	} {
		t.Run(name, func(t *testing.T) {
			if got := hooks.Reason(tc.what, tc.output); got != tc.want {
				t.Errorf("%s: got %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

// Whatever a hook prints, the broker takes it for a reason.
func FuzzReason(f *testing.F) {
	f.Add("on_check ended with exit code 1", "no route\n")
	f.Add("", "\xff\xfe\x00\u202e\ufffd")
	f.Add(strings.Repeat("ä", 300), strings.Repeat("☃", 300))
	f.Add("x", strings.Repeat("a\u0301", 400))
	f.Fuzz(func(t *testing.T, what, output string) {
		for _, got := range []string{hooks.Reason(what, output), hooks.Clean(output)} {
			if len(got) > lease.MaxText || !utf8.ValidString(got) {
				t.Fatalf("%d bytes, or no UTF-8: %q", len(got), got)
			}
			if i := strings.IndexFunc(got, func(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == utf8.RuneError }); i >= 0 {
				t.Fatalf("%q may not stand in a reason", got[i:])
			}
		}
	})
}
