package image_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/image"
)

func announce(n int) string { return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", n) }

// A partial download was taken for the whole image: wherever it is cut, the
// stream ends with an error in place of io.EOF, which says where.
func TestUnexpectedEndIsNoWholeImage(t *testing.T) {
	whole := disk(64 << 10)
	chunks := func(n int) []byte {
		return append([]byte(fmt.Sprintf("%x\r\n", len(whole))), whole[:n]...)
	}
	for name, tc := range map[string]struct {
		reason string
		answer func(net.Conn)
		class  fault.Class
		says   string
	}{
		"in the middle":           {"the usual", said(announce(len(whole)), whole[:40_000]), fault.Transient, "unexpected end of the download at 40000 of 65536 bytes: unexpected EOF"},
		"at the last byte":        {"one byte is missing", said(announce(len(whole)), whole[:len(whole)-1]), fault.Transient, "at 65535 of 65536 bytes"},
		"in the header":           {"the header is judged when it is there", said(announce(len(whole)), whole[:100]), fault.Transient, "unexpected end of the download at 100 of 65536 bytes"},
		"before the first byte":   {"nothing came", said(announce(len(whole)), nil), fault.Transient, "at 0 of 65536 bytes"},
		"behind the header":       {"to the byte", said(announce(len(whole)), whole[:image.HeaderSize]), fault.Transient, "at 4096 of 65536 bytes"},
		"in a chunk":              {"a chunk tells its length", said("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", chunks(40_000)), fault.Transient, "of an unknown number of bytes: unexpected EOF"},
		"before the last chunk":   {"the end has a chunk of its own", said("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", append(chunks(len(whole)), "\r\n"...)), fault.Transient, "at 65536 of an unknown number"},
		"no length, in the disk":  {"a connection's end looks like the image's", said("HTTP/1.0 200 OK\r\n\r\n", whole[:40_000]), fault.Permanent, "the checksum is wrong: its 40000 bytes"},
		"before the answer ended": {"no answer yet", said("HTTP/1.1 200 OK\r\n", nil), fault.Transient, "closed the connection before it answered"},
		"reset": {"the system's own word", func(c net.Conn) {
			said(announce(len(whole)), whole[:40_000])(c)
			_ = c.(*net.TCPConn).SetLinger(0)
		}, fault.Transient, "unexpected end of the download at "},
	} {
		t.Run(name, func(t *testing.T) {
			st, got, err := fetch(t.Context(), t, fetcher(t, image.FetchOptions{}), image.Source{URL: speak(t, tc.answer) + "/d?sig=s3cret", SHA256: sumOf(whole)})
			wantFault(t, err, tc.class, tc.says)
			if name != "before the answer ended" && !strings.HasPrefix(name, "no length") && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%v has lost the source's own error", err)
			}
			if st != nil && (st.Verified() == nil || !bytes.HasPrefix(whole, got)) {
				t.Errorf("%d bytes, verified: %s", len(got), tc.reason)
			}
		})
	}
}

// A server that tells no length at all ends by closing the connection; what
// can be seen is seen.
func TestNoLengthAtAll(t *testing.T) {
	whole := disk(256 << 10)
	for name, tc := range map[string]struct {
		reason string
		body   []byte
		format image.Format
		sum    bool
		says   string
	}{
		"whole":               {"the digest says so", whole, image.QCOW2, true, ""},
		"cut before a table":  {"a qcow2 ends behind its tables", append(qcow(), whole[:95_904]...), image.QCOW2, false, "or the connection was cut: its host told no length, and 100000 bytes came"},
		"raw, cut in sectors": {"a disk has whole sectors", rawDisk(10_000), image.Raw, false, "no multiple of 512 (or the connection was cut"},
	} {
		t.Run(name, func(t *testing.T) {
			s := image.Source{Format: tc.format, SHA256: sumOf(tc.body), URL: speak(t, said("HTTP/1.0 200 OK\r\n\r\n", tc.body))}
			st, _, err := fetch(t.Context(), t, fetcher(t, image.FetchOptions{}), s)
			if tc.says != "" {
				wantFault(t, err, fault.Transient, tc.says)
			} else if err != nil || st.Length() != 0 || st.Count() != int64(len(tc.body)) {
				t.Errorf("%v: %s", err, tc.reason)
			}
		})
	}
}

// The stored bytes differed from the sent ones, and a wrong checksum was
// noticed after use: the digest is of the bytes that were given, and its error
// comes in place of the end.
func TestDigestIsOfTheBytesGiven(t *testing.T) {
	b := disk(128 << 10)
	url := serve(t, content(b))
	for name, wrong := range map[string]string{"another image's": sumOf(nil), "one digit off": flipped(sumOf(b))} {
		t.Run(name, func(t *testing.T) {
			st, got, err := fetch(t.Context(), t, fetcher(t, image.FetchOptions{}), image.Source{URL: url + "/d?sig=s3cret", SHA256: wrong})
			wantFault(t, err, fault.Permanent, "the checksum is wrong", sumOf(b), wrong)
			if len(got) != len(b) || st.Sum() != sumOf(b) {
				t.Errorf("%d bytes with the sum %s", len(got), st.Sum())
			}
		})
	}
	// One that is read whole for its header has been given nothing yet.
	small := disk(2048)
	st, err := fetcher(t, image.FetchOptions{}).Open(t.Context(), image.Source{URL: serve(t, content(small)), SHA256: sumOf(small)})
	if err != nil {
		t.Fatal(err)
	}
	if st.Verified() == nil || st.Count() != 0 {
		t.Error("an image is verified before it was given")
	}
	if _, err := io.ReadFull(st, make([]byte, len(small))); err != nil || st.Verified() != nil {
		t.Errorf("%v; with its last byte it is %v", err, st.Verified())
	}
	st.Close()
	// Whoever knows the length need not read on to the end: the verdict is there.
	for name, sum := range map[string]string{"right": sumOf(b), "wrong": flipped(sumOf(b))} {
		st, err := fetcher(t, image.FetchOptions{}).Open(t.Context(), image.Source{URL: url, SHA256: sum})
		if err != nil {
			t.Fatal(err)
		}
		if got := st.Verified(); fault.Of(got) != fault.Transient || st.Err() != nil || st.Sum() != "" {
			t.Errorf("before a byte was read: %v, %v, %q", got, st.Err(), st.Sum())
		}
		if _, err := io.ReadFull(st, make([]byte, st.Length()-1)); err != nil || st.Verified() == nil {
			t.Errorf("%s: before the last byte: %v, verified %v", name, err, st.Verified())
		}
		if _, err := io.ReadFull(st, make([]byte, 1)); err != nil || (st.Verified() == nil) != (name == "right") || (st.Err() == nil) != (name == "right") {
			t.Errorf("%s: after the last byte: %v, %v", name, err, st.Verified())
		}
		st.Close()
		if (st.Verified() == nil) != (name == "right") {
			t.Errorf("%s: closing changed the verdict to %v", name, st.Verified())
		}
	}
}

func flipped(sum string) string {
	if sum[63] == '0' {
		return sum[:63] + "1"
	}
	return sum[:63] + "0"
}

// A reader that takes one byte, or drops what comes with an error, gets the
// same bytes and the same end.
func TestAnyWayOfReading(t *testing.T) {
	b := disk(20_000)
	url := serve(t, content(b))
	if st, err := fetcher(t, image.FetchOptions{}).Open(t.Context(), image.Source{URL: url, SHA256: sumOf(b)}); err != nil {
		t.Fatal(err)
	} else if err := iotest.TestReader(io.LimitReader(st, 1<<40), b); err != nil {
		t.Error(err)
	} else {
		st.Close()
	}
	cut := speak(t, said(announce(len(b)), b[:10_000]))
	st, err := fetcher(t, image.FetchOptions{}).Open(t.Context(), image.Source{URL: cut, SHA256: sumOf(b)})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if n, err := st.Read(nil); n != 0 || err != nil {
		t.Errorf("reading nothing: %d, %v", n, err)
	}
	var got []byte
	for p := make([]byte, 3000); ; {
		n, err := st.Read(p)
		if n > 0 && err != nil {
			t.Fatalf("%d bytes came with %v: some readers would drop them", n, err)
		}
		if err != nil {
			break
		}
		got = append(got, p[:n]...)
	}
	if !bytes.Equal(got, b[:10_000]) || st.Count() != 10_000 {
		t.Errorf("%d bytes, %d counted", len(got), st.Count())
	}
	first := st.Err()
	if _, err := st.Read(make([]byte, 1)); err != first {
		t.Errorf("after the first failure %v comes %v", first, err)
	}
}

func TestTooManyBytes(t *testing.T) {
	b := disk(64 << 10)
	f := fetcher(t, image.FetchOptions{MaxBytes: 50_000})
	_, _, err := fetch(t.Context(), t, f, image.Source{URL: serve(t, content(b)), SHA256: sumOf(b)})
	wantFault(t, err, fault.Permanent, "the image has 65536 bytes, and at most 50000 are taken")
	unannounced := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_ = http.NewResponseController(w).Flush()
		_, _ = w.Write(b)
	})
	st, got, err := fetch(t.Context(), t, f, image.Source{URL: unannounced, SHA256: sumOf(b)})
	wantFault(t, err, fault.Permanent, "more than the 50000 bytes that are taken")
	if len(got) > 50_000 {
		t.Errorf("%d bytes were given, counted %d", len(got), st.Count())
	}
	exact := fetcher(t, image.FetchOptions{MaxBytes: int64(len(b))})
	for _, url := range []string{unannounced, serve(t, content(b))} {
		if _, _, err := fetch(t.Context(), t, exact, image.Source{URL: url, SHA256: sumOf(b)}); err != nil {
			t.Errorf("as many as are taken: %v", err)
		}
	}
	// A body that gives more than was announced: net/http never does.
	// A read that ends with the last announced byte does not see the next.
	exactly := io.MultiReader(bytes.NewReader(b[:40_000]), bytes.NewReader(b[:1]))
	for name, body := range map[string]io.Reader{
		"behind":      exactly,
		"at once":     bytes.NewReader(b),
		"one by one":  iotest.OneByteReader(bytes.NewReader(b)),
		"by one":      bytes.NewReader(b[:40_001]),
		"one alone":   iotest.OneByteReader(bytes.NewReader(b[:40_001])),
		"with an end": iotest.DataErrReader(bytes.NewReader(b)),
	} {
		st, err := f.OpenBody(t.Context(), image.Source{}, io.NopCloser(body), 40_000)
		if err != nil {
			t.Fatal(name, err)
		}
		got, err := io.ReadAll(st)
		wantFault(t, err, fault.Permanent, "more bytes came than the 40000 that were announced")
		if st.Verified() == nil || len(got) > 40_000 {
			t.Errorf("%s: %d bytes, verified", name, len(got))
		}
		st.Close()
	}
}

// A body that ends well before its time: net/http never gives one.
func TestShortBody(t *testing.T) {
	b := disk(64 << 10)
	for _, n := range []int{0, 100, image.HeaderSize, 40_000, len(b) - 1} {
		st, err := fetcher(t, image.FetchOptions{}).OpenBody(t.Context(), image.Source{}, io.NopCloser(bytes.NewReader(b[:n])), int64(len(b)))
		if err == nil {
			_, err = io.ReadAll(st)
		}
		wantFault(t, err, fault.Transient, fmt.Sprintf("unexpected end of the download at %d of 65536 bytes", n))
		if st.Verified() == nil {
			t.Errorf("%d bytes are verified as the whole", n)
		}
		st.Close()
	}
}

// Some readers drop bytes that come with an error.
func TestNoBytesComeWithAnError(t *testing.T) {
	b := disk(64 << 10)
	for name, s := range map[string]image.Source{"wrong": {SHA256: sumOf(nil)}, "right": {SHA256: strings.ToUpper(sumOf(b))}} {
		st, err := fetcher(t, image.FetchOptions{}).OpenBody(t.Context(), s, io.NopCloser(iotest.DataErrReader(bytes.NewReader(b))), -1)
		if err != nil {
			t.Fatal(err)
		}
		total := 0
		for p := make([]byte, 100); err == nil; {
			var n int
			if n, err = st.Read(p); n > 0 && err != nil {
				t.Errorf("%s: %d bytes came with %v", name, n, err)
			}
			total += n
		}
		if total != len(b) || (err == io.EOF) != (name == "right") || (st.Verified() == nil) != (name == "right") {
			t.Errorf("%s: %d bytes, then %v", name, total, err)
		}
		st.Close()
	}
}

// endsWith calls then before its end.
type endsWith struct {
	io.Reader
	then func()
}

func (e *endsWith) Read(p []byte) (int, error) {
	n, err := e.Reader.Read(p)
	if err != nil {
		e.then()
	}
	return n, err
}

// What was closed before its end was seen is not verified, whatever came.
func TestClosedAtItsLastByte(t *testing.T) {
	for name, length := range map[string]int{"whole": 64 << 10, "short": 32 << 10} {
		body := &endsWith{Reader: bytes.NewReader(disk(64 << 10)[:length])}
		st, err := fetcher(t, image.FetchOptions{}).OpenBody(t.Context(), image.Source{}, io.NopCloser(body), 64<<10)
		if err != nil {
			t.Fatal(err)
		}
		body.then = func() { st.Close() }
		if _, err = io.ReadAll(st); err == nil || st.Verified() == nil || st.Err() != nil {
			t.Errorf("%s: %v, %v, %v", name, err, st.Verified(), st.Err())
		}
	}
}

// A source without a byte for a while is given up, and says where and why.
func TestSilentSource(t *testing.T) {
	b := disk(64 << 10)
	for name, tc := range map[string]struct {
		reason string
		answer func(net.Conn)
		says   string
	}{
		"no answer":         {"it accepts and says nothing", stall, "no answer within 250ms"},
		"half a header":     {"one timer for all of it", func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-"); stall(c) }, "no answer within 250ms"},
		"no body":           {"an answer is no image", func(c net.Conn) { said(announce(len(b)), nil)(c); stall(c) }, "the download stalled at 0 of 65536 bytes: its host sent no byte for 250ms"},
		"in the head":       {"the header is not there yet", func(c net.Conn) { said(announce(len(b)), b[:1000])(c); stall(c) }, "stalled at 1000 of 65536 bytes"},
		"in the middle":     {"the usual", func(c net.Conn) { said(announce(len(b)), b[:40_000])(c); stall(c) }, "stalled at 40000 of 65536 bytes: its host sent no byte for 250ms"},
		"at the last byte":  {"nearly", func(c net.Conn) { said(announce(len(b)), b[:len(b)-1])(c); stall(c) }, "stalled at 65535 of 65536 bytes"},
		"length not told":   {"as well", func(c net.Conn) { said("HTTP/1.0 200 OK\r\n\r\n", b[:40_000])(c); stall(c) }, "stalled at 40000 of an unknown number of bytes"},
		"no answer in hand": {"nor after a redirect", func(c net.Conn) { said("HTTP/1.1 302 Found\r\nLocation: /x\r\n\r\n", nil)(c) }, "more than 5 redirects"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each waits
			f := fetcher(t, image.FetchOptions{IdleTimeout: brief, HeaderTimeout: brief})
			if name == "no answer in hand" {
				f = fetcher(t, image.FetchOptions{})
			}
			_, _, err := fetch(t.Context(), t, f, image.Source{URL: speak(t, tc.answer), SHA256: sumOf(b)})
			class := fault.Timeout
			if name == "no answer in hand" {
				class = fault.Permanent
			}
			wantFault(t, err, class, tc.says)
		})
	}
	// A handshake that does not go on.
	_, _, err := fetch(t.Context(), t, fetcher(t, image.FetchOptions{HeaderTimeout: brief}), image.Source{URL: speakRaw(t, stall)})
	wantFault(t, err, fault.Timeout, "no answer within 250ms")
}

// Who reads slowly is no silent source: the time between two Reads does not
// count, and neither does a slow source that goes on.
func TestSlowReaderAndSlowSource(t *testing.T) {
	b := disk(64 << 10)
	url := speak(t, func(c net.Conn) {
		said(announce(len(b)), nil)(c)
		for i := 0; i < len(b); i += 4096 {
			_, _ = c.Write(b[i : i+4096])
			<-time.After(brief / 10)
		}
	})
	st, err := fetcher(t, image.FetchOptions{IdleTimeout: brief}).Open(t.Context(), image.Source{URL: url, SHA256: sumOf(b)})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	<-time.After(brief + brief/2) // the reader's own slowness is what is tested
	if got, err := io.ReadAll(st); err != nil || !bytes.Equal(got, b) {
		t.Errorf("%v after %d bytes", err, len(got))
	}
}

var errLost = fault.New(fault.Conflict, "the lease was lost")

// The transfer's own context: its error, at once, at every stage.
func TestContextEnds(t *testing.T) {
	b := disk(64 << 10)
	silent := func(before func(net.Conn)) func(cancel func()) func(net.Conn) {
		return func(cancel func()) func(net.Conn) {
			return func(c net.Conn) { before(c); cancel(); stall(c) }
		}
	}
	for name, answer := range map[string]func(cancel func()) func(net.Conn){
		"before the answer": silent(func(net.Conn) {}),
		"in the head":       silent(said(announce(len(b)), b[:100])),
		"in the middle":     silent(said(announce(len(b)), b[:40_000])),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each waits
			ctx, cancel := context.WithCancelCause(t.Context())
			_, _, err := fetch(ctx, t, fetcher(t, image.FetchOptions{}), image.Source{URL: speak(t, answer(func() { cancel(nil) })), SHA256: sumOf(b)})
			wantFault(t, err, fault.Transient, "the download was given up: context canceled")
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%v is not the context's error", err)
			}

			ctx, cancel = context.WithCancelCause(t.Context())
			_, _, err = fetch(ctx, t, fetcher(t, image.FetchOptions{}), image.Source{URL: speak(t, answer(func() { cancel(errLost) })), SHA256: sumOf(b)})
			wantFault(t, err, fault.Conflict, "the download was given up: the lease was lost")
			if !errors.Is(err, context.Canceled) || !errors.Is(err, errLost) {
				t.Errorf("%v is not the context's error and its cause", err)
			}

			late, stop := context.WithTimeout(t.Context(), brief)
			defer stop()
			_, _, err = fetch(late, t, fetcher(t, image.FetchOptions{}), image.Source{URL: speak(t, answer(func() {})), SHA256: sumOf(b)})
			wantFault(t, err, fault.Timeout, "the download was given up: context deadline exceeded")
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v is not the context's error", err)
			}
		})
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err := fetch(gone, t, fetcher(t, image.FetchOptions{}), image.Source{URL: serve(t, content(b)), SHA256: sumOf(b)})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that ended before: %v", err)
	}
}

// Closing frees a Read that waits, and is no failure of the source: whoever
// uploads asks Err whether it was.
func TestCloseIsNoFailureOfTheSource(t *testing.T) {
	b := disk(64 << 10)
	url := speak(t, func(c net.Conn) { said(announce(len(b)), b[:40_000])(c); stall(c) })
	st, err := fetcher(t, image.FetchOptions{}).Open(t.Context(), image.Source{URL: url, SHA256: sumOf(b)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(st, make([]byte, 40_000)); err != nil {
		t.Fatal(err)
	}
	waiting, read := make(chan struct{}), make(chan error, 1)
	go func() {
		close(waiting)
		_, err := st.Read(make([]byte, 1))
		read <- err
	}()
	<-waiting
	for range 2 {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	}
	select {
	case err := <-read:
		if err == nil || err == io.EOF {
			t.Errorf("the waiting Read got %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the waiting Read goes on")
	}
	if _, err := st.Read(make([]byte, 1)); err == nil || err == io.EOF || fault.Of(err) != fault.Transient {
		t.Errorf("a Read after Close got %v", err)
	}
	if st.Err() != nil || fault.Of(st.Verified()) != fault.Transient || st.Count() != 40_000 {
		t.Errorf("Err is %v, Verified %v, %d bytes", st.Err(), st.Verified(), st.Count())
	}
}

// BenchmarkRead is how fast an image passes, digest and all, over loopback.
func BenchmarkRead(b *testing.B) {
	const size = 256 << 20
	whole := disk(size)
	srv := http.Server{Handler: content(whole), ReadHeaderTimeout: patience}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go func() { _ = srv.Serve(l) }()
	defer srv.Close()
	f, err := image.NewFetcher(image.FetchOptions{AllowCIDRs: loopback})
	if err != nil {
		b.Fatal(err)
	}
	s := image.Source{URL: "http://" + l.Addr().String(), SHA256: sumOf(whole)}
	p := make([]byte, 64<<10)
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		st, err := f.Open(b.Context(), s)
		if err != nil {
			b.Fatal(err)
		}
		for {
			if _, err = st.Read(p); err != nil {
				break
			}
		}
		if err != io.EOF {
			b.Fatal(err)
		}
		st.Close()
	}
}
