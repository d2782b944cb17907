package proc

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// killed is how long a process group may take to vanish after KILL.
const killed = 5 * time.Second

// child is a started command: a process group of its own, named as its first
// process.
type child struct {
	pid    int
	ended  chan struct{}      // closed when the first process was reaped
	status syscall.WaitStatus // of the first process; set when ended is closed
}

// manner is how a command is started.
type manner struct {
	// session: in a session of its own, which has no terminal: a program that asks
	// a person there fails, where in a mere group of its own it would be stopped.
	session bool
	// terminal: its group gets the terminal that is its input.
	terminal bool
	// all: every other child of this process is reaped too, for ever. That is for a
	// supervisor, whose children are the command's orphans.
	all bool
}

// launch starts p.
//
// The goroutine that started it stays on its thread until the first process
// ended: the kernel sends what Pdeathsig asks for when that thread ends.
func launch(p prepared, files [3]*os.File, how manner) (*child, error) {
	c := &child{ended: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		process, err := begin(p, files, how.session)
		if err != nil {
			started <- err
			return
		}
		c.pid = process.Pid
		_ = process.Release() // it is waited for by number, to learn of stops too
		if how.terminal {
			// It may have used the terminal before it was its own: then it was
			// stopped.
			setForeground(files[0], c.pid)
			signalGroup(c.pid, syscall.SIGCONT)
		}
		started <- nil
		if !how.terminal {
			files[0] = nil
		}
		c.reap(how.all, files[0])
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return c, nil
}

func begin(p prepared, files [3]*os.File, session bool) (*os.Process, error) {
	for try := 1; ; try++ {
		cmd := exec.Cmd{
			Path: p.path, Args: p.args, Env: p.env, Dir: p.dir,
			Stdin: files[0], Stdout: files[1], Stderr: files[2],
			SysProcAttr: groupAttr(session),
		}
		err := cmd.Start()
		if err == nil {
			return cmd.Process, nil
		}
		// A file that was written just now may still be open for writing in a
		// process that another goroutine is about to start (golang/go 22315).
		if try == 30 || !errors.Is(err, syscall.ETXTBSY) {
			return nil, err
		}
		time.Sleep(time.Duration(try) * time.Millisecond)
	}
}

// reap waits for the first process. One that Ctrl-Z stopped goes on: nobody would
// see that it stands still, since no shell knows its group as a job. So does one
// that stopped for want of the terminal, when it has it by now; terminal is nil
// when it never gets it.
func (c *child) reap(all bool, terminal *os.File) {
	target := c.pid
	if all {
		target = -1
	}
	for running := true; running || all; {
		var s syscall.WaitStatus
		pid, err := syscall.Wait4(target, &s, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil: // no child is left
			if running {
				c.status = 255 << 8 // somebody else reaped it: how it ended is lost
				close(c.ended)
			}
			return
		case pid != c.pid || s.Continued():
		case s.Stopped():
			switch s.StopSignal() {
			case syscall.SIGTSTP:
				signalGroup(c.pid, syscall.SIGCONT)
			case syscall.SIGTTIN, syscall.SIGTTOU:
				if terminal != nil && foreground(terminal) == c.pid {
					signalGroup(c.pid, syscall.SIGCONT)
				}
			}
		default:
			c.status = s
			running = false
			close(c.ended)
		}
	}
}

func (c *child) hasEnded() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// gone reports whether the first process was reaped and nothing of its group is
// left.
func (c *child) gone() bool { return c.hasEnded() && !groupLives(c.pid) }

// end ends what is left of the group: TERM, and KILL after the grace. It
// reports whether nothing is left.
func (c *child) end(grace time.Duration) bool {
	if c.gone() {
		return true
	}
	if grace > 0 {
		terminate(c.pid)
		if within(grace, c.gone) {
			return true
		}
	}
	signalGroup(c.pid, syscall.SIGKILL)
	return within(killed, c.gone)
}

// terminate asks a group to end; one that is stopped could not hear it.
func terminate(pgid int) {
	signalGroup(pgid, syscall.SIGTERM)
	signalGroup(pgid, syscall.SIGCONT)
}

// signalGroup signals a group; what is gone, or another user's, gets nothing.
func signalGroup(pgid int, s syscall.Signal) {
	if pgid > 1 { // -1 would be everybody
		_ = syscall.Kill(-pgid, s)
	}
}

// groupLives reports whether a group has a process that is more than a zombie.
// Zombies whose parent never looks after them (a container's first process that
// is no init) would otherwise be waited for in vain.
func groupLives(pgid int) bool {
	if errors.Is(syscall.Kill(-pgid, 0), syscall.ESRCH) {
		return false
	}
	return !onlyZombies(pgid)
}

// within asks again and again, at first soon, until done or the time is over. It
// reports what done said last.
func within(limit time.Duration, done func() bool) bool {
	end := time.Now().Add(limit)
	for nap := time.Millisecond; ; nap = min(2*nap, 50*time.Millisecond) {
		if done() {
			return true
		}
		left := time.Until(end)
		if left <= 0 {
			return false
		}
		time.Sleep(min(nap, left))
	}
}
