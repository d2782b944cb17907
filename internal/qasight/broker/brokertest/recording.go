package brokertest

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
)

// Exchange is a request and its answer, as they went over the wire.
type Exchange struct {
	Method string
	// URI is the path with the query, as it was sent.
	URI string
	// Request and Answer are the headers, without Authorization, and the bodies.
	// An answer that goes on has as much of it as was read.
	Request, Answer Message
	// Status is the answer's; 0 when none came.
	Status int
}

// Message is one direction of an exchange.
type Message struct {
	Header http.Header
	Body   string
}

// Recorder keeps what went through a transport. It is safe for concurrent use.
type Recorder struct {
	mu   sync.Mutex
	all  []*Exchange
	read []*bytes.Buffer // the answers' bodies
}

// Recording makes requests through next, nil for a transport of its own without
// kept connections, and keeps all of them.
func Recording(next http.RoundTripper) (http.RoundTripper, *Recorder) {
	if next == nil {
		next = &http.Transport{DisableKeepAlives: true}
	}
	rec := &Recorder{}
	return recording{next, rec}, rec
}

type recording struct {
	next http.RoundTripper
	rec  *Recorder
}

// RoundTrip implements [http.RoundTripper].
func (t recording) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	out := r.Clone(r.Context())
	if r.Body != nil {
		var err error
		body, err = io.ReadAll(r.Body)
		_ = r.Body.Close()
		if err != nil {
			return nil, err
		}
		out.Body = io.NopCloser(bytes.NewReader(body))
		out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	}
	x := &Exchange{Method: r.Method, URI: r.URL.RequestURI(), Request: Message{without(r.Header), string(body)}}
	read := &bytes.Buffer{}
	t.rec.mu.Lock()
	t.rec.all, t.rec.read = append(t.rec.all, x), append(t.rec.read, read)
	t.rec.mu.Unlock()
	resp, err := t.next.RoundTrip(out)
	if err != nil {
		return nil, err
	}
	t.rec.mu.Lock()
	defer t.rec.mu.Unlock()
	x.Status, x.Answer.Header = resp.StatusCode, without(resp.Header)
	resp.Body = &copying{resp.Body, &t.rec.mu, read}
	return resp, nil
}

// without are the headers that may be kept.
func without(h http.Header) http.Header {
	h = h.Clone()
	h.Del("Authorization")
	return h
}

// copying keeps what is read.
type copying struct {
	io.ReadCloser
	mu   *sync.Mutex
	read *bytes.Buffer
}

// Read implements [io.Reader].
func (c *copying) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read.Write(p[:n])
	return n, err
}

// All are the exchanges so far, in the order in which they began.
func (r *Recorder) All() []Exchange {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []Exchange
	for i, x := range r.all {
		y := *x
		y.Answer.Body = r.read[i].String()
		all = append(all, y)
	}
	return all
}

// Find returns the exchanges that hold the text anywhere: in the method, the path
// and query, a header or a body, of request or answer; as it is, or as JSON or a
// URL write it. Those whose path begins with exceptPath are left out; "" leaves
// none out. A text of "" is in all of them.
func (r *Recorder) Find(text, exceptPath string) []Exchange {
	forms := forms(text)
	var found []Exchange
	for _, x := range r.All() {
		if exceptPath != "" && strings.HasPrefix(x.URI, exceptPath) {
			continue
		}
		whole := x.text()
		if slices.ContainsFunc(forms, func(form string) bool { return strings.Contains(whole, form) }) {
			found = append(found, x)
		}
	}
	return found
}

// text is all of it.
func (x Exchange) text() string {
	var b strings.Builder
	b.WriteString(x.Method + " " + x.URI + "\n")
	for _, m := range []Message{x.Request, x.Answer} {
		for name, values := range m.Header {
			b.WriteString(name + ": " + strings.Join(values, ", ") + "\n")
		}
		b.WriteString(m.Body + "\n")
	}
	return b.String()
}

// forms are the ways in which a text is written on the wire.
func forms(text string) []string {
	forms := []string{text, url.QueryEscape(text), url.PathEscape(text)}
	for _, html := range []bool{true, false} {
		var b strings.Builder
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(html)
		if e.Encode(text) == nil { // a string always can be
			forms = append(forms, strings.TrimSuffix(b.String(), "\n")[1:len(b.String())-2])
		}
	}
	return forms
}
