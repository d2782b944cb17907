// Package servecmd holds the team server, and what people and admins do with it:
// server, login, whoami and token. The server runs no command and reads no
// qasight.yaml.
package servecmd

import (
	"github.com/spf13/cobra"

	"fleetdesk/internal/qasight/cli/command"
)

// New returns the commands.
func New(f *command.Factory) []*cobra.Command {
	return []*cobra.Command{newServer(f), newLogin(f), newWhoami(f), newToken(f)}
}
