package brokertest_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/qasight/broker/brokertest"
)

func TestRecording(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Header.Get("Authorization") != "Bearer fd_token" {
			t.Errorf("the server got %v, %v", r.Header, err)
		}
		w.Header().Set("Lease-Secret", "s3cret")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(append([]byte("got "), body...))
	}))
	defer s.Close()
	rt, rec := brokertest.Recording(nil)
	send := func(method, target, body string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, s.URL+target, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer fd_token")
		req.Header.Set("X-Note", "odd")
		resp, err := (&http.Client{Transport: rt}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		if resp.Body.Close(); err != nil || string(got) != "got "+body {
			t.Errorf("the answer is %q, %v", got, err)
		}
		if req.Header.Get("Authorization") == "" {
			t.Error("the request was changed")
		}
	}
	send("POST", "/a/b?x=one%20two", `{"command":"echo \"\u003chi\u003e\""}`)
	send("PUT", "/log/1", "three & four")
	all := rec.All()
	if len(all) != 2 {
		t.Fatalf("%d exchanges", len(all))
	}
	for i := range all {
		for _, h := range []http.Header{all[i].Request.Header, all[i].Answer.Header} {
			if h.Get("Authorization") != "" {
				t.Error("the token was kept")
			}
		}
		all[i].Request.Header = http.Header{"X-Note": all[i].Request.Header["X-Note"]}
		all[i].Answer.Header = http.Header{"Lease-Secret": all[i].Answer.Header["Lease-Secret"]}
	}
	header, answer := http.Header{"X-Note": {"odd"}}, http.Header{"Lease-Secret": {"s3cret"}}
	first, second := `{"command":"echo \"\u003chi\u003e\""}`, "three & four"
	want := []brokertest.Exchange{
		{Method: "POST", URI: "/a/b?x=one%20two", Request: brokertest.Message{Header: header, Body: first}, Answer: brokertest.Message{Header: answer, Body: "got " + first}, Status: 201},
		{Method: "PUT", URI: "/log/1", Request: brokertest.Message{Header: header, Body: second}, Answer: brokertest.Message{Header: answer, Body: "got " + second}, Status: 201},
	}
	if diff := cmp.Diff(want, all); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, tc := range map[string]struct {
		reason, text, but string
		want              []string
	}{
		"everywhere":   {"no text is in all", "", "", []string{"/a/b?x=one%20two", "/log/1"}},
		"method":       {"the method", "PUT", "", []string{"/log/1"}},
		"path":         {"the path", "/a/b", "", []string{"/a/b?x=one%20two"}},
		"query":        {"the query, which is escaped", "one two", "", []string{"/a/b?x=one%20two"}},
		"header":       {"a header", "odd", "", []string{"/a/b?x=one%20two", "/log/1"}},
		"answer":       {"the answer's", "s3cret", "", []string{"/a/b?x=one%20two", "/log/1"}},
		"json":         {"a body, as JSON writes it", `echo "<hi>"`, "", []string{"/a/b?x=one%20two"}},
		"plain":        {"or as it is", "three & four", "", []string{"/log/1"}},
		"but":          {"not where it may be", "three & four", "/log", nil},
		"but another":  {"only there", "three & four", "/logs", []string{"/log/1"}},
		"token":        {"the token is nowhere", "fd_token", "", nil},
		"nowhere":      {"what was not sent", "five", "", nil},
		"answers body": {"what came back", "got three", "", []string{"/log/1"}},
	} {
		var got []string
		for _, x := range rec.Find(tc.text, tc.but) {
			got = append(got, x.URI)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: %s (-want +got):\n%s", name, tc.reason, diff)
		}
	}
}

// What got no answer is kept too.
func TestRecordingOfFailures(t *testing.T) {
	rt, rec := brokertest.Recording(failing{})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://desk.example.com/a", strings.NewReader("text"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rt.RoundTrip(req); err == nil {
		t.Error("the error was lost")
	}
	if all := rec.All(); len(all) != 1 || all[0].Status != 0 || all[0].Request.Body != "text" {
		t.Errorf("it kept %+v", all)
	}
}

type failing struct{}

func (failing) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("connection refused")
}

// An answer that goes on is kept as far as it was read, while it goes on.
func TestRecordingOfStreams(t *testing.T) {
	more := make(chan bool)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "first")
		_ = http.NewResponseController(w).Flush()
		<-more
	}))
	defer s.Close()
	defer close(more)
	rt, rec := brokertest.Recording(nil)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: rt}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	if len(rec.Find("first", "")) != 1 {
		t.Errorf("it kept %+v", rec.All())
	}
}

func TestRecordingTogether(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(body)
	}))
	defer s.Close()
	rt, rec := brokertest.Recording(nil)
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			body := bytes.Repeat([]byte("x"), 1000)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, bytes.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := (&http.Client{Transport: rt}).Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if got, err := io.ReadAll(resp.Body); err != nil || !bytes.Equal(got, body) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			rec.Find("x", "")
		})
	}
	all.Wait()
	for _, x := range rec.All() {
		if len(x.Answer.Body) != 1000 || len(x.Request.Body) != 1000 {
			t.Errorf("it kept %d and %d bytes", len(x.Request.Body), len(x.Answer.Body))
		}
	}
}
