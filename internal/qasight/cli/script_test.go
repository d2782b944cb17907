package cli_test

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/term"

	"fleetdesk/internal/qasight/cli"
)

// TestMain makes the test binary the program itself when a script runs
// "qasight", and when the program starts its own supervisor.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"qasight": func() {
		signals := make(chan os.Signal, 16)
		signal.Notify(signals, cli.Signals()...)
		isTerminal := func(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }
		code := cli.Main(context.Background(), cli.Program{
			Args: os.Args[1:], Environ: os.Environ(), Executable: "/proc/self/exe", Name: os.Args[0], Signals: signals,
			Streams: cli.Streams{
				In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
				InTerminal: isTerminal(os.Stdin), OutTerminal: isTerminal(os.Stdout), ErrTerminal: isTerminal(os.Stderr),
			},
		})
		if len(os.Args) > 1 && os.Args[1] == "supervise" {
			// With the race detector os.Exit takes a second, unless the environment
			// says otherwise, and a supervisor has none.
			syscall.Exit(code)
		}
		os.Exit(code)
	}})
}

// Each file of testdata/script is one story. It runs in a folder of its own, with a
// home of its own, and HOME, XDG_STATE_HOME and XDG_CONFIG_HOME lead there.
func TestStories(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOME", e.WorkDir+"/home")
			e.Setenv("XDG_STATE_HOME", e.WorkDir+"/state")
			e.Setenv("XDG_CONFIG_HOME", e.WorkDir+"/config")
			e.Setenv("USER", "ann")
			e.Setenv("GORACE", "atexit_sleep_ms=0 halt_on_error=1")
			return os.Mkdir(e.WorkDir+"/home", 0o700)
		},
	})
}
