package proc

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"
)

// fullPipe bounds what a pipe can hold, in bytes, unless somebody privileged
// made it larger.
const fullPipe = 1 << 20

// capture reads what a command writes: it hands it to the writers as it comes
// and keeps the ends of it.
type capture struct {
	failed  chan struct{} // closed when a writer failed
	readers sync.WaitGroup
	reads   []*os.File // this process's ends
	writes  []*os.File // the command's ends

	mu    sync.Mutex // one piece after the other, to the writers too
	kept  *keeper
	wrong error // the writer's; set before failed is closed
	// held is whether somebody held the standard output open to the last; for after
	// finish.
	held bool
}

// stream is one of the two outputs.
type stream struct {
	to    io.Writer
	first bool // the standard output's
	hide  hider
	clean cleaner
}

// open opens what the command is to have for its input, output and error. After
// it was started, the caller calls started, or else abandon.
func (c *capture) open(cmd Command) ([3]*os.File, error) {
	if cmd.Files != nil {
		return [3]*os.File{cmd.Files.In, cmd.Files.Out, cmd.Files.Err}, nil
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return [3]*os.File{}, err
	}
	c.writes = []*os.File{null}
	files := [3]*os.File{null}
	secrets := secretsOf(cmd.Hide)
	streams := []*stream{{to: cmd.Stdout, first: true, hide: hider{secrets: secrets}}}
	if cmd.Stdout != nil || cmd.Stderr != nil {
		streams = append(streams, &stream{to: cmd.Stderr, hide: hider{secrets: secrets}})
	} // else one pipe for both keeps the order as it was
	for i, s := range streams {
		r, w, err := os.Pipe()
		if err != nil {
			c.abandon()
			return files, err
		}
		c.reads, c.writes = append(c.reads, r), append(c.writes, w)
		files[1+i], files[2] = w, w
		c.readers.Go(func() { c.read(r, s) })
	}
	return files, nil
}

// started closes the command's ends here: then the pipes end when nobody of the
// command has them any more.
func (c *capture) started() {
	for _, f := range c.writes {
		f.Close()
	}
	c.writes = nil
}

// abandon ends the reading of what was never started.
func (c *capture) abandon() {
	c.started()
	c.finish(0)
}

// finish waits until all is read, but not longer than wait for a process that
// holds a pipe open, and then closes everything. A writer that blocks is
// waited for.
func (c *capture) finish(wait time.Duration) {
	for _, f := range c.reads {
		_ = f.SetReadDeadline(time.Now().Add(wait))
	}
	c.readers.Wait()
	for _, f := range c.reads {
		f.Close()
	}
	c.reads = nil
}

func (c *capture) read(f *os.File, s *stream) {
	buf := make([]byte, 32<<10)
	for {
		n, err := f.Read(buf)
		c.take(s, buf[:n])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			// What waits in the pipe is still the command's.
			if !c.drain(f, s, buf) && s.first {
				c.mu.Lock()
				c.held = true
				c.mu.Unlock()
			}
		}
		if err != nil {
			break
		}
	}
	c.rest(s)
}

// drain reads what is in the pipe now, without waiting for more, and reports
// whether that is all that will ever come.
func (c *capture) drain(f *os.File, s *stream, buf []byte) (end bool) {
	raw, err := f.SyscallConn()
	if err != nil || f.SetReadDeadline(time.Time{}) != nil {
		return false
	}
	for total := 0; total < fullPipe; {
		var n int
		if raw.Read(func(fd uintptr) bool {
			for n, err = -1, syscall.EINTR; errors.Is(err, syscall.EINTR); {
				n, err = syscall.Read(int(fd), buf)
			}
			return true
		}) != nil || err != nil || n <= 0 {
			return err == nil && n == 0
		}
		c.take(s, buf[:n])
		total += n
	}
	return false
}

// rest keeps what was held back of a stream that ended.
func (c *capture) rest(s *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept.add(s.clean.next(s.hide.rest()))
	c.kept.add(s.clean.rest())
}

func (c *capture) take(s *stream, piece []byte) {
	if len(piece) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept.add(s.clean.next(s.hide.next(piece)))
	if s.to == nil || c.wrong != nil {
		return
	}
	n, err := s.to.Write(piece)
	if err == nil && n < len(piece) {
		err = io.ErrShortWrite
	}
	if err != nil {
		c.wrong = err
		close(c.failed)
	}
}

// text is what was kept; for after finish.
func (c *capture) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kept.text()
}

// err is the writer's; for after failed was closed.
func (c *capture) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wrong
}

func newCapture(limit int) *capture {
	return &capture{failed: make(chan struct{}), kept: newKeeper(limit)}
}
