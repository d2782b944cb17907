package poolcmd

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
)

// progressWidth bounds the line: a longer one would wrap and could not be removed.
const progressWidth = 78

// progress is one line on a terminal that says what is waited for. With a nil
// writer it says nothing.
type progress struct {
	w     io.Writer
	what  string
	total int

	mu      sync.Mutex
	ended   int
	running []string
	shown   bool
}

func newProgress(w io.Writer, what string, total int) *progress {
	return &progress{w: w, what: what, total: total}
}

// begin says that one of them runs now.
func (p *progress) begin(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = append(p.running, name)
	p.show()
}

// end says that it ended.
func (p *progress) end(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.running, name); i >= 0 {
		p.running = slices.Delete(p.running, i, i+1)
	}
	p.ended++
	p.show()
}

// close removes the line.
func (p *progress) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}

func (p *progress) show() {
	if p.w == nil {
		return
	}
	p.shown = true
	fmt.Fprint(p.w, "\r\x1b[K"+p.line())
}

// line is such as "12/50 lists, waiting for: a, b and 3 more".
func (p *progress) line() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d/%d %s", p.ended, p.total, p.what)
	for i, name := range p.running {
		lead := ", "
		if i == 0 {
			lead = ", waiting for: "
		}
		more := ""
		if rest := len(p.running) - i - 1; rest > 0 {
			more = fmt.Sprintf(" and %d more", rest)
		}
		if b.Len()+len(lead)+len(name)+len(more) > progressWidth {
			if i > 0 {
				fmt.Fprintf(&b, " and %d more", len(p.running)-i)
			}
			break
		}
		b.WriteString(lead + name)
	}
	return b.String()
}
