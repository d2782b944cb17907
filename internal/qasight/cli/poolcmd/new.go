// Package poolcmd holds the commands under "qasight pool": looks at pools, and a
// person's changes. It alone reaches the provider's commands.
package poolcmd

import (
	"github.com/spf13/cobra"

	"fleetdesk/internal/qasight/cli/command"
)

// New returns the command "pool" with all that is under it.
func New(f *command.Factory) []*cobra.Command {
	c := &cobra.Command{
		Use: "pool", Short: "Look at pools, and change them by hand",
		Long: `Looks at pools: status, why and log change nothing. Disable, enable, force-release and
publish change what is leased, and no machine.

Add, remove and sweep have machines made or removed by the owner's own commands, when
a person says so: they show a plan and do nothing more unless --apply is given.`,
		Example: `  qasight pool status
  qasight pool why win-vms
  qasight pool sweep win-vms`,
		Args: command.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(
		newStatus(f), newWhy(f), newPublish(f), newDisable(f), newEnable(f), newForceRelease(f),
		newAdd(f), newRemove(f), newSweep(f), newLog(f),
	)
	return []*cobra.Command{c}
}
