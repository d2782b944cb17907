package proc

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	// minHidden is the length of the shortest text that is hidden, in bytes:
	// shorter ones are all over the place in what has nothing to do with them.
	minHidden = 6
	// minLimit is the least that is kept of an output: less has no room for a mark.
	minLimit = 256
	// longestMark bounds the mark of a cut.
	longestMark = 64
	hiddenMark  = "***"
)

// hider replaces secret texts in a stream, also those that come in pieces. What
// overlaps is hidden as one. Parts that may become one of them are held back,
// so at most the longest's length.
type hider struct {
	secrets [][]byte
	pending []byte
	covered int // of pending, what belongs to one that was replaced already
	out     []byte
}

// secretsOf are the texts to look for: without the space around them, which
// whoever prints them mostly leaves out.
func secretsOf(texts []string) [][]byte {
	var secrets [][]byte
	for _, t := range texts {
		if t = strings.TrimSpace(t); len(t) >= minHidden {
			secrets = append(secrets, []byte(t))
		}
	}
	return secrets
}

// next takes a piece of the stream and returns what is certain of it by now; it
// counts until the next call.
func (h *hider) next(piece []byte) []byte {
	if len(h.secrets) == 0 {
		return piece
	}
	h.pending = append(h.pending, piece...)
	// From open on the rest may be the beginning of a secret.
	open := len(h.pending)
	for _, s := range h.secrets {
		open = min(open, beginning(h.pending, s))
	}
	return h.pass(open, h.matches())
}

// rest ends the stream: a beginning of a secret that was long enough to be hidden
// is hidden.
func (h *hider) rest() []byte {
	spans := h.matches()
	for _, s := range h.secrets {
		if open := beginning(h.pending, s); len(h.pending)-open >= minHidden {
			spans = append(spans, span{open, len(h.pending)})
		}
	}
	return h.pass(len(h.pending), spans)
}

type span struct{ from, to int }

func (h *hider) matches() []span {
	var spans []span
	for _, s := range h.secrets {
		for from := 0; ; from++ {
			at := bytes.Index(h.pending[from:], s)
			if at < 0 {
				break
			}
			from += at
			spans = append(spans, span{from, from + len(s)})
		}
	}
	return spans
}

// beginning returns where in text a beginning of s starts that goes to text's end;
// len(text) when there is none. The whole of s is none.
func beginning(text, s []byte) int {
	for at := max(0, len(text)-len(s)+1); at < len(text); at++ {
		next := bytes.IndexByte(text[at:], s[0])
		if next < 0 {
			break
		}
		at += next
		if bytes.HasPrefix(s, text[at:]) {
			return at
		}
	}
	return len(text)
}

// pass returns pending up to open with the spans replaced, and keeps the rest.
func (h *hider) pass(open int, spans []span) []byte {
	slices.SortFunc(spans, func(a, b span) int { return a.from - b.from })
	out := h.out[:0]
	done := h.covered // all before it is out
	for _, s := range spans {
		if s.from >= open {
			break
		}
		if s.from >= done { // else it overlaps the one before
			out = append(append(out, h.pending[done:s.from]...), hiddenMark...)
		}
		done = max(done, s.to)
	}
	if done < open {
		out = append(out, h.pending[done:open]...)
		done = open
	}
	h.out = out
	h.covered = done - open
	h.pending = append(h.pending[:0], h.pending[open:]...)
	return out
}

// cleaner makes a stream valid UTF-8 without NUL, also where letters come in
// pieces: each run of other bytes, and each NUL, becomes U+FFFD.
type cleaner struct {
	pending []byte // the beginning of a letter
	bad     bool   // the last byte was no UTF-8
	out     []byte
}

// next takes a piece of the stream and returns what is certain of it by now; it
// counts until the next call.
func (c *cleaner) next(piece []byte) []byte {
	if len(c.pending) == 0 && utf8.Valid(piece) && bytes.IndexByte(piece, 0) < 0 {
		c.bad = c.bad && len(piece) == 0
		return piece
	}
	c.pending = append(c.pending, piece...)
	text, out := c.pending, c.out[:0]
	for len(text) > 0 && utf8.FullRune(text) {
		r, size := utf8.DecodeRune(text)
		out = c.add(out, r, size)
		text = text[size:]
	}
	c.pending = append(c.pending[:0], text...)
	c.out = out
	return out
}

func (c *cleaner) rest() []byte {
	var out []byte
	for range c.pending {
		out = c.add(out, utf8.RuneError, 1)
	}
	c.pending = nil
	return out
}

func (c *cleaner) add(out []byte, r rune, size int) []byte {
	bad := r == utf8.RuneError && size == 1
	if !bad || !c.bad {
		if r == 0 {
			r = utf8.RuneError
		}
		out = utf8.AppendRune(out, r)
	}
	c.bad = bad
	return out
}

// keeper keeps the beginning and the end of a text, in a memory of about twice its
// limit.
type keeper struct {
	limit int
	total int
	head  []byte
	tail  []byte
}

func newKeeper(limit int) *keeper {
	if limit <= 0 {
		limit = DefaultLimit
	}
	return &keeper{limit: max(limit, minLimit)}
}

// half is what is kept at each end of a text that is cut.
func (k *keeper) half() int { return (k.limit - longestMark) / 2 }

func (k *keeper) add(piece []byte) {
	k.total += len(piece)
	n := min(k.half()-len(k.head), len(piece))
	k.head = append(k.head, piece[:n]...)
	piece = piece[n:]
	most := k.limit - k.half()
	if len(piece) > most {
		piece = piece[len(piece)-most:]
	}
	k.tail = append(k.tail, piece...)
	if len(k.tail) > 2*most {
		k.tail = append(k.tail[:0], k.tail[len(k.tail)-most:]...)
	}
}

// text returns what was kept, of at most limit bytes. What was added must be
// UTF-8.
func (k *keeper) text() string {
	if k.total <= k.limit {
		return string(k.head) + string(k.tail)
	}
	head, tail := k.head, k.tail[len(k.tail)-k.half():]
	for !utf8.Valid(head) { // at most three bytes of a letter are left over
		head = head[:len(head)-1]
	}
	for len(tail) > 0 && !utf8.RuneStart(tail[0]) {
		tail = tail[1:]
	}
	return fmt.Sprintf("%s\n[… %d bytes were cut …]\n%s", head, k.total-len(head)-len(tail), tail)
}
