package proc_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"fleetdesk/internal/core/action"
	"fleetdesk/internal/platform/proc"
)

func pieces(texts ...string) [][]byte {
	var out [][]byte
	for _, t := range texts {
		out = append(out, []byte(t))
	}
	return out
}

func TestKept(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason string
		pieces [][]byte
		limit  int
		hide   []string
		both   bool
		want   string
	}{
		"as it is":          {"what fits is not changed", pieces("a ", "größe\r\n"), 0, nil, false, "a größe\r\n"},
		"letters in pieces": {"no letter breaks", pieces("\xe6\x97", "\xa5"), 0, nil, false, "日"},
		"no UTF-8":          {"one mark for each run", pieces("a\xff\xfe", "\xfdb\xff"), 0, nil, false, "a\ufffdb\ufffd"},
		"half a letter":     {"the end may come in the middle", pieces("a\xe6\x97"), 0, nil, false, "a\ufffd"},
		"NUL":               {"no text can hold one", pieces("\x00a\x00\x00"), 0, nil, false, "\ufffda\ufffd\ufffd"},
		"hidden":            {"each of them", pieces("hunter2, hunter2"), 0, []string{"hunter2"}, false, "***, ***"},
		"in pieces":         {"byte by byte", pieces("h", "u", "n", "t", "e", "r", "2", "!"), 0, []string{"hunter2"}, false, "***!"},
		"nearly":            {"what only begins like it comes too", pieces("hunt", "hunter", "3"), 0, []string{"hunter2"}, false, "hunthunter3"},
		"overlapping":       {"no part of either is left", pieces("xabcdef", "ghijx"), 0, []string{"abcdef", "defghij"}, false, "x***x"},
		"over itself":       {"a chain is one", pieces("ababab", "abababx"), 0, []string{"ababab"}, false, "***x"},
		"one in another":    {"the longer one", pieces("abcdefgh abcdef"), 0, []string{"abcdef", "abcdefgh"}, false, "*** ***"},
		"too short":         {"it would be everywhere", pieces("abcde"), 0, []string{"abcde", " abcde ", ""}, false, "abcde"},
		"space around":      {"a file's last newline is not printed", pieces("abcdef"), 0, []string{"abcdef\n"}, false, "***"},
		"cut off":           {"the beginning of a secret at the end", pieces("hunter"), 0, []string{"hunter2hunter2"}, false, "***"},
		"cut off early":     {"too short a beginning to be one", pieces("hunte"), 0, []string{"hunter2hunter2"}, false, "hunte"},
		"no UTF-8 secret":   {"a secret is bytes", pieces("\xffabcdef\xff"), 0, []string{"\xffabcdef\xff"}, false, "***"},
		"both outputs":      {"each by itself", pieces("hun", "err\n", "ter2\n", ""), 0, []string{"hunter2"}, true, "err\n***\n"},
		"hidden, then cut":  {"no half of it at the cut", pieces(strings.Repeat("x", 90), "hunter2hunter2", strings.Repeat("y", 300)), 256, []string{"hunter2hunter2"}, false, strings.Repeat("x", 90) + "***" + "yyy\n[… 201 bytes were cut …]\n" + strings.Repeat("y", 96)},
		"cut at letters":    {"no letter breaks at the cut", pieces(strings.Repeat("日", 100)), 256, nil, false, strings.Repeat("日", 32) + "\n[… 108 bytes were cut …]\n" + strings.Repeat("日", 32)},
		"just fits":         {"nothing to be cut", pieces(strings.Repeat("x", 256)), 256, nil, false, strings.Repeat("x", 256)},
		"tiny limit":        {"there is room for the mark", pieces(strings.Repeat("x", 256)), 1, nil, false, strings.Repeat("x", 256)},
	} {
		t.Run(name, func(t *testing.T) {
			if got := proc.KeptOf(tc.pieces, tc.limit, tc.hide, tc.both); got != tc.want {
				t.Errorf("%s: %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

// TestKeptAsCut: however the pieces come, it is what action.Cut makes of the
// whole.
func TestKeptAsCut(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		unit := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "日", "\xff", "\x00", "\xe6\x97", "ß\n", "🙂", "\ufffd"}), 1, 20).Draw(rt, "unit")
		text := strings.Repeat(strings.Join(unit, ""), rapid.IntRange(0, 20000).Draw(rt, "times"))
		got := proc.KeptOf(split(text, rapid.Uint64().Draw(rt, "seed")), action.MaxText, nil, false)
		if want := action.Cut(text); got != want {
			rt.Fatalf("%d bytes became\n%d %.200q, want\n%d %.200q", len(text), len(got), got, len(want), want)
		}
	})
}

func split(text string, seed uint64) [][]byte {
	random := rand.New(rand.NewPCG(seed, 1))
	var out [][]byte
	for len(text) > 0 {
		n := min(1+random.IntN(1+random.IntN(1+len(text))), len(text))
		out, text = append(out, []byte(text[:n])), text[n:]
	}
	return out
}

// FuzzKept holds a stream of any pieces against the same rules said plainly.
func FuzzKept(f *testing.F) {
	f.Add([]byte("it is hunter22, hunter22"), "hunter22", "ter22, hu", uint64(1))
	f.Add([]byte("abababababab"), "ababab", "bababa", uint64(2))
	f.Add([]byte("\xffabcdef\x00\xe6\x97\xa5"), "abcdef", "\xff\xff\xff\xff\xff\xff", uint64(3))
	f.Add([]byte(strings.Repeat("0123456789abcdef", 40)), "456789", "89abcdef0123", uint64(4))
	f.Fuzz(func(t *testing.T, text []byte, one, two string, seed uint64) {
		hide := []string{one, two}
		parts := split(string(text), seed)
		got := proc.KeptOf(parts, 512, hide, false)
		if len(got) > 512 || !utf8.ValidString(got) || strings.Contains(got, "\x00") {
			t.Fatalf("%d bytes: %q", len(got), got)
		}
		if want := proc.KeptOf([][]byte{text}, 512, hide, false); got != want {
			t.Fatalf("in pieces %q, at once %q", got, want)
		}
		if want := plainly(string(text), hide); len(want) <= 512 && got != want {
			t.Fatalf("%q, want %q", got, want)
		}
		if held := proc.HeldBack(parts, hide); held > max(len(one), len(two)) {
			t.Fatalf("%d bytes are held back", held)
		}
	})
}

// plainly is the whole rule for a text that is not cut.
func plainly(text string, hide []string) string {
	covered := make([]bool, len(text))
	first := make([]bool, len(text)+1) // where a run of overlapping ones begins
	mark := func(from, to int) {
		joined := false
		for i := from; i < to; i++ {
			joined = joined || covered[i]
		}
		if !joined {
			first[from] = true
		}
		for i := from; i < to; i++ {
			covered[i] = true
		}
	}
	for at := 0; at < len(text); at++ { // from the left, so a run begins with its first
		for _, h := range hide {
			h = strings.TrimSpace(h)
			if len(h) < 6 {
				continue
			}
			if strings.HasPrefix(text[at:], h) {
				mark(at, at+len(h))
			}
		}
	}
	for at := 0; at < len(text); at++ {
		for _, h := range hide {
			h = strings.TrimSpace(h)
			if rest := text[at:]; len(h) >= 6 && len(rest) >= 6 && len(rest) < len(h) && strings.HasPrefix(h, rest) {
				mark(at, len(text))
			}
		}
	}
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if first[i] {
			out.WriteString("***")
		}
		if !covered[i] {
			out.WriteByte(text[i])
		}
	}
	return strings.ReplaceAll(strings.ToValidUTF8(out.String(), "\ufffd"), "\x00", "\ufffd")
}

// What cannot be told from a secret is not collected.
func TestHeldBackIsBounded(t *testing.T) {
	t.Parallel()
	var parts [][]byte
	for range 1000 {
		parts = append(parts, []byte(strings.Repeat("a", 1000)))
	}
	if held := proc.HeldBack(parts, []string{strings.Repeat("a", 50)}); held >= 50 {
		t.Error(fmt.Sprint(held, " bytes are held back"))
	}
}
