package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"fleetdesk/internal/core/fault"
)

// Stream is an image's bytes, from the first. One goroutine reads it, once;
// the other methods may be called from any.
type Stream struct {
	t        *transfer
	where    string
	length   int64 // -1 when it was not told
	framed   bool  // HTTP itself tells where the body ends
	want     string
	promised Format

	body io.ReadCloser
	idle *time.Timer
	hash hash.Hash

	begin []byte // the image's first bytes
	head  []byte // those of them that are not given yet

	count atomic.Int64

	mu     sync.Mutex
	closed bool
	whole  bool
	err    error // the first failure
	header Header
	sum    string
}

// errClosed is what a Read gets that Close cut off: no failure of the source.
var errClosed = fault.New(fault.Transient, "the image's stream was closed")

func newStream(t *transfer, s Source, where string, resp *http.Response) *Stream {
	limit := t.f.o.IdleTimeout
	idle := time.AfterFunc(limit, func() { t.cancel(silence{limit}) })
	idle.Stop()
	return &Stream{
		t: t, where: where, length: resp.ContentLength, want: strings.ToLower(s.SHA256), promised: s.Format,
		framed: resp.ContentLength >= 0 || slices.Contains(resp.TransferEncoding, "chunked"),
		body:   resp.Body, idle: idle, hash: sha256.New(),
	}
}

// readHeader reads the first bytes and judges them.
func (s *Stream) readHeader() error {
	b := make([]byte, HeaderSize)
	n := 0
	var err error
	for n < len(b) && err == nil {
		var m int
		m, err = s.receive(b[n:])
		n += m
	}
	if err != nil && !isEnd(err) {
		return s.broken(s.interrupted(err, int64(n)))
	}
	if isEnd(err) && s.length > int64(n) {
		return s.broken(s.interrupted(io.ErrUnexpectedEOF, int64(n)))
	}
	s.begin, s.head = b[:n], b[:n]
	return s.judge(max(0, s.length))
}

// judge reads the header: first, and once more at the end when the length was
// not told.
func (s *Stream) judge(length int64) error {
	h, err := ReadHeader(s.begin, s.promised, length)
	if err != nil {
		err = fmt.Errorf("%s: %w", s.where, err)
		if !s.framed && length > 0 {
			err = fail(fault.Transient, err, "%s (or the connection was cut: its host told no length, and %d bytes came)", err, length)
		}
		return s.broken(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.header = h
	return nil
}

// receive reads from the source and bounds its silence.
func (s *Stream) receive(p []byte) (int, error) {
	s.idle.Reset(s.t.f.o.IdleTimeout)
	n, err := s.body.Read(p)
	s.idle.Stop()
	return n, err
}

// Read gives the image's next bytes; it waits for the source. At the end it
// returns io.EOF when all is well, else in its place the error that [Stream.Err]
// keeps.
func (s *Stream) Read(p []byte) (int, error) {
	if err := s.ended(); err != nil || len(p) == 0 {
		return 0, err
	}
	var n int
	var err error
	if len(s.head) > 0 {
		n = copy(p, s.head)
		s.head = s.head[n:]
	} else {
		n, err = s.receive(p)
	}
	at := s.count.Load() + int64(n)
	switch limit := s.t.f.o.MaxBytes; {
	case s.length >= 0 && at > s.length:
		return 0, s.broken(fail(fault.Permanent, nil, "%s: more bytes came than the %d that were announced", s.where, s.length))
	case at > limit:
		return 0, s.broken(fail(fault.Permanent, nil, "%s: the image has more than the %d bytes that are taken", s.where, limit))
	}
	s.hash.Write(p[:n])
	s.count.Store(at)
	if err == nil && at == s.length {
		// Who knows the length may stop here: the verdict must not wait for a Read
		// that never comes.
		var beyond [1]byte
		var m int
		if m, err = s.receive(beyond[:]); m > 0 {
			err = s.broken(fail(fault.Permanent, nil, "%s: more bytes came than the %d that were announced", s.where, s.length))
			return n, keepBytes(n, err)
		}
	}
	switch {
	case err == nil:
		return n, nil
	case isEnd(err):
		err = s.finish(at)
	default:
		err = s.broken(s.interrupted(err, at))
	}
	return n, keepBytes(n, err)
}

// isEnd reports whether a source's error is its regular end; an io.EOF inside
// another error is none.
func isEnd(err error) bool {
	return err == io.EOF //nolint:errorlint // see above
}

// keepBytes holds an error back until the next Read: a reader may drop bytes
// that come with one.
func keepBytes(n int, err error) error {
	if n > 0 {
		return nil
	}
	return err
}

// ended is what Reads return from now on, nil while there is something to come.
func (s *Stream) ended() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return s.err
	case s.whole:
		return io.EOF
	case s.closed:
		return errClosed
	}
	return nil
}

// finish judges the whole.
func (s *Stream) finish(at int64) error {
	sum := hex.EncodeToString(s.hash.Sum(nil))
	s.mu.Lock()
	s.sum = sum
	s.mu.Unlock()
	if at < s.length {
		return s.broken(s.interrupted(io.ErrUnexpectedEOF, at))
	}
	if s.want != "" && sum != s.want {
		return s.broken(fail(fault.Permanent, nil, "%s: the checksum is wrong: its %d bytes have the sha256 %s, and configured is %s: check both, and whether the image was replaced", s.where, at, sum, s.want))
	}
	if s.length < 0 {
		if err := s.judge(at); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	s.whole = true
	return io.EOF
}

// broken keeps the failure, after which nothing is read, and returns it. What comes after Close, or
// because of it, is none.
func (s *Stream) broken(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	s.err = err
	return err
}

// interrupted says why the source's bytes ended early.
func (s *Stream) interrupted(err error, at int64) error {
	progress := fmt.Sprintf("at %d of %d bytes", at, s.length)
	if s.length < 0 {
		progress = fmt.Sprintf("at %d of an unknown number of bytes", at)
	}
	if quiet, ok := errors.AsType[silence](context.Cause(s.t.ctx)); ok {
		return fail(fault.Timeout, quiet, "%s: the download stalled %s: its host sent no byte for %s", s.where, progress, quiet.limit)
	}
	if gone := givenUp(s.t.outer, s.where+" "+progress); gone != nil {
		return gone
	}
	return fail(fault.Transient, err, "%s: unexpected end of the download %s: %s", s.where, progress, systemText(err))
}

// Close ends the transfer. A Read that is under way returns; closing is no
// failure, so that [Stream.Err] still tells whether the source was at fault.
// It never fails and may be called again.
func (s *Stream) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.t.cancel(nil)
	s.idle.Stop()
	_ = s.body.Close() // all that matters was said by Read
	return nil
}

// Err is the first failure of the source, with its class and in its own words,
// whatever somebody in between made of it; nil when there was none so far.
func (s *Stream) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Verified returns nil when every byte of the image was given and all was as
// promised: only then may a marker be written. It does not read; what is not
// read to its end is Transient.
func (s *Stream) Verified() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return s.err
	case s.whole:
		return nil
	}
	return fail(fault.Transient, nil, "%s: the image was read to byte %d and not to its end", s.where, s.count.Load())
}

// Header is what the image says of itself. The VirtualSize of a raw image
// whose length was not told is 0 until it was read to its end.
func (s *Stream) Header() Header {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.header
}

// Length is the image's length in bytes, 0 when the server did not tell it.
func (s *Stream) Length() int64 { return max(0, s.length) }

// Count is how many bytes were given so far.
func (s *Stream) Count() int64 { return s.count.Load() }

// Sum is the SHA-256 in hex of the bytes that were given, empty before the end.
func (s *Stream) Sum() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sum
}
