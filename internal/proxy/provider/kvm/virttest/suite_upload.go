package virttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing/iotest"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

func testUpload(b *bench) {
	for _, n := range []int{0, 1, 4095, virt.UploadChunk, virt.UploadChunk + 1, 1<<20 + 1} {
		for _, given := range []bool{false, true} {
			content, length := text(n), uint64(0)
			if given {
				length = uint64(n)
			}
			v := b.volume("raw", 0, "")
			r := strings.NewReader(content)
			b.ok(fmt.Sprintf("upload of %d bytes, length %d", n, length), b.c.StorageVolUpload(b.ctx, v, r, length))
			if r.Len() != 0 {
				b.Errorf("%d bytes of %d were not read", r.Len(), n)
			}
			if i := b.info(v); i != (virt.VolumeInfo{Capacity: uint64(n), Physical: uint64(n)}) {
				b.Errorf("%d bytes, length %d: %+v", n, length, i)
			}
			b.wantsContent(v, content)
		}
	}
	// More than the length that was given.
	v := b.volume("raw", 0, "")
	if err := b.c.StorageVolUpload(b.ctx, v, strings.NewReader(text(3*virt.UploadChunk)), virt.UploadChunk); err == nil {
		b.Error("more bytes than announced went well")
	}
	if i := b.info(v); i.Physical > virt.UploadChunk {
		b.Errorf("more bytes than announced were written: %d", i.Physical)
	}
	// Less is no error of the daemon: the file's length tells.
	v = b.volume("raw", 0, "")
	b.ok("less than announced", b.c.StorageVolUpload(b.ctx, v, strings.NewReader(text(100)), 200))
	if i := b.info(v); i.Physical != 100 {
		b.Errorf("100 of 200 bytes are %d", i.Physical)
	}
}

func testUploadOver(b *bench) {
	v := b.volume("raw", 0, "")
	b.ok("first", b.c.StorageVolUpload(b.ctx, v, strings.NewReader("0123456789"), 0))
	b.ok("a shorter one", b.c.StorageVolUpload(b.ctx, v, strings.NewReader("abc"), 3))
	if i := b.info(v); i.Physical != 10 {
		b.Errorf("a shorter upload made it %d bytes", i.Physical)
	}
	b.wantsContent(v, "abc3456789")
	b.ok("nothing", b.c.StorageVolUpload(b.ctx, v, strings.NewReader(""), 0))
	b.wantsContent(v, "abc3456789")
	b.ok("a longer one", b.c.StorageVolUpload(b.ctx, v, strings.NewReader("ABCDEFGHIJKLM"), 0))
	b.wantsContent(v, "ABCDEFGHIJKLM")
	// A file that is longer from the beginning hides what was not written.
	v = b.volume("raw", 100, "")
	b.ok("into a long file", b.c.StorageVolUpload(b.ctx, v, strings.NewReader("abc"), 0))
	if i := b.info(v); i != (virt.VolumeInfo{Capacity: 100, Physical: 100}) {
		b.Errorf("3 bytes in a file of 100: %+v", i)
	}
	b.wantsContent(v, "abc"+strings.Repeat("\x00", 97))
	v = b.volume("qcow2", 1<<20, "")
	img := Qcow2(4 << 20)
	b.ok("an image over an image", b.c.StorageVolUpload(b.ctx, v, bytes.NewReader(img), 0))
	b.soonSized(v, virt.VolumeInfo{Capacity: 4 << 20, Physical: uint64(len(img))})
}

// counting counts reads, and fails or blocks where it is told.
type counting struct {
	r     io.Reader
	reads atomic.Int32
}

func (c *counting) Read(p []byte) (int, error) {
	c.reads.Add(1)
	return c.r.Read(p)
}

var errSource = errors.New("the source is broken")

func testUploadReaders(b *bench) {
	content := text(2*virt.UploadChunk + 17)
	for what, r := range map[string]io.Reader{
		"bytes with the end": iotest.DataErrReader(strings.NewReader(content)),
		"half reads":         iotest.HalfReader(strings.NewReader(content)),
		"reads of nothing":   &hesitant{r: strings.NewReader(content)},
	} {
		v := b.volume("raw", 0, "")
		b.ok(what, b.c.StorageVolUpload(b.ctx, v, r, 0))
		if i := b.info(v); i.Physical != uint64(len(content)) {
			b.Errorf("%s: %d bytes, want %d", what, i.Physical, len(content))
		}
		b.wantsContent(v, content)
	}
	v := b.volume("raw", 0, "")
	b.ok("byte by byte", b.c.StorageVolUpload(b.ctx, v, iotest.OneByteReader(strings.NewReader(content[:300])), 300))
	b.wantsContent(v, content[:300])

	classed := fault.Wrap(fault.Permanent, errSource)
	for what, tc := range map[string]struct {
		r    io.Reader
		want error
	}{
		"at once":               {iotest.ErrReader(errSource), errSource},
		"after some":            {io.MultiReader(strings.NewReader(content), iotest.ErrReader(errSource)), errSource},
		"with the last bytes":   {&endsWith{s: content[:100], err: errSource}, errSource},
		"with a class":          {io.MultiReader(strings.NewReader(content), iotest.ErrReader(classed)), classed},
		"the end came too soon": {io.MultiReader(strings.NewReader(content), iotest.ErrReader(io.ErrUnexpectedEOF)), io.ErrUnexpectedEOF},
	} {
		v := b.volume("raw", 0, "")
		r := &counting{r: tc.r}
		err := b.c.StorageVolUpload(b.ctx, v, r, 0)
		switch {
		case err == nil:
			b.Errorf("%s: the source's error was lost", what)
		case !errors.Is(err, tc.want):
			b.Errorf("%s: %v, want the source's own error", what, err)
		case err.Error() != tc.want.Error():
			b.Errorf("%s: %q, want it as the source gave it", what, err)
		case tc.want == classed && fault.Of(err) != fault.Permanent:
			b.Errorf("%s: class %s", what, fault.Of(err))
		}
		n := r.reads.Load()
		if i := b.info(v); i.Physical > uint64(len(content)) {
			b.Errorf("%s: %d bytes are there", what, i.Physical)
		}
		b.ok("upload after "+what, b.c.StorageVolUpload(b.ctx, v, strings.NewReader(content+"!"), 0))
		b.wantsContent(v, content+"!")
		if r.reads.Load() != n {
			b.Errorf("%s: the source was read after its error", what)
		}
	}
}

// Only io.EOF itself is the end: an error that has it inside is the source's own.
func testUploadWrappedEOF(b *bench) {
	cut := fmt.Errorf("the download was cut: %w", io.EOF)
	for what, r := range map[string]io.Reader{
		"at once":             iotest.ErrReader(cut),
		"with the last bytes": &endsWith{s: "abc", err: cut},
	} {
		v := b.volume("raw", 0, "")
		err := b.c.StorageVolUpload(b.ctx, v, r, 0)
		if err == nil || !errors.Is(err, cut) || err.Error() != cut.Error() {
			b.Errorf("%s: %v, want the source's own error", what, err)
		}
		_, err = b.c.StorageVolGetInfo(b.ctx, v)
		b.ok("a call after it", err)
	}
}

// hesitant gives nothing every other time.
type hesitant struct {
	r   io.Reader
	odd bool
}

func (h *hesitant) Read(p []byte) (int, error) {
	if h.odd = !h.odd; h.odd {
		return 0, nil
	}
	return h.r.Read(p)
}

// endsWith gives all its bytes together with the error.
type endsWith struct {
	s   string
	err error
}

func (e *endsWith) Read(p []byte) (int, error) {
	n := copy(p, e.s)
	if e.s = e.s[n:]; e.s == "" {
		return n, e.err
	}
	return n, nil
}

// gate is a source that gives its bytes and then waits.
type gate struct {
	first   io.Reader
	waiting chan struct{}
	open    chan struct{}
	once    sync.Once
	after   atomic.Int32
}

func newGate(first string) *gate {
	return &gate{first: strings.NewReader(first), waiting: make(chan struct{}), open: make(chan struct{})}
}

func (g *gate) Read(p []byte) (int, error) {
	if n, err := g.first.Read(p); err == nil {
		return n, nil
	}
	select {
	case <-g.open:
		g.after.Add(1)
		return 0, io.EOF
	default:
	}
	g.once.Do(func() { close(g.waiting) })
	<-g.open
	return 0, io.EOF
}

// soon fails unless the channel gives something before long.
func soon[T any](b *bench, what string, ch <-chan T) (v T) {
	b.Helper()
	select {
	case v = <-ch:
	case <-time.After(30 * time.Second):
		b.Fatalf("%s: nothing came in 30 s", what)
	}
	return v
}

func testUploadContext(b *bench) {
	v := b.volume("raw", 0, "")
	g := newGate(text(1 << 20))
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- b.c.StorageVolUpload(ctx, v, g, 0) }()
	soon(b, "the source", g.waiting)
	cancel()
	err := soon(b, "the upload's end", done)
	if !errors.Is(err, context.Canceled) {
		b.Errorf("a cancelled upload: %v", err)
	}
	b.isClass("a cancelled upload", err, fault.Transient)
	close(g.open)
	// The connection stays, and the volume can be used again.
	b.ok("an upload after it", b.c.StorageVolUpload(b.ctx, v, strings.NewReader(text(1<<20+5)), 0))
	b.wantsContent(v, text(1<<20+5))
	if n := g.after.Load(); n != 0 {
		b.Errorf("the source was read %d times after the upload had ended", n)
	}

	over, stop := context.WithCancel(b.ctx)
	stop()
	r := &counting{r: strings.NewReader("x")}
	if err := b.c.StorageVolUpload(over, v, r, 0); !errors.Is(err, context.Canceled) {
		b.Errorf("with a context that had ended: %v", err)
	}
	if r.reads.Load() > 1 {
		b.Error("the source was read although the context had ended")
	}
}

func testUploadBeside(b *bench) {
	v, w := b.volume("raw", 0, ""), b.volume("raw", 0, "")
	g := newGate(text(1 << 20))
	done := make(chan error, 1)
	go func() { done <- b.c.StorageVolUpload(b.ctx, v, g, 0) }()
	soon(b, "the source", g.waiting)
	ctx, cancel := context.WithTimeout(b.ctx, 20*time.Second)
	defer cancel()
	_, err := b.c.ConnectGetLibVersion(ctx)
	b.ok("a call during an upload", err)
	_, err = b.c.StoragePoolListAllVolumes(ctx, b.pool())
	b.ok("a list during an upload", err)
	b.ok("an upload during an upload", b.c.StorageVolUpload(ctx, w, strings.NewReader(text(200_000)), 0))
	b.wantsContent(w, text(200_000))
	x := b.volume("qcow2", 1<<20, "")
	d := b.define(shape{devices: fileDisk(b.path(x), "qcow2")})
	b.ok("starting a domain during an upload", b.c.DomainCreate(ctx, d))
	close(g.open)
	b.ok("the upload", soon(b, "the upload's end", done))
	b.wantsContent(v, text(1<<20))

	// Deleting the volume is not held up by the upload, which does not mind.
	g = newGate(text(virt.UploadChunk))
	go func() { done <- b.c.StorageVolUpload(b.ctx, v, g, 0) }()
	soon(b, "the source", g.waiting)
	b.ok("deleting it during its upload", b.c.StorageVolDelete(ctx, v))
	_, err = b.c.StorageVolGetInfo(ctx, v)
	b.wants("its sizes then", err, virt.CodeNoStorageVol)
	close(g.open)
	soon(b, "the upload's end", done)
	_, err = b.c.StorageVolGetInfo(b.ctx, v)
	b.wants("its sizes after the upload", err, virt.CodeNoStorageVol)
}

func testFull(b *bench) {
	if b.s.SmallPool == "" {
		b.Skip("the subject has no pool to fill")
	}
	p, err := b.c.StoragePoolLookupByName(b.ctx, b.s.SmallPool)
	b.ok("the small pool", err)
	info, err := b.c.StoragePoolGetInfo(b.ctx, p)
	b.ok("its info", err)
	if info.Available == 0 || info.Capacity > 64<<20 {
		b.Fatalf("the small pool has %+v", info)
	}
	quota := func(what string, err error) {
		b.Helper()
		b.isClass(what, err, fault.Quota)
		if err != nil && !strings.Contains(err.Error(), noSpace) {
			b.Errorf("%s: %v", what, err)
		}
	}
	solid := fmt.Sprintf("<volume><name>%s</name><capacity>%d</capacity><target><format type='raw'/></target></volume>", b.name("solid"), info.Available+1<<20)
	_, err = b.c.StorageVolCreateXML(b.ctx, p, solid)
	b.wants("a volume that does not fit", err, virt.CodeSystemError)
	quota("a volume that does not fit", err)

	v := b.volumeIn(p, "raw", 0, "")
	sent := info.Available + 8<<20
	err = b.c.StorageVolUpload(b.ctx, v, io.LimitReader(endless{}, int64(sent)), 0)
	b.wants("an upload that does not fit", err, virt.CodeSystemError)
	quota("an upload that does not fit", err)
	i := b.info(v)
	if i.Physical == 0 || i.Physical >= sent {
		b.Errorf("%d bytes of %d are there after it", i.Physical, sent)
	}
	// Libvirt counts some time after an upload, and not at all what others than
	// it write.
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		now, err := b.c.StoragePoolGetInfo(b.ctx, p)
		b.ok("its info", err)
		if now.Available < info.Available {
			break
		}
		if time.Now().After(end) {
			b.Fatalf("%d bytes are free after it, %d before", now.Available, info.Available)
		}
	}
	// Fill the last bytes.
	b.fill(v, i.Physical)
	_, err = b.c.StorageVolCreateXML(b.ctx, p, volumeDoc(b.name("q"), "qcow2", 1<<20, ""))
	b.wants("a qcow2 that does not fit", err, virt.CodeInternalError)
	quota("a qcow2 that does not fit", err)
	// The end of an upload may be lost without an error: its size tells.
	w := b.volumeIn(p, "raw", 0, "")
	if err := b.c.StorageVolUpload(b.ctx, w, strings.NewReader(text(1000)), 0); err == nil {
		if i := b.info(w); i.Physical == 1000 {
			b.Error("a full pool took 1000 bytes")
		}
	} else {
		quota("an upload to a full pool", err)
	}
	b.ok("delete", b.c.StorageVolDelete(b.ctx, v))
	v = b.volumeIn(p, "raw", 0, "")
	b.ok("an upload when there is room again", b.c.StorageVolUpload(b.ctx, v, strings.NewReader(text(1<<20)), 0))
	if i := b.info(v); i.Physical != 1<<20 {
		b.Errorf("%d bytes of %d are there", i.Physical, 1<<20)
	}
}

// fill uploads to v until nothing more fits.
func (b *bench) fill(v virt.Volume, has uint64) {
	b.Helper()
	for range 64 {
		err := b.c.StorageVolUpload(b.ctx, v, io.LimitReader(endless{}, int64(has)+1<<20), 0)
		if err != nil && fault.Of(err) != fault.Quota {
			b.Fatalf("filling the pool: %v", err)
		}
		now := b.info(v).Physical
		if now == has {
			return
		}
		has = now
	}
	b.Fatal("the pool does not get full")
}

// endless gives x for ever.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}
