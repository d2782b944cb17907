package sshdial_test

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// wantSocketOptions looks at what the kernel has: a small request must not lie
// behind megabytes of an upload, and a host that is cut off must be noticed.
func wantSocketOptions(t *testing.T, c *net.TCPConn) {
	t.Helper()
	raw, err := c.SyscallConn()
	check(t, err)
	check(t, raw.Control(func(fd uintptr) {
		for name, tc := range map[string]struct{ opt, want int }{
			"TCP_NODELAY":       {unix.TCP_NODELAY, 1},
			"TCP_NOTSENT_LOWAT": {unix.TCP_NOTSENT_LOWAT, 64 << 10},
			"TCP_USER_TIMEOUT":  {unix.TCP_USER_TIMEOUT, 20_000},
		} {
			if got, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, tc.opt); err != nil || got != tc.want {
				t.Errorf("%s is %d, want %d (%v)", name, got, tc.want, err)
			}
		}
	}))
}
