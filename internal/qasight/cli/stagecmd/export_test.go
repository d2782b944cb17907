package stagecmd

import "io"

// MaxLine is for tests.
const MaxLine = maxLine

// Output is what several workers write to.
type Output struct{ o output }

// Lines is one stream of one of them.
func (o *Output) Lines(to io.Writer, prefix string) *Lines { return &Lines{o.o.lines(to, prefix)} }

// Lines is a stream.
type Lines struct{ *lines }

// Flush and SetPrefix are for tests.
func (l *Lines) Flush() { l.flush() }

// SetPrefix changes the prefix.
func (l *Lines) SetPrefix(p string) { l.setPrefix(p) }
