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
	case "next":
		return readBoth(s, readNext, request)
	case "report":
		return readBoth(s, readReport, request)
	default:
		return readBoth(s, readRelease, request)
	}
}

func readBoth[I any](s *server, read func(*http.Request, []byte, *I) bool, request func() *http.Request) (plain, huma Reading) {
	var byHand, byHuma I
	r := request()
	pathValues(r)
	plain.OK = s.readPlain(r, func(body []byte) bool { return read(r, body, &byHand) })
	plain.In = byHand
	w := httptest.NewRecorder()
	huma.OK = readAny(s, w, request(), &byHuma)
	huma.In, huma.Status, huma.Body = byHuma, w.Code, w.Body.String()
	return plain, huma
}

// pathValues sets what a mux takes out of the path of these operations.
func pathValues(r *http.Request) {
	m := http.NewServeMux()
	take := func(names ...string) func(http.ResponseWriter, *http.Request) {
		return func(_ http.ResponseWriter, matched *http.Request) {
			for _, n := range names {
				r.SetPathValue(n, matched.PathValue(n))
			}
		}
	}
	m.HandleFunc("/api/v1/leases/{id}/{verb}", take("id"))
	m.HandleFunc("/api/v1/proxies/{namespace}/{name}/reports", take("namespace", "name"))
	m.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, r.URL.Path, nil))
}
