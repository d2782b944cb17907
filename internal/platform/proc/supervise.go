package proc

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// moment is how long before the deadline KILL is sent.
	moment = 250 * time.Millisecond
	// longestNap bounds how long a supervisor looks away. The timers of a process
	// stand still while the machine is suspended, so after it a deadline is seen
	// that much too late.
	longestNap = 250 * time.Millisecond
)

// Supervise is the supervisor's whole program: it takes its orders from the
// process that started it through the file descriptor 3, and returns the exit
// code for its own process. A process that nobody started as a supervisor is told
// so on errs.
//
// Nothing but KILL ends it before its command's process group is gone: it
// catches every other signal for good (but 32 to 34, which are a C library's own
// and out of Go's reach).
func Supervise(errs *os.File) int {
	if kind, err := unix.GetsockoptInt(control, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_STREAM {
		fmt.Fprintln(errs, "error: this is a part of the program that it starts by itself: use its other subcommands")
		return 2
	}
	unix.CloseOnExec(control)
	catchAll()
	if err := adoptOrphans(); err != nil {
		fmt.Fprintf(errs, "error: the supervisor cannot look after orphans: %v\n", err)
		return 1
	}
	conn := os.NewFile(control, "control")
	defer conn.Close()
	in := json.NewDecoder(conn)
	var o order
	if err := in.Decode(&o); err != nil {
		return 1 // the starter died first
	}
	p := prepared{path: string(o.Path), args: toStrings(o.Args), env: toStrings(o.Env), dir: string(o.Dir)}
	c, err := launch(p, [3]*os.File{os.Stdin, os.Stdout, os.Stderr},
		manner{session: o.Session, terminal: o.Foreground, all: true})
	if err != nil {
		r := report{Refused: err.Error()}
		_ = errors.As(err, &r.Errno)
		_ = say(conn, r)
		return 1
	}
	_ = say(conn, report{Started: c.pid})
	letGo(o.Foreground)
	s := supervisor{child: c, grace: o.Grace, tell: func(r report) { _ = say(conn, r) }}
	now := Now()
	if o.Timeout != 0 {
		s.timeout = max(now+o.Timeout, 1)
	}
	s.extend(o.Until, now)
	s.run(listen(in))
	return 0
}

// catchAll catches every signal that is not ignored, for a channel that nobody
// reads: what does not fit is dropped. This is the one use of os/signal beside
// the programs' own: an ignored signal would be ignored by the command too,
// whereas a caught one is back at its default there. (What was ignored from the
// start, as by nohup, stays ignored.)
func catchAll() {
	var all []os.Signal
	for s := syscall.Signal(1); s <= 64; s++ {
		if !signal.Ignored(s) {
			all = append(all, s)
		}
	}
	signal.Notify(make(chan os.Signal, 1), all...)
}

// letGo gives up the command's input and outputs, so that whoever reads them sees
// their end. A terminal as input is needed until the end.
func letGo(terminal bool) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer null.Close()
	for _, f := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
		if f != os.Stdin || !terminal {
			_ = dup(null, f)
		}
	}
}

// listen passes on what the starter says; the channel's end is the starter's. It
// ends with the process.
func listen(in *json.Decoder) <-chan request {
	said := make(chan request)
	go func() {
		defer close(said)
		for {
			var r request
			if in.Decode(&r) != nil {
				return
			}
			said <- r
		}
	}()
	return said
}

// supervisor ends one process group in time. Its times are on the clock of Now; 0
// is never.
type supervisor struct {
	child *child
	grace time.Duration
	tell  func(report)

	timeout time.Duration // when its own time is over
	termBy  time.Duration // when the deadline demands TERM
	killBy  time.Duration // when the deadline demands KILL

	ending bool
	why    Ended         // it must end; "" when what it left behind must
	killAt time.Duration // when its grace is over; for ending
	killed time.Duration // when KILL was sent
}

// extend sets the deadline. Once the group is being ended, only KILL moves.
func (s *supervisor) extend(until, now time.Duration) {
	s.termBy, s.killBy = marks(until, now, s.grace)
}

// marks are when a deadline demands TERM and KILL. Between them is at least half
// of the grace, if there is time for it.
func marks(until, now, grace time.Duration) (term, kill time.Duration) {
	left := until - now
	switch {
	case until == 0:
		return 0, 0
	case left <= 0:
		return now, now
	}
	kill = until - min(moment, left/4)
	return max(min(until-grace, kill-grace/2), now+left/2), kill
}

func (s *supervisor) end(why Ended, now time.Duration) {
	if s.ending {
		return
	}
	s.ending, s.why, s.killAt = true, why, now+s.grace
	if s.grace > 0 && !due(s.killBy, now) {
		terminate(s.child.pid)
	}
}

func due(at, now time.Duration) bool { return at != 0 && now >= at }

// run ends when nothing is left of the group, or when what is left outlived KILL.
func (s *supervisor) run(said <-chan request) {
	ended := s.child.ended
	poll := time.Millisecond
	for {
		now := Now()
		if s.child.hasEnded() {
			if ended != nil {
				ended = nil
				s.tell(report{Exited: &s.child.status})
			}
			if !groupLives(s.child.pid) {
				s.tell(report{Over: true, Ended: s.why})
				return
			}
			s.end("", now)
		}
		switch {
		case due(s.termBy, now):
			s.end(EndedDeadline, now)
		case due(s.timeout, now):
			s.end(EndedTimeout, now)
		}
		if s.ending && s.killed == 0 && (now >= s.killAt || due(s.killBy, now)) {
			signalGroup(s.child.pid, syscall.SIGKILL)
			s.killed = now
		}
		if s.killed != 0 && now >= s.killed+killed {
			s.tell(report{Over: true, Stuck: true, Ended: s.why})
			return
		}
		nap := s.nap(now)
		if s.ending {
			nap = min(nap, poll)
			poll = min(2*poll, 50*time.Millisecond)
		}
		timer := time.NewTimer(nap)
		select {
		case <-timer.C:
		case <-ended:
		case r, ok := <-said:
			if !ok { // the starter is dead
				said, r = nil, request{Stop: EndedStop}
			}
			s.hear(r)
		}
		timer.Stop()
	}
}

// nap is how long nothing is due.
func (s *supervisor) nap(now time.Duration) time.Duration {
	nap := longestNap
	for _, at := range []time.Duration{s.timeout, s.termBy, s.killBy} {
		if at > now {
			nap = min(nap, at-now)
		}
	}
	return nap
}

func (s *supervisor) hear(r request) {
	now := Now()
	switch {
	case r.Until != nil:
		s.extend(*r.Until, now)
	case r.Stop != "" && !s.child.hasEnded():
		s.end(r.Stop, now)
	case r.Signal > 0 && groupLives(s.child.pid):
		signalGroup(s.child.pid, r.Signal)
		switch r.Signal {
		case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT:
			// What stands still, such as one that reads from a terminal in whose
			// background it is, would never hear that it is to end.
			signalGroup(s.child.pid, syscall.SIGCONT)
		}
	}
}
