package humanrun

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/platform/proc"
	"fleetdesk/internal/qasight/config"
	"fleetdesk/internal/qasight/pool"
)

// Listing is what a provider's list printed.
type Listing struct {
	// Names are the keys that exist, sorted.
	Names []string
	// Took is how long the command ran.
	Took time.Duration
}

const (
	// MaxListed bounds the lines of a list.
	MaxListed = 100_000
	// CodeList is the code of every error of List: what exists is not known.
	CodeList = "list"
)

// List runs the pool's list and reads what it prints: exit 0, UTF-8, one name a
// line, surrounding blanks (space, tab, carriage return) trimmed, empty lines
// skipped. Errors have the code [CodeList] and the class Unavailable, and say what
// the command did: it failed (whatever the exit code, 127 too), was ended at its
// timeout, printed a name that is no key, one name twice, or more than
// [MaxListed] lines. Then nothing is known of what exists. When ctx ended first,
// its error is in the chain.
func List(ctx context.Context, p *config.Pool, at Place) (Listing, error) {
	l, _, err := list(ctx, p, at)
	return l, err
}

// list is List; the text is what the command wrote, for the log.
func list(ctx context.Context, p *config.Pool, at Place) (Listing, string, error) {
	if p.Provider == nil || p.Provider.List == "" {
		return Listing{}, "", notListed(p.Name, "it has no provider.list")
	}
	names, errs := newParser(at.Hide), &tail{}
	r, err := proc.Run(ctx, proc.Command{
		Shell: p.Provider.List, Dir: at.Dir, Env: at.environ(p.Name, "", string(action.VerbList)),
		Timeout: p.Provider.Timeout, Stdout: names, Stderr: errs, Hide: at.Hide, Limit: listLimit,
	})
	if err == nil && r.Code == 0 {
		err = names.end()
	}
	said := ""
	if text := strings.TrimSpace(at.hide(string(errs.text))); text != "" {
		said = "; it said: " + oneLine(cutFront(text, saidLimit))
	}
	var wrong string
	switch {
	case names.wrong != nil:
		wrong = names.wrong.Error()
	case fault.CodeOf(err) == proc.CodeTimeout:
		wrong = fmt.Sprintf("it did not end within %s and was ended", pool.Short(p.Provider.Timeout))
	case err != nil:
		return Listing{}, r.Output, notListed(p.Name, "%w%s", err, said)
	case r.Signal != 0:
		wrong = fmt.Sprintf("a signal ended it (%s)", r.Signal)
	case r.Code != 0:
		wrong = exitText(r.Code)
	case r.Behind:
		wrong = "it ended before something that it started in the background did, so the list may lack names: wait for it, or let it run without the list's output"
	default:
		return Listing{Names: names.sorted(), Took: r.Took}, r.Output, nil
	}
	return Listing{}, r.Output, notListed(p.Name, "%s%s", wrong, said)
}

// exitText says what a command ended with, and of a shell's own codes what they
// mean.
func exitText(code int) string {
	switch code {
	case 126:
		return "exit code 126: not executable: chmod +x the script"
	case 127:
		return "exit code 127: the command, or one that it calls, is not installed or not in the PATH"
	}
	return fmt.Sprintf("exit code %d", code)
}

func notListed(pool, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return fault.WithCode(fault.Errorf(fault.Unavailable,
		"the list of pool %s failed, so what exists is not known: %w", pool, err), CodeList)
}

// parser reads a list as it comes. It stops at the first thing that is wrong, and
// keeps no more than the names.
type parser struct {
	names []string
	seen  map[string]int // the line of each
	lines int            // that ended
	// The present line: its name so far, and whether a blank came after it.
	name  []byte
	blank bool
	begun bool // it has a byte
	wrong error
	// hide are texts of which nothing is told.
	hide []string
}

func newParser(hide []string) *parser { return &parser{seen: map[string]int{}, hide: hide} }

// errList ends the command: its list is wrong already.
var errList = errors.New("the list is invalid")

// Write implements [io.Writer].
func (p *parser) Write(piece []byte) (int, error) {
	if p.wrong != nil {
		return 0, errList
	}
	for _, c := range piece {
		p.add(c)
		if p.wrong != nil {
			return 0, errList
		}
	}
	return len(piece), nil
}

func (p *parser) add(c byte) {
	if !p.begun {
		p.begun = true
		if p.lines == MaxListed {
			p.failf("it printed more than %d lines", MaxListed)
			return
		}
	}
	switch {
	case c == '\n':
		p.endLine()
	case c == ' ' || c == '\t' || c == '\r':
		p.blank = len(p.name) > 0
	case p.blank:
		p.name = append(append(p.name, ' '), c)
		p.failf("line %d, which begins with %q, is no name of a key: print one name per line and nothing else", p.lines+1, p.shown(p.name, shownLimit))
	default:
		p.name = append(p.name, c)
		if len(p.name) > lease.MaxFixedName {
			p.failf("line %d, which begins with %q, is no name of a key: at most %d bytes are possible", p.lines+1, p.shown(p.name, 32), lease.MaxFixedName)
		}
	}
}

func (p *parser) endLine() {
	p.lines++
	name := string(p.name)
	p.name, p.blank, p.begun = p.name[:0], false, false
	if name == "" {
		return
	}
	if lease.ValidName(name) != nil {
		p.failf("line %d, %q, is no name of a key: letters, digits, '.', '_' and '-' make one, a letter or digit first",
			p.lines, p.shown([]byte(name), shownLimit))
		return
	}
	if first, twice := p.seen[name]; twice {
		p.failf("%s is on line %d and again on line %d", p.shown([]byte(name), lease.MaxFixedName), first, p.lines)
		return
	}
	p.seen[name] = p.lines
	p.names = append(p.names, name)
}

// end ends the last line, which needs no line break.
func (p *parser) end() error {
	if p.wrong == nil && p.begun {
		p.endLine()
	}
	return p.wrong
}

func (p *parser) failf(format string, args ...any) { p.wrong = fmt.Errorf(format, args...) }

func (p *parser) sorted() []string { return sortedNames(p.names) }

// shownLimit is how much of a line is told, in bytes.
const shownLimit = 80

// shown is a line for an error text, cut at most bytes; stars where it holds six
// bytes or more of a text to be hidden: such a text may go on beyond what was read.
func (p *parser) shown(line []byte, most int) string {
	const window = 6
	for i := 0; i+window <= len(line); i++ {
		for _, h := range p.hide {
			if strings.Contains(h, string(line[i:i+window])) {
				return "***"
			}
		}
	}
	return string(line[:min(len(line), most)])
}

const (
	// tailLimit is how much of a list's errors is looked at, and saidLimit how much
	// of it is told, in bytes.
	tailLimit = 8 << 10
	saidLimit = 600
	// listLimit is how much of a list's output is logged, in bytes.
	listLimit = 16 << 10
)

// tail keeps the end of what is written to it.
type tail struct{ text []byte }

// Write implements [io.Writer].
func (t *tail) Write(piece []byte) (int, error) {
	n := len(piece)
	if n > tailLimit {
		piece = piece[n-tailLimit:]
	}
	if over := len(t.text) + len(piece) - tailLimit; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	t.text = append(t.text, piece...)
	return n, nil
}

// cutFront keeps the end of a text that is longer than limit bytes.
func cutFront(text string, limit int) string {
	text = string(bytes.ToValidUTF8([]byte(text), []byte(string(utf8.RuneError))))
	if len(text) <= limit {
		return text
	}
	text = text[len(text)-limit:]
	for !utf8.RuneStart(text[0]) {
		text = text[1:]
	}
	return "…" + text
}

// oneLine makes a text that others wrote fit for one line of a terminal.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\r' || r == '\t':
			return ' '
		case unicode.IsControl(r) || unicode.Is(unicode.Cf, r):
			return utf8.RuneError
		}
		return r
	}, text)
}
