package stagecmd

import (
	"bytes"
	"io"
	"sync"
)

// maxLine bounds what is kept of a line that does not end; longer ones come in
// pieces, each a line of its own.
const maxLine = 16 << 10

// output is where several workers write at once: whole lines of one never stand
// inside another's.
type output struct{ mu sync.Mutex }

// lines is one stream of one worker: each line begins with its prefix.
type lines struct {
	out *output
	to  io.Writer

	mu      sync.Mutex
	prefix  string
	pending []byte
}

func (o *output) lines(to io.Writer, prefix string) *lines {
	return &lines{out: o, to: to, prefix: prefix}
}

// setPrefix changes what the next lines begin with.
func (l *lines) setPrefix(prefix string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.prefix = prefix
}

// Write takes a piece and passes on each line that is whole. It never fails: a
// reader that went away must not end a command that works on a key.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(p)
	for len(p) > 0 {
		end := bytes.IndexByte(p, '\n')
		room := maxLine - len(l.pending)
		switch {
		case end >= 0 && end <= room:
			l.pass(append(l.pending, p[:end]...))
			p = p[end+1:]
		case len(p) <= room:
			l.pending = append(l.pending, p...)
			return n, nil
		default:
			l.pass(append(l.pending, p[:room]...))
			p = p[room:]
		}
		l.pending = l.pending[:0]
	}
	return n, nil
}

// flush passes on a last line that did not end.
func (l *lines) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) > 0 {
		l.pass(l.pending)
		l.pending = l.pending[:0]
	}
}

func (l *lines) pass(text []byte) {
	line := make([]byte, 0, len(l.prefix)+len(text)+1)
	line = append(append(append(line, l.prefix...), text...), '\n')
	l.out.mu.Lock()
	defer l.out.mu.Unlock()
	_, _ = l.to.Write(line)
}
