package leasecmd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/qasight/cli/command"
	"fleetdesk/internal/qasight/config"
	"fleetdesk/internal/qasight/hooks"
)

type releaseOptions struct {
	name, pool      string
	outcome, reason string
}

func newRelease(f *command.Factory) *cobra.Command {
	o := &releaseOptions{}
	c := &cobra.Command{
		Use:   "release LEASE|KEY",
		Short: "Give a key back that take took",
		Long: `Release gives a key back that "qasight take" took on this machine. The pool's on_reset
runs first, while the key is still held. Name the lease by its id or by its key, or
give --pool when just one of the pool's keys was taken here.

With --outcome broken the key is taken out of use, with your --reason, and is not
reset; at most a third of a pool (and at least one key) can go this way.

To release twice is harmless. Exit codes: 0 it is given back (or was already) · 1
on_reset failed: the key is given back, and is reset again before its next use · 76 the
lease was lost before · 78 so many keys are out of use already that this one stays in
use · 69 the lease store does not answer: try again, or the lease ends by its time.`,
		Example: `  qasight release qa-win-01~17
  qasight release qa-win-01
  qasight release qa-win-01 --outcome broken --reason "boots into rescue mode"`,
		Args:              command.Args(0, 1, "LEASE or KEY"),
		ValidArgsFunction: completeTaken(f),
		RunE: func(c *cobra.Command, args []string) error {
			if err := named(c, args, o.pool, &o.name); err != nil {
				return err
			}
			if err := o.check(); err != nil {
				return err
			}
			return runRelease(c.Context(), f, o)
		},
	}
	flags := c.Flags()
	flags.StringVar(&o.outcome, "outcome", client.OutcomeOK, "how the use went: ok, or broken to take the key out of use")
	flags.StringVar(&o.reason, "reason", "", "why the key is broken, for people")
	poolFlag(f, c, &o.pool)
	_ = c.RegisterFlagCompletionFunc("outcome", cobra.FixedCompletions( // the flag exists
		[]string{client.OutcomeOK, client.OutcomeBroken}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

func (o *releaseOptions) check() error {
	switch {
	case o.outcome != client.OutcomeOK && o.outcome != client.OutcomeBroken:
		return fault.Errorf(fault.Invalid, "--outcome is %q: want ok or broken", command.Plain(o.outcome))
	case o.outcome == client.OutcomeBroken && strings.TrimSpace(o.reason) == "":
		return fault.New(fault.Invalid, "--outcome broken takes the key out of use for everybody: say why with --reason")
	case len(o.reason) > lease.MaxText || command.Plain(o.reason) != o.reason:
		return fault.Errorf(fault.Invalid, "--reason has %d bytes: want one line of at most %d bytes without control characters", len(o.reason), lease.MaxText)
	}
	return nil
}

// release is what was done, in JSON.
type release struct {
	Lease string `json:"lease,omitempty"`
	Key   string `json:"key,omitempty"`
	// Already is whether there was nothing to be done.
	Already bool `json:"already"`
	// Disabled is whether the key was taken out of use, Capped that too many are
	// already. ResetFailed is how on_reset failed.
	Disabled    bool   `json:"disabled"`
	Capped      bool   `json:"capped"`
	ResetFailed string `json:"resetFailed,omitempty"`
}

func runRelease(ctx context.Context, f *command.Factory, o *releaseOptions) error {
	t, err := findTaken(ctx, f, o.name, o.pool)
	if err != nil {
		return err
	}
	defer func() { _ = t.broker.Close() }() // all is done by then
	if !t.found {
		words, err := t.elsewhere(ctx, o.name, o.pool)
		if err != nil {
			return err
		}
		return told(f, words, release{Already: true})
	}
	r := t.runner(f)
	id, key := t.saved.id.String(), t.saved.id.Key
	returning, stop := command.UntilEnding(ctx, f.Signals, 2, func(s syscall.Signal) {
		r.Say(fmt.Sprintf("told to end (%s): %s is given back first; a second signal stops its on_reset", s, key))
	})
	defer stop()
	s, err := r.Resume(returning, id, t.saved.secret)
	switch {
	case fault.CodeOf(err) == "lease_released":
		if err := t.files.remove(id); err != nil {
			return err
		}
		return told(f, id+" was released already", release{Lease: id, Key: key, Already: true})
	case err != nil:
		return interrupted(returning, t.failed(err))
	}
	back, err := s.Return(returning, hooks.Use{Outcome: o.outcome, Reason: o.reason})
	if back.Done {
		if err := t.files.remove(id); err != nil {
			r.Say(err.Error())
		}
	}
	code, words := command.ReturnedCode(key, back, err)
	if err != nil {
		return command.Exit(code, errors.New(wordsOf(t.failed(err), words)))
	}
	done := release{Lease: id, Key: key, Disabled: back.Disabled, Capped: back.Capped}
	switch {
	case back.Reset != nil:
		done.ResetFailed = back.Reset.Text
	case back.Capped:
		code = command.ExitChecks
		words = fmt.Sprintf("%s was given back and stays in use: too many keys of %s are out of use already, so the fault is likely elsewhere", key, t.saved.pool)
	default:
		words = id + " was given back"
		if back.Disabled {
			words += ", and the key was taken out of use"
		}
	}
	if err := told(f, words, done); err != nil || code == 0 {
		return err
	}
	return command.Exit(code, nil)
}

// wordsOf are the words for an error, if there are better ones than its own.
func wordsOf(err error, words string) string {
	if words != "" {
		return words
	}
	return err.Error()
}

// runner runs the hooks of the lease's pool. A pool that left the file has none
// here.
func (t *taken) runner(f *command.Factory) *hooks.Runner {
	p, err := t.config.Pool(t.saved.pool)
	if err != nil {
		p = &config.Pool{}
		p.Name = t.saved.pool
		f.Sayf("qasight: pool %s is not in %s any more, so its on_reset is not known: if it has one, it is run before the key's next use",
			p.Name, t.config.Path)
	}
	return f.LeaseRunner(t.config, p, t.broker)
}

// told prints what was done, for people or as JSON.
func told(f *command.Factory, words string, r release) error {
	if f.JSON {
		return f.PrintJSON(r)
	}
	_, err := fmt.Fprintln(f.Out(), words)
	return err
}
