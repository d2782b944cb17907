package client

import (
	"syscall"
	"time"
	"unsafe"
)

// bootTime is CLOCK_BOOTTIME.
const bootTime = 7

// newClock returns a clock that measures how time passes, also while the machine
// is suspended: a lease goes on then, and the clock of package time does not.
func newClock() func() time.Duration {
	start := time.Now()
	return func() time.Duration {
		var now syscall.Timespec
		//nolint:gosec // the pointer is to a local that outlives the call
		if _, _, failed := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, bootTime, uintptr(unsafe.Pointer(&now)), 0); failed != 0 {
			return time.Since(start) // forbidden here: it stays so
		}
		return time.Duration(now.Nano())
	}
}
