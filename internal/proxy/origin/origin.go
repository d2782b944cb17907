// Package origin is a web page that says where a request came from: the far
// end that proxies are tested against when nobody names a better one.
//
// It reflects the address of the connection and nothing else of the request,
// and believes no header.
package origin

import (
	"encoding/json"
	"net/http"
	"net/netip"
)

// Header is the response header that carries the client's address.
const Header = "X-Client-IP"

// New returns the handler: GET or HEAD of
//
//	/generate_204  204 and the header X-Client-IP
//	/ip            200 {"ip":"192.0.2.1"}
//	/              200 "You come from 192.0.2.1", text/plain
//
// Every answer carries the header, and none may be kept. Other paths are 404,
// other methods 405.
func New() http.Handler {
	pages := map[string]http.HandlerFunc{
		"/generate_204": page(func(w http.ResponseWriter, _ netip.Addr) {
			w.WriteHeader(http.StatusNoContent)
		}),
		"/ip": page(func(w http.ResponseWriter, from netip.Addr) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(map[string]string{"ip": from.String()}) // the client went away
		}),
		"/": page(func(w http.ResponseWriter, from netip.Addr) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			_, _ = w.Write([]byte("You come from " + from.String() + "\n")) // the client went away
		}),
	}
	// No ServeMux: it answers an untidy path by a redirect that repeats it.
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		serve, ok := pages[r.URL.Path]
		if !ok {
			serve = http.NotFound
		}
		serve(w, r)
	})
}

func page(write func(http.ResponseWriter, netip.Addr)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		if r.ContentLength != 0 {
			// Nobody reads a body here; closing spares the server from draining it.
			h.Set("Connection", "close")
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "only GET and HEAD", http.StatusMethodNotAllowed)
			return
		}
		peer, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil {
			http.Error(w, "this connection has no IP address", http.StatusInternalServerError)
			return
		}
		from := peer.Addr().Unmap().WithZone("")
		h.Set(Header, from.String())
		write(w, from)
	}
}
