// Command proxy-operator-standalone is the operator and a Kubernetes API in
// one process.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"
	"k8s.io/client-go/rest"

	"fleetdesk/config/crd"
	"fleetdesk/internal/proxy/operator"
	"fleetdesk/standalone/controlplane"
)

func main() {
	executable, err := os.Executable()
	if err != nil {
		executable = os.Args[0]
	}
	// Signals are caught before anything starts; the second one ends at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	run := func(ctx context.Context, o operator.ControlPlaneOptions, ready func(*rest.Config)) error {
		return controlplane.Run(ctx, controlplane.Options{
			DataDir: o.DataDir, Bind: o.Bind, Port: o.Port, Kubeconfig: o.Kubeconfig, CRDs: crd.Bases, Namespace: o.Namespace, Log: o.Log,
		}, ready)
	}
	os.Exit(operator.Main(ctx, operator.Program{
		Args: os.Args[1:], Environ: os.Environ(), Executable: executable, ControlPlane: run,
		Streams: operator.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, OutIsTerminal: term.IsTerminal(int(os.Stdout.Fd()))},
	}))
}
