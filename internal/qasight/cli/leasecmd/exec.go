package leasecmd

import (
	"context"

	"github.com/spf13/cobra"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/proc"
	"fleetdesk/internal/qasight/cli/command"
	"fleetdesk/internal/qasight/hooks"
)

type execOptions struct {
	taking
	pool string
	args []string
}

func newExec(f *command.Factory) *cobra.Command {
	o := &execOptions{}
	c := &cobra.Command{
		Use:   "exec POOL [flags] -- CMD [ARG…]",
		Short: "Run a command with a key of a pool",
		Long: `Exec takes a key of the pool, runs the command with the key in its environment, and
gives the key back when the command has ended. The command never runs without a key:
exec waits for one as long as it takes, unless --wait says how long.

The command sees

  QASIGHT_KEY    the key, such as qa-win-01
  QASIGHT_POOL   the pool
  QASIGHT_LEASE  the lease's public id, for logs
  QASIGHT_FENCE  a number that grows with each lease, so that a target can refuse
                 what comes from an older run

Before the command, a key that needs it is reset (on_reset) and each key is checked
(on_check). A key whose check fails is taken out of use, with the check's output as
the reason, and another one is taken. After the command, what it left running in its
process group is ended, and on_reset runs while the key is still held.

The lease is renewed as long as the command runs. Should it be lost all the same (an
admin ended it, the team server is gone for too long), the command's whole process
group is stopped before the lease ends, and exec ends with 76. That also holds when
exec itself is killed: then the key stays held until its lease ends.

Signals are passed on to the command's process group, and the key is reset and given
back afterwards. While a key is waited for, the first signal that asks to end gives
the place up; while on_reset runs after the command, the second one stops it.

The exit code is the command's own, and 128 and the signal's number when a signal
ended it. Exec's own: 75 no key came free in time, 76 the lease was lost, 78 checks
failed, 69 the lease store does not answer, 126 and 127 the command cannot start, 2 a
usage error.`,
		Example: `  # wait for a Windows machine as long as it takes, and run the tests on it
  qasight exec win-vms -- npx playwright test

  # at most ten minutes; say in the pool's status who it is
  qasight exec win-vms --wait 10m --holder "nightly $BUILD" -- ./run-tests.sh

  # the variable is the command's: quote it, or this shell replaces it
  qasight exec win-vms -- sh -c 'ssh "$QASIGHT_KEY" uptime'`,
		Args: func(c *cobra.Command, args []string) error {
			switch dash := c.ArgsLenAtDash(); {
			case len(args) == 0 || dash == 0:
				return fault.Errorf(fault.Invalid, "want POOL -- CMD [ARG…]: which pool's key? (see `%s --help`)", c.CommandPath())
			case dash < 0 && len(args) > 1 || dash > 1:
				return fault.Errorf(fault.Invalid, "put -- between the pool and the command: `%s %s -- CMD`", c.CommandPath(), command.Plain(args[0]))
			case len(args) == 1:
				return fault.Errorf(fault.Invalid, "want a command after --: `%s %s -- CMD`", c.CommandPath(), command.Plain(args[0]))
			}
			return nil
		},
		ValidArgsFunction: completePool(f),
		RunE: func(c *cobra.Command, args []string) error {
			o.pool, o.args = args[0], args[1:]
			if f.JSON {
				return fault.New(fault.Invalid, "exec prints what its command prints, so --json means nothing to it: leave it out")
			}
			if err := o.check(c); err != nil {
				return err
			}
			return runExec(c.Context(), f, o)
		},
	}
	o.flags(c, -1, "as long as it takes")
	return c
}

func runExec(ctx context.Context, f *command.Factory, o *execOptions) error {
	cfg, err := f.Config()
	if err != nil {
		return err
	}
	p, err := cfg.Pool(o.pool)
	if err != nil {
		return err
	}
	b, err := f.Broker(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }() // all is done by then
	r := f.LeaseRunner(cfg, p, b)
	holder := f.Holder(o.holder)
	done := command.Job{
		Runner: r,
		Take: hooks.TakeOptions{
			Holder: holder, TTL: o.ttl, Wait: o.wait, Waiting: f.Waiting(b, p.Name, holder, r.Say),
		},
		Command: proc.Command{
			Args: o.args, Env: f.Environ,
			Files: &proc.Files{In: f.Streams.In, Out: f.Streams.Out, Err: f.Streams.Err},
		},
		Signals: f.Signals,
	}.Do(ctx)
	switch {
	case done.Err != nil:
		return command.Exit(done.Code, done.Err)
	case done.Code != 0:
		return command.Exit(done.Code, nil)
	}
	return nil
}
