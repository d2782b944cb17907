package client_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/client"
)

// streams is a transport that plays streams of events, and then the last one
// again and again.
type streams struct {
	list []stream
	last []string // the Last-Event-ID of each connection
	at   []time.Duration
}

type stream struct {
	status int // 200 when 0, -1 for no connection, -2 for no answer
	text   string
	code   string
	hangs  bool // it stays open without a word
	// pings are signs of life, one in 15 s, before the text.
	pings int
}

// silent is a body that blocks behind its text until the request ends.
type silent struct {
	io.Reader
	done <-chan struct{}
}

func (s silent) Read(p []byte) (int, error) {
	if n, err := s.Reader.Read(p); err == nil {
		return n, nil
	}
	<-s.done
	return 0, context.Canceled
}

func (silent) Close() error { return nil }

// pinging is a body that shows life for a while.
type pinging struct {
	io.Reader
	left int
}

func (p *pinging) Read(b []byte) (int, error) {
	if p.left == 0 {
		return p.Reader.Read(b)
	}
	time.Sleep(15 * time.Second)
	p.left--
	return copy(b, ": ping\n\n"), nil
}

func (*pinging) Close() error { return nil }

func (s *streams) RoundTrip(r *http.Request) (*http.Response, error) {
	s.last = append(s.last, r.Header.Get("Last-Event-ID"))
	s.at = append(s.at, time.Since(start))
	n := s.list[min(len(s.last), len(s.list))-1]
	if n.status == -1 {
		return nil, errors.New("connection refused")
	}
	if n.status == -2 {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	resp := &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Request: r}
	resp.Body = io.NopCloser(strings.NewReader(n.text))
	if n.pings > 0 {
		resp.Body = &pinging{strings.NewReader(n.text), n.pings}
	}
	if n.hangs {
		resp.Body = silent{strings.NewReader(n.text), r.Context().Done()}
	}
	if n.status != 0 {
		resp.StatusCode = n.status
		resp.Header.Set("Content-Type", "application/problem+json")
		resp.Body = io.NopCloser(strings.NewReader(`{"type":"urn:fleetdesk:problem:` + n.code + `"}`))
	}
	return resp, nil
}

func TestEvents(t *testing.T) {
	const hello = "retry: 1000\nid: 7\n: fleetdesk\n\n"
	one := "id: 9\nevent: taken\ndata: {\"seq\":9,\"kind\":\"taken\",\"key\":\"win-01\"}\n\n"
	two := "id: 12\nevent: released\ndata: {\"seq\":12,\"kind\":\"released\",\"key\":\"win-01\"}\n\n"
	reset := "event: reset\nid: 40\ndata: {}\n\n"
	taken := client.Event{Seq: 9, Kind: "taken", Key: "win-01"}
	released := client.Event{Seq: 12, Kind: "released", Key: "win-01"}
	for name, tc := range map[string]struct {
		reason string
		list   []stream
		after  int64
		want   []client.Event
		class  client.Class // of the error that ends it
		last   []string
		within time.Duration
	}{
		"from now":   {"nothing is sent as a cursor", []stream{{text: hello + one + two}}, -1, []client.Event{taken, released}, "", []string{""}, 0},
		"comes back": {"it goes on behind what it has", []stream{{text: hello + one}, {text: two}}, -1, []client.Event{taken, released}, "", []string{"", "9"}, time.Second},
		"cut early":  {"also when it was cut before the first event", []stream{{text: hello}, {text: one}}, -1, []client.Event{taken}, "", []string{"", "7"}, time.Second},
		"half":       {"half an event is none", []stream{{text: hello + one[:30]}, {text: one}}, -1, []client.Event{taken}, "", []string{"", "7"}, time.Second},
		"reset":      {"what is gone is told", []stream{{text: reset + two}}, 1, []client.Event{{Seq: 40, Kind: "reset"}, released}, "", []string{"1"}, 0},
		"pings":      {"signs of life are no events", []stream{{text: hello + ": ping\n\n: ping\n\n" + one}}, 0, []client.Event{taken}, "", []string{"0"}, 0},
		"silence":    {"a connection without a word is dead", []stream{{text: hello, hangs: true}, {text: one}}, -1, []client.Event{taken}, "", []string{"", "7"}, 50 * time.Second},
		"no answer":  {"so is one that never answers", []stream{{status: -2}, {text: one}}, -1, []client.Event{taken}, "", []string{"", ""}, 50 * time.Second},
		"quiet":      {"a quiet stream is none", []stream{{text: one, pings: 20}}, -1, []client.Event{taken}, "", []string{""}, 5 * time.Minute},
		"outage":     {"an outage is outlived", []stream{{status: 503, code: "unavailable:store"}, {status: -1}, {status: 429, code: "quota:waits"}, {text: one}}, 3, []client.Event{taken}, "", []string{"3", "3", "3", "3"}, 5 * time.Second},
		"denied":     {"a refusal is the end", []stream{{status: 401, code: "denied:token"}}, -1, nil, client.Denied, []string{""}, 0},
		"not ours":   {"so is an answer of something else", []stream{{status: 404, code: ""}}, -1, nil, client.NotFound, []string{""}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &streams{list: tc.list}
				var got []client.Event
				var err error
				for e, failed := range newClient(t, s, 0).Events(t.Context(), tc.after) {
					if err = failed; err != nil {
						break
					}
					if got = append(got, e); len(got) == len(tc.want) {
						break
					}
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
				}
				if tc.class == "" && err != nil || tc.class != "" && !errors.Is(err, tc.class) {
					t.Errorf("%s: %v, want class %q", tc.reason, err, tc.class)
				}
				if diff := cmp.Diff(tc.last, s.last); diff != "" {
					t.Errorf("%s: cursors (-want +got):\n%s", tc.reason, diff)
				}
				if took := time.Since(start); took > tc.within {
					t.Errorf("%s: it took %s", tc.reason, took)
				}
			})
		})
	}
}

// ctx's end ends it, with ctx's error, and a server that cuts every stream is
// not called in a hot loop.
func TestEventsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &streams{list: []stream{{text: ": nothing\n\n"}}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var last error
		for _, err := range newClient(t, s, 0).Events(ctx, -1) {
			last = err
		}
		if !errors.Is(last, context.DeadlineExceeded) || len(s.at) > 20 {
			t.Errorf("%v after %d connections", last, len(s.at))
		}
	})
}
