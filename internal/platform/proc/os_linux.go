package proc

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// groupAttr makes a process the first of a group of its own, and of a session of
// its own if so wished, that is killed when the thread that started it ends.
func groupAttr(session bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: session, Setpgid: !session, Pdeathsig: syscall.SIGKILL}
}

// Now is the time since the machine started, also while it was suspended
// (CLOCK_BOOTTIME); elsewhere than on Linux a monotonic clock.
func Now() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic("proc: CLOCK_BOOTTIME: " + err.Error()) // every Linux since 2.6.39 has it
	}
	return time.Duration(t.Nano())
}

// adoptOrphans makes this process the parent of its descendants' orphans.
func adoptOrphans() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// onlyZombies reports whether a group has processes and all of them are zombies.
// Whatever cannot be read is taken for alive.
func onlyZombies(pgid int) bool {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return false
	}
	found := false
	for _, file := range stats {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // it ended meanwhile
		}
		// "pid (name) state ppid pgrp …"; the name may hold anything, also a ).
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) < 3 || string(fields[2]) != strconv.Itoa(pgid) {
			continue
		}
		if state := fields[0][0]; state != 'Z' && state != 'X' {
			return false
		}
		found = true
	}
	return found
}

// foreground returns the group that has the terminal f in the foreground; 0 when f
// is not this process's own terminal.
func foreground(f *os.File) int {
	pgid := 0
	withFd(f, func(fd int) {
		if got, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP); err == nil {
			pgid = got
		}
	})
	return pgid
}

// setForeground gives the terminal f to a group. TTOU, with which the kernel
// would stop a process in the background that does so, is blocked on this thread
// meanwhile: to ignore it would change it for everybody and for what is
// started.
func setForeground(f *os.File, pgid int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var ttou, before unix.Sigset_t
	bits := 1024 / len(ttou.Val) // of a word
	ttou.Val[(int(unix.SIGTTOU)-1)/bits] |= 1 << ((int(unix.SIGTTOU) - 1) % bits)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &ttou, &before); err != nil {
		return
	}
	withFd(f, func(fd int) { _ = unix.IoctlSetPointerInt(fd, unix.TIOCSPGRP, pgid) })
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil)
}

// withFd calls do with f's descriptor, and leaves f as it is: Fd would take it
// out of the runtime's poller.
func withFd(f *os.File, do func(fd int)) {
	if raw, err := f.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { do(int(fd)) })
	}
}

// dup makes to another descriptor of what from is.
func dup(from, to *os.File) error {
	return unix.Dup3(int(from.Fd()), int(to.Fd()), 0)
}
