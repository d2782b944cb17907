package local

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"fleetdesk/internal/core/fault"
)

// The child's descriptors, by the order of exec.Cmd.ExtraFiles.
const (
	childLockFD   = 3
	childListenFD = 4
)

// launch starts the child of rec with the taken lock and the open listener. The
// channel is closed when the child has ended and was reaped, which happens for
// as long as this process lives; afterwards init does it.
func (p *Provider) launch(dir string, rec *record, lock *os.File, ln *net.TCPListener) (ended <-chan struct{}, err error) {
	// The child's path holds no symbolic link, so that it watches the file and
	// not the way there.
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, fileFault("read", dir, err)
	}
	// An old child.json must not be taken for the new child's, nor its half
	// written successor be left; the lock says that nobody else writes them.
	for _, name := range [...]string{childFile, childFile + newSuffix, stateFile + newSuffix, authFile + newSuffix} {
		path := filepath.Join(dir, name)
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fileFault("remove", path, err)
		}
	}
	sock, err := ln.File()
	if err != nil {
		return nil, fault.Errorf(fault.Transient, "share the listening socket of %s: %w", dir, err)
	}
	defer sock.Close()
	logPath := filepath.Join(dir, logFile)
	out, err := os.OpenFile(logPath, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fileFault("write", logPath, err)
	}
	defer out.Close()
	args := append(slices.Clone(p.command[1:]),
		"--state", filepath.Join(real, stateFile),
		"--lock-fd", strconv.Itoa(childLockFD),
		"--listen-fd", strconv.Itoa(childListenFD))
	cmd := exec.Command(p.command[0], args...) //nolint:noctx // it outlives every context of ours
	cmd.Dir = "/"
	// Nothing of the operator's environment: it may hold secrets, and proxy
	// variables that would send the child's requests elsewhere.
	cmd.Env = []string{}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.ExtraFiles = []*os.File{lock, sock}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, startFault(p.command[0], err)
	}
	done := make(chan struct{})
	go func() {
		err := cmd.Wait()
		p.log.Info("local proxy process ended", "provider", p.name, "proxy", rec.Owner.Namespace+"/"+rec.Owner.Name,
			"uid", rec.Owner.UID, "pid", cmd.Process.Pid, "error", err)
		close(done)
	}()
	return done, nil
}

func startFault(command string, err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.ENOEXEC) {
		return fault.Errorf(fault.Permanent, "cannot start %s: restart the operator from the place where its binary is now: %w", command, err)
	}
	return fault.Errorf(fault.Transient, "cannot start %s: %w", command, err)
}

// signalChild sends a signal to the child of dir, and to no other process,
// whatever child.json says: the process is pinned by a pidfd, and then must
// have started when the child did and hold this very lock file open. A process
// that does not is left alone; the child itself ends by the tombstone.
func signalChild(dir, name string, sig unix.Signal) error {
	r, err := readRun(filepath.Join(dir, childFile), name)
	if err != nil {
		return nil // not written yet, or damaged: nobody is known to signal
	}
	fd, err := unix.PidfdOpen(r.PID, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	if err != nil {
		return fault.Errorf(fault.Transient, "open process %d of %s: %w", r.PID, dir, err)
	}
	defer unix.Close(fd)
	if !isChild(dir, r) {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fault.Errorf(fault.Transient, "signal process %d of %s: %w", r.PID, dir, err)
	}
	return nil
}

// isChild reports whether the process that r names is the child of dir.
func isChild(dir string, r *run) bool {
	path := filepath.Join(dir, lifeFile)
	if held, err := lockHeld(path); err != nil || !held {
		return false
	}
	ticks, err := startTicks(r.PID)
	if err != nil || ticks != r.StartTicks {
		return false
	}
	lock, err := os.Stat(path)
	if err != nil {
		return false
	}
	open, err := os.Stat(fmt.Sprintf("/proc/%d/fd/%d", r.PID, r.LockFD))
	return err == nil && os.SameFile(lock, open)
}

// startTicks returns when a process started, in clock ticks since boot.
func startTicks(pid int) (uint64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name, field 2, may hold spaces and brackets; the last bracket ends it.
	i := bytes.LastIndexByte(data, ')')
	fields := bytes.Fields(data[i+1:])
	const start = 22 - 3 // counted from field 3
	if i < 0 || len(fields) <= start {
		return 0, fmt.Errorf("/proc/%d/stat has too few fields", pid)
	}
	return strconv.ParseUint(string(fields[start]), 10, 64)
}
