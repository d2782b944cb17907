// Package stagecmd holds stage run.
package stagecmd

import (
	"time"

	"github.com/spf13/cobra"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/cli/command"
	"fleetdesk/internal/qasight/config"
	"fleetdesk/internal/qasight/pool"
)

// New returns the commands.
func New(f *command.Factory) []*cobra.Command {
	c := &cobra.Command{
		Use: "stage", Short: "Run a stage of tests on several keys at once",
		Long: `A stage of qasight.yaml is a command and a pool. Its workers run the command at the
same time, each with a key of its own.`,
		Example: "  qasight stage run ui",
		Args:    command.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newRun(f))
	return []*cobra.Command{c}
}

func newRun(f *command.Factory) *cobra.Command {
	o := &runOptions{}
	c := &cobra.Command{
		Use:   "run STAGE",
		Short: "Run a stage's command by several workers, each with a key of its own",
		Long: `Run starts the workers of a stage of qasight.yaml:

  stages:
    ui: {command: npx playwright test, pool: win-vms, workers: 2}

Each worker takes a key of the stage's pool, runs the stage's command (by /bin/sh, in
the folder of qasight.yaml, with nothing to read) and gives the key back, as "qasight
exec" does: the key is reset and checked first, the command is stopped when the lease
is lost, and on_reset runs at the end. Workers start as keys come; with fewer keys
than workers, the last ones wait until the first are done.

A key whose check fails is taken out of use, with the check's output as the reason,
and another one is taken. When no more may go out of use (a third of the pool), the
workers without a key end with 78, and the others go on.

Besides the key's variables (QASIGHT_KEY, QASIGHT_POOL, QASIGHT_LEASE, QASIGHT_FENCE)
a worker sees its stage, QASIGHT_STAGE, its number, QASIGHT_WORKER (from 1), and how
many there are, QASIGHT_WORKERS: most test runners can split their tests by them.

Each line that a worker prints begins with its stage, number and key. A table at the
end, on standard error, says how each went; with --json it is a document on standard
output, and what the workers print goes to standard error.

Signals are passed on to all workers; those that wait for a key end. The exit code is
the highest of the workers'.`,
		Example: `  qasight stage run ui
  qasight stage run ui --workers 4 --wait 15m

  # in qasight.yaml, for a runner that can split its tests:
  #   command: npx playwright test --shard=$QASIGHT_WORKER/$QASIGHT_WORKERS`,
		Args: command.Args(1, 1, "STAGE"),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			cfg, err := f.Config()
			if err != nil || len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			names := make([]string, len(cfg.Stages))
			for i, s := range cfg.Stages {
				names[i] = s.Name
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			o.stage = args[0]
			switch {
			case c.Flags().Changed("workers") && (o.workers < 1 || o.workers > config.MaxWorkers):
				return fault.Errorf(fault.Invalid, "--workers is %d: want 1 to %d", o.workers, config.MaxWorkers)
			case c.Flags().Changed("wait") && o.wait < 0:
				return fault.Errorf(fault.Invalid, "--wait is %s: want 0 or more", pool.Short(o.wait))
			}
			return runStage(c.Context(), f, o)
		},
	}
	flags := c.Flags()
	flags.IntVar(&o.workers, "workers", 0, "how many workers (default: the stage's)")
	flags.DurationVar(&o.wait, "wait", -1, "how long each worker waits for a key, such as 10m; 0 for not at all (default: as long as it takes)")
	flags.Lookup("wait").DefValue = "0s" // its own words say more
	flags.StringVar(&o.holder, "holder", "", "who uses the keys, for people (default: you, this machine and the process)")
	return c
}

type runOptions struct {
	stage   string
	workers int
	wait    time.Duration
	holder  string
}
