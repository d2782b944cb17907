package leasecmd

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/cli/command"
	"fleetdesk/internal/qasight/config"
)

type renewOptions struct {
	name, pool string
	ttl        time.Duration
}

func newRenew(f *command.Factory) *cobra.Command {
	o := &renewOptions{}
	c := &cobra.Command{
		Use:   "renew LEASE|KEY",
		Short: "Extend a lease that take took",
		Long: `Renew extends a lease that "qasight take" took on this machine, from now on for the
time that it was taken for, or for --ttl. Name the lease by its id or by its key, or
give --pool when just one of the pool's keys was taken here.

Exit code 76 says that the lease is lost: stop using the key.`,
		Example: `  qasight renew qa-win-01~17
  qasight renew qa-win-01 --ttl 1h
  qasight renew --pool win-vms`,
		Args:              command.Args(0, 1, "LEASE or KEY"),
		ValidArgsFunction: completeTaken(f),
		RunE: func(c *cobra.Command, args []string) error {
			if err := named(c, args, o.pool, &o.name); err != nil {
				return err
			}
			if err := checkTTL(o.ttl); err != nil {
				return err
			}
			ctx, stop := f.UntilSignal(c.Context())
			defer stop()
			return interrupted(ctx, runRenew(ctx, f, o))
		},
	}
	c.Flags().DurationVar(&o.ttl, "ttl", 0, "the lease's time from now on (default: as it was taken)")
	poolFlag(f, c, &o.pool)
	return c
}

// poolFlag adds --pool, which finds the one lease of a pool.
func poolFlag(f *command.Factory, c *cobra.Command, pool *string) {
	c.Flags().StringVar(pool, "pool", "", "the pool, when just one of its keys was taken here")
	_ = c.RegisterFlagCompletionFunc("pool", func(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return f.CompletePools(prefix)
	})
}

// named takes the argument over; without one, --pool must be there.
func named(c *cobra.Command, args []string, pool string, name *string) error {
	switch {
	case len(args) == 1 && args[0] != "":
		*name = args[0]
	case pool == "":
		return fault.Errorf(fault.Invalid, "want a LEASE or a KEY, or --pool: see `%s --help`", c.CommandPath())
	}
	return nil
}

func runRenew(ctx context.Context, f *command.Factory, o *renewOptions) error {
	t, err := findTaken(ctx, f, o.name, o.pool)
	if err != nil {
		return err
	}
	defer func() { _ = t.broker.Close() }() // all is done by then
	if !t.found {
		_, err := t.elsewhere(ctx, o.name, o.pool)
		if err == nil {
			err = fault.WithCode(fault.Errorf(fault.Conflict, "%s was released already: take a key anew", nameOf(o.name, o.pool)), "lease_released")
		}
		return err
	}
	l, err := t.broker.Resume(ctx, t.saved.id.String(), t.saved.secret)
	if err == nil && o.ttl != 0 {
		err = l.Renew(ctx, client.RenewRequest{TTL: int64((o.ttl + time.Second - 1) / time.Second)})
	}
	if err != nil {
		return t.failed(err)
	}
	t.saved.until = time.Now().Add(l.Left())
	if err := t.files.put(t.saved); err != nil {
		return err
	}
	if f.JSON {
		return f.PrintJSON(described(l.Info(), l.Left()))
	}
	_, err = fmt.Fprintf(f.Out(), "%s is held for %s more\n", t.saved.id, command.Duration(l.Left()))
	return err
}

// taken is a lease that take took here, or the lack of one.
type taken struct {
	config *config.File
	broker broker.Broker
	files  leases
	saved  saved
	found  bool
}

// findTaken looks for a lease, and opens the broker that it is of.
func findTaken(ctx context.Context, f *command.Factory, name, pool string) (*taken, error) {
	cfg, err := f.Config()
	if err != nil {
		return nil, err
	}
	t := &taken{config: cfg, files: savedLeases(f, cfg.Project)}
	if t.saved, t.found, err = t.files.find(name, pool, time.Now()); err != nil {
		return nil, err
	}
	if t.found && t.saved.server != cfg.Server {
		// A secret goes to nobody else than who gave it out.
		return nil, fault.Errorf(fault.Denied, "lease %s was taken from %s, and the file names %s now: use the file that it was taken with",
			t.saved.id, placeName(t.saved.server), placeName(cfg.Server))
	}
	t.broker, err = f.Broker(ctx, cfg)
	return t, err
}

func placeName(server string) string {
	if server == "" {
		return "the local lease database"
	}
	return "team server " + command.Plain(server)
}

func nameOf(name, pool string) string {
	if name == "" {
		return "the lease of pool " + command.Plain(pool)
	}
	return command.Plain(name)
}

// failed forgets a lease that an error says is lost.
func (t *taken) failed(err error) error {
	if strings.HasPrefix(fault.CodeOf(err), "lease") {
		_ = t.files.remove(t.saved.id.String())
	}
	return err
}

// elsewhere says what becomes of a lease that is not among those taken here. The
// words are for one that nobody has to release any more; an error says that it
// runs, is lost or was never there.
func (t *taken) elsewhere(ctx context.Context, name, pool string) (string, error) {
	switch {
	case name == "":
		return "no key of pool " + command.Plain(pool) + " that was taken here is held any more", nil
	case strings.Contains(name, "~"):
		info, err := t.broker.Lease(ctx, name)
		switch {
		case err != nil:
			return "", err
		case info.State == client.StateReleased:
			return name + " was released already", nil
		case info.State == client.StateHeld || info.State == client.StateResetting:
			return "", t.notTaken(info.Pool, info.Key, info.ID, info.Account, info.Holder)
		}
		return "", fault.WithCode(fault.Errorf(fault.Conflict, "lease %s %s", name, lostBy(info.State)), "lease_"+info.State)
	}
	pools := t.config.Lists(name)
	if pool != "" {
		pools = []string{pool}
	}
	if len(pools) == 0 {
		return "", fault.Errorf(fault.Invalid, "no key %s was taken here, and no pool of %s lists it", name, t.config.Path)
	}
	v, err := t.broker.Pool(ctx, pools[0])
	if err != nil {
		return "", err
	}
	for _, k := range v.Members {
		if k.Name == name && k.Lease != nil {
			return "", t.notTaken(k.Lease.Pool, name, k.Lease.ID, k.Lease.Account, k.Lease.Holder)
		}
	}
	return "nobody holds " + name + ": it was released already", nil
}

// lostBy says how a lease ended that was not released.
func lostBy(state string) string {
	switch state {
	case client.StateForced:
		return "was ended by an admin"
	case client.StateExpired:
		return "is lost: its time was over"
	}
	return "is lost: it is " + state
}

// notTaken refuses a running lease whose secret is not here.
func (t *taken) notTaken(pool, key, id, account, holder string) error {
	who := command.Plain(account)
	if holder != "" {
		who += " (" + command.Plain(holder) + ")"
	}
	return fault.Errorf(fault.Denied,
		"lease %s of %s is held by %s, and was not taken by `qasight take` here (there is no file of it in %s): it is released where it was taken, or ended by an admin with `qasight pool force-release %s %s --reason \"…\"`",
		command.Plain(id), key, who, t.files.dir, pool, key)
}
