// Package filecmd holds what is done with the project's file: init and config. They
// read it, and look at the scripts it names; no command in it is ever run.
package filecmd

import (
	"github.com/spf13/cobra"

	"fleetdesk/internal/qasight/cli/command"
)

// New returns the commands.
func New(f *command.Factory) []*cobra.Command {
	return []*cobra.Command{newInit(f), newConfig(f)}
}
