package servecmd_test

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"fleetdesk/internal/qasight/cli/command"
)

// tty is a terminal and what a person at it sees.
type tty struct {
	person, program *os.File

	mu   sync.Mutex
	seen strings.Builder
}

func newTTY(t *testing.T) *tty {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	w := &tty{person: person, program: program}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 1024)
		for {
			n, err := person.Read(b) // ends with an error when nobody has the other side
			w.mu.Lock()
			w.seen.Write(b[:n])
			w.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { program.Close(); <-done; person.Close() })
	return w
}

func (w *tty) shown() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen.String()
}

// echoes tells whether the terminal shows what is typed.
func (w *tty) echoes(t *testing.T) bool {
	t.Helper()
	state, err := unix.IoctlGetTermios(int(w.person.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return state.Lflag&unix.ECHO != 0
}

func (w *tty) attach(f *command.Factory) {
	f.Streams.In, f.Streams.Err = w.program, w.program
	f.Streams.InTerminal, f.Streams.ErrTerminal = true, true
}

// A token that is typed is on no screen, and the terminal shows what is typed again
// when the command is over.
func TestLoginAtATerminal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, dir, nil)
	w := newTTY(t)
	p := run(t, dir, []string{"login", "--server", s.url}, w.attach)
	until(t, "it asks, and hides what is typed", func() bool {
		return strings.Contains(w.shown(), "token for "+s.url) && !w.echoes(t)
	})
	if _, err := w.person.WriteString(string(s.token) + "\n"); err != nil {
		t.Fatal(err)
	}
	if err := p.wait(t); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(w.shown(), "fdt_") || !w.echoes(t) {
		t.Errorf("the screen shows %q; it echoes again: %v", w.shown(), w.echoes(t))
	}
	if out := read(t, p.out); !strings.Contains(out, "as admin") {
		t.Errorf("it says %q", out)
	}
}

// Ctrl-C at the question leaves a terminal that shows what is typed.
func TestLoginAtATerminalIsInterrupted(t *testing.T) {
	t.Parallel()
	w := newTTY(t)
	p := run(t, t.TempDir(), []string{"login", "--server", "http://127.0.0.1:1"}, w.attach)
	until(t, "it hides what is typed", func() bool { return !w.echoes(t) })
	p.signals <- syscall.SIGINT
	if err := p.wait(t); command.ExitCode(err) != 130 {
		t.Errorf("ends with %d: %v", command.ExitCode(err), err)
	}
	if !w.echoes(t) {
		t.Error("the terminal hides what is typed for good")
	}
	// The read ends with the process; here it gets a line.
	if _, err := w.person.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
}
