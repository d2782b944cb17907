package poolcmd

import (
	"slices"

	"github.com/spf13/cobra"

	"fleetdesk/internal/qasight/cli/command"
)

type completeFunc = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

// completePools completes any number of pools, each once.
func completePools(f *command.Factory) completeFunc {
	return func(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		names, directive := f.CompletePools(prefix)
		return slices.DeleteFunc(names, func(n string) bool { return slices.Contains(args, n) }), directive
	}
}

// completePool completes one pool.
func completePool(f *command.Factory) completeFunc {
	return func(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return f.CompletePools(prefix)
	}
}

// completeKey completes a pool and then one of its keys.
func completeKey(f *command.Factory) completeFunc {
	return func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		switch len(args) {
		case 0:
			return f.CompletePools(prefix)
		case 1:
			return f.CompleteKeys(c.Context(), args[0], prefix)
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}
