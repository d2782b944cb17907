//go:build !linux

package sshdial_test

import (
	"net"
	"testing"
)

func wantSocketOptions(t *testing.T, _ *net.TCPConn) { t.Helper() }
