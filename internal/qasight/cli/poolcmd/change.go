package poolcmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/proc"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/cli/command"
	"fleetdesk/internal/qasight/config"
	"fleetdesk/internal/qasight/humanrun"
)

// actionsVariable forbids provider commands when it is 0, as in CI.
const actionsVariable = "TESTO_PROVIDER_ACTIONS"

// changeOptions are what a person asks for.
type changeOptions struct {
	humanrun.Request
	// Apply has it done, and Yes does not ask first.
	Apply, Yes bool
}

const changeRules = `
Nothing is created or destroyed without --apply: without it, this shows what would
be. With --apply the plan is shown and "yes" must be typed at a terminal, unless
--yes is given. What is done is what was shown: if the world has changed in between,
nothing more is run. At most 5 keys are changed by one command. Each command is
logged before it starts: see "qasight pool log". TESTO_PROVIDER_ACTIONS=0 forbids it.`

func newAdd(f *command.Factory) *cobra.Command {
	c, o := newChange(f, humanrun.Add, "add POOL NAME…", "Create machines with the pool's own command")
	c.Long = `Creates machines by the pool's provider.create, one for each name. A name must begin
with name_prefix, not be listed yet, and be in no other pool; with it, the pool must
not have more than max_items keys. qasight.yaml is never edited: the lines to add to
the pool's items are printed.
` + changeRules
	c.Example = "  qasight pool add win-vms qa-win-03 qa-win-04\n  qasight pool add win-vms qa-win-03 qa-win-04 --apply"
	c.Args = command.Args(2, -1, "POOL NAME…")
	c.Flags().BoolVar(&o.ListIsEmpty, "list-is-empty", false, "nothing exists yet: an empty list is no broken one")
	return c
}

func newRemove(f *command.Factory) *cobra.Command {
	c, _ := newChange(f, humanrun.Remove, "remove POOL KEY…", "Destroy named machines that are in no pool any more")
	c.Long = `Destroys the machines of keys by the pool's provider.destroy. Take them out of the
pool's items first. A key must begin with name_prefix, be listed, be in no pool, and
be held by nobody.
` + changeRules
	c.Example = "  qasight pool remove win-vms qa-win-02\n  qasight pool remove win-vms qa-win-02 --apply"
	c.Args = command.Args(2, -1, "POOL KEY…")
	return c
}

func newSweep(f *command.Factory) *cobra.Command {
	c, _ := newChange(f, humanrun.Sweep, "sweep POOL", "Destroy leftovers: machines with the pool's prefix that are in no pool")
	c.Long = `Destroys leftovers by the pool's provider.destroy: what the list shows, begins with
name_prefix, is in no pool, and is held by nobody. The first five by name are taken,
and it says how many remain.
` + changeRules
	c.Example = "  qasight pool sweep win-vms\n  qasight pool sweep win-vms --apply"
	c.Args = command.Args(1, 1, "POOL")
	return c
}

func newChange(f *command.Factory, v humanrun.Verb, use, short string) (*cobra.Command, *changeOptions) {
	o := &changeOptions{Request: humanrun.Request{Verb: v}}
	c := &cobra.Command{
		Use: use, Short: short,
		ValidArgsFunction: func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			switch {
			case len(args) == 0:
				return f.CompletePools(prefix)
			case v == humanrun.Remove:
				return f.CompleteKeys(c.Context(), args[0], prefix)
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			o.Pool, o.Names = args[0], args[1:]
			return runChange(c.Context(), f, o)
		},
	}
	c.Flags().BoolVar(&o.Apply, "apply", false, "have it done; without it this is a dry run")
	c.Flags().BoolVar(&o.Yes, "yes", false, "with --apply: do not ask first")
	return c, o
}

func runChange(ctx context.Context, f *command.Factory, o *changeOptions) error {
	if o.Yes && !o.Apply {
		return fault.Errorf(fault.Invalid, "--yes goes with --apply alone: without --apply this is a dry run, and nothing is asked")
	}
	file, err := f.Config()
	if err != nil {
		return err
	}
	ending, stop := f.UntilSignal(ctx)
	plan, keeper, err := makePlan(ending, f, file, o)
	if keeper != nil {
		defer func() { _ = keeper.Close() }() // what counts was committed
	}
	if err != nil {
		if ending.Err() != nil {
			err = declined("nothing was run: %w", context.Cause(ending))
		}
		stop()
		return changeExit(humanrun.Report{}, err)
	}
	out := changeOutput{f: f, plan: &plan, dry: !o.Apply}
	switch {
	case len(plan.Keys) == 0:
		stop()
		return out.nothing()
	case !o.Apply:
		stop()
		return out.dryRun()
	}
	out.shown()
	err = confirm(ending, f, o.Yes)
	stop()
	if err != nil {
		return changeExit(humanrun.Report{}, err)
	}
	b, ok := keeper.(broker.Broker)
	if !ok {
		return fault.New(fault.Unsupported, "the lease store can only be looked at")
	}
	report, err := humanrun.Apply(ctx, newRunner(f, b, file), plan)
	if e := out.done(report, err); err == nil {
		err = e
	}
	return changeExit(report, err)
}

// makePlan opens the project's broker and makes the plan. A dry run only looks,
// also at a local lease database. Close the broker, if there is one.
func makePlan(ctx context.Context, f *command.Factory, file *config.File, o *changeOptions) (humanrun.Plan, broker.Looker, error) {
	var keeper broker.Looker
	// What needs no broker is asked first: a refusal makes no database.
	err := humanrun.Check(file, f.Getenv(actionsVariable), o.Request)
	switch {
	case err != nil:
	case o.Apply:
		keeper, err = f.Broker(ctx, file)
	default:
		keeper, err = f.Looker(ctx, file)
	}
	if err != nil {
		return humanrun.Plan{}, nil, err
	}
	plan, err := humanrun.Make(ctx, humanrun.World{
		File: file, Broker: keeper, At: placeOf(f, file), Actions: f.Getenv(actionsVariable),
	}, o.Request)
	return plan, keeper, err
}

// absent reports whether the project's local database was never made.
func absent(f *command.Factory, file *config.File) bool {
	if file.Server != "" {
		return false
	}
	_, err := os.Stat(f.Database(file.Project))
	return errors.Is(err, fs.ErrNotExist)
}

// placeOf is where the file's provider commands run.
func placeOf(f *command.Factory, file *config.File) humanrun.Place {
	return humanrun.Place{Dir: file.Dir, Environ: f.HookEnv(), Hide: f.Secrets()}
}

func newRunner(f *command.Factory, b broker.Broker, file *config.File) humanrun.Runner {
	guard := f.Guard()
	return humanrun.Runner{
		Broker: b, At: placeOf(f, file), Actions: f.Getenv(actionsVariable),
		Load: func() (*config.File, error) { return config.Load(file.Path) },
		User: f.Account(), Host: f.Host(), Holder: f.Holder(""),
		Start: func(ctx context.Context, c proc.Command) (humanrun.Command, error) {
			started, err := guard.Start(ctx, c, 0)
			if err != nil {
				return nil, err // a nil *Guarded is not a nil Command
			}
			return started, nil
		},
		Signals: f.Signals, Stdout: f.Streams.Err, Stderr: f.Streams.Err,
		Say: func(line string) { f.Sayf("%s", command.Plain(line)) },
	}
}

// confirm asks the person, unless they said yes already.
func confirm(ctx context.Context, f *command.Factory, yes bool) error {
	switch {
	case ctx.Err() != nil:
		return declined("nothing was run: %w", context.Cause(ctx))
	case yes:
		return nil
	}
	if !f.Streams.InTerminal || !f.Streams.ErrTerminal {
		return declined("without a terminal nobody can be asked, so nothing was run: --yes says yes beforehand")
	}
	fmt.Fprint(f.Streams.Err, "Type yes to run this: ")
	answer, err := readLine(ctx, f.Streams.In)
	if err != nil {
		f.Sayf("") // the prompt's line ends
		return declined("declined, nothing was run: %w", err)
	}
	if strings.TrimSpace(answer) == "yes" {
		return nil
	}
	return declined("declined, nothing was run (only yes is yes)")
}

func declined(format string, args ...any) error {
	return fault.WithCode(fault.Errorf(fault.Denied, format, args...), "declined")
}

// changeExit gives the error of a change its exit code: 3 for a list that failed,
// 69 for what could not be kept or logged, 1 once a command ran, and otherwise
// what its class means.
func changeExit(r humanrun.Report, err error) error {
	if err == nil {
		return nil
	}
	switch code := fault.CodeOf(err); {
	case code == humanrun.CodeUnlogged:
		return command.Exit(command.ExitStore, err)
	case code == humanrun.CodeList:
		return command.Exit(command.ExitList, err)
	case code == humanrun.CodeFailed || code == humanrun.CodeUnknown:
		return command.Exit(command.ExitLook, err)
	}
	usual := command.ExitCode(err)
	if usual != command.ExitStore && len(r.Outcomes) > 0 {
		return command.Exit(command.ExitLook, err)
	}
	return command.Exit(usual, err)
}

// maxAnswer bounds what is read of an answer.
const maxAnswer = 1 << 10
