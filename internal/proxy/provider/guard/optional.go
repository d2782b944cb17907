package guard

import (
	"io"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// decorator is what every provider of this package is: it has all optional
// interfaces, and [provider.As] shows those that the inner one has.
type decorator interface {
	provider.Provider
	provider.Checker
	provider.Watcher
	provider.Claimer
	provider.Cleaner
	provider.Unwrapper
	io.Closer
}

var _ = []decorator{(*deadline)(nil), (*metered)(nil), (*trace)(nil), (*readOnly)(nil)}

// closed closes inner where it can be closed.
func closed(inner provider.Provider) error {
	if c, ok := provider.As[io.Closer](inner); ok {
		return c.Close()
	}
	return nil
}

// unsupported is for an optional interface that inner lacks: nobody reaches it
// through [provider.As].
func unsupported(name, what string) error {
	return fault.Errorf(fault.Unsupported, "provider %s has no %s", name, what)
}
