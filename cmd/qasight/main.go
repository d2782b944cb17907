// Command qasight leases machines that people own to their test runs.
package main

import (
	"context"
	"os"
	"os/signal"

	"golang.org/x/term"

	"fleetdesk/internal/qasight/cli"
)

func main() {
	// Signals are caught before anything starts: exec passes them on.
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, cli.Signals()...)
	os.Exit(cli.Main(context.Background(), cli.Program{
		Args: os.Args[1:], Environ: os.Environ(), Executable: "/proc/self/exe", Name: os.Args[0], Signals: signals,
		Streams: cli.Streams{
			In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
			InTerminal:  term.IsTerminal(int(os.Stdin.Fd())),
			OutTerminal: term.IsTerminal(int(os.Stdout.Fd())),
			ErrTerminal: term.IsTerminal(int(os.Stderr.Fd())),
		},
	}))
}
