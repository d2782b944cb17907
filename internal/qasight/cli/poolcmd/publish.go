package poolcmd

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/cli/command"
	"fleetdesk/internal/qasight/config"
)

type publishOptions struct {
	f     *command.Factory
	pools []string
	dry   bool
}

func newPublish(f *command.Factory) *cobra.Command {
	o := &publishOptions{f: f}
	c := &cobra.Command{
		Use: "publish [POOL…]", Short: "Make the file's pools those that keys are taken from",
		Example: `  qasight pool publish --dry-run
  qasight pool publish win-vms`,
		Long: `Sends the file's pools, or those named, to the team server: names, items, times,
and whether there are hooks; never a hook's text nor the provider. How the file
differs from what was published is shown first. A pool that somebody else published
in that moment is refused.

A key that leaves a pool's list while somebody holds it leaves when its lease ends.
This needs the role admin.

A local lease database follows the file by itself whenever a key is taken. There it
says that this file is the right one, where another checkout of the project lists
other keys.`,
		ValidArgsFunction: completePools(f),
		RunE: func(c *cobra.Command, args []string) error {
			o.pools = args
			return runPublish(c.Context(), o)
		},
	}
	c.Flags().BoolVar(&o.dry, "dry-run", false, "show the differences and send nothing")
	return c
}

// publishReport is what `pool publish --json` prints.
type publishReport struct {
	// Server is absent for a local lease database.
	Server string        `json:"server,omitempty"`
	DryRun bool          `json:"dryRun"`
	Pools  []poolPublish `json:"pools"`

	place broker.Place
}

// poolPublish is what becomes of one pool.
type poolPublish struct {
	Name string `json:"name"`
	// New is whether it was never published before.
	New bool `json:"new,omitempty"`
	// Differences are how the file differs from what was published.
	Differences []string `json:"differences"`
	// Held are keys that leave the list while somebody holds them.
	Held []string `json:"held,omitempty"`
	// Seen is the revision that the file was compared with, Revision the present
	// one; they differ when it was published now.
	Seen      int64 `json:"seenRevision"`
	Revision  int64 `json:"revision"`
	Published bool  `json:"published"`

	cfg *config.Pool
}

func runPublish(ctx context.Context, o *publishOptions) error {
	cfg, err := o.f.Config()
	if err != nil {
		return err
	}
	pools, err := choose(cfg, o.pools)
	if err != nil {
		return err
	}
	b, err := o.f.Looker(ctx, cfg)
	if !o.dry { // only then a local database is made
		if err == nil {
			_ = b.Close() // it was looked at
		}
		b, err = o.f.Broker(ctx, cfg)
	}
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }() // what counts was committed
	ctx, stop := o.f.UntilSignal(ctx)
	defer stop()
	r := publishReport{Server: cfg.Server, DryRun: o.dry, place: b.Place()}
	for _, p := range pools {
		one, err := planPublish(ctx, b, p)
		if err != nil {
			return orInterrupted(ctx, err)
		}
		r.Pools = append(r.Pools, one)
	}
	if !o.f.JSON {
		if err := o.show(r); err != nil {
			return err
		}
	}
	var failed error
	if keeper, ok := b.(broker.Keeper); ok && !o.dry {
		failed = o.send(ctx, keeper, &r)
	}
	if o.f.JSON {
		if err := o.f.PrintJSON(r); err != nil {
			return err
		}
	}
	return orInterrupted(ctx, failed)
}

// orInterrupted is err, unless a signal is why there is one.
func orInterrupted(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if stopped := interrupted(ctx); stopped != nil {
		return stopped
	}
	return err
}

// planPublish compares the file's pool with what was published.
func planPublish(ctx context.Context, b broker.Viewer, p *config.Pool) (poolPublish, error) {
	one := poolPublish{Name: p.Name, Differences: []string{}, cfg: p}
	v, err := b.Pool(ctx, p.Name)
	switch {
	case fault.Of(err) == fault.NotFound:
		one.New = true
		return one, nil
	case err != nil:
		return one, err
	}
	one.Seen, one.Revision = v.Revision, v.Revision
	if d := p.Differences(v.Published().Pool); d != nil {
		one.Differences = d
	}
	items := make(map[string]bool, len(p.Items))
	for _, n := range p.Items {
		items[n] = true
	}
	for _, k := range v.Members {
		if l := k.Lease; l != nil && !items[k.Name] {
			one.Held = append(one.Held, k.Name+", by "+who(l.Account, l.Holder))
		}
	}
	return one, nil
}

func (p *poolPublish) changes() bool { return p.New || len(p.Differences) > 0 }

// show says what is going to be sent.
func (o *publishOptions) show(r publishReport) error {
	say := func(format string, args ...any) error {
		_, err := fmt.Fprintln(o.f.Out(), command.Plain(fmt.Sprintf(format, args...)))
		return err
	}
	for i := range r.Pools {
		p := &r.Pools[i]
		text := fmt.Sprintf("%s: as published (revision %d)", p.Name, p.Seen)
		switch {
		case p.New:
			text = fmt.Sprintf("%s: new, %s", p.Name, plural(len(p.cfg.Items), "key", "keys"))
		case p.changes():
			text = fmt.Sprintf("%s: differs from revision %d", p.Name, p.Seen)
		}
		if err := say("%s", text); err != nil {
			return err
		}
		for _, d := range p.Differences {
			if err := say("  %s", d); err != nil {
				return err
			}
		}
		for _, h := range p.Held {
			if err := say("  held: %s; it leaves the pool when its lease ends", h); err != nil {
				return err
			}
		}
	}
	if o.dry {
		return say("dry run: nothing was sent to the %s", r.place)
	}
	return nil
}

// send publishes what differs, up to the first refusal.
func (o *publishOptions) send(ctx context.Context, b broker.Keeper, r *publishReport) error {
	sent := 0
	for i := range r.Pools {
		p := &r.Pools[i]
		if !p.changes() {
			continue
		}
		done, err := b.Publish(ctx, p.cfg.Pool, &p.Seen)
		if err != nil {
			err = explainPublish(p.Name, err)
			if sent > 0 {
				err = command.Exit(command.ExitLook, fmt.Errorf("%w; of the pools before it %d were published", err, sent))
			}
			return err
		}
		sent++
		p.Revision, p.Published = done.Revision, true
		if !o.f.JSON {
			if err := o.sent(done); err != nil {
				return err
			}
		}
	}
	if sent == 0 && !o.f.JSON {
		o.f.Sayf("nothing to publish")
	}
	return nil
}

func (o *publishOptions) sent(p client.Pool) error {
	_, err := fmt.Fprintf(o.f.Out(), "%s: published, revision %d\n", p.Name, p.Revision)
	return err
}

// explainPublish adds to a refusal what to do about it.
func explainPublish(name string, err error) error {
	switch fault.CodeOf(err) {
	case "revision":
		return fmt.Errorf("%w: somebody published %s in this moment: look at the differences again", err, name)
	case "managed":
		return fmt.Errorf("%w: %s is a controller's: give the file's pool another name", err, name)
	}
	return err
}
