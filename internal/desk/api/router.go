package api

import (
	"net/http"
	"strings"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/httpd"
)

// both registers routes where they are served and where they are known.
type both struct{ s *server }

func (b both) HandleFunc(pattern string, handler func(http.ResponseWriter, *http.Request)) {
	b.s.mux.HandleFunc(pattern, handler)
	b.s.known.HandleFunc(pattern, handler)
}

func (b both) ServeHTTP(w http.ResponseWriter, r *http.Request) { b.s.mux.ServeHTTP(w, r) }

// ServeHTTP notes which route answers, so that the log and the metrics know it,
// and sees to it that the mux's own plain-text answers never reach a client.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rec := httpd.Record(w)
	// A panic passes through here on its way to httpd, which answers 500.
	begin, code, route := time.Now(), http.StatusInternalServerError, unmatched
	s.metrics.inFlight.Inc()
	r.Pattern = "" // of a mux in front of this one
	defer func() {
		if _, path, ok := strings.Cut(r.Pattern, " "); ok {
			route = path
		}
		httpd.SetRoute(r.Context(), route)
		s.metrics.inFlight.Dec()
		s.metrics.answered(route, r.Method, code, time.Since(begin))
	}()
	if unclean(r) {
		s.noRoute(rec, r)
	} else {
		s.mux.ServeHTTP(rec, r)
	}
	code = rec.Status()
}

// unclean reports whether the mux would send the client to another path, which
// is another route: a name that is ".." must not turn one request into another.
func unclean(r *http.Request) bool {
	p := r.URL.EscapedPath()
	if p == "" || p[0] != '/' {
		return true
	}
	for i := range len(p) {
		if p[i] != '/' {
			continue
		}
		switch part, _, more := strings.Cut(p[i+1:], "/"); part {
		case ".", "..":
			return true
		case "":
			if more {
				return true
			}
		}
	}
	return false
}

// unmatched is the route label of requests that no route answers.
const unmatched = "unmatched"

// noRoute answers what no route does with a problem document of status 404, or
// 405 for a path that has other methods.
func (s *server) noRoute(w http.ResponseWriter, r *http.Request) {
	probe := &headerOnly{header: http.Header{}}
	if !unclean(r) {
		s.known.ServeHTTP(probe, r.Clone(r.Context())) // it has no handler for this, and only looks
	}
	if probe.status == http.StatusMethodNotAllowed {
		allow := probe.header.Get("Allow")
		w.Header().Set("Allow", allow)
		httpd.WriteError(w, r, s.opts.Log, httpd.WithStatus(
			fault.New(fault.Invalid, "this path has no such method; it has "+allow), http.StatusMethodNotAllowed))
		return
	}
	httpd.WriteError(w, r, s.opts.Log, fault.New(fault.NotFound, "there is no such route; /openapi.json lists them all"))
}

// headerOnly keeps status and header of an answer and drops its body.
type headerOnly struct {
	header http.Header
	status int
}

func (h *headerOnly) Header() http.Header         { return h.header }
func (h *headerOnly) WriteHeader(status int)      { h.status = status }
func (h *headerOnly) Write(b []byte) (int, error) { return len(b), nil }
