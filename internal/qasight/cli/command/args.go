package command

import (
	"strings"

	"github.com/spf13/cobra"

	"fleetdesk/internal/core/fault"
)

// NoArgs refuses arguments of a command that takes none; where it has subcommands,
// the argument was meant to be one of them.
func NoArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if !c.HasAvailableSubCommands() {
		return fault.Errorf(fault.Invalid, "`%s` takes no arguments, got %s: see `%s --help`", c.CommandPath(), quote(args[0]), c.CommandPath())
	}
	// As cobra has it where it suggests by itself.
	c.SuggestionsMinimumDistance = max(c.SuggestionsMinimumDistance, 2)
	text := "unknown command " + quote(args[0]) + " for `" + c.CommandPath() + "`"
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		text += ": did you mean " + strings.Join(near, " or ") + "?"
	}
	return fault.New(fault.Invalid, text+" (see `"+c.CommandPath()+" --help`)")
}

func quote(s string) string { return `"` + Plain(s) + `"` }

// Args checks the number of arguments, at most if most is not negative; what names
// them in the error, such as "POOL KEY…".
func Args(least, most int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return fault.Errorf(fault.Invalid, "want %s, got %d arguments: see `%s --help`", what, len(args), c.CommandPath())
		case most >= 0 && len(args) > most:
			return fault.Errorf(fault.Invalid, "want %s, got %s too: see `%s --help`", what, quote(args[most]), c.CommandPath())
		}
		return nil
	}
}
