package stagecmd_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"fleetdesk/internal/qasight/cli/stagecmd"
)

func TestLines(t *testing.T) {
	long := strings.Repeat("x", stagecmd.MaxLine)
	for name, tc := range map[string]struct {
		reason string
		pieces []string
		want   string
	}{
		"lines":         {"each line has the prefix", []string{"a\nb\n"}, "> a\n> b\n"},
		"pieces":        {"a line may come in pieces", []string{"a", "b", "\nc", "\n"}, "> ab\n> c\n"},
		"open":          {"the last line need not end", []string{"a\nb"}, "> a\n> b\n"},
		"empty":         {"an empty line is a line", []string{"\n\na\n"}, "> \n> \n> a\n"},
		"nothing":       {"nothing is nothing", []string{"", ""}, ""},
		"carriage":      {"bytes stay as they are", []string{"a\r\n\x1b[1mb\xff\n"}, "> a\r\n> \x1b[1mb\xff\n"},
		"longest":       {"a line of the most length is whole", []string{long + "\nb\n"}, "> " + long + "\n> b\n"},
		"too long":      {"a longer one comes in pieces", []string{long, "yz\n"}, "> " + long + "\n> yz\n"},
		"much too long": {"of any length", []string{long + long + "y"}, "> " + long + "\n> " + long + "\n> y\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			var o stagecmd.Output
			l := o.Lines(&got, "> ")
			for _, p := range tc.pieces {
				if n, err := l.Write([]byte(p)); n != len(p) || err != nil {
					t.Errorf("Write: %d, %v", n, err)
				}
			}
			l.Flush()
			if got.String() != tc.want {
				t.Errorf("%s: got %.200q, want %.200q", tc.reason, got.String(), tc.want)
			}
		})
	}
}

// However many write at once, each line is whole and has its own prefix.
func TestLinesAreWhole(t *testing.T) {
	var got bytes.Buffer // guarded by the output's own lock
	var o stagecmd.Output
	var all sync.WaitGroup
	const workers, each = 8, 200
	for w := range workers {
		all.Go(func() {
			l := o.Lines(&got, fmt.Sprintf("[%d] ", w))
			for i := range each {
				for _, piece := range []string{"line ", fmt.Sprint(i), " of ", fmt.Sprint(w), "\n"} {
					_, _ = io.WriteString(l, piece)
				}
			}
		})
	}
	all.Wait()
	lines := strings.Split(strings.TrimSuffix(got.String(), "\n"), "\n")
	if len(lines) != workers*each {
		t.Errorf("there are %d lines", len(lines))
	}
	for _, l := range lines {
		var prefix, n, of int
		if k, err := fmt.Sscanf(l, "[%d] line %d of %d", &prefix, &n, &of); k != 3 || err != nil || prefix != of {
			t.Fatalf("%q is no whole line", l)
		}
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("nobody reads") }

// A reader that went away ends no worker.
func TestLinesToNobody(t *testing.T) {
	var o stagecmd.Output
	l := o.Lines(broken{}, "> ")
	if n, err := l.Write([]byte("a\nb")); n != 3 || err != nil {
		t.Errorf("Write: %d, %v", n, err)
	}
	l.Flush()
	l.SetPrefix("")
}

// Whatever the pieces, the text without prefixes is the same.
func FuzzLines(f *testing.F) {
	f.Add("a\nb", 1)
	f.Add(strings.Repeat("long", 5000)+"\n\n", 4099)
	f.Fuzz(func(t *testing.T, text string, size int) {
		size = max(1, size%len(text+"x"))
		var got bytes.Buffer
		var o stagecmd.Output
		l := o.Lines(&got, "\x00")
		for rest := text; rest != ""; {
			n := min(size, len(rest))
			_, _ = io.WriteString(l, rest[:n])
			rest = rest[n:]
		}
		l.Flush()
		for _, line := range strings.SplitAfter(strings.TrimSuffix(got.String(), "\n"), "\n") {
			if len(line) > stagecmd.MaxLine+2 || got.Len() > 0 && !strings.HasPrefix(line, "\x00") && !strings.Contains(text, "\x00") {
				t.Fatalf("a line is %.80q, of %d bytes", line, len(line))
			}
		}
		plain := func(s string) string { return strings.NewReplacer("\x00", "", "\n", "").Replace(s) }
		if plain(got.String()) != plain(text) {
			t.Errorf("%q became %q", text, got.String())
		}
	})
}
