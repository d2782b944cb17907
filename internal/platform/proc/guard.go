package proc

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"fleetdesk/internal/core/fault"
)

// Guard starts commands under supervisors.
type Guard struct {
	// Program is the executable file of this program: "/proc/self/exe" stays
	// right when the file is replaced by a newer one. Args are its arguments, the
	// name first, that make it call [Supervise]. Its environment is empty.
	Program string
	Args    []string
}

// Guarded is a command under a supervisor. Its methods may be called
// concurrently.
type Guarded struct {
	command  Command
	super    *exec.Cmd
	terminal *os.File // which the command has in the foreground; nil for none
	out      *capture
	begun    time.Duration

	exited chan struct{} // closed when the supervisor ended and was reaped
	heard  chan struct{} // closed when it said its last word; then the reports count
	over   chan struct{} // closed when result and gone count

	pgid   int                 // 0 when it was not started
	status *syscall.WaitStatus // how its first process ended; nil when nobody saw it
	last   report              // the one that says that it is over

	result Result
	gone   bool

	mu    sync.Mutex // for what follows
	conn  *os.File
	until time.Duration
	why   Ended         // it was asked for from here
	asked time.Duration // when; 0 when it was not
}

// Start starts c under a supervisor. ctx bounds the start alone: when it ends
// meanwhile, the command is ended before Start returns. Until, on the
// clock of [Now], is when the command's process group must be gone: TERM is
// sent a grace before it, or when half of the remaining time is over if that is
// later, and KILL a moment before it. 0 is for no deadline.
//
// When this process ends in whatever way, the supervisor ends the command's
// process group with TERM and, after the grace, KILL, and before the
// deadline in any case. When the supervisor is killed, [Guarded.Wait] kills the
// group from here. Only where both are killed at once, or the supervisor in the
// instant in which it starts the command, a process of the command other than
// its first may live on.
//
// The command's signals are at their defaults, and its standard input, output
// and error are all that it inherits. When Ctrl-Z stops its first process, that
// goes on at once: there is no shell that would show it as stopped.
//
// Errors: Invalid or Transient (code "start") as for [Run]; Conflict (code
// "deadline") when the deadline is over already; Permanent when the supervisor
// cannot be started; ctx's own.
func (g Guard) Start(ctx context.Context, c Command, until time.Duration) (*Guarded, error) {
	p, _, err := prepare(c)
	switch {
	case err != nil:
		return nil, err
	case until != 0 && until <= Now():
		return nil, fault.WithCode(fault.New(fault.Conflict,
			"the command was not started, since its deadline is over: extend the deadline first"), CodeDeadline)
	case ctx.Err() != nil:
		return nil, fmt.Errorf("the command was not started: %w", ctx.Err())
	}
	s := &Guarded{
		command: c, until: until, begun: Now(), terminal: ownTerminal(c), out: newCapture(c.Limit),
		exited: make(chan struct{}), heard: make(chan struct{}), over: make(chan struct{}),
	}
	files, err := s.out.open(c)
	if err != nil {
		_, err := notStarted(p, err)
		return nil, err
	}
	if err := s.launch(g, files); err != nil {
		s.out.abandon()
		return nil, fault.Errorf(fault.Permanent,
			"the command's supervisor, %s, cannot be started: %w: see that this program's file can be run", g.Program, err)
	}
	first := make(chan report, 1)
	go s.hear(first)
	begun := make(chan struct{})
	give := context.AfterFunc(ctx, func() { s.giveUp(begun) })
	// It may be more than the socket takes at once: this ends with the supervisor.
	_ = say(s.conn, order{
		Path: []byte(p.path), Args: toBytes(p.args), Env: toBytes(p.env), Dir: []byte(p.dir),
		Grace: grace(c), Timeout: c.Timeout, Until: until, Foreground: s.terminal != nil, Session: c.Files == nil,
	})
	r := <-first
	close(begun)
	go s.finish()
	if r.Started != 0 && give() {
		return s, nil
	}
	<-s.over
	give()
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("the command was not started: %w", ctx.Err())
	case r.Errno != 0:
		_, err := notStarted(p, r.Errno)
		return nil, err
	case r.Refused != "":
		return nil, startFault(fault.Permanent, "%s", r.Refused)
	default:
		return nil, fault.Errorf(fault.Permanent,
			"the command's supervisor, %s, ended (%v) before it started anything: see whether something kills it; it said %.500q",
			g.Program, s.super.ProcessState, s.result.Output)
	}
}

// impatience is how long a supervisor has to tell that it began, once nobody wants
// that any more.
const impatience = 2 * time.Second

// giveUp ends a start. A supervisor that is killed may have started the command in
// that instant, and could not tell which group to end; so it is asked to end it.
func (s *Guarded) giveUp(begun <-chan struct{}) {
	s.ask(EndedStop)
	timer := time.NewTimer(impatience)
	defer timer.Stop()
	select {
	case <-begun:
	case <-timer.C:
		_ = s.super.Process.Kill()
	}
}

// launch starts the supervisor, with the command's files for its own.
func (s *Guarded) launch(g Guard, files [3]*os.File) error {
	syscall.ForkLock.RLock() // nothing that is started meanwhile inherits them
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		syscall.ForkLock.RUnlock()
		return err
	}
	unix.CloseOnExec(ends[0])
	unix.CloseOnExec(ends[1])
	syscall.ForkLock.RUnlock()
	theirs := os.NewFile(uintptr(ends[1]), "control")
	defer theirs.Close()
	if err := unix.SetNonblock(ends[0], true); err != nil { // so that closing it ends a read
		unix.Close(ends[0])
		return err
	}
	s.conn = os.NewFile(uintptr(ends[0]), "control")
	s.super = &exec.Cmd{
		Path: g.Program, Args: g.Args, Env: []string{},
		Stdin: files[0], Stdout: files[1], Stderr: files[2], ExtraFiles: []*os.File{theirs},
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true}, // what ends this group does not end it
	}
	if err := s.super.Start(); err != nil {
		s.conn.Close()
		return err
	}
	s.out.started()
	go func() {
		defer close(s.exited)
		_ = s.super.Wait() // its exit code says less than its reports
	}()
	return nil
}

// hear takes the supervisor's reports. The first one, or its absence, goes to
// first.
func (s *Guarded) hear(first chan<- report) {
	defer close(s.heard)
	defer close(first)
	in := json.NewDecoder(s.conn)
	for said := false; ; said = true {
		var r report
		if in.Decode(&r) != nil {
			return
		}
		switch {
		case r.Started != 0:
			s.pgid = r.Started
		case r.Exited != nil:
			s.status = r.Exited
		case r.Over:
			s.last = r
		}
		if !said {
			first <- r
		}
	}
}

// send tells the supervisor something. One that is dead, or that stands still, is
// looked after by finish.
func (s *Guarded) send(r request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.conn.SetWriteDeadline(time.Now().Add(time.Second))
	_ = say(s.conn, r)
}

// finish waits until the supervisor has ended, does what is left to be done, and
// puts the result together.
func (s *Guarded) finish() {
	defer close(s.over)
	s.attend()
	<-s.heard
	s.gone = !s.last.Stuck
	if !s.last.Over && s.pgid != 0 { // it was killed
		signalGroup(s.pgid, syscall.SIGKILL)
		s.gone = within(killed, func() bool { return !groupLives(s.pgid) })
	}
	r := Result{Took: Now() - s.begun, Ended: s.last.Ended}
	if s.terminal != nil {
		takeForeground(s.terminal, s.pgid)
	}
	s.out.finish(grace(s.command))
	r.Output = s.out.text()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn.Close()
	if !s.last.Over {
		r.Ended = s.why
	}
	if s.status != nil {
		settle(&r, *s.status)
	} else {
		r.Signal, r.Code = syscall.SIGKILL, 128+int(syscall.SIGKILL)
	}
	s.result = r
}

// attend returns when the supervisor has ended. One that does not do its work,
// such as one that was stopped, is killed.
func (s *Guarded) attend() {
	failed := s.out.failed
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-s.exited:
			return
		case <-failed:
			failed = nil
			s.ask(EndedOutput)
		case <-tick.C:
			if s.late(Now()) {
				signalGroup(s.pgid, syscall.SIGKILL)
				_ = s.super.Process.Kill()
			}
		}
	}
}

// late reports whether the supervisor should have ended by now.
func (s *Guarded) late(now time.Duration) bool {
	const slack = time.Second
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case due(s.until, now-slack):
		s.why = EndedDeadline
		return true
	case s.asked != 0 && now > s.asked+grace(s.command)+killed+slack:
		return true
	}
	return false
}

// ask asks for the end of the command.
func (s *Guarded) ask(why Ended) {
	s.mu.Lock()
	again := s.asked != 0
	if !again {
		s.asked, s.why = Now(), why
	}
	s.mu.Unlock()
	if !again {
		s.send(request{Stop: why})
	}
}

// Extend sets the deadline anew, 0 for none; a later one than before as well as an
// earlier one. Once the command is being ended, a later one only gives it its
// whole grace.
func (s *Guarded) Extend(until time.Duration) {
	s.mu.Lock()
	s.until = until
	s.mu.Unlock()
	s.send(request{Until: &until})
}

// Signal passes a signal on to the command's whole process group; one that
// ended gets nothing.
func (s *Guarded) Signal(sig syscall.Signal) { s.send(request{Signal: sig}) }

// Stop ends the process group: TERM, and KILL after the grace. It does not wait
// for it. That is no error of [Guarded.Wait]: Result.Ended says it.
func (s *Guarded) Stop() { s.ask(EndedStop) }

// Wait returns when the command has ended and nothing of its process group is
// left: what it left behind in the group gets TERM, and KILL after the grace.
// ctx's end is a Stop; Wait still waits for the end. It may be called once.
//
// When the supervisor was killed, and the command with it, the code is 137.
//
// Errors are those of [Run]; additionally Conflict with the code "deadline" when
// the deadline ended it, and Result.Ended says so.
func (s *Guarded) Wait(ctx context.Context) (Result, error) {
	select {
	case <-s.over:
	case <-ctx.Done():
		s.ask(EndedStop)
		<-s.over
	}
	return s.result, verdict(ctx, s.command, s.result, s.out, s.gone, s.pgid)
}
