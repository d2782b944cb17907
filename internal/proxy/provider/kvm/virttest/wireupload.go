package virttest

import (
	"context"
	"io"
	"sync"

	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// inflow is an upload's source on the daemon's side: what its frames carry.
type inflow struct {
	w *wire
	// ctx ends with the upload.
	ctx    context.Context //nolint:containedctx // the upload's own life
	cancel context.CancelFunc
	// begin answers the upload's call, which is what the first Read says: the
	// volume is there.
	begin func()
	// frames has room for all that are worked on: who puts one in never waits.
	frames chan frame
	rest   []byte

	mu      sync.Mutex
	over    bool
	aborted bool
}

// Read implements io.Reader: no more than one frame at once.
func (s *inflow) Read(b []byte) (int, error) {
	s.begin()
	if len(s.rest) == 0 {
		select {
		case f := <-s.frames:
			s.w.free()
			if f.status == wireOK {
				return 0, io.EOF
			}
			s.rest = f.payload
		case <-s.ctx.Done():
			return 0, s.ctx.Err()
		}
	}
	n := copy(b, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// put takes a frame with its slot, or reports that the upload is over.
func (s *inflow) put(f frame) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || s.aborted {
		return false
	}
	if f.status == wireError {
		s.aborted = true
		s.cancel()
		return false
	}
	s.frames <- f
	return true
}

// end drops what was not read, and reports whether the client broke it off.
func (s *inflow) end() (aborted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	for len(s.frames) > 0 {
		select {
		case <-s.frames:
			s.w.free()
		default: // a Read that was under way has it
		}
	}
	return s.aborted
}

// piece takes a frame of an upload. One that is over has more under way, which
// is dropped.
func (w *wire) piece(f frame) {
	w.mu.Lock()
	s := w.uploads[f.serial]
	w.mu.Unlock()
	if s == nil || !s.put(f) {
		w.free()
	}
}

// upload is one upload from its call to its end. The call's slot is its own
// until the call is answered.
func (w *wire) upload(f frame) {
	a := args{left: f.payload}
	vol, offset, length, flags := a.volume(), a.long(), a.long(), a.word()
	if !a.whole() {
		w.refuse(f, "Unable to decode message payload")
		w.free()
		return
	}
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	answered := sync.Once{}
	s := &inflow{w: w, ctx: ctx, cancel: cancel, frames: make(chan frame, wireRequests)}
	s.begin = func() {
		answered.Do(func() {
			w.answer(f, wireReply, nil, nil)
			w.free()
		})
	}
	err := w.keep(f.serial, s)
	if err == nil && (offset != 0 || flags != 0) {
		err = failure(virt.CodeNoSupport, "this function is not supported by the connection driver: an upload with an offset or flags")
	}
	if err == nil {
		err = w.link.StorageVolUpload(ctx, vol, s, length)
	}
	cancel()
	aborted := s.end()
	w.drop(f.serial, s)
	if aborted {
		err = failure(virt.CodeRPC, "stream aborted at client request")
	}
	kind := uint32(wireStream)
	answered.Do(func() {
		defer w.free()
		kind = wireReply
	})
	w.answer(f, kind, nil, err)
}

// keep makes room for an upload.
func (w *wire) keep(serial int32, s *inflow) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !w.opened:
		return failure(virt.CodeInternalError, "internal error: connection not open")
	case w.uploads[serial] != nil || len(w.uploads) == wireUploads:
		return failure(virt.CodeInternalError, "internal error: too many streams")
	}
	w.uploads[serial] = s
	return nil
}

func (w *wire) drop(serial int32, s *inflow) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.uploads[serial] == s {
		delete(w.uploads, serial)
	}
}
