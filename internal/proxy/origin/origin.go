// Package origin is a web page that says where a request came from, and which
// of its headers tell that a proxy sent it: the far end that proxies are tested
// against when nobody names a better one.
//
// It reflects the address of the connection and names of a closed list, nothing
// else of the request, and believes no header.
package origin

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// Header is the response header that carries the client's address.
const Header = "X-Client-IP"

// LeaksHeader is the response header that names those headers of the request
// that tell of a proxy, with commas between them, or says [NoLeaks]. An origin
// that does not know of it sends none, so its absence says nothing.
const LeaksHeader = "X-Proxy-Headers"

// NoLeaks is what [LeaksHeader] says when there are none.
const NoLeaks = "none"

// Leaks returns the headers that tell of a proxy, in the order in which answers
// name them: what forward proxies and gateways add to tell of themselves or of
// whom they act for, and what clients say to a proxy that must not go further.
func Leaks() []string {
	return []string{
		"Forwarded", "Via",
		"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Server",
		"X-Real-IP", "Client-IP", "X-Client-IP", "True-Client-IP", "CF-Connecting-IP", "X-Cluster-Client-IP",
		"X-ProxyUser-IP", "X-Proxy-ID",
		"Proxy-Connection", "Proxy-Authorization",
	}
}

// Page is one of the pages: its path, or "other" for all that do not exist.
type Page string

// Seen is one request as it may be counted: of closed lists only.
type Seen struct {
	Page   Page
	Status int
	// Leaks is whether a header told of a proxy.
	Leaks bool
}

// Options are what a handler is made of; the zero value is fine.
type Options struct {
	// Answered is told of each request. It must not block. Nil for nobody.
	Answered func(Seen)
}

// New returns the handler: GET or HEAD of
//
//	/generate_204  204 and the headers X-Client-IP and X-Proxy-Headers
//	/ip            200 {"ip":"192.0.2.1","leaks":["Via"]}
//	/              200 "You come from 192.0.2.1 ...", text/plain
//
// Every answer carries the headers, and none may be kept. Other paths are 404,
// other methods 405.
func New(o Options) http.Handler {
	if o.Answered == nil {
		o.Answered = func(Seen) {}
	}
	pages := map[string]page{
		"/generate_204": func(w http.ResponseWriter, _ visitor) int {
			w.WriteHeader(http.StatusNoContent)
			return http.StatusNoContent
		},
		"/ip": func(w http.ResponseWriter, v visitor) int {
			w.Header().Set("Content-Type", "application/json")
			body, _ := json.Marshal(answer{v.from.String(), v.leaks}) //nolint:errchkjson // texts always can
			_, _ = w.Write(append(body, '\n'))                        // the client went away
			return http.StatusOK
		},
		"/": func(w http.ResponseWriter, v visitor) int {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			_, _ = w.Write([]byte("You come from " + v.from.String() + "\n" + v.words() + "\n")) // the client went away
			return http.StatusOK
		},
	}
	known := Leaks()
	canonical := make([]string, len(known))
	for i, name := range known {
		canonical[i] = http.CanonicalHeaderKey(name)
	}
	// No ServeMux: it answers an untidy path by a redirect that repeats it.
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := visitor{leaks: []string{}}
		for i, key := range canonical {
			if _, sent := r.Header[key]; sent { // an empty one tells as much
				v.leaks = append(v.leaks, known[i])
			}
		}
		seen := Seen{Page: Page(r.URL.Path), Leaks: len(v.leaks) > 0}
		serve := pages[r.URL.Path]
		if serve == nil {
			seen.Page = "other"
		}
		seen.Status = v.answer(w, r, serve)
		o.Answered(seen)
	})
}

// page writes an answer and returns its status.
type page func(http.ResponseWriter, visitor) int

// answer is what programs are told.
type answer struct {
	IP    string   `json:"ip"`
	Leaks []string `json:"leaks"`
}

// visitor is what is told of a request.
type visitor struct {
	from  netip.Addr
	leaks []string
}

// words says for people which headers tell of a proxy.
func (v visitor) words() string {
	if len(v.leaks) == 0 {
		return "No header tells of a proxy"
	}
	return "These headers tell of a proxy: " + strings.Join(v.leaks, ", ")
}

// answer answers a request by a page (nil for none) and returns the status.
func (v visitor) answer(w http.ResponseWriter, r *http.Request, serve page) int {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if r.ContentLength != 0 {
		// Nobody reads a body here; closing spares the server from draining it.
		h.Set("Connection", "close")
	}
	refuse := func(status int, text string) int {
		http.Error(w, text, status)
		return status
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err == nil {
		v.from = peer.Addr().Unmap().WithZone("")
		h.Set(Header, v.from.String())
	}
	h.Set(LeaksHeader, NoLeaks)
	if len(v.leaks) > 0 {
		h.Set(LeaksHeader, strings.Join(v.leaks, ", "))
	}
	switch {
	case serve == nil:
		return refuse(http.StatusNotFound, "404 page not found")
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		h.Set("Allow", "GET, HEAD")
		return refuse(http.StatusMethodNotAllowed, "only GET and HEAD")
	case err != nil:
		return refuse(http.StatusInternalServerError, "this connection has no IP address")
	}
	return serve(w, v)
}

// ParseLeaks reads what [LeaksHeader] of an answer says: names of the list, each
// once and in its order, and whether it says anything. Other names are not
// repeated, since the far side chose them: with nothing else beside, it says
// nothing.
func ParseLeaks(h http.Header) (names []string, known bool) {
	said := h.Values(LeaksHeader)
	if len(said) > maxLeakHeaders {
		return nil, false
	}
	var told []string
	for _, line := range said {
		if len(line) > maxLeakBytes {
			return nil, false
		}
		for one := range strings.SplitSeq(line, ",") {
			told = append(told, strings.ToLower(strings.TrimSpace(one)))
		}
	}
	names = slices.DeleteFunc(Leaks(), func(name string) bool { return !slices.Contains(told, strings.ToLower(name)) })
	return names, len(names) > 0 || (len(told) == 1 && told[0] == NoLeaks)
}

// An answer that says more than these was not made by an origin of ours.
const (
	maxLeakHeaders = 4
	maxLeakBytes   = 1024
)
