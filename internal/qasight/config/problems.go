package config

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"fleetdesk/internal/core/fault"
)

// mostTold bounds the problems that one error tells.
const mostTold = 10

// problems are what is wrong with one file. Only the first by position are kept,
// so that a file that is wrong in a million places costs no more than another.
type problems struct {
	file  string
	first []problem
	count int
}

type problem struct {
	at   Position
	text string
}

// add notes what is wrong at a place, and what to do about it. Of one place the
// problem noted first comes first.
func (p *problems) add(at Position, format string, args ...any) {
	p.count++
	i, _ := slices.BinarySearchFunc(p.first, at, func(have problem, at Position) int {
		if have.at.after(at) {
			return 1
		}
		return -1
	})
	if i == mostTold {
		return
	}
	if len(p.first) == mostTold {
		p.first = p.first[:mostTold-1]
	}
	p.first = slices.Insert(p.first, i, problem{at, fmt.Sprintf(format, args...)})
}

// err is nil when nothing was noted.
func (p *problems) err() error {
	if p.count == 0 {
		return nil
	}
	var b strings.Builder
	for i, one := range p.first {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%s:%s: %s", p.file, one.at, one.text)
	}
	if more := p.count - len(p.first); more > 0 {
		fmt.Fprintf(&b, "\n%s: and %d more: mend these first", p.file, more)
	}
	return invalid("%s", b.String())
}

// invalid is an error about the file as a whole.
func invalid(format string, args ...any) error {
	return fault.WithCode(fault.Errorf(fault.Invalid, format, args...), "config")
}

// quoted is a text from the file for use in an error: in one line, and cut.
func quoted(s string) string {
	const most = 40
	if utf8.RuneCountInString(s) > most {
		return fmt.Sprintf("%q", string([]rune(s)[:most])) + "…"
	}
	return fmt.Sprintf("%q", s)
}

// nearest returns the one of known that word was meant to be, or "" when none
// reads alike.
func nearest(word string, known []string) string {
	plain := func(s string) string {
		return strings.NewReplacer("_", "", "-", "", ".", "", " ", "").Replace(strings.ToLower(s))
	}
	// Nobody mistypes that much, and the comparison is quadratic.
	if len(word) > 2*maxPrefix {
		return ""
	}
	best, least := "", len(word)/3+1
	for _, k := range known {
		if strings.HasSuffix(k, "_"+word) || strings.HasPrefix(k, word+"_") {
			return k
		}
		if d := distance(plain(word), plain(k), least); d < least {
			best, least = k, d
		}
	}
	return best
}

// distance counts the letters to add, drop, replace or swap with their neighbour
// that make a into b; from most on it may return any number that is not below.
func distance(a, b string, most int) int {
	if d := len(a) - len(b); d >= most || -d >= most {
		return most
	}
	before, last, row := []int(nil), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			d := last[j]
			if a[i] != b[j] {
				d++
			}
			d = min(d, last[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				d = min(d, before[j-1]+1)
			}
			row[j+1] = d
		}
		before, last, row = last, row, make([]int, len(b)+1)
	}
	return last[len(b)]
}

// alike is the end of an error about a name that does not exist.
func alike(word string, known []string) string {
	const most = 8
	var b strings.Builder
	if near := nearest(word, known); near != "" {
		fmt.Fprintf(&b, "did you mean %s? ", near)
	}
	switch n := len(known); {
	case n == 0:
		b.WriteString("there are none")
	case n > most:
		fmt.Fprintf(&b, "there are %s and %d more", strings.Join(known[:most], ", "), n-most)
	case n == 1:
		fmt.Fprintf(&b, "there is only %s", known[0])
	default:
		fmt.Fprintf(&b, "there are %s and %s", strings.Join(known[:n-1], ", "), known[n-1])
	}
	return b.String()
}
