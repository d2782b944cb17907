// Package leasecmd holds exec, take, renew and release.
package leasecmd

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/qasight/cli/command"
	"fleetdesk/internal/qasight/pool"
)

// New returns the commands.
func New(f *command.Factory) []*cobra.Command {
	return []*cobra.Command{newExec(f), newTake(f), newRenew(f), newRelease(f)}
}

// taking are the flags of whoever takes a key.
type taking struct {
	wait, ttl time.Duration
	holder    string
}

// flags adds them; wait is the default and usual its words.
func (t *taking) flags(c *cobra.Command, wait time.Duration, usual string) {
	flags := c.Flags()
	flags.DurationVar(&t.wait, "wait", wait, "how long to wait for a key, such as 10m; 0 for not at all (default: "+usual+")")
	flags.Lookup("wait").DefValue = "0s" // its own words say more
	flags.DurationVar(&t.ttl, "ttl", 0, "the lease's time (default: the pool's lease_ttl)")
	flags.StringVar(&t.holder, "holder", "", "who uses the key, for people (default: you, this machine and the process)")
}

func (t *taking) check(c *cobra.Command) error {
	if c.Flags().Changed("wait") && t.wait < 0 {
		return fault.Errorf(fault.Invalid, "--wait is %s: want 0 or more", pool.Short(t.wait))
	}
	return checkTTL(t.ttl)
}

func checkTTL(ttl time.Duration) error {
	if ttl != 0 && (ttl < lease.MinTTL || ttl > lease.MaxTTL) {
		return fault.Errorf(fault.Invalid, "--ttl is %s: want %s to %s", pool.Short(ttl), pool.Short(lease.MinTTL), pool.Short(lease.MaxTTL))
	}
	return nil
}

// completePool completes the first argument alone.
func completePool(f *command.Factory) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return f.CompletePools(prefix)
	}
}

// interrupted makes what a signal ended end with its code.
func interrupted(ctx context.Context, err error) error {
	if e, ok := context.Cause(ctx).(command.Interrupted); ok && err != nil { //nolint:errorlint // it is the cause itself
		return command.Exit(e.ExitCode(), e)
	}
	return err
}
