package image_test

import (
	"bufio"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/image"
)

// patience is how long these tests wait for what must come at once.
const patience = 10 * time.Second

// brief is how long a silent source is given.
const brief = 250 * time.Millisecond

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

func fetcher(t *testing.T, o image.FetchOptions) *image.Fetcher {
	t.Helper()
	if o.AllowCIDRs == nil {
		o.AllowCIDRs = loopback
	}
	f, err := image.NewFetcher(o)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// fetch opens a source and reads it to its end; the Stream is closed. Of an
// error, all that holds for every one is checked here.
func fetch(ctx context.Context, t *testing.T, f *image.Fetcher, s image.Source) (*image.Stream, []byte, error) {
	t.Helper()
	st, err := f.Open(ctx, s)
	if err != nil {
		checkError(t, err)
		return nil, nil, err
	}
	defer st.Close()
	b, err := io.ReadAll(st)
	checkError(t, err)
	if int64(len(b)) != st.Count() {
		t.Errorf("%d bytes were given and %d are counted", len(b), st.Count())
	}
	if !errors.Is(st.Err(), err) || (err == nil) != (st.Verified() == nil) {
		t.Errorf("Read ended with %v, Err says %v and Verified %v", err, st.Err(), st.Verified())
	}
	return st, b, err
}

func checkError(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	text := err.Error()
	if !fault.Classed(err) || strings.Contains(text, "s3cret") || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
		t.Errorf("%q is of class %q", text, fault.Of(err))
	}
}

// wantFault wants an error of a class with all those texts.
func wantFault(t *testing.T, err error, c fault.Class, says ...string) {
	t.Helper()
	if fault.Of(err) != c {
		t.Errorf("%v is %s, want %s", err, fault.Of(err), c)
		return
	}
	for _, s := range says {
		if err != nil && !strings.Contains(err.Error(), s) {
			t.Errorf("%v, want a text with %q", err, s)
		}
	}
}

// serve answers with h, by plain HTTP.
func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.URL
}

// serveTLS answers with h, and returns the file of its CA.
func serveTLS(t *testing.T, h http.HandlerFunc) (url, caFile string) {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	caFile = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return srv.URL, caFile
}

// speak listens, and answers each connection's request by hand.
func speak(t *testing.T, answer func(c net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(patience))
			if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				answer(c)
			}
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return "http://" + l.Addr().String()
}

// said is an answer that is written as it is, then the connection is closed.
func said(head string, body []byte) func(net.Conn) {
	return func(c net.Conn) {
		_, _ = io.WriteString(c, head)
		_, _ = c.Write(body)
	}
}

// stall waits until the far side closes.
func stall(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

func content(b []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(b)))
		_, _ = w.Write(b)
	}
}

func TestFetch(t *testing.T) {
	qcow2, raw := disk(300<<10), rawDisk(1<<20)
	for name, tc := range map[string]struct {
		reason string
		answer http.HandlerFunc
		format image.Format
		want   []byte
		length int64
		size   int64
	}{
		"qcow2":               {"the usual", content(qcow2), image.QCOW2, qcow2, int64(len(qcow2)), 1 << 30},
		"direct":              {"a URL without a format is qcow2", content(qcow2), "", qcow2, int64(len(qcow2)), 1 << 30},
		"raw":                 {"its length is its size", content(raw), image.Raw, raw, int64(len(raw)), int64(len(raw))},
		"smaller than a read": {"the header read may take all", content(rawDisk(512)), image.Raw, rawDisk(512), 512, 512},
		"as long as one":      {"to the byte", content(rawDisk(image.HeaderSize)), image.Raw, rawDisk(image.HeaderSize), image.HeaderSize, image.HeaderSize},
		"chunked": {"terraform-provider-libvirt 1318: there need be no Content-Length", func(w http.ResponseWriter, _ *http.Request) {
			for b := qcow2; len(b) > 0; {
				n := min(len(b), 7000)
				_, _ = w.Write(b[:n])
				_ = http.NewResponseController(w).Flush()
				b = b[n:]
			}
		}, image.QCOW2, qcow2, 0, 1 << 30},
		"raw, chunked": {"terraform-provider-libvirt 1318: the size is known at the end", func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).Flush()
			_, _ = w.Write(raw)
		}, image.Raw, raw, 0, int64(len(raw))},
		"odd type": {"what it is called does not matter", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			w.Header().Set("Content-Encoding", "identity")
			content(qcow2)(w, r)
		}, image.QCOW2, qcow2, int64(len(qcow2)), 1 << 30},
	} {
		t.Run(name, func(t *testing.T) {
			url := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet || r.Header.Get("Accept-Encoding") != "identity" || r.Header.Get("User-Agent") != "fleetdesk" || r.Header.Get("Range") != "" || r.Header.Get("Authorization") != "" {
					t.Errorf("the request is %s with %v", r.Method, r.Header)
				}
				tc.answer(w, r)
			})
			st, got, err := fetch(t.Context(), t, fetcher(t, image.FetchOptions{}), image.Source{URL: url + "/d?sig=s3cret", SHA256: strings.ToUpper(sumOf(tc.want)), Format: tc.format})
			if err != nil {
				t.Fatalf("%v: %s", err, tc.reason)
			}
			if string(got) != string(tc.want) || st.Sum() != sumOf(tc.want) || st.Length() != tc.length || st.Header().VirtualSize != tc.size {
				t.Errorf("%d bytes with sum %s, length %d, header %+v: %s", len(got), st.Sum(), st.Length(), st.Header(), tc.reason)
			}
			if n, err := st.Read(make([]byte, 1)); n != 0 || err != io.EOF {
				t.Errorf("after the end: %d, %v", n, err)
			}
		})
	}
}

// What comes from a server that has no image, by its answer.
func TestAnswers(t *testing.T) {
	good := disk(256 << 10)
	status := func(code int, header ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			for i := 0; i < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(code)
			_, _ = io.WriteString(w, "<html>sorry: s3cret</html>")
		}
	}
	page := func(body string) http.HandlerFunc { return content([]byte(body)) }
	for name, tc := range map[string]struct {
		reason string
		answer http.HandlerFunc
		class  fault.Class
		says   string
	}{
		"404":              {"an error page was read as an image", status(404), fault.Permanent, "the image is not there (status 404 Not Found): check the URL"},
		"410":              {"removed for good", status(410), fault.Permanent, "not there (status 410 Gone)"},
		"401":              {"nobody here has credentials", status(401, "WWW-Authenticate", `Basic realm="s3cret"`), fault.Permanent, "does not give the image to us (status 401"},
		"403":              {"a signature that expired", status(403), fault.Permanent, "whether its signature has expired"},
		"400":              {"a request that is wrong stays wrong", status(400), fault.Permanent, "status 400 Bad Request in place of 200"},
		"408":              {"its own patience", status(408), fault.Transient, "cannot give the image now (status 408"},
		"429":              {"too many of us", status(429, "Retry-After", "86400"), fault.Transient, "status 429"},
		"500":              {"it may recover", status(500), fault.Transient, "status 500"},
		"503":              {"it says so itself", status(503), fault.Transient, "status 503"},
		"599":              {"without a name", status(599), fault.Transient, "(status 599)"},
		"600":              {"none of the classes", status(600), fault.Permanent, "status 600 in place"},
		"201":              {"a status that brings no image", status(201), fault.Permanent, "status 201 Created in place of 200"},
		"204":              {"nor this", status(204), fault.Permanent, "status 204"},
		"206":              {"a part was not asked for", status(206, "Content-Range", "bytes 0-25/1000"), fault.Permanent, "status 206"},
		"300":              {"a choice for people", status(300, "Location", "/other"), fault.Permanent, "status 300"},
		"304":              {"nothing is kept here", status(304), fault.Permanent, "status 304"},
		"302 to nowhere":   {"no Location", status(302), fault.Permanent, "a redirect that leads nowhere (status 302 Found)"},
		"HTML":             {"an error page with status 200 was taken for an image", page("<!doctype html><title>Sign in</title>"), fault.Permanent, "not qcow2 as promised: it is an HTML page"},
		"XML":              {"an object store's error", page("<Error><Code>NoSuchKey</Code></Error>"), fault.Permanent, "an XML document"},
		"empty":            {"nothing at all", page(""), fault.Permanent, "it is empty"},
		"empty, chunked":   {"nor here", func(w http.ResponseWriter, _ *http.Request) { _ = http.NewResponseController(w).Flush() }, fault.Permanent, "it is empty"},
		"compressed":       {"the usual way to send a raw disk", page("\xfd7zXZ\x00 and so on"), fault.Permanent, "compressed with xz"},
		"backing file":     {"lima 5441, cloudstack 11260: the host would read its own files", content(append(qcow(set64(8, 0x200)), good...)), fault.Permanent, "backing file"},
		"data file":        {"cloudstack 11260: the host would read its own files", content(append(qcow(set64(72, 4)), good...)), fault.Permanent, "data file"},
		"gzip in transfer": {"the bytes would not be the file's", status(200, "Content-Encoding", "gzip"), fault.Permanent, `Content-Encoding "gzip"`},
		"two encodings":    {"as well", status(200, "Content-Encoding", "identity, br"), fault.Permanent, `Content-Encoding "identity, br"`},
	} {
		t.Run(name, func(t *testing.T) {
			url := serve(t, tc.answer)
			_, _, err := fetch(t.Context(), t, fetcher(t, image.FetchOptions{}), image.Source{URL: url + "/d.qcow2?sig=s3cret", SHA256: sumOf(good)})
			wantFault(t, err, tc.class, tc.says, url+"/d.qcow2: ")
			if got, want := errors.Is(err, fault.Denied), strings.HasPrefix(name, "401") || strings.HasPrefix(name, "403"); got != want {
				t.Errorf("Denied is a cause: %v", got)
			}
			if errors.Is(err, fault.NotFound) {
				t.Error("NotFound would be read as a missing machine")
			}
		})
	}
}

func TestRawIsRefusedWhenItIsNot(t *testing.T) {
	for name, tc := range map[string]struct {
		body []byte
		says string
	}{
		"qcow2": {qcow(), "not raw as promised: it is qcow2"},
		"gzip":  {[]byte("\x1f\x8b\x08"), "not raw as promised: it is compressed with gzip"},
		"HTML":  {[]byte("<html>"), "not raw as promised: it is an HTML page"},
		"odd":   {rawDisk(1000), "no multiple of 512"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := fetch(t.Context(), t, fetcher(t, image.FetchOptions{}), image.Source{URL: serve(t, content(tc.body)), SHA256: sumOf(tc.body), Format: image.Raw})
			wantFault(t, err, fault.Permanent, tc.says)
		})
	}
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) { // chunked: the length is known at its end
		_ = http.NewResponseController(w).Flush()
		_, _ = w.Write(rawDisk(10_000))
	})
	_, _, err := fetch(t.Context(), t, fetcher(t, image.FetchOptions{}), image.Source{URL: url, SHA256: sumOf(rawDisk(10_000)), Format: image.Raw})
	wantFault(t, err, fault.Permanent, "its length of 10000 bytes is no multiple of 512")
}

// terraform-provider-libvirt 992: a size that was taken from the redirect's own
// answer cut images short; 1318: and some servers answer no HEAD.
func TestRedirectsSizeIsTheLastAnswers(t *testing.T) {
	b := disk(200 << 10)
	var heads, gets atomic.Int64
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			heads.Add(1)
			w.WriteHeader(405)
			return
		}
		gets.Add(1)
		switch r.URL.Path {
		case "/latest":
			w.Header().Set("Set-Cookie", "s3cret=1")
			w.Header().Set("Location", "a/../mirror?sig=s3cret")
			w.Header().Set("Content-Length", "11")
			w.WriteHeader(http.StatusFound)
			_, _ = io.WriteString(w, "hello world")
		case "/mirror":
			if r.Header.Get("Cookie") != "" || r.Header.Get("Referer") != "" || r.URL.RawQuery != "sig=s3cret" {
				t.Errorf("the second request has %v, query %q", r.Header, r.URL.RawQuery)
			}
			http.Redirect(w, r, "/d", http.StatusPermanentRedirect)
		case "/d":
			content(b)(w, r)
		}
	})
	st, got, err := fetch(t.Context(), t, fetcher(t, image.FetchOptions{}), image.Source{URL: url + "/latest?sig=s3cret", SHA256: sumOf(b)})
	if err != nil || string(got) != string(b) || st.Length() != int64(len(b)) || heads.Load() != 0 || gets.Load() != 3 {
		t.Errorf("%v, %d bytes after %d GET and %d HEAD", err, len(got), gets.Load(), heads.Load())
	}
}

// A mirror's page behind its redirect is not waited for, and its connection
// does not stay for the length of a download: speak serves one at a time.
func TestRedirectsConnectionIsClosed(t *testing.T) {
	b := disk(64 << 10)
	var asked atomic.Int64
	url := speak(t, func(c net.Conn) {
		if asked.Add(1) == 1 {
			said("HTTP/1.1 302 Found\r\nLocation: /d\r\nContent-Length: 1000000\r\n\r\n", []byte("go on"))(c)
			stall(c)
			return
		}
		said(announce(len(b)), b)(c)
	})
	if _, _, err := fetch(t.Context(), t, fetcher(t, image.FetchOptions{HeaderTimeout: patience / 2}), image.Source{URL: url, SHA256: sumOf(b)}); err != nil {
		t.Error(err)
	}
}

func TestRedirects(t *testing.T) {
	b := disk(64 << 10)
	secure, ca := serveTLS(t, func(w http.ResponseWriter, r *http.Request) {
		switch to := r.URL.Query().Get("to"); {
		case to != "":
			w.Header().Set("Location", to)
			w.WriteHeader(http.StatusFound)
		default:
			content(b)(w, r)
		}
	})
	plain := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if n, err := strconv.Atoi(r.URL.Query().Get("n")); err == nil && n > 0 {
			http.Redirect(w, r, fmt.Sprintf("/?n=%d", n-1), http.StatusMovedPermanently)
			return
		}
		to := r.URL.Query().Get("to")
		if r.URL.Query().Has("far") {
			to = "/" + strings.Repeat("s3cret", 2000)
		}
		if to != "" {
			w.Header().Set("Location", to)
			w.WriteHeader(http.StatusTemporaryRedirect)
			return
		}
		content(b)(w, r)
	})
	secureHost := strings.TrimPrefix(secure, "https://")
	for name, tc := range map[string]struct {
		reason string
		url    string
		says   string
	}{
		"five":           {"mirrors redirect to mirrors", plain + "/?n=5", ""},
		"six":            {"and no more", plain + "/?n=6", "more than 5 redirects"},
		"up to https":    {"safer is fine", plain + "/?to=" + secure, ""},
		"https to https": {"the usual", secure + "/?to=/", ""},
		"same scheme":    {"whatever the scheme was", secure + "/?to=//" + secureHost + "/d", ""},
		"https to http":  {"whoever chose https does not get less", secure + "/?to=" + plain + "/d%3fsig=s3cret", "a redirect from https to plain HTTP (" + plain + "/d) is not followed"},
		"other scheme":   {"never the operator's own disk", plain + "/?to=file:///etc/passwd", "begins with file:"},
		"userinfo":       {"credentials that nobody asked for", plain + "/?to=http://u:s3cret@" + secureHost, "a redirect that is not followed: "},
		"no URL":         {"nothing to follow", plain + "/?to=http://%25zz/s3cret", "a redirect to a URL that cannot be read"},
		"no host":        {"nobody to ask", plain + "/?to=http:///d", "names no host"},
		"no port":        {"nobody to ask", plain + "/?to=http://127.0.0.1:99999/", "not between 1 and 65535"},
		"endless":        {"bounded", plain + "/?far=1", "a redirect to a URL of 12001 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, got, err := fetch(t.Context(), t, fetcher(t, image.FetchOptions{CAFile: ca}), image.Source{URL: tc.url, SHA256: sumOf(b)})
			if tc.says != "" {
				wantFault(t, err, fault.Permanent, tc.says)
			} else if err != nil || string(got) != string(b) {
				t.Errorf("%v, %d bytes: %s", err, len(got), tc.reason)
			}
		})
	}
	_, _, err := fetch(t.Context(), t, fetcher(t, image.FetchOptions{MaxRedirects: 1}), image.Source{URL: plain + "/?n=2", SHA256: sumOf(b)})
	wantFault(t, err, fault.Permanent, "more than 1 redirects")
	// Errors after a redirect name both ends.
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/gone" {
			w.WriteHeader(404)
			return
		}
		http.Redirect(w, r, "/gone?sig=s3cret", http.StatusFound)
	})
	_, _, err = fetch(t.Context(), t, fetcher(t, image.FetchOptions{}), image.Source{URL: url + "/d?sig=s3cret", SHA256: sumOf(b)})
	wantFault(t, err, fault.Permanent, url+"/d (redirected to "+url+"/gone): the image is not there")
}

func TestAddressesAreGuarded(t *testing.T) {
	var hits atomic.Int64
	inner := serve(t, func(w http.ResponseWriter, r *http.Request) { hits.Add(1); content(disk(4096))(w, r) })
	port := inner[strings.LastIndex(inner, ":"):]
	outer := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://"+r.URL.Query().Get("to")+"/?sig=s3cret", http.StatusFound)
	})
	only := []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	for name, tc := range map[string]struct {
		reason string
		allow  []netip.Prefix
		url    string
		says   string
	}{
		"loopback":             {"the operator's own machine", []netip.Prefix{}, inner, "127.0.0.1 is a loopback address; if images shall come from there, list 127.0.0.1/32 in imageAllowCIDRs of the provider's kvm section"},
		"by name":              {"a name must not point past the guard", []netip.Prefix{}, "http://localhost" + port, "is a loopback address"},
		"mapped":               {"nor another way to write it", []netip.Prefix{}, "http://[::ffff:127.0.0.1]" + port, "127.0.0.1 is a loopback"},
		"metadata":             {"a cloud's secrets", loopback, "http://169.254.169.254/latest", "metadata address"},
		"link-local":           {"the next machine", loopback, "http://169.254.1.1/", "link-local address"},
		"private":              {"only when listed", loopback, "http://10.1.2.3/", "10.1.2.3 is a private address"},
		"private, IPv6":        {"only when listed", loopback, "http://[fd12::1]/", "private address"},
		"redirect":             {"each step is looked at anew", only, outer + "/?to=127.64.0.1" + port, "127.64.0.1 is a loopback address"},
		"redirect to metadata": {"the usual attack", only, outer + "/?to=169.254.169.254", "http://169.254.169.254/) is not asked: 169.254.169.254 is a cloud's metadata address"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := fetch(t.Context(), t, fetcher(t, image.FetchOptions{AllowCIDRs: tc.allow}), image.Source{URL: tc.url, SHA256: sumOf(nil)})
			wantFault(t, err, fault.Permanent, tc.says)
			if n := hits.Load(); n != 0 {
				t.Errorf("the inner server saw %d requests: %s", n, tc.reason)
			}
		})
	}
}

// A proxy of the environment would see the URL, and hide the address from the
// guard.
func TestNoProxyOfTheEnvironment(t *testing.T) {
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"} {
		t.Setenv(name, "http://192.0.2.1:1")
	}
	b := disk(4096)
	if _, _, err := fetch(t.Context(), t, fetcher(t, image.FetchOptions{}), image.Source{URL: serve(t, content(b)), SHA256: sumOf(b)}); err != nil {
		t.Error(err)
	}
}

func TestUnreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	f := fetcher(t, image.FetchOptions{HeaderTimeout: patience})
	_, _, err = fetch(t.Context(), t, f, image.Source{URL: "http://" + l.Addr().String() + "/d?sig=s3cret", SHA256: sumOf(nil)})
	wantFault(t, err, fault.Unavailable, "cannot be connected to: connection refused")
	// A name that no resolver is asked for.
	_, _, err = fetch(t.Context(), t, f, image.Source{URL: "https://a..example.com/d?sig=s3cret"})
	wantFault(t, err, fault.Transient, "https://a..example.com/d: its host name cannot be resolved")
	_, _, err = fetch(t.Context(), t, f, image.Source{URL: "http://images.example.com/d"})
	wantFault(t, err, fault.Invalid, "plain HTTP")
}

// What is no HTTP is told without the far side's own words: they may repeat
// what was asked for.
func TestAnswerThatIsNoHTTP(t *testing.T) {
	for name, tc := range map[string]struct{ answer, says string }{
		"SSH":              {"SSH-2.0-s3cret\r\n", "gave no answer in HTTP: "},
		"a header":         {"HTTP/1.1 200 OK\r\nno colon but s3cret\r\n\r\n", "malformed MIME header"},
		"a length":         {"HTTP/1.1 200 OK\r\nContent-Length: s3cret\r\n\r\n", "bad Content-Length"},
		"a negative one":   {"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", "bad Content-Length"},
		"endless headers":  {"HTTP/1.1 200 OK\r\n" + strings.Repeat("X: "+strings.Repeat("s3cret", 100)+"\r\n", 200) + "\r\n", "gave no answer in HTTP: "},
		"another protocol": {"HTTP/0.9 200 OK\r\n\x1b[31m\r\n\r\n", "gave no answer in HTTP: "},
	} {
		t.Run(name, func(t *testing.T) {
			url := speak(t, func(c net.Conn) { said(tc.answer, nil)(c); stall(c) })
			_, _, err := fetch(t.Context(), t, fetcher(t, image.FetchOptions{}), image.Source{URL: url + "/?sig=s3cret", SHA256: sumOf(nil)})
			wantFault(t, err, fault.Transient, tc.says)
		})
	}
}

func TestTLS(t *testing.T) {
	b := disk(64 << 10)
	url, ca := serveTLS(t, content(b))
	_, other := serveTLS(t, content(b)) // another certificate of the same authority: httptest has one
	none := filepath.Join(t.TempDir(), "none.pem")
	if err := os.WriteFile(none, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	dropped := speakRaw(t, func(c net.Conn) { _, _ = c.Read(make([]byte, 1)) })
	alert := speakRaw(t, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 4096))
		_, _ = c.Write([]byte{21, 3, 3, 0, 2, 2, 80}) // fatal: internal error
		stall(c)
	})
	plain := strings.Replace(serve(t, content(b)), "http:", "https:", 1)
	byAnotherName := strings.Replace(url, "127.0.0.1", "localhost", 1)
	for name, tc := range map[string]struct {
		reason, url, ca string
		class           fault.Class
		says            string
	}{
		"private CA":        {"named, it is trusted", url, ca, "", ""},
		"unknown CA":        {"TLS is always verified", url, "", fault.Permanent, "signed by an unknown authority; for a private one, name its CA's file in imageCAFile"},
		"another CA's file": {"a CA is for all images", url, other, "", ""},
		"another name":      {"the certificate is not its host's", byAnotherName, ca, fault.Permanent, "TLS with its host failed: "},
		"no TLS":            {"the URL's scheme is wrong", plain, ca, fault.Permanent, "does not speak TLS"},
		"dropped":           {"it may come back", dropped, ca, fault.Transient, "closed the connection before it answered"},
		"alert":             {"its trouble of the moment", alert, ca, fault.Transient, "internal error"},
		"no such file":      {"a Secret may be created later", url, none + "x", fault.Transient, "imageCAFile) cannot be read"},
		"no certificate":    {"a person has to mend it", url, none, fault.Permanent, "holds no certificate in PEM"},
	} {
		t.Run(name, func(t *testing.T) {
			_, got, err := fetch(t.Context(), t, fetcher(t, image.FetchOptions{CAFile: tc.ca}), image.Source{URL: tc.url + "/d?sig=s3cret"})
			wantFault(t, err, tc.class, tc.says)
			if tc.class == "" && string(got) != string(b) {
				t.Errorf("%d bytes: %s", len(got), tc.reason)
			}
		})
	}
}

// speakRaw listens and hands each connection over, with an https URL.
func speakRaw(t *testing.T, answer func(c net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(patience))
			answer(c)
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return "https://" + l.Addr().String()
}

func TestNewFetcherRefusesBadOptions(t *testing.T) {
	for name, tc := range map[string]struct {
		o    image.FetchOptions
		says string
	}{
		"prefix":        {image.FetchOptions{AllowCIDRs: []netip.Prefix{{}}}, "imageAllowCIDRs holds an invalid prefix"},
		"bytes":         {image.FetchOptions{MaxBytes: -1}, "negative"},
		"idle time":     {image.FetchOptions{IdleTimeout: -1}, "negative"},
		"header's time": {image.FetchOptions{HeaderTimeout: -1}, "negative"},
		"redirects":     {image.FetchOptions{MaxRedirects: -1}, "negative"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := image.NewFetcher(tc.o)
			wantFault(t, err, fault.Invalid, tc.says)
		})
	}
}
