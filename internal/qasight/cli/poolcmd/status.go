package poolcmd

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"fleetdesk/client"
	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/proc"
	"fleetdesk/internal/qasight/cli/command"
	"fleetdesk/internal/qasight/config"
	"fleetdesk/internal/qasight/humanrun"
)

// maxLists bounds the lists that run at once.
const maxLists = 32

// listFunc is humanrun.List.
type listFunc func(context.Context, *config.Pool, humanrun.Place) (humanrun.Listing, error)

type statusOptions struct {
	f *command.Factory
	// pools are the names asked for; none for all.
	pools []string
	check bool
	all   bool
	list  listFunc
	run   runFunc
}

func newStatus(f *command.Factory) *cobra.Command {
	o := &statusOptions{f: f, list: humanrun.List, run: proc.Run}
	c := &cobra.Command{
		Use:   "status [POOL…]",
		Short: "Show where pools and the world differ, and each key's lease",
		Example: `  qasight pool status
  qasight pool status win-vms --check
  qasight pool status --json | jq '.pools[].keys[] | select(.exists == "missing")'`,
		Long: `Compares what each provider's list prints with the pool's items, and shows each
key's lease state. It changes nothing: it takes no lease, disables nothing, writes
nothing, and runs no command besides list and, with --check, the pool's on_check on
free keys.

Per key: present, missing, or ? where there is no list or it failed. What exists and
is on no pool's list is left over; with name_prefix it is ours to sweep.

Exit codes:
  0    all well; ? alone is no reason for another one
  1    a pool needs a look: missing, left over or disabled keys, a failed check, a
       file that differs from what was published, an action without an end
  2    the command line or qasight.yaml is wrong
  3    a list failed; wins over 1
  69   the lease store does not answer; wins over 3, what lists printed is shown
  77   the team server refuses: a bad token, or none`,
		ValidArgsFunction: completePools(f),
		RunE: func(c *cobra.Command, args []string) error {
			o.pools = args
			return runStatus(c.Context(), o)
		},
	}
	c.Flags().BoolVar(&o.check, "check", false, "run the pools' on_check on free keys")
	c.Flags().BoolVar(&o.all, "all", false, "show all keys of big pools, not only those that need a look")
	return c
}

func runStatus(ctx context.Context, o *statusOptions) error {
	cfg, err := o.f.Config()
	if err != nil {
		return err
	}
	pools, err := choose(cfg, o.pools)
	if err != nil {
		return err
	}
	store := &storeLook{f: o.f, cfg: cfg}
	if !store.local() {
		// A missing token is told before commands run for minutes.
		if _, err := store.open(ctx); err != nil {
			return err
		}
	}
	defer store.close()
	ctx, stop := o.f.UntilSignal(ctx)
	defer stop()

	looks := o.lists(ctx, cfg, pools)
	if err := interrupted(ctx); err != nil {
		return err
	}
	s := &statusReport{Project: cfg.Project, File: cfg.Path, Server: cfg.Server, Findings: []finding{}, Pools: make([]poolReport, len(pools))}
	if store.local() {
		s.Database = o.f.Database(cfg.Project)
	}
	s.fail(o.stored(ctx, store, cfg, looks, s))
	for i := range looks {
		s.Pools[i] = looks[i].report(cfg)
	}
	if o.check {
		c := checker{f: o.f, file: cfg, store: store, run: o.run}
		s.fail(c.all(ctx, looks, s.Pools, func(total int) *progress { return newProgress(o.terminal(), "checks", total) }))
	}
	if err := interrupted(ctx); err != nil {
		return err
	}
	s.ExitCode = s.code()
	if err := o.print(s); err != nil {
		return err
	}
	if s.StoreError != "" {
		o.f.Sayf("qasight: %s", command.Plain(s.StoreError))
	}
	if s.ExitCode != command.ExitOK {
		return command.Exit(s.ExitCode, nil)
	}
	return nil
}

// fail notes that the store could not be read.
func (s *statusReport) fail(err error) {
	if err != nil && s.StoreError == "" {
		s.StoreError, s.storeExit = err.Error(), storeExit(err)
	}
}

// choose returns the pools of the file that were named, each once, or all.
func choose(cfg *config.File, names []string) ([]*config.Pool, error) {
	var out []*config.Pool
	if len(names) == 0 {
		for i := range cfg.Pools {
			out = append(out, &cfg.Pools[i])
		}
		return out, nil
	}
	seen := map[string]bool{}
	for _, n := range names {
		p, err := cfg.Pool(n)
		if err != nil {
			return nil, err
		}
		if !seen[n] {
			seen[n] = true
			out = append(out, p)
		}
	}
	return out, nil
}

// interrupted is the error of a command that a signal ended.
func interrupted(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	err := context.Cause(ctx)
	if i, ok := errors.AsType[command.Interrupted](err); ok {
		return command.Exit(i.ExitCode(), err)
	}
	return err
}

// terminal is where progress is shown: nil for nowhere.
func (o *statusOptions) terminal() io.Writer {
	if o.f.JSON || !o.f.Streams.ErrTerminal || o.f.Getenv("TERM") == "dumb" { // which knows no escapes
		return nil
	}
	return o.f.Streams.Err
}

// lists runs the providers' lists.
func (o *statusOptions) lists(ctx context.Context, cfg *config.File, pools []*config.Pool) []poolLook {
	at := humanrun.Place{Dir: cfg.Dir, Environ: withoutLease(o.f.HookEnv()), Hide: o.f.Secrets()}
	looks := make([]poolLook, len(pools))
	var with []*poolLook
	for i, p := range pools {
		looks[i].cfg = p
		if p.Provider != nil {
			with = append(with, &looks[i])
		}
	}
	line := newProgress(o.terminal(), "lists", len(with))
	defer line.close()
	each(len(with), maxLists, func(i int) {
		name := with[i].cfg.Name
		line.begin(name)
		defer line.end(name)
		got, err := o.list(ctx, with[i].cfg, at)
		with[i].list = &listed{got.Names, got.Took, err}
	})
	return looks
}

// stored adds what the lease store says. When it says nothing, the looks stay
// without a sight.
func (o *statusOptions) stored(ctx context.Context, store *storeLook, cfg *config.File, looks []poolLook, s *statusReport) error {
	names := make([]string, len(looks))
	for i := range looks {
		names[i] = looks[i].cfg.Name
	}
	v, err := store.look(ctx, names...)
	if err != nil {
		return err
	}
	l, err := store.open(ctx)
	if err != nil {
		return err
	}
	if l == nil {
		for i := range looks {
			looks[i].sight = v
		}
		return nil
	}
	all, err := l.Open(ctx, "")
	if err != nil {
		return err
	}
	open := map[string][]action.Entry{}
	for _, e := range all {
		open[e.Pool] = append(open[e.Pool], e)
	}
	waiters := make([][]client.Waiter, len(looks))
	errs := make([]error, len(looks))
	each(len(looks), maxLooks, func(i int) {
		if v.views[names[i]].Waiting == 0 {
			return
		}
		waiters[i], errs[i] = l.Waiters(ctx, names[i])
		if fault.Of(errs[i]) == fault.NotFound {
			errs[i] = nil // it went away just now
		}
	})
	if err := errors.Join(errs...); err != nil {
		return err
	}
	// Whether a name is another pool's on the server is asked only when there are
	// names to ask about.
	for i := range looks {
		look := poolLook{cfg: looks[i].cfg, list: looks[i].list, sight: v}
		if len(look.compare(cfg).Leftovers) == 0 {
			continue
		}
		if err := store.lookOn(ctx, v); err != nil {
			return err
		}
		break
	}
	for i := range looks {
		looks[i].sight, looks[i].waiters, looks[i].open = v, waiters[i], open[names[i]]
	}
	o.strangers(cfg, all, s)
	return nil
}

// strangers finds actions without an end of pools that the file has no more: in a
// project's own database nobody else would tell of them.
func (o *statusOptions) strangers(cfg *config.File, open []action.Entry, s *statusReport) {
	if cfg.Server != "" || len(o.pools) > 0 {
		return
	}
	for _, e := range open {
		if _, err := cfg.Pool(e.Pool); err != nil {
			s.Findings = append(s.Findings, finding{findAction, e.Key, fmt.Sprintf(
				"in pool %s, which the file does not have: %s", e.Pool, newActionReport(e, nil).text())})
		}
	}
}
