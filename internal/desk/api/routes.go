// Package api serves the desk over HTTP: /api/v1 for programs, described by
// /openapi.json. It is the same in both products; what only one of them has is
// an optional interface in [Options], and without it the routes do not exist.
//
// This file shows the whole surface.
package api

import (
	"net/http"

	"fleetdesk/internal/core/token"
)

// routes registers every operation: who may call it, and what answers.
func (s *server) routes() {
	if s.opts.Proxies != nil {
		register(s, operation{
			id: "listProxies", method: http.MethodGet, path: "/api/v1/proxies", role: token.Viewer,
			summary: "Proxies, ordered by namespace and name, one page at a time",
		}, s.listProxies)
		register(s, operation{
			id: "getProxy", method: http.MethodGet, path: "/api/v1/proxies/{namespace}/{name}", role: token.Viewer,
			summary: "One proxy", errors: []int{http.StatusNotFound},
		}, s.getProxy)
	}
	// The description of the API names no secret and needs no token.
	s.mux.HandleFunc("GET /openapi.json", s.serveOpenAPI)
}
