package api

import (
	"net/http"
	"net/http/httptest"
)

// Reading is one request as it was read.
type Reading struct {
	// OK is whether it was accepted, In what was read.
	OK bool
	In any
	// Status and Body are the answer to one that was refused by huma.
	Status int
	Body   string
}

// ReadBoth reads requests to an operation of a lease by hand and by huma.
func ReadBoth(h http.Handler, operation string, request func() *http.Request) (plain, huma Reading) {
	s, _ := h.(*server)
	switch operation {
	case "take":
		return readBoth(s, readTake, request)
	case "renew":
		return readBoth(s, readRenew, request)
	default:
		return readBoth(s, readRelease, request)
	}
}

func readBoth[I any](s *server, read func(*http.Request, []byte, *I) bool, request func() *http.Request) (plain, huma Reading) {
	var byHand, byHuma I
	r := request()
	r.SetPathValue("id", leaseIDOf(r.URL.Path))
	plain.OK = s.readPlain(r, func(body []byte) bool { return read(r, body, &byHand) })
	plain.In = byHand
	w := httptest.NewRecorder()
	huma.OK = readAny(s, w, request(), &byHuma)
	huma.In, huma.Status, huma.Body = byHuma, w.Code, w.Body.String()
	return plain, huma
}

// leaseIDOf is what a mux takes for the id in /api/v1/leases/{id}/….
func leaseIDOf(path string) string {
	m := http.NewServeMux()
	id := ""
	m.HandleFunc("/api/v1/leases/{id}/{verb}", func(_ http.ResponseWriter, r *http.Request) { id = r.PathValue("id") })
	m.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, path, nil))
	return id
}
