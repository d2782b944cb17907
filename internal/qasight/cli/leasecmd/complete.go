package leasecmd

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"fleetdesk/internal/qasight/cli/command"
)

// completeTaken completes the leases that take took here: their keys, and their
// ids once what is typed is more than that. It reads the file and the names in the
// folder of leases, and nothing else.
func completeTaken(f *command.Factory) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		cfg, err := f.Config()
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for _, id := range savedLeases(f, cfg.Project).ids() {
			names = append(names, id.Key, id.String())
		}
		slices.Sort(names)
		names = slices.DeleteFunc(slices.Compact(names), func(n string) bool { return !strings.HasPrefix(n, prefix) })
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
