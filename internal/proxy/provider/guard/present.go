package guard

import (
	"io"

	"fleetdesk/internal/proxy/provider"
)

// decorator is a provider with every ability; [present] shows those that the
// inner provider has.
type decorator interface {
	provider.Provider
	provider.Checker
	io.Closer
}

type plain struct{ provider.Provider }

type checking struct {
	provider.Provider
	provider.Checker
}

type closing struct {
	provider.Provider
	io.Closer
}

type both struct {
	provider.Provider
	provider.Checker
	io.Closer
}

// present returns d with the optional interfaces of inner alone.
func present(d decorator, inner provider.Provider) provider.Provider {
	_, checks := inner.(provider.Checker)
	_, closes := inner.(io.Closer)
	switch {
	case checks && closes:
		return both{d, d, d}
	case checks:
		return checking{d, d}
	case closes:
		return closing{d, d}
	}
	return plain{d}
}

// closed closes inner where it can be closed.
func closed(inner provider.Provider) error {
	if c, ok := inner.(io.Closer); ok {
		return c.Close()
	}
	return nil
}
