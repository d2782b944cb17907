package cli

import (
	"github.com/spf13/cobra"

	"fleetdesk/internal/qasight/cli/command"
)

// Root returns the program's commands.
func Root(p Program) *cobra.Command { return newRoot(&command.Factory{Program: p}) }

// Nearest is how mistyped flags are guessed.
var Nearest = nearest
