// Command proxy-operator keeps a fleet of egress proxies from Proxy objects.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"fleetdesk/internal/proxy/operator"
)

func main() {
	executable, err := os.Executable()
	if err != nil {
		executable = os.Args[0]
	}
	// Signals are caught before anything starts; the second one ends at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(operator.Main(ctx, operator.Program{
		Args: os.Args[1:], Environ: os.Environ(), Executable: executable,
		Streams: operator.Streams{
			In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
			OutIsTerminal: term.IsTerminal(int(os.Stdout.Fd())),
		},
	}))
}
