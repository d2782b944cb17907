// Package cli is the composition root of qasight: it reads the command line, and
// finds the command.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"fleetdesk/internal/platform/obs"
	"fleetdesk/internal/platform/proc"
	"fleetdesk/internal/qasight/cli/command"
	"fleetdesk/internal/qasight/cli/filecmd"
	"fleetdesk/internal/qasight/cli/leasecmd"
	"fleetdesk/internal/qasight/cli/poolcmd"
	"fleetdesk/internal/qasight/cli/servecmd"
	"fleetdesk/internal/qasight/cli/stagecmd"
)

type (
	// Program is the process as main hands it over.
	Program = command.Program
	// Streams are its input and outputs.
	Streams = command.Streams
)

// Signals are those that main catches before anything starts.
func Signals() []os.Signal { return command.Signals() }

// Main runs the program and returns its exit code.
func Main(ctx context.Context, p Program) int {
	f := &command.Factory{Program: p}
	var r run
	root := newRoot(f)
	r.watch(root)
	root.SetArgs(p.Args)
	err := r.class(root.ExecuteContext(ctx))
	if lost := f.Unwritten(); lost != nil && (err == nil || errors.Is(err, lost) || command.Silent(err)) {
		return unwritten(f, err, lost)
	}
	if err != nil && !command.Silent(err) {
		f.Sayf("qasight: %s", strings.TrimSpace(err.Error()))
	}
	return command.ExitCode(err)
}

// unwritten ends a command that ended with err, and whose answer could not be
// written.
func unwritten(f *command.Factory, err, lost error) int {
	code := command.ExitLook
	if command.Silent(err) { // it is told how it went, if not what
		code = command.ExitCode(err)
	}
	if errors.Is(lost, syscall.EPIPE) {
		// As with any program that prints to a pipe which nobody reads to the end.
		return command.Interrupted{Signal: syscall.SIGPIPE}.ExitCode()
	}
	said := lost
	if file, ok := errors.AsType[*fs.PathError](lost); ok {
		said = file.Err // the name is always that of standard output
	}
	if err != nil && !command.Silent(err) && err.Error() != lost.Error() {
		said = err // it tells more, such as what was taken back
	}
	f.Sayf("qasight: the answer could not be written: %s", said)
	return code
}

func newRoot(f *command.Factory) *cobra.Command {
	root := &cobra.Command{
		Use:   "qasight",
		Short: "Lease machines that you own to your test runs",
		Long: `qasight leases fixed pools of machines that you own to your test runs, runs your
hooks, and shows where a pool and the world differ. Pools are lists in qasight.yaml.

It never creates or deletes a machine on its own: only a person who types
"qasight pool add", "remove" or "sweep" has that done, by the owner's own commands,
and each is logged before it runs.

` + command.ExitHelp() + `
The code is 1 also when the answer cannot be written. exec and stage run otherwise
pass on their command's own exit code. A signal that ends a command gives 128 and its
number.`,
		Example: `  qasight init
  qasight exec win-vms -- npx playwright test
  qasight pool status`,
		SilenceErrors: true, SilenceUsage: true,
		Args: command.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetIn(f.Streams.In)
	root.SetOut(f.Out())
	root.SetErr(f.Streams.Err)
	root.SetFlagErrorFunc(badFlag)
	flags := root.PersistentFlags()
	flags.StringVarP(&f.File, "file", "f", "", "the project's file; default: qasight.yaml here or in a folder above")
	flags.BoolVar(&f.JSON, "json", false, "print JSON")
	flags.BoolVar(&f.Verbose, "verbose", false, "log more to standard error")
	root.SetHelpCommand(newHelp(f))
	root.AddCommand(slices.Concat(
		filecmd.New(f), leasecmd.New(f), stagecmd.New(f), poolcmd.New(f), servecmd.New(f),
		[]*cobra.Command{newSupervise(f), newVersion(f)},
	)...)
	// Both are made on the first run anyway; here they are seen like all others.
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	complete(f, root)
	group(root)
	return root
}

// newSupervise is what exec and the hooks' runs start this program as.
func newSupervise(f *command.Factory) *cobra.Command {
	return &cobra.Command{
		Use: command.SuperviseCommand, Hidden: true, DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			if code := proc.Supervise(f.Streams.Err); code != 0 {
				return command.Exit(code, nil)
			}
			return nil
		},
	}
}

func newVersion(f *command.Factory) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Example: "  qasight version",
		Args: command.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if f.JSON {
				return f.PrintJSON(struct {
					Version string `json:"version"`
				}{obs.Version().String()})
			}
			_, err := fmt.Fprintln(f.Out(), "qasight "+obs.Version().String())
			return err
		},
	}
}
