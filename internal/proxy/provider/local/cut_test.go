package local_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/local"
)

// rawOrigin is a target that answers requests with answer. It leaves the
// connection to after then, and closes it when after returns; with nil it goes on
// to the next request. It returns its host:port.
func rawOrigin(t *testing.T, answer string, after func(*net.TCPConn)) string {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	t.Cleanup(func() {
		_ = ln.Close()
		group.Wait()
	})
	group.Go(func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			group.Go(func() {
				defer nc.Close()
				defer context.AfterFunc(t.Context(), func() { _ = nc.Close() })()
				_ = nc.SetDeadline(time.Now().Add(10 * time.Second))
				for r := bufio.NewReader(nc); ; {
					if _, err := http.ReadRequest(r); err != nil {
						return
					}
					_, _ = io.WriteString(nc, answer)
					if after != nil {
						after(nc.(*net.TCPConn))
						return
					}
				}
			})
		}
	})
	return ln.Addr().String()
}

func leave(*net.TCPConn) {}

const (
	chunkedHello = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
	closedHello  = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello"
	lengthHello  = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello"
)

// ask sends a GET through the proxy at address and reads until "hello" is
// there. rest reads what comes after it, to the end of the answer.
func ask(t *testing.T, proxy, target, version string) (rest func() ([]byte, error)) {
	t.Helper()
	r := bufio.NewReader(say(t, proxy, "GET http://"+target+"/ "+version+"\r\nHost: "+target+"\r\n\r\n"))
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("%s: %+v, %v; want status 200 and the first half", version, resp, err)
	}
	half := make([]byte, 5)
	if _, err := io.ReadFull(resp.Body, half); err != nil || string(half) != "hello" {
		t.Fatalf("%s: %q, %v; want the first half", version, half, err)
	}
	return func() ([]byte, error) { return io.ReadAll(resp.Body) }
}

var versions = []string{"HTTP/1.1", "HTTP/1.0"}

// A client never takes half an answer for a whole one. (A target that closes an
// answer without a length in good order says itself that it is whole.)
func TestForwardAnswerCut(t *testing.T) {
	reset := func(c *net.TCPConn) { _ = c.SetLinger(0) }
	for name, tc := range map[string]struct {
		reason string
		answer string
		end    func(*net.TCPConn)
	}{
		"chunked, closed": {"the last chunk is missing", chunkedHello, leave},
		"chunked, reset":  {"the target died", chunkedHello, reset},
		"chunked, torn":   {"a chunk is shorter than it says", chunkedHello, func(c *net.TCPConn) { _, _ = io.WriteString(c, "9\r\nworld") }},
		"chunked, broken": {"what follows is no chunk", chunkedHello, func(c *net.TCPConn) { _, _ = io.WriteString(c, "nonsense\r\n") }},
		"no length":       {"a reset is not the close that tells the end", closedHello, reset},
		"length, closed":  {"bytes are missing", lengthHello, leave},
		"length, reset":   {"the target died", lengthHello, reset},
	} {
		for _, version := range versions {
			t.Run(name+" "+version, func(t *testing.T) {
				at := forwarding(t, provider.Credentials{}, local.ForwardLimits{})
				seen := make(chan struct{})
				target := rawOrigin(t, tc.answer, func(c *net.TCPConn) { <-seen; tc.end(c) })
				defer sync.OnceFunc(func() { close(seen) })()
				rest := ask(t, at, target, version)
				seen <- struct{}{}
				if more, err := rest(); err == nil {
					t.Errorf("%s: after the first half came %q in good order; want an error", tc.reason, more)
				}
			})
		}
	}
}

// A target that dies after the header is no connection that died unused: the
// client hears the status, and does not ask again by itself.
func TestForwardAnswerCutAtHeader(t *testing.T) {
	at := forwarding(t, provider.Credentials{}, local.ForwardLimits{})
	for name, head := range map[string]string{
		"chunked": "HTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\n",
		"length":  "HTTP/1.1 202 Accepted\r\nContent-Length: 10\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			resp, err := through(t, at, provider.Credentials{}, nil).Get("http://" + rawOrigin(t, head, leave))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if resp.StatusCode != 202 || err == nil || len(body) > 0 {
				t.Errorf("status %d, %q, %v; want 202 and an error", resp.StatusCode, body, err)
			}
		})
	}
}

// The idle limit ends the target's connection and the client's in either order.
func TestForwardAnswerCutByIdleLimit(t *testing.T) {
	for name, answer := range map[string]string{"chunked": chunkedHello, "no length": closedHello, "length": lengthHello} {
		for _, version := range versions {
			t.Run(name+" "+version, func(t *testing.T) {
				at := forwarding(t, provider.Credentials{}, local.ForwardLimits{Idle: 200 * time.Millisecond})
				target := rawOrigin(t, answer, nil)
				var rests []func() ([]byte, error)
				for range 16 { // one alone would see one of the orders
					rests = append(rests, ask(t, at, target, version))
				}
				for _, rest := range rests {
					if more, err := rest(); err == nil || len(more) > 0 {
						t.Errorf("after the first half came %q, %v; want an error", more, err)
					}
				}
			})
		}
	}
}

// However the proxy ends, a download that runs then is no whole one.
func TestForwardAnswerCutByEnd(t *testing.T) {
	target := map[string]string{}
	for name, answer := range map[string]string{"chunked": chunkedHello, "no length": closedHello, "length": lengthHello} {
		target[name] = rawOrigin(t, answer, nil)
	}
	for name, tc := range map[string]struct {
		reason string
		end    func(t *testing.T, p *local.Provider, dir string, in provider.Instance)
	}{
		"deleted": {"the process is told to end", func(t *testing.T, p *local.Provider, _ string, in provider.Instance) {
			gone(t, p, in.Owner)
		}},
		"killed": {"the kernel closes for it", func(t *testing.T, _ *local.Provider, dir string, in provider.Instance) {
			pid, _ := only(t, dirOf(dir, in.Owner))
			kill(t, pid)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			p := open(t, dir)
			in := create(t, p, specOf(fresh("cut")))
			at := netip.AddrPortFrom(netip.MustParseAddr(in.Address), uint16(in.Port)).String()
			rests := map[string]func() ([]byte, error){}
			for kind := range target {
				for _, version := range versions {
					rests[kind+" "+version] = ask(t, at, target[kind], version)
				}
			}
			tc.end(t, p, dir, in)
			for kind, rest := range rests {
				if more, err := rest(); err == nil || len(more) > 0 {
					t.Errorf("%s: %s: after the first half came %q, %v; want an error", tc.reason, kind, more, err)
				}
			}
		})
	}
}

// A whole answer passes as it is, and the client's connection goes on.
func TestForwardAnswerWhole(t *testing.T) {
	at := forwarding(t, provider.Credentials{}, local.ForwardLimits{})
	for name, tc := range map[string]struct {
		reason string
		method string
		answer string
		after  func(*net.TCPConn)
		status int
		body   string
		length int64 // -1: none told
	}{
		"chunked":      {"the last chunk ends it", "GET", chunkedHello + "0\r\n\r\n", nil, 200, "hello", -1},
		"trailer":      {"the trailer ends it", "GET", chunkedHello + "0\r\nX-Sum: 1\r\n\r\n", nil, 200, "hello", -1},
		"no length":    {"the close ends it", "GET", closedHello, leave, 200, "hello", -1},
		"length":       {"the length stays", "GET", lengthHello + "world", nil, 200, "helloworld", 10},
		"length, torn": {"a close after the last byte is no harm", "GET", lengthHello + "world", leave, 200, "helloworld", 10},
		"empty":        {"a length of 0 stays", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", nil, 200, "", 0},
		"HEAD":         {"a length without a body stays", "HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", nil, 200, "", 10},
		"no content":   {"there is no body to be cut", "GET", "HTTP/1.1 204 No Content\r\n\r\n", nil, 204, "", 0},
		"not modified": {"there is no body to be cut", "GET", "HTTP/1.1 304 Not Modified\r\nEtag: \"e\"\r\n\r\n", nil, 304, "", 0},
		"early hints": {
			"an interim answer is not the answer", "GET",
			"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + lengthHello + "world", nil, 200, "helloworld", 10,
		},
	} {
		t.Run(name, func(t *testing.T) {
			target := rawOrigin(t, tc.answer, tc.after)
			c := through(t, at, provider.Credentials{}, nil)
			for try := range 2 {
				reused := false
				ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{
					GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused },
				})
				req, err := http.NewRequestWithContext(ctx, tc.method, "http://"+target, nil)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := c.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				got := fmt.Sprintf("%d %q, length %d, %v", resp.StatusCode, body, resp.ContentLength, err)
				if want := fmt.Sprintf("%d %q, length %d, %v", tc.status, tc.body, tc.length, nil); got != want {
					t.Errorf("%s: %s; want %s", tc.reason, got, want)
				}
				if try == 1 && !reused {
					t.Errorf("%s: the client's connection was not kept", tc.reason)
				}
			}
			old := say(t, at, tc.method+" http://"+target+"/ HTTP/1.0\r\nHost: "+target+"\r\n\r\n")
			all, err := io.ReadAll(old)
			if head, body, ok := strings.Cut(string(all), "\r\n\r\n"); err != nil || !ok || body != tc.body {
				t.Errorf("%s: HTTP/1.0: %q, %q, %v; want %q and an end in good order", tc.reason, head, body, err, tc.body)
			}
		})
	}
}
