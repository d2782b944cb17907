package command

import (
	"context"
	"fmt"
	"os"
	"syscall"
)

// Signals are those that main catches before anything starts.
func Signals() []os.Signal {
	return []os.Signal{
		syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
		// A closed pipe behind an output must not kill what holds a lease.
		syscall.SIGPIPE,
	}
}

// Interrupted is the cause of a context that a signal ended.
type Interrupted struct{ Signal syscall.Signal }

func (e Interrupted) Error() string { return fmt.Sprintf("ended by %s", e.Signal) }

// ExitCode is that of a process which such a signal ended.
func (e Interrupted) ExitCode() int { return 128 + int(e.Signal) }

// Ending reports whether a signal asks the program to end.
func Ending(s os.Signal) bool {
	return s == syscall.SIGINT || s == syscall.SIGTERM || s == syscall.SIGHUP || s == syscall.SIGQUIT
}

// UntilSignal returns a context that the first signal which asks to end cancels,
// with an [Interrupted] as its cause; for commands that pass no signals on. Stop
// ends the watch.
func (f *Factory) UntilSignal(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case s := <-f.Signals:
				if Ending(s) {
					cancel(Interrupted{s.(syscall.Signal)}) // all of Signals are
					return
				}
			case <-over:
				return
			}
		}
	}()
	return ctx, func() {
		close(over)
		<-done
		cancel(nil)
	}
}
