package poolcmd

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/cli/command"
	"fleetdesk/internal/qasight/config"
)

// keyOptions are those of a command that changes one key.
type keyOptions struct {
	f         *command.Factory
	pool, key string
	reason    string
	fence     int64
	// fenced is whether --fence was given.
	fenced bool
	// already is whether there was nothing to change.
	already bool
}

// keyChanged is what the commands print with --json.
type keyChanged struct {
	Pool string `json:"pool"`
	// Done is disabled, enabled or released; Already is whether it was so before.
	Done    string     `json:"done"`
	Already bool       `json:"already,omitempty"`
	Reason  string     `json:"reason,omitempty"`
	Key     client.Key `json:"key"`
	// Lease is the one that force-release ended.
	Lease *client.KeyLease `json:"lease,omitempty"`
}

func newDisable(f *command.Factory) *cobra.Command {
	o := &keyOptions{f: f}
	c := keyCommand(o, "disable", ` --reason "boots into rescue mode"`, "Take a key out of use", `Takes a key out of use: nobody gets it any more. Who holds it now keeps it. With a
team server this needs the role admin.`, runDisable)
	c.Flags().StringVar(&o.reason, "reason", "", "why, for people (required)")
	return c
}

func newEnable(f *command.Factory) *cobra.Command {
	o := &keyOptions{f: f}
	c := keyCommand(o, "enable", "", "Put a disabled key back into use", `Puts a key back into use that a person or a rule disabled. With a team server this
needs the role admin.`, runEnable)
	c.Flags().StringVar(&o.reason, "reason", "", "why, for people; it is shown and not kept")
	return c
}

func newForceRelease(f *command.Factory) *cobra.Command {
	o := &keyOptions{f: f}
	c := keyCommand(o, "force-release", ` --reason "its run hangs, and its owner is away"`, "End the lease of a key that somebody holds", `Ends the lease of a key, whoever holds it: their next renewal says that it was
forced. Only the lease that is shown is ended; when somebody else has the key by
then, nothing is. With a team server this needs the role admin, and the reason goes
to its audit log.`, runForce)
	c.Flags().StringVar(&o.reason, "reason", "", "why, for people (required)")
	c.Flags().Int64Var(&o.fence, "fence", 0, "end the lease with this number only, as QASIGHT_FENCE has it")
	return c
}

// keyCommand is a command with the arguments POOL KEY; rest ends its example.
func keyCommand(o *keyOptions, verb, rest, short, long string, run func(context.Context, *keyOptions) error) *cobra.Command {
	return &cobra.Command{
		Use: verb + " POOL KEY", Short: short, Long: long, Example: "  qasight pool " + verb + " win-vms qa-win-01" + rest,
		Args:              command.Args(2, 2, "POOL KEY"),
		ValidArgsFunction: completeKey(o.f),
		RunE: func(c *cobra.Command, args []string) error {
			o.pool, o.key, o.fenced = args[0], args[1], c.Flags().Changed("fence")
			o.reason = strings.TrimSpace(o.reason)
			ctx, stop := o.f.UntilSignal(c.Context())
			defer stop()
			return orInterrupted(ctx, run(ctx, o))
		},
	}
}

// needReason refuses a change without a word about it.
func (o *keyOptions) needReason() error {
	if o.reason == "" {
		return fault.New(fault.Invalid, `say why, for the others: --reason "…"`)
	}
	if len(o.reason) > lease.MaxText {
		return fault.Errorf(fault.Invalid, "the reason has %d bytes: use at most %d", len(o.reason), lease.MaxText)
	}
	return nil
}

// open opens the broker, where the pool is known then.
func (o *keyOptions) open(ctx context.Context) (broker.Broker, *config.Pool, error) {
	cfg, err := o.f.Config()
	if err != nil {
		return nil, nil, err
	}
	p, err := cfg.Pool(o.pool)
	if err != nil {
		return nil, nil, err
	}
	b, err := o.f.Broker(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	if cfg.Server == "" {
		// A local database follows the file.
		if err := b.Prepare(ctx, p.Pool); err != nil {
			_ = b.Close()
			return nil, nil, err
		}
	}
	return b, p, nil
}

// explain adds to an error of the broker what to do about it.
func (o *keyOptions) explain(p *config.Pool, err error) error {
	switch fault.CodeOf(err) {
	case "pool":
		return fmt.Errorf("%w: it was never published there: an admin runs `qasight pool publish %s`", err, o.pool)
	case "key":
		return fmt.Errorf("%w: pool %s has %s", err, o.pool, some(p.Items, 5))
	case "not_held":
		return fmt.Errorf("%w: there is nothing to release (see `qasight pool why %s`)", err, o.pool)
	case "fence":
		return fmt.Errorf("%w: somebody else has it by now (see `qasight pool why %s`)", err, o.pool)
	}
	return err
}

func runDisable(ctx context.Context, o *keyOptions) error {
	if err := o.needReason(); err != nil {
		return err
	}
	return o.change(ctx, "disabled", func(ctx context.Context, b broker.Broker) (client.Key, error) {
		return b.Disable(ctx, o.pool, o.key, o.reason)
	})
}

func runEnable(ctx context.Context, o *keyOptions) error {
	return o.change(ctx, "enabled", func(ctx context.Context, b broker.Broker) (client.Key, error) {
		// Only for what is said of it: it is enabled in any case.
		if v, err := b.Pool(ctx, o.pool); err == nil {
			o.already = slices.ContainsFunc(v.Members, func(k client.Key) bool { return k.Name == o.key && k.Disabled == nil })
		}
		return b.Enable(ctx, o.pool, o.key)
	})
}

func (o *keyOptions) change(ctx context.Context, done string, change func(context.Context, broker.Broker) (client.Key, error)) error {
	b, p, err := o.open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }() // what was asked for is done, or refused
	k, err := change(ctx, b)
	if err != nil {
		return o.explain(p, err)
	}
	return o.print(keyChanged{Pool: o.pool, Done: done, Already: o.already, Reason: o.reason, Key: k})
}

// forcedRest is for how many seconds a key rests after its lease was ended: its
// holder looks each few seconds whether it has the key still, and then has to stop
// what it runs there (package hooks).
const forcedRest = 10

func runForce(ctx context.Context, o *keyOptions) error {
	if err := o.needReason(); err != nil {
		return err
	}
	if o.fenced && o.fence < 1 {
		return fault.Errorf(fault.Invalid, "--fence is a lease's number, from 1, got %d: QASIGHT_FENCE has it", o.fence)
	}
	b, p, err := o.open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }() // what was asked for is done, or refused
	v, err := b.Pool(ctx, o.pool)
	if err != nil {
		return o.explain(p, err)
	}
	var out *client.KeyLease
	for _, k := range v.Members {
		if k.Name != o.key {
			continue
		}
		if out = k.Lease; out == nil {
			// Not even asked for: somebody may take it in this moment.
			return o.explain(p, fault.WithCode(fault.Errorf(fault.Conflict, "nobody holds %s: it is %s", o.key, k.State), "not_held"))
		}
	}
	if out != nil && !o.fenced {
		// Who is told to be thrown out is who is, or nobody.
		o.fence = fence(out)
	}
	k, err := b.Force(ctx, o.pool, o.key, client.ForceRequest{Fence: o.fence, Reason: o.reason, Rest: forcedRest})
	if err != nil {
		return o.explain(p, err)
	}
	if out != nil && !o.f.JSON {
		o.f.Sayf("%s", command.Plain(fmt.Sprintf("ended the lease %s of %s, who held it until %s",
			out.ID, who(out.Account, out.Holder), told{time.Now()}.until(out.SecondsLeft))))
	}
	return o.print(keyChanged{Pool: o.pool, Done: "released", Reason: o.reason, Key: k, Lease: out})
}

func (o *keyOptions) print(c keyChanged) error {
	if o.f.JSON {
		return o.f.PrintJSON(c)
	}
	text := c.Key.Name + " of pool " + c.Pool + ": " + c.Done
	if c.Already {
		text = c.Key.Name + " of pool " + c.Pool + ": was not disabled"
	}
	if c.Lease != nil {
		text += ", taken from " + who(c.Lease.Account, c.Lease.Holder)
	}
	if c.Reason != "" && c.Key.Disabled == nil { // else it is told below
		text += " (" + c.Reason + ")"
	}
	if c.Key.State != c.Done { // else it was said
		text += "; it is " + c.Key.State + " now"
	}
	if why := (told{time.Now()}).why(c.Key, c.Pool); why != "" {
		text += ": " + why
	}
	_, err := fmt.Fprintln(o.f.Out(), command.Plain(text))
	return err
}
