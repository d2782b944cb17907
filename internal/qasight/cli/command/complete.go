package command

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// completeTime bounds what the shell waits for.
const completeTime = 2 * time.Second

// CompletePools completes the names of the file's pools. It reads the file and
// nothing else.
func (f *Factory) CompletePools(prefix string) ([]string, cobra.ShellCompDirective) {
	c, err := f.Config()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, p := range c.Pools {
		if strings.HasPrefix(p.Name, prefix) {
			names = append(names, p.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// CompleteKeys completes the keys of a pool: those of the file, and those that the
// broker knows besides. No provider command is ever run for it.
func (f *Factory) CompleteKeys(ctx context.Context, pool, prefix string) ([]string, cobra.ShellCompDirective) {
	c, err := f.Config()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	seen := map[string]bool{}
	var names []string
	add := func(n string) {
		if strings.HasPrefix(n, prefix) && !seen[n] {
			seen[n] = true
			names = append(names, n)
		}
	}
	if p, err := c.Pool(pool); err == nil {
		for _, n := range p.Items {
			add(n)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, completeTime)
	defer cancel()
	if b, err := f.Looker(ctx, c); err == nil {
		defer func() { _ = b.Close() }() // it only looked
		if v, err := b.Pool(ctx, pool); err == nil {
			for _, k := range v.Members {
				add(k.Name)
			}
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
