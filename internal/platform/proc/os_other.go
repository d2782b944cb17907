//go:build unix && !linux

package proc

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// groupAttr makes a process the first of a group of its own, and of a session of
// its own if so wished. That it is killed with this process is for Linux alone.
func groupAttr(session bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: session, Setpgid: !session}
}

// Now is the time on a monotonic clock, which may stand still while the machine is
// suspended.
func Now() time.Duration { return time.Duration(time.Now().UnixNano()) }

func adoptOrphans() error         { return nil }
func onlyZombies(int) bool        { return false }
func foreground(*os.File) int     { return 0 }
func setForeground(*os.File, int) {}

// dup makes to another descriptor of what from is.
func dup(from, to *os.File) error {
	return unix.Dup2(int(from.Fd()), int(to.Fd()))
}
