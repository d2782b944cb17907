package broker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetdesk/internal/qasight/broker"
)

// closed is a body that tells whether it was closed.
type closed struct {
	io.Reader
	yes bool
}

func (c *closed) Close() error { c.yes = true; return nil }

// ask makes one request of a handler of this process.
func ask(ctx context.Context, t *testing.T, h http.HandlerFunc, method, target string, body io.Reader) (*http.Response, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, "http://local.invalid"+target, body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: broker.Inside(h)}).Do(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.ContentLength != int64(len(text)) {
		t.Errorf("the answer says that it has %d bytes and has %d", resp.ContentLength, len(text))
	}
	return resp, string(text), nil
}

func TestInsideAnswers(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		handler http.HandlerFunc
		status  string
		text    string
		header  http.Header
	}{
		"nothing": {"an answer of nothing is 200", func(http.ResponseWriter, *http.Request) {}, "200 OK", "", http.Header{}},
		"text": {"what is written makes it 200", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "a")
			_, _ = io.WriteString(w, "b")
		}, "200 OK", "ab", http.Header{}},
		"status": {"the status and the headers are the handler's", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Lease-Secret", "s")
			w.Header().Add("Two", "1")
			w.Header().Add("Two", "2")
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, "no")
		}, "409 Conflict", "no", http.Header{"Lease-Secret": {"s"}, "Two": {"1", "2"}}},
		"first": {"the first status counts, and headers after it do not", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
			w.WriteHeader(http.StatusTeapot)
			w.Header().Set("Late", "x")
		}, "201 Created", "", http.Header{}},
		"written": {"nor do they after the first byte", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "a")
			w.WriteHeader(http.StatusTeapot)
			w.Header().Set("Late", "x")
		}, "200 OK", "a", http.Header{}},
		"flushed": {"or after a flush, which works", func(w http.ResponseWriter, _ *http.Request) {
			if err := http.NewResponseController(w).Flush(); err != nil {
				panic(err)
			}
			w.WriteHeader(http.StatusTeapot)
			_, _ = io.WriteString(w, strings.Repeat("x", 1<<20))
		}, "200 OK", strings.Repeat("x", 1<<20), http.Header{}},
	} {
		resp, text, err := ask(t.Context(), t, tc.handler, http.MethodGet, "/", nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if resp.Status != tc.status || fmt.Sprint(resp.StatusCode) != tc.status[:3] || text != tc.text || fmt.Sprint(resp.Header) != fmt.Sprint(tc.header) {
			t.Errorf("%s: %s: %q, %d, %v and %d bytes", name, tc.reason, resp.Status, resp.StatusCode, resp.Header, len(text))
		}
	}
}

// A handler gets what a server would give it.
func TestInsideRequests(t *testing.T) {
	var got string
	h := func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got = strings.Join([]string{r.Method, r.RequestURI, r.URL.Path, r.URL.RawQuery, r.Host, r.RemoteAddr, r.Header.Get("X"), string(body)}, "|")
	}
	body := &closed{Reader: strings.NewReader("hello")}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://local.invalid/a%2Fb?x=1", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X", "y")
	resp, err := broker.Inside(http.HandlerFunc(h)).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if want := "POST|/a%2Fb?x=1|/a/b|x=1|local.invalid|127.0.0.1:0|y|hello"; got != want {
		t.Errorf("the handler saw %s, want %s", got, want)
	}
	if !body.yes {
		t.Error("the request's body was not closed")
	}
	if req.RequestURI != "" {
		t.Error("the caller's request was changed")
	}
	if _, _, err := ask(t.Context(), t, h, http.MethodGet, "/", nil); err != nil || got != "GET|/|/||local.invalid|127.0.0.1:0||" {
		t.Errorf("without a body it saw %s, %v", got, err)
	}
}

// The request's end ends the handler, and is told; what was done is told all the
// same.
func TestInsideEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		status int // 0 for none
		told   bool
	}{
		"granted":   {http.StatusCreated, true},
		"done":      {http.StatusOK, true},
		"gone":      {499, false},
		"failed":    {http.StatusServiceUnavailable, false},
		"not there": {http.StatusNotFound, false},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		began := make(chan bool)
		go func() {
			<-began
			cancel()
		}()
		_, text, err := ask(ctx, t, func(w http.ResponseWriter, r *http.Request) {
			close(began)
			<-r.Context().Done()
			w.WriteHeader(tc.status)
			_, _ = io.WriteString(w, "win-01")
		}, http.MethodGet, "/", nil)
		if tc.told && (err != nil || text != "win-01") || !tc.told && !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, _, err := ask(ctx, t, func(w http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		w.WriteHeader(499)
	}, http.MethodGet, "/", nil)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a deadline: %v", err)
	}
}

// A panic reaches whoever called, the request's body is closed, and the next
// request is served.
func TestInsidePanic(t *testing.T) {
	h := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/panic" {
			panic("half done")
		}
		_, _ = io.WriteString(w, "ok")
	}
	body := &closed{Reader: strings.NewReader("x")}
	func() {
		defer func() {
			if recover() != "half done" {
				t.Error("the panic went elsewhere")
			}
		}()
		_, _, err := ask(t.Context(), t, h, http.MethodPost, "/panic", body)
		t.Errorf("it returned with %v", err)
	}()
	if !body.yes {
		t.Error("the request's body was not closed")
	}
	if _, text, err := ask(t.Context(), t, h, http.MethodGet, "/", nil); err != nil || text != "ok" {
		t.Errorf("the next request: %q, %v", text, err)
	}
}

func TestInsideTogether(t *testing.T) {
	h := func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Path", r.URL.Path)
		_, _ = w.Write(body)
	}
	var all sync.WaitGroup
	for n := range 64 {
		all.Go(func() {
			for i := range 20 {
				path, want := fmt.Sprintf("/%d/%d", n, i), strings.Repeat(fmt.Sprint(n), i)
				resp, text, err := ask(t.Context(), t, h, http.MethodPost, path, strings.NewReader(want))
				if err != nil || text != want || resp.Header.Get("Path") != path {
					t.Errorf("%s: %q, %v", path, text, err)
				}
			}
		})
	}
	all.Wait()
}
