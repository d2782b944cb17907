package command

import (
	"fmt"
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
	text := "unknown command " + quote(args[0]) + " for `" + c.CommandPath() + "`"
	if near := near(c, args[0]); len(near) > 0 {
		text += ": did you mean " + strings.Join(near, " or ") + "?"
	}
	return fault.New(fault.Invalid, text+" (see `"+c.CommandPath()+" --help`)")
}

// near are the subcommands that a word may have been meant to be: those that begin
// with it, and those of which at most two letters differ, if that is no more than
// half of it.
func near(c *cobra.Command, word string) []string {
	if word == "" { // everything begins with nothing
		return nil
	}
	c.SuggestionsMinimumDistance = min(2, len(word)/2) // zero allows none
	return c.SuggestionsFor(word)
}

// arguments is "1 argument" or "2 arguments".
func arguments(n int) string {
	if n == 1 {
		return "1 argument"
	}
	return fmt.Sprintf("%d arguments", n)
}

func quote(s string) string { return `"` + Plain(s) + `"` }

// Args checks the number of arguments, at most if most is not negative; what names
// them in the error, such as "POOL KEY…".
func Args(least, most int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return fault.Errorf(fault.Invalid, "want %s, got %s: see `%s --help`", what, arguments(len(args)), c.CommandPath())
		case most >= 0 && len(args) > most:
			return fault.Errorf(fault.Invalid, "want %s, got %s too: see `%s --help`", what, quote(args[most]), c.CommandPath())
		}
		return nil
	}
}
