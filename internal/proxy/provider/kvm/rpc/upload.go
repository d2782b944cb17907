package rpc

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

const rpcUpload = "virStorageVolUpload"

// StorageVolUpload implements [virt.Conn]. At most two run at once; a third
// waits with its ctx.
//
// When ctx ends, the daemon is told to drop the upload and the caller does not
// wait for its word; a daemon that does not give it in time loses the
// connection. A source that gives more than length is refused.
func (c *Conn) StorageVolUpload(ctx context.Context, v virt.Volume, r io.Reader, length uint64) error {
	if err := c.take(ctx, c.uploads, rpcUpload); err != nil {
		return err
	}
	// Until the daemon has answered the call itself, it is one of its calls.
	if err := c.take(ctx, c.calls, rpcUpload); err != nil {
		<-c.uploads
		return err
	}
	freeCall := sync.OnceFunc(func() { <-c.calls })
	src := newSource(r, length, c.pulse, freeCall)
	answer := make(chan error, 1)
	over := make(chan struct{})
	c.pulse.expect()
	started := c.spawn(func() {
		defer func() { <-c.uploads }()
		defer freeCall()
		_, err := protected(c, rpcUpload, func() (struct{}, error) {
			return struct{}{}, c.lib.StorageVolUpload(storageVol(v), src, 0, length, 0)
		})
		src.stop()
		src.settle()
		answer <- err
		close(over)
	})
	if !started {
		src.settle()
		freeCall()
		<-c.uploads
		return ended(rpcUpload, c.guard.reason())
	}
	select {
	case err := <-answer:
		return c.uploaded(src, err)
	case <-ctx.Done():
	case <-c.guard.done:
	}
	select {
	case err := <-answer:
		return c.uploaded(src, err)
	default:
	}
	src.stop()
	if err := src.failure(); err != nil {
		return err
	}
	if err := c.guard.over(); err != nil {
		return ended(rpcUpload, err)
	}
	c.spawn(func() { c.awaitAbort(over) })
	return fault.Errorf(fault.Of(ctx.Err()), "the upload to the volume %s on %s was broken off; it is not whole: %w", v.Name, c.host, ctx.Err())
}

// uploaded decides between the source's own failure and the daemon's.
func (c *Conn) uploaded(src *source, err error) error {
	if own := src.failure(); own != nil {
		return own
	}
	return c.explain(rpcUpload, err)
}

// awaitAbort ends the connection when the daemon keeps an upload that it was
// told to drop: its slot would be lost to all later ones.
func (c *Conn) awaitAbort(over <-chan struct{}) {
	timer := time.NewTimer(c.pulse.after)
	defer timer.Stop()
	select {
	case <-over:
	case <-c.guard.done:
	case <-timer.C:
		c.guard.fail(fault.Errorf(fault.Unavailable, "libvirtd on %s did not end an upload that it was told to drop within %v; "+
			"the connection is closed", c.host, c.pulse.after))
	}
}

// errStopped is what the library gets from a source that was stopped.
var errStopped = errors.New("the upload was stopped")

// source is an upload's reader as the library sees it: in pieces of at most
// [virt.UploadChunk], and never blocking after stop. The reader behind it is
// read by one goroutine, a few pieces ahead, so that reading and hashing go on
// while a piece is encrypted and sent. It ends with stop, or when a Read that
// was under way then returns.
type source struct {
	length uint64
	pulse  *pulse
	// begun is called when the daemon has accepted the call.
	begun func()

	free    chan []byte
	got     chan piece
	stopped chan struct{}
	once    sync.Once

	mu      sync.Mutex
	err     error // the reader's own, other than io.EOF
	settled bool  // the peer is not awaited for this upload any more
	reading bool

	total uint64
	// buf is what rest lies in.
	buf, rest []byte
	atEnd     error
	launch    func()
}

// piece is what one Read gave, in its buffer.
type piece struct {
	buf []byte
	n   int
	err error
}

// ahead is how many pieces are read ahead at most.
const ahead = 4

// maxEmptyReads is how often in a row a reader may give nothing.
const maxEmptyReads = 100

func newSource(r io.Reader, length uint64, p *pulse, begun func()) *source {
	s := &source{
		length: length, pulse: p, begun: begun,
		free: make(chan []byte, ahead), got: make(chan piece, ahead), stopped: make(chan struct{}),
	}
	for range ahead {
		s.free <- make([]byte, virt.UploadChunk)
	}
	s.launch = sync.OnceFunc(func() { go s.pump(r) })
	return s
}

// pump reads r while there are free buffers, up to its end.
func (s *source) pump(r io.Reader) {
	for {
		select {
		case <-s.stopped:
			return
		default:
		}
		select {
		case buf := <-s.free:
			n, err := readSome(r, buf)
			s.got <- piece{buf, n, err} // there is room for all buffers
			if err != nil {
				return
			}
		case <-s.stopped:
			return
		}
	}
}

// readSome is one Read that gives something or an error.
func readSome(r io.Reader, buf []byte) (int, error) {
	for range maxEmptyReads {
		n, err := r.Read(buf)
		if n < 0 || n > len(buf) {
			return 0, fault.Errorf(fault.Permanent, "the source of an upload gave %d bytes when asked for %d", n, len(buf))
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
	return 0, io.ErrNoProgress
}

// Read implements io.Reader for the library.
func (s *source) Read(b []byte) (int, error) {
	s.begun()
	s.launch()
	select {
	case <-s.stopped:
		return 0, errStopped
	default:
	}
	if len(s.rest) == 0 && s.atEnd == nil {
		if err := s.fetch(); err != nil {
			return 0, err
		}
	}
	if len(s.rest) == 0 {
		return 0, s.atEnd
	}
	n := copy(b, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// fetch waits for the next piece. The peer is not awaited meanwhile.
func (s *source) fetch() error {
	s.pause(true)
	defer s.pause(false)
	if s.buf != nil {
		s.free <- s.buf // it came from there: there is room
		s.buf = nil
	}
	select {
	case p := <-s.got:
		s.buf, s.rest, s.atEnd = p.buf, p.buf[:p.n], p.err
	case <-s.stopped:
		return errStopped
	}
	if s.total += uint64(len(s.rest)); s.length > 0 && s.total > s.length {
		s.rest = nil
		s.atEnd = fault.Errorf(fault.Permanent, "the source of an upload gave more than the %d bytes that were announced", s.length)
	}
	// One that only has io.EOF inside is the source's own error: the library
	// knows the end by io.EOF itself.
	if s.atEnd != nil && s.atEnd != io.EOF { //nolint:errorlint // see above
		s.mu.Lock()
		s.err = s.atEnd
		s.mu.Unlock()
	}
	return nil
}

// stop makes Read return at once, now and later.
func (s *source) stop() { s.once.Do(func() { close(s.stopped) }) }

// failure is the reader's own error.
func (s *source) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// pause says that the source is the slow one, or that it is not any more.
func (s *source) pause(reading bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.settled || s.reading == reading {
		return
	}
	s.reading = reading
	if reading {
		s.pulse.settle()
	} else {
		s.pulse.expect()
	}
}

// settle says that nothing of this upload is awaited from the peer.
func (s *source) settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.settled && !s.reading {
		s.pulse.settle()
	}
	s.settled = true
}
