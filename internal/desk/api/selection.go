package api

import (
	"strings"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/target"
	"fleetdesk/internal/platform/httpd"
)

// Selection is how a product's proxies are named and chosen. Errors are shown to
// clients.
type Selection interface {
	// Match returns what a key's attributes must be like for what is wished; none
	// for the zero Wish. A selector that does not parse is Invalid with the code
	// "selector", and says where.
	Match(w client.Wish) ([]lease.Match, error)
	// Key names the key of a proxy, and Parts the proxy of a key; ok is false for a
	// key that is none's.
	Key(namespace, name string) string
	Parts(key string) (namespace, name string, ok bool)
	// DefaultPool names the pool of a namespace that is meant when none is named.
	DefaultPool(namespace string) string
}

// Codes of requests that say which key is wanted; those of the rules are in
// core/lease.
const (
	codeTarget   = target.Code // 400: no name of a site
	codeSelector = "selector"  // 400: no label selector, or a server without proxies
	codeUse      = "use"       // 400: no use or lease of this proxy
)

// targetOf is a request's target as it counts: "" when it has none.
func targetOf(location, text string) (string, error) {
	if text == "" {
		return "", nil
	}
	host, err := target.Normalize(text)
	if err != nil {
		return "", located(location, "no name of a site", err)
	}
	return host, nil
}

// located says where in the request an error is; short is what is wrong there, without
// what the request says.
func located(location, short string, err error) error {
	return httpd.WithFields(fault.WithCode(fault.Errorf(fault.Of(err), "%s: %w", location, err), fault.CodeOf(err)),
		[]httpd.FieldError{{Location: location, Message: short}})
}

// invalid refuses a part of a request by a text that says nothing of it.
func invalid(location, code, text string) error {
	return located(location, text, fault.WithCode(fault.New(fault.Invalid, text), code))
}

// matchOf is what is wished as conditions on attributes.
func (s *server) matchOf(where string, w client.Wish) ([]lease.Match, error) {
	if w == (client.Wish{}) {
		return nil, nil
	}
	if s.opts.Selection == nil {
		for _, f := range []struct{ name, value string }{
			{"selector", w.Selector}, {"scheme", w.Scheme}, {"provider", w.Provider}, {"region", w.Region},
		} {
			if f.value != "" {
				return nil, invalid(where+f.name, codeSelector, "this server has no proxies: say what the key must be like by constraints")
			}
		}
	}
	match, err := s.opts.Selection.Match(w)
	if err != nil {
		return nil, located(where+"selector", "no label selector", err)
	}
	return match, nil
}

// poolOf is the pool that a request names by itself or by its namespace.
func (s *server) poolOf(where, pool, namespace string) (string, error) {
	switch {
	case pool != "" && namespace != "":
		return "", invalid(where+"namespace", "name", "name a pool or a namespace, not both")
	case pool != "":
		return pool, nil
	case namespace == "":
		return "", invalid(where+"pool", "name", "name a pool, or by namespace the one whose default pool is meant")
	case strings.Contains(namespace, "."):
		return "", invalid(where+"namespace", "name", "a namespace has no dot: a pool is named by pool")
	}
	return s.opts.Selection.DefaultPool(namespace), nil
}
