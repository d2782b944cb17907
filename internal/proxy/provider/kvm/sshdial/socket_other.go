//go:build !linux

package sshdial

import (
	"net"
	"time"
)

// tune sets what every system has; the rest of it is Linux's alone.
func tune(conn net.Conn, _ time.Duration) {
	if tc, ok := conn.(interface{ SetNoDelay(bool) error }); ok {
		_ = tc.SetNoDelay(true)
	}
}
