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
	if s.opts.Accounts != nil {
		register(s, operation{
			id: "whoami", method: http.MethodGet, path: "/api/v1/whoami", role: token.Viewer,
			summary: "Whose token this is, and what it may do",
		}, s.whoami)
		register(s, operation{
			id: "listAccounts", method: http.MethodGet, path: "/api/v1/accounts", role: token.Admin,
			summary: "Accounts, ordered by name, one page at a time",
		}, s.listAccounts)
		register(s, operation{
			id: "createAccount", method: http.MethodPost, path: "/api/v1/accounts", role: token.Admin,
			summary: "Add an account", status: http.StatusCreated, errors: []int{http.StatusConflict},
		}, s.createAccount)
		register(s, operation{
			id: "changeAccount", method: http.MethodPut, path: "/api/v1/accounts/{account}", role: token.Admin,
			summary: "Set an account's role and state", errors: []int{http.StatusNotFound, http.StatusConflict},
		}, s.changeAccount)
		register(s, operation{
			id: "listTokens", method: http.MethodGet, path: "/api/v1/accounts/{account}/tokens", role: token.Admin,
			summary: "An account's tokens without their secrets, ordered by id, one page at a time", errors: []int{http.StatusNotFound},
		}, s.listTokens)
		register(s, operation{
			id: "issueToken", method: http.MethodPost, path: "/api/v1/accounts/{account}/tokens", role: token.Admin,
			summary: "Make a token; its text is shown in this answer and never again",
			status:  http.StatusCreated, errors: []int{http.StatusNotFound},
		}, s.issueToken)
		register(s, operation{
			id: "revokeToken", method: http.MethodDelete, path: "/api/v1/tokens/{id}", role: token.Admin,
			summary: "End a token; again is harmless", errors: []int{http.StatusNotFound},
		}, s.revokeToken)
	}
	if s.opts.Actions != nil {
		register(s, operation{
			id: "listActions", method: http.MethodGet, path: "/api/v1/resources/actions", role: token.Viewer,
			summary: "The log of people's provider commands, the newest entries first, one page at a time; or the actions without an end",
		}, s.listActions)
		register(s, operation{
			id: "addActionEntry", method: http.MethodPost, path: "/api/v1/resources/actions", role: token.Runner,
			summary: "Add an entry to that log; the same one again is harmless", status: http.StatusCreated,
			errors: []int{http.StatusNotFound, http.StatusConflict},
		}, s.addActionEntry)
	}
	if s.opts.Desk != nil {
		s.leaseRoutes()
		s.poolRoutes()
	}
	if s.opts.Selection != nil {
		s.pickRoutes()
	}
	// The description of the API names no secret and needs no token.
	both{s}.HandleFunc("GET /openapi.json", s.serveOpenAPI)
}

// leaseRoutes are what clients do with keys, and what everybody may watch.
func (s *server) leaseRoutes() {
	registerHot[takeInput, takeOutput](s, operation{
		id: "takeLease", method: http.MethodPost, path: "/api/v1/leases", role: token.Runner,
		summary: "Take a key of a pool, waiting for one when asked to",
		status:  http.StatusCreated, replayed: true, errors: []int{http.StatusNotFound, http.StatusConflict},
	}, readTake, s.takeLease)
	register(s, operation{
		id: "getLease", method: http.MethodGet, path: "/api/v1/leases/{id}", role: token.Viewer,
		summary: "One lease, also one that ended a while ago", errors: []int{http.StatusNotFound},
	}, s.getLease)
	registerHot[renewInput, leaseOutput](s, operation{
		id: "renewLease", method: http.MethodPost, path: "/api/v1/leases/{id}/renew", role: token.Runner,
		summary: "Extend a lease", errors: []int{http.StatusNotFound, http.StatusConflict},
	}, readRenew, s.renewLease)
	registerHot[releaseInput, releaseOutput](s, operation{
		id: "releaseLease", method: http.MethodPost, path: "/api/v1/leases/{id}/release", role: token.Runner,
		summary: "Give a key back; again is harmless", errors: []int{http.StatusNotFound, http.StatusConflict},
	}, readRelease, s.releaseLease)
	register(s, operation{
		id: "streamEvents", method: http.MethodGet, path: "/api/v1/events", role: token.Viewer,
		summary: "What happens, as server-sent events", stream: "text/event-stream",
	}, s.streamEvents)
}

// pickRoutes are what crawlers do with proxies that nobody holds.
func (s *server) pickRoutes() {
	registerHot[nextInput, nextOutput](s, operation{
		id: "nextProxy", method: http.MethodPost, path: "/api/v1/proxies/next", role: token.Runner,
		summary: "Pick a proxy for one use: nobody holds it, and it rests for the target from now on",
		errors:  []int{http.StatusNotFound},
	}, readNext, s.nextProxy)
	registerHot[reportInput, reportOutput](s, operation{
		id: "reportProxy", method: http.MethodPost, path: "/api/v1/proxies/{namespace}/{name}/reports", role: token.Runner,
		summary: "Tell how a use of a proxy went, and pick another in its place when asked to",
		errors:  []int{http.StatusNotFound},
	}, readReport, s.reportProxy)
	register(s, operation{
		id: "listCooldowns", method: http.MethodGet, path: "/api/v1/proxies/{namespace}/{name}/cooldowns", role: token.Viewer,
		summary: "What a proxy rests for now, ordered by target, one page at a time", errors: []int{http.StatusNotFound},
	}, s.listCooldowns)
	register(s, operation{
		id: "liftCooldowns", method: http.MethodDelete, path: "/api/v1/proxies/{namespace}/{name}/cooldowns", role: token.Admin,
		summary: "End the rests of a proxy for one target, or all; again is harmless", errors: []int{http.StatusNotFound},
	}, s.liftCooldowns)
}

// poolRoutes are pools, their keys, and who changes them.
func (s *server) poolRoutes() {
	register(s, operation{
		id: "listPools", method: http.MethodGet, path: "/api/v1/pools", role: token.Viewer,
		summary: "Pools, ordered by name, one page at a time",
	}, s.listPools)
	register(s, operation{
		id: "getPool", method: http.MethodGet, path: "/api/v1/pools/{pool}", role: token.Viewer,
		summary: "One pool, with its keys one page at a time and its first waiters", errors: []int{http.StatusNotFound},
	}, s.getPool)
	register(s, operation{
		id: "publishPool", method: http.MethodPut, path: "/api/v1/pools/{pool}", role: token.Admin,
		summary: "Set a fixed pool and its list of keys", errors: []int{http.StatusConflict},
	}, s.publishPool)
	register(s, operation{
		id: "listWaiters", method: http.MethodGet, path: "/api/v1/pools/{pool}/waiters", role: token.Viewer,
		summary: "Requests that wait for a key of the pool, in their order, one page at a time", errors: []int{http.StatusNotFound},
	}, s.listWaiters)
	register(s, operation{
		id: "disableKey", method: http.MethodPost, path: "/api/v1/pools/{pool}/keys/{key}/disable", role: token.Admin,
		summary: "Take a key out of use; its holder keeps it", errors: []int{http.StatusNotFound},
	}, s.disableKey)
	register(s, operation{
		id: "enableKey", method: http.MethodPost, path: "/api/v1/pools/{pool}/keys/{key}/enable", role: token.Admin,
		summary: "Put a key back into use", errors: []int{http.StatusNotFound},
	}, s.enableKey)
	register(s, operation{
		id: "forceRelease", method: http.MethodPost, path: "/api/v1/pools/{pool}/keys/{key}/release", role: token.Admin,
		summary: "End the lease of a key: whoever holds it loses it", errors: []int{http.StatusNotFound, http.StatusConflict},
	}, s.forceRelease)
	register(s, operation{
		id: "beginChange", method: http.MethodPost, path: "/api/v1/pools/{pool}/changes", role: token.Runner,
		summary: "Begin a person's change of a pool: its lock, and the bar on some keys",
		status:  http.StatusCreated, errors: []int{http.StatusNotFound, http.StatusConflict},
	}, s.beginChange)
	register(s, operation{
		id: "renewChange", method: http.MethodPost, path: "/api/v1/pools/{pool}/changes/{id}/renew", role: token.Runner,
		summary: "Keep a change alive", errors: []int{http.StatusNotFound, http.StatusConflict},
	}, s.renewChange)
	register(s, operation{
		id: "endChange", method: http.MethodDelete, path: "/api/v1/pools/{pool}/changes/{id}", role: token.Runner,
		summary: "End a change; again is harmless", errors: []int{http.StatusConflict},
	}, s.endChange)
}
