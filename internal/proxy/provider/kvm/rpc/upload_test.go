package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/rpc"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// readerFunc is a reader of one function.
type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// stalled gives n zeros and then never returns until free is closed.
func stalled(n int64, free <-chan struct{}) io.Reader {
	return io.MultiReader(io.LimitReader(zeros{}, n), readerFunc(func([]byte) (int, error) {
		<-free
		return 0, io.EOF
	}))
}

func TestUploadCarriesEveryByteInSmallPackets(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for name, size := range map[string]int{
		"nothing": 0, "one byte": 1, "a chunk": virt.UploadChunk, "a chunk and one": virt.UploadChunk + 1, "9 MiB": 9 << 20,
	} {
		t.Run(name, func(t *testing.T) {
			c, p := connect(t, rpc.Options{}, nil)
			content := make([]byte, size)
			for i := range content {
				content[i] = byte(rng.Uint32())
			}
			if err := c.StorageVolUpload(t.Context(), someVolume, bytes.NewReader(content), uint64(size)); err != nil {
				t.Fatal(err)
			}
			p.mu.Lock()
			asked := p.seen[len(p.seen)-1].payload
			p.mu.Unlock()
			if want := xdr("default", "a", "/p/a", uint64(0), uint64(size), 0); !bytes.Equal(asked, want) {
				t.Errorf("asked %x, not %x", asked, want)
			}
			got, largest := p.uploaded()
			if !bytes.Equal(got, content) {
				t.Errorf("%d bytes arrived, of %d; or others", len(got), size)
			}
			if largest > virt.UploadChunk {
				t.Errorf("a packet of %d bytes", largest)
			}
		})
	}
}

var errOwn = errors.New("unexpected end of http://192.0.2.1/image.qcow2")

// The ways in which an upload can fail, by name.
func TestUploadFailures(t *testing.T) {
	free := make(chan struct{})
	t.Cleanup(func() { close(free) })
	ownError := func() io.Reader {
		return io.MultiReader(io.LimitReader(zeros{}, 200_000), readerFunc(func([]byte) (int, error) { return 0, errOwn }))
	}
	endless := func() io.Reader { return zeros{} }
	midError := func(p *peer, in packet) {
		if in.kind == stream && in.status == more {
			p.send(in.answers(stream, failed, remoteError(38, "Unable to write /p/a: No space left on device")))
			return
		}
		if in.kind == call {
			p.right(in)
		}
	}
	for name, tc := range map[string]struct {
		reason string
		source func() io.Reader
		length uint64
		say    func(p *peer, in packet)
		is     error
		class  fault.Class
		want   string
		ended  bool
	}{
		"the source fails": {
			"a failed upload's reader error comes back as 'stream aborted at client request'; unexpected EOF in mid-download (terraform-provider-libvirt 308)",
			ownError, 0, (*peer).right, errOwn, fault.Transient, errOwn.Error(), false,
		},
		"the source fails at once": {
			"before any byte", func() io.Reader { return readerFunc(func([]byte) (int, error) { return 0, errOwn }) },
			0, (*peer).right, errOwn, fault.Transient, errOwn.Error(), false,
		},
		"the source fails with its last bytes": {
			"bytes and an error in one Read", func() io.Reader {
				return readerFunc(func(b []byte) (int, error) { return len(b), errOwn })
			}, 0, (*peer).right, errOwn, fault.Transient, errOwn.Error(), false,
		},
		"the source fails and the abort is taken for an end": {
			"the source's error counts all the same", ownError, 0,
			func(p *peer, in packet) {
				if in.kind == stream && in.status == failed {
					p.send(in.answers(stream, ok, nil))
					return
				}
				p.right(in)
			}, errOwn, fault.Transient, errOwn.Error(), false,
		},
		"the source gives nothing for ever": {
			"no spinning", func() io.Reader { return readerFunc(func([]byte) (int, error) { return 0, nil }) },
			0, (*peer).right, io.ErrNoProgress, fault.Transient, "", false,
		},
		"the source gives more than there was room for": {
			"a broken reader", func() io.Reader { return readerFunc(func(b []byte) (int, error) { return len(b) + 1, nil }) },
			0, (*peer).right, nil, fault.Permanent, "when asked for", false,
		},
		"the source is longer than announced": {
			"the daemon says 'No space left on device' to that", endless, 100_000, (*peer).right, nil, fault.Permanent, "more than the 100000 bytes", false,
		},
		"the daemon refuses the call": {
			"the volume is gone", endless, 0,
			func(p *peer, in packet) { p.send(in.answers(reply, failed, remoteError(50, "no storage vol"))) },
			fault.NotFound, fault.NotFound, "no storage vol", false,
		},
		"an error at the end": {
			"written but not kept", func() io.Reader { return io.LimitReader(zeros{}, 9<<20) }, 0,
			func(p *peer, in packet) {
				if in.kind == stream && in.status == ok {
					p.send(in.answers(stream, failed, remoteError(38, "cannot close volume: No space left on device")))
					return
				}
				p.right(in)
			}, nil, fault.Quota, "cannot close volume", false,
		},
		"a full pool in mid-upload":                         {"the true cause", endless, 0, midError, nil, fault.Quota, "No space left", false},
		"a full pool in mid-upload while the source stalls": {"nobody waits for the source", func() io.Reader { return stalled(1000, free) }, 0, midError, nil, fault.Quota, "No space left", false},
		"the stream drops in mid-upload": {
			"", endless, 0,
			func(p *peer, in packet) {
				if in.kind == stream {
					_ = p.conn.Close()
					return
				}
				p.right(in)
			}, nil, fault.Unavailable, "ended", true,
		},
		"the stream drops while the source stalls": {
			"nobody waits for the source", func() io.Reader { return stalled(1000, free) }, 0,
			func(p *peer, in packet) {
				if in.kind == stream {
					_ = p.conn.Close()
					return
				}
				p.right(in)
			}, nil, fault.Unavailable, "ended", true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := connect(t, rpc.Options{}, on(procUpload, tc.say))
			// Three in a row: two slots are not lost.
			for range 3 {
				var err error
				within(t, "the upload", func() { err = c.StorageVolUpload(t.Context(), someVolume, tc.source(), tc.length) })
				if fault.Of(err) != tc.class || (tc.is != nil && !errors.Is(err, tc.is)) || err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("%s: %v (%s)", tc.reason, err, fault.Of(err))
				}
				if errors.Is(tc.is, errOwn) && err != errOwn {
					t.Errorf("the source's error was wrapped: %v", err)
				}
			}
			if tc.ended {
				return
			}
			if v, err := c.ConnectGetLibVersion(t.Context()); err != nil || v != 9_000_000 {
				t.Errorf("%s: the next call: %v, %v", tc.reason, v, err)
			}
		})
	}
}

// A context that ends breaks the upload off at once; the daemon is told, and
// the connection is good for the next one.
func TestContextEndsAnUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		defer close(free)
		told := make(chan struct{}, 8)
		c, _ := connect(t, rpc.Options{}, on(procUpload, func(p *peer, in packet) {
			if in.kind == stream && in.status == failed {
				told <- struct{}{}
			}
			p.right(in)
		}))
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			begun := time.Now()
			err := c.StorageVolUpload(ctx, someVolume, stalled(100_000, free), 0)
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || fault.Of(err) != fault.Timeout || !strings.Contains(err.Error(), "not whole") {
				t.Errorf("%v (%s)", err, fault.Of(err))
			}
			if took := time.Since(begun); took != time.Minute {
				t.Errorf("it took %v", took)
			}
			synctest.Wait()
			if len(told) != 1 {
				t.Fatalf("the daemon was told %d times", len(told))
			}
			<-told
		}
		if err := c.StorageVolUpload(t.Context(), someVolume, strings.NewReader("abc"), 3); err != nil {
			t.Errorf("the next upload: %v", err)
		}
		if c.Err() != nil {
			t.Errorf("the connection ended: %v", c.Err())
		}
		_ = c.Close()
	})
}

// The source's error is the reason, also when the daemon never says that it
// heard of the end.
func TestSourcesErrorOutlivesTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := connect(t, rpc.Options{}, func(_ *peer, in packet) bool { return in.kind == stream })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		src := readerFunc(func([]byte) (int, error) { return 0, errOwn })
		if err := c.StorageVolUpload(ctx, someVolume, src, 0); err != errOwn {
			t.Errorf("%v", err)
		}
		_ = c.Close()
	})
}

// A daemon that keeps an upload which it was told to drop, while it answers
// all else, would keep the slot for ever.
func TestAbortThatIsNotHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := connect(t, rpc.Options{MuteAfter: 30 * time.Second}, func(_ *peer, in packet) bool { return in.kind == stream })
		var others sync.WaitGroup
		defer others.Wait()
		others.Go(func() {
			for c.Err() == nil {
				time.Sleep(time.Second)
				_, _ = c.ConnectGetHostname(t.Context())
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begun := time.Now()
		if err := c.StorageVolUpload(ctx, someVolume, readerFunc(func(b []byte) (int, error) { time.Sleep(time.Second); return 1, nil }), 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		<-c.Done()
		if took := time.Since(begun); took != 90*time.Second {
			t.Errorf("it took %v", took)
		}
		if err := c.Err(); fault.Of(err) != fault.Unavailable || !strings.Contains(err.Error(), "told to drop") {
			t.Errorf("%v", err)
		}
	})
}

// A source that pauses is not a mute daemon; and bytes that the daemon takes
// are life, also while it answers nothing.
func TestSlowSourceIsNotAMuteDaemon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := connect(t, rpc.Options{MuteAfter: 30 * time.Second}, nil)
		pauses := []time.Duration{10 * time.Minute, time.Second, 10 * time.Minute}
		src := readerFunc(func(b []byte) (int, error) {
			if len(pauses) == 0 {
				return 0, io.EOF
			}
			time.Sleep(pauses[0])
			pauses = pauses[1:]
			return 1000, nil
		})
		if err := c.StorageVolUpload(t.Context(), someVolume, src, 0); err != nil {
			t.Error(err)
		}
		if got, _ := p.uploaded(); len(got) != 3000 {
			t.Errorf("%d bytes arrived", len(got))
		}
		_ = c.Close()
	})
}

func TestUploadBytesAreLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := connect(t, rpc.Options{MuteAfter: 30 * time.Second}, on(procHostname, func(*peer, packet) {}))
		left := 40
		src := readerFunc(func(b []byte) (int, error) {
			if left--; left < 0 {
				return 0, io.EOF
			}
			time.Sleep(10 * time.Second)
			return 1000, nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), 399*time.Second)
		defer cancel()
		go func() { _, _ = c.ConnectGetHostname(ctx) }() // never answered
		if err := c.StorageVolUpload(t.Context(), someVolume, src, 0); err != nil {
			t.Error(err)
		}
		begun := time.Now()
		<-c.Done()
		if took := time.Since(begun); took != 30*time.Second {
			t.Errorf("mute after %v", took)
		}
	})
}

// A daemon that takes no more bytes is mute.
func TestDaemonThatTakesNoMoreBytesIsMute(t *testing.T) {
	stop := make(chan struct{})
	defer close(stop)
	c, _ := connect(t, rpc.Options{MuteAfter: 200 * time.Millisecond}, func(_ *peer, in packet) bool {
		if in.kind == stream {
			<-stop
		}
		return false
	})
	var err error
	within(t, "the upload", func() { err = c.StorageVolUpload(t.Context(), someVolume, zeros{}, 0) })
	if fault.Of(err) != fault.Unavailable || !strings.Contains(err.Error(), "mute") {
		t.Errorf("%v", err)
	}
}

// Uploads count for themselves: two run, a third waits with its context, and
// short calls go on.
func TestUploadsDoNotStarveCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		c, p := connect(t, rpc.Options{}, nil)
		done := make(chan error, 2)
		for range 2 {
			go func() { done <- c.StorageVolUpload(t.Context(), someVolume, stalled(1000, free), 0) }()
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.StorageVolUpload(ctx, someVolume, strings.NewReader("x"), 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the third upload: %v", err)
		}
		held := make(chan packet, 4)
		p.mu.Lock()
		p.handle = on(procHostname, func(_ *peer, in packet) { held <- in })
		p.mu.Unlock()
		for range 4 {
			go func() { _, _ = c.ConnectGetHostname(t.Context()) }()
		}
		synctest.Wait()
		if len(held) != 4 {
			t.Errorf("%d calls in flight beside two uploads", len(held))
		}
		for range 4 {
			p.right(<-held)
		}
		close(free)
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		_ = c.Close()
	})
}

// An upload that never began keeps no slot.
func TestUploadThatWaitedInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := make(chan packet, 4)
		c, p := connect(t, rpc.Options{}, on(procHostname, func(_ *peer, in packet) { held <- in }))
		for range 4 {
			go func() { _, _ = c.ConnectGetHostname(t.Context()) }()
		}
		synctest.Wait()
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			err := c.StorageVolUpload(ctx, someVolume, strings.NewReader("x"), 0)
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "not asked") {
				t.Errorf("%v", err)
			}
		}
		for range 4 {
			p.right(<-held)
		}
		if err := c.StorageVolUpload(t.Context(), someVolume, strings.NewReader("x"), 0); err != nil {
			t.Error(err)
		}
		_ = c.Close()
	})
}

// The source is not read after StorageVolUpload returned, but for one Read
// that was under way.
func TestSourceIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := connect(t, rpc.Options{}, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		var reads atomic.Int32
		src := readerFunc(func(b []byte) (int, error) { reads.Add(1); time.Sleep(time.Second); return 1000, nil })
		if err := c.StorageVolUpload(ctx, someVolume, src, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		time.Sleep(time.Hour)
		if n := reads.Load(); n != 2 {
			t.Errorf("%d reads", n)
		}
		_ = c.Close()
	})
}

func BenchmarkUpload(b *testing.B) {
	dir := b.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	go func() {
		far, err := l.Accept()
		if err != nil {
			return
		}
		(&peer{conn: far, handle: func(_ *peer, in packet) bool { return in.kind == stream && in.status == more }}).discard()
	}()
	near, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	c, err := rpc.Open(b.Context(), near, rpc.Options{Host: "box-1"})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	const size = 32 << 20
	b.SetBytes(size)
	for b.Loop() {
		if err := c.StorageVolUpload(b.Context(), someVolume, io.LimitReader(zeros{}, size), size); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCall(b *testing.B) {
	c, _ := connect(b, rpc.Options{}, nil)
	for b.Loop() {
		if _, err := c.ConnectGetAllDomainStats(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
