package cli

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/cli/command"
)

// groups are the headings of the root's help, and the commands below them.
func groups() []struct{ id, title, commands string } {
	return []struct{ id, title, commands string }{
		{"file", "The project's file:", "init config"},
		{"keys", "Keys and machines:", "exec take renew release stage pool"},
		{"team", "The team server:", "login whoami server token"},
		{"more", "More:", "completion help version"},
	}
}

// group puts the root's commands below their headings.
func group(root *cobra.Command) {
	for _, g := range groups() {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for _, name := range strings.Fields(g.commands) {
			for _, c := range root.Commands() {
				if c.Name() == name {
					c.GroupID = g.id
				}
			}
		}
	}
}

// complete has cobra's command of completion refuse what it does not know, as all
// commands do.
func complete(f *command.Factory, root *cobra.Command) {
	for _, c := range root.Commands() {
		if c.Name() != "completion" {
			continue
		}
		c.Short = "Print a script that completes commands, pools and keys in your shell"
		c.Example = "  source <(qasight completion bash)\n  qasight completion zsh > \"${fpath[1]}/_qasight\""
		c.Args = command.NoArgs
		c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
		each(c, func(c *cobra.Command) { withoutJSON(f, c) })
	}
}

// withoutJSON has a command refuse --json, since what it prints is text.
func withoutJSON(f *command.Factory, c *cobra.Command) {
	do := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if f.JSON {
			return fault.Errorf(fault.Invalid, "`%s` prints text, so --json means nothing to it: leave it out", c.CommandPath())
		}
		return do(c, args)
	}
}

// each calls do with c and all commands below it.
func each(c *cobra.Command, do func(*cobra.Command)) {
	do(c)
	for _, sub := range c.Commands() {
		each(sub, do)
	}
}

// run is one run of the program.
type run struct{ begun bool }

// watch notes when a command begins: what is wrong before, and what cobra says then
// has no class, is the command line.
func (r *run) watch(root *cobra.Command) {
	each(root, func(c *cobra.Command) {
		do := c.RunE
		if do == nil {
			return
		}
		c.RunE = func(c *cobra.Command, args []string) error {
			r.begun = true
			return do(c, args)
		}
	})
}

// class gives an error of the command line itself its class.
func (r *run) class(err error) error {
	if err == nil || r.begun || fault.Classed(err) {
		return err
	}
	return fault.Wrap(fault.Invalid, err)
}

// badFlag is an error in a command's flags, with the flag that was meant perhaps.
func badFlag(c *cobra.Command, err error) error {
	// So has the error of a flag without its value: then the name is that of a flag.
	unknown, named := errors.AsType[interface {
		error
		GetSpecifiedName() string
		GetSpecifiedShortnames() string
	}](err)
	hint := ""
	if named && unknown.GetSpecifiedShortnames() == "" {
		name := unknown.GetSpecifiedName()
		if meant := nearest(name, flagsOf(c)); meant != "" && meant != name {
			hint = ": did you mean --" + meant + "?"
		}
	}
	if text := badValue(c, err); text != "" {
		return fault.Errorf(fault.Invalid, "%s (see `%s --help`)", text, c.CommandPath())
	}
	return fault.Errorf(fault.Invalid, "%w%s (see `%s --help`)", err, hint, c.CommandPath())
}

var (
	// valued is how the flag of a bad value is named: "-f, --file" or "--wait".
	valued = regexp.MustCompile(`for "(?:-., )?--([a-z0-9-]+)" flag`)
	number = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?$`)
	inDays = regexp.MustCompile(`^([0-9]{1,3})d$`)
)

// badValue says what is wrong with the value of a flag; "" when err is of another
// kind.
func badValue(c *cobra.Command, err error) string {
	bad, ok := errors.AsType[interface {
		error
		GetValue() string
	}](err)
	if !ok {
		return ""
	}
	m := valued.FindStringSubmatch(err.Error())
	if m == nil || c.Flag(m[1]) == nil {
		return ""
	}
	name, value := "--"+m[1], command.Plain(bad.GetValue())
	switch c.Flag(m[1]).Value.Type() {
	case "duration":
		if number.MatchString(value) {
			return fmt.Sprintf("%s: %s of what? write %ss or %sm", name, value, value, value)
		}
		if d := inDays.FindStringSubmatch(value); d != nil {
			n, _ := strconv.Atoi(d[1])
			return fmt.Sprintf("%s: there is no unit for days: write %dh", name, 24*n)
		}
		return fmt.Sprintf("%s: %q is no time: write one such as 90s, 30m or 1h30m", name, value)
	case "int", "int64":
		return fmt.Sprintf("%s: %q: want a whole number", name, value)
	case "float64":
		return fmt.Sprintf("%s: %q: want a number", name, value)
	case "bool":
		return fmt.Sprintf("%s: %q: want true or false, or nothing", name, value)
	}
	return ""
}

var flagName = regexp.MustCompile(`(?m)^ {2,6}(?:-[a-zA-Z], )?--([a-z0-9-]+)`)

// flagsOf are the names of the flags that a command shows.
func flagsOf(c *cobra.Command) []string {
	var out []string
	for _, m := range flagName.FindAllStringSubmatch(c.LocalFlags().FlagUsages()+c.InheritedFlags().FlagUsages(), -1) {
		out = append(out, m[1])
	}
	return out
}

// nearest returns the one of known that word was meant to be; "" when none reads
// alike.
func nearest(word string, known []string) string {
	best, least := "", 3
	for _, k := range known {
		d := distance(word, k)
		if len(word) > 2 && strings.HasPrefix(k, word) {
			d = min(d, 1)
		}
		if d < least && d < len(k) {
			best, least = k, d
		}
	}
	return best
}

// distance counts the letters to add, drop or replace that make a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			d := corner
			if a[i] != b[j] {
				d++
			}
			corner = row[j+1]
			row[j+1] = min(d, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// newHelp is cobra's own, which would answer 0 to a command that does not exist.
func newHelp(f *command.Factory) *cobra.Command {
	c := &cobra.Command{
		Use: "help [COMMAND]", Short: "Show what a command does",
		Example: `  qasight help
  qasight help pool add`,
		ValidArgsFunction: func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			var names []string
			if about, rest, err := c.Root().Find(args); err == nil && len(rest) == 0 {
				for _, sub := range about.Commands() {
					if sub.IsAvailableCommand() && strings.HasPrefix(sub.Name(), prefix) {
						names = append(names, sub.Name())
					}
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			about, rest, err := c.Root().Find(args)
			if err != nil {
				return fault.Wrap(fault.Invalid, err)
			}
			if err := command.NoArgs(about, rest); err != nil {
				return err
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
	withoutJSON(f, c)
	return c
}
