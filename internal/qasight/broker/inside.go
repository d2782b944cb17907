package broker

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
)

// inside carries requests to a handler of this process. The handler runs in the
// caller's goroutine and ends when the request's context does; its answer is
// whole before anybody reads of it. What was done is told even if the context
// ended meanwhile: nobody must hold a key that they do not know of.
type inside struct{ handler http.Handler }

// RoundTrip implements [http.RoundTripper].
func (t inside) RoundTrip(r *http.Request) (*http.Response, error) {
	w := &recorder{header: http.Header{}}
	in := r.Clone(r.Context())
	if in.Body == nil {
		in.Body = http.NoBody
	}
	defer in.Body.Close()
	// What a server reads from a connection.
	in.RequestURI, in.RemoteAddr, in.Host = r.URL.RequestURI(), "127.0.0.1:0", r.URL.Host
	t.handler.ServeHTTP(w, in)
	w.WriteHeader(http.StatusOK)
	if err := r.Context().Err(); err != nil && w.status/100 != 2 {
		return nil, err // the answer tells no more than that
	}
	return &http.Response{
		Status: strconv.Itoa(w.status) + " " + http.StatusText(w.status), StatusCode: w.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.sent, Body: io.NopCloser(&w.body), ContentLength: int64(w.body.Len()), Request: r,
	}, nil
}

// recorder keeps an answer.
type recorder struct {
	header, sent http.Header
	status       int
	body         bytes.Buffer
}

func (w *recorder) Header() http.Header { return w.header }

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 {
		w.status, w.sent = status, w.header.Clone()
	}
}

func (w *recorder) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

// Flush implements [http.Flusher]: what was written has arrived.
func (w *recorder) Flush() { w.WriteHeader(http.StatusOK) }
