package leasecmd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"fleetdesk/client"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/qasight/cli/command"
	"fleetdesk/internal/qasight/hooks"
)

type takeOptions struct {
	taking
	pool string
}

func newTake(f *command.Factory) *cobra.Command {
	o := &takeOptions{}
	c := &cobra.Command{
		Use:   "take POOL",
		Short: "Take a key, for scripts",
		Long: `Take takes a key of the pool and prints the lease's id. The key is yours until you
release it, or until the lease's time is over: no process renews it, so renew it in
time, or ask for a --ttl that is long enough. Where one command is all that needs the
key, use "qasight exec": it renews, and stops the command when the lease is lost.

Take does not wait: when no key is free, it ends with 75 at once, unless --wait says
how long to wait. Exec waits as long as it takes, unless --wait says otherwise.

As exec does, take resets a key that needs it and checks each; what hooks print goes
to standard error.

The secret that renews and releases the lease is kept in a file of your own below
the state folder (XDG_STATE_HOME, ~/.local/state), and is never printed: "renew" and
"release" find it there.

Exit codes: 0 · 75 no key is free (in time) · 78 checks failed · 69 the lease store
does not answer · 126, 127 a hook cannot be started · 2 a usage error.`,
		Example: `  lease=$(qasight take win-vms --wait 10m --ttl 2h) || exit
  trap 'qasight release "$lease"' EXIT
  ./run-tests.sh "${lease%~*}"          # the id is the key, ~ and a number

  qasight take win-vms --json`,
		Args:              command.Args(1, 1, "POOL"),
		ValidArgsFunction: completePool(f),
		RunE: func(c *cobra.Command, args []string) error {
			o.pool = args[0]
			if err := o.check(c); err != nil {
				return err
			}
			return runTake(c.Context(), f, o)
		},
	}
	o.flags(c, 0, "not at all")
	return c
}

func runTake(ctx context.Context, f *command.Factory, o *takeOptions) error {
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
	files := savedLeases(f, cfg.Project)
	files.all(time.Now()) // tidies up

	holder := f.Holder(o.holder)
	began := time.Now()
	acquiring, stop := command.UntilEnding(ctx, f.Signals, 1, nil)
	defer stop()
	s, err := r.Acquire(acquiring, hooks.TakeOptions{
		Holder: holder, TTL: o.ttl, Wait: o.wait, Waiting: f.Waiting(b, p.Name, holder, r.Say),
	})
	if err != nil {
		return command.LeaseError(ctx, b, err, p.Name, time.Since(began))
	}
	info := s.Info()
	kept := saved{
		id: lease.ID{Key: info.Key, Fence: info.Fence}, pool: p.Name, server: cfg.Server, secret: s.Secret(),
		until: time.Now().Add(max(s.Left(), info.TTL.Duration())),
	}
	// Once the lease is told of, it can be released.
	if err := files.put(kept); err != nil {
		_, failed := s.Return(ctx, hooks.Use{Unused: true})
		return errors.Join(err, failed)
	}
	if e, ok := errors.AsType[command.Interrupted](context.Cause(acquiring)); ok {
		if back, err := s.Return(ctx, hooks.Use{Unused: true}); back.Done {
			_ = files.remove(info.ID)
		} else if err != nil {
			r.Say(err.Error())
		}
		return command.LeaseError(ctx, b, e, p.Name, time.Since(began))
	}
	if err := s.Detach(ctx); err != nil {
		_ = files.remove(info.ID)
		return err
	}
	if f.JSON {
		err = f.PrintJSON(described(s.Info(), s.Left()))
	} else {
		_, err = fmt.Fprintln(f.Out(), info.ID)
	}
	if err == nil {
		return nil
	}
	// Nobody was told of the lease, so nobody would release it.
	if back, failed := s.Return(ctx, hooks.Use{Unused: true}); !back.Done {
		r.Say(fmt.Sprintf("%v; the lease %s is held: `qasight release %s`", failed, info.ID, info.ID))
	} else {
		_ = files.remove(info.ID)
		r.Say(info.ID + " was given back, since its id could not be printed")
	}
	return err
}

// savedLeases are those that this person took of a project.
func savedLeases(f *command.Factory, project string) leases {
	return leases{filepath.Join(f.StateDir(project), "leases")}
}

// description is a lease in JSON: all but its secret.
type description struct {
	Lease       string            `json:"lease"`
	Key         string            `json:"key"`
	Pool        string            `json:"pool"`
	Fence       int64             `json:"fence"`
	Account     string            `json:"account"`
	Holder      string            `json:"holder,omitempty"`
	TTL         client.Seconds    `json:"ttl"`
	SecondsLeft client.Seconds    `json:"secondsLeft"`
	Attributes  map[string]string `json:"attributes"`
}

func described(i client.LeaseInfo, left time.Duration) description {
	d := description{i.ID, i.Key, i.Pool, i.Fence, i.Account, i.Holder, i.TTL, client.SecondsOf(left), i.Attributes}
	if d.Attributes == nil {
		d.Attributes = map[string]string{}
	}
	return d
}
