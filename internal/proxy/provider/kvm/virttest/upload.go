package virttest

import (
	"context"
	"fmt"
	"io"

	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// packet is one read of an upload's source.
type packet struct {
	n   int
	err error
}

// StorageVolUpload implements virt.Conn. It writes over what the volume has
// and makes it longer when needed, never shorter.
//
// A full pool is told with the packet after the one that did not fit: when
// that was the last, the upload succeeds and its end is lost. So it is with
// libvirt 9.0, whose daemon writes behind what it accepts.
func (c *conn) StorageVolUpload(ctx context.Context, ref virt.Volume, r io.Reader, length uint64) error {
	const rpc = "StorageVolUpload"
	u := &upload{c: c, length: length}
	if err := tell(ctx, c, rpc, func() (err error) {
		u.pool, u.vol, err = c.host.findVol(ref)
		return err
	}); err != nil {
		return err
	}
	buf := make([]byte, virt.UploadChunk)
	wanted, got := make(chan struct{}), make(chan packet, 1)
	defer close(wanted)
	go func() {
		for range wanted {
			n, err := r.Read(buf)
			got <- packet{n, err}
		}
	}()
	for {
		if err := u.ready(ctx); err != nil {
			return err
		}
		var p packet
		select {
		case wanted <- struct{}{}:
		case <-ctx.Done():
			return ctxError(ctx, rpc)
		case <-c.done:
			return c.Err()
		}
		select {
		case p = <-got:
		case <-ctx.Done():
			return ctxError(ctx, rpc)
		case <-c.done:
			return c.Err()
		}
		if err := u.accept(buf[:p.n]); err != nil {
			return err
		}
		switch {
		case p.err == io.EOF: // one that has it inside is the source's own error
			return c.after(ctx, publicName(rpc))
		case p.err != nil:
			return p.err
		}
	}
}

// upload is one that runs.
type upload struct {
	c        *conn
	pool     *pool
	vol      *vol
	length   uint64
	accepted uint64
	full     bool
}

// ready asks hooks and waits out stalls before the next packet.
func (u *upload) ready(ctx context.Context) error {
	h := u.c.host
	h.mu.Lock()
	hook, stall := h.faults.onUpload, h.faults.stall
	hung := h.faults.waits(h.faults.hung, publicName("StorageVolUpload"))
	at := Upload{u.vol.pool, u.vol.name, u.accepted}
	h.mu.Unlock()
	if hook != nil {
		if err := hook(at); err != nil {
			return err
		}
	}
	if hung != nil {
		u.c.wait(ctx, hung)
	}
	if stall != nil && u.accepted >= stall.after {
		u.c.wait(ctx, stall.over)
	}
	return u.c.alive(ctx, "StorageVolUpload")
}

// accept writes a packet into the volume as far as length and space allow.
func (u *upload) accept(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	h := u.c.host
	h.mu.Lock()
	defer h.mu.Unlock()
	if u.full {
		return failure(virt.CodeSystemError, fmt.Sprintf("Unable to write %s: %s", u.vol.path, noSpace))
	}
	fits := b
	if u.length > 0 {
		fits = b[:min(uint64(len(b)), u.length-u.accepted)]
	}
	n := uint64(len(fits))
	before := u.vol.allocated()
	if end := u.accepted + n; end > before {
		free := u.pool.info().Available
		if need := end - before; need > free {
			u.full = true
			n -= min(n, need-free)
		}
	}
	u.vol.write(u.accepted, fits[:n])
	u.accepted += n
	if len(fits) < len(b) {
		return failure(virt.CodeSystemError, "cannot write to stream: "+noSpace)
	}
	return nil
}

// write puts b at an offset that is not behind the content's end.
func (v *vol) write(at uint64, b []byte) {
	if end := at + uint64(len(b)); end > uint64(len(v.content)) {
		v.content = append(v.content[:min(at, uint64(len(v.content)))], b...)
	} else {
		copy(v.content[at:], b)
	}
	v.size = max(v.size, uint64(len(v.content)))
	v.probe()
}
