package filecmd

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/cli/command"
	"fleetdesk/internal/qasight/config"
)

func newConfig(f *command.Factory) *cobra.Command {
	c := &cobra.Command{
		Use: "config", Short: "Check qasight.yaml, and print its schema", Args: command.NoArgs,
		Example: `  qasight config check
  qasight config schema > qasight.schema.json`,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(
		&cobra.Command{
			Use: "check", Short: "Say what is wrong with qasight.yaml, and where", Args: command.NoArgs,
			Long: `Reads qasight.yaml and says what is wrong with it, with line and column; the exit
code is then 2. It warns, with exit code 0, of what is well-formed and will not work.
No command in the file is run.`,
			Example: `  qasight config check
  qasight config check --file ci/qasight.yaml --json`,
			RunE: func(*cobra.Command, []string) error { return check(f) },
		},
		&cobra.Command{
			Use: "schema", Short: "Print the JSON schema of qasight.yaml, for editors", Args: command.NoArgs,
			Example: `  qasight config schema > qasight.schema.json`,
			RunE: func(*cobra.Command, []string) error {
				_, err := f.Out().Write(config.Schema())
				return err
			},
		},
	)
	return c
}

// checked is what --json prints of a file.
type checked struct {
	// File is "" where none was found.
	File string `json:"file,omitempty"`
	OK   bool   `json:"ok"`
	// Project and the numbers are of a file that is OK. Keys counts each once,
	// however many pools have it.
	Project string `json:"project,omitempty"`
	Pools   int    `json:"pools"`
	Keys    int    `json:"keys"`
	Stages  int    `json:"stages"`
	// Errors are the first ten; where there are more, the last one says so.
	Errors   []problem `json:"errors"`
	Warnings []problem `json:"warnings"`
}

// problem is one thing that is wrong. Line and Column count from 1; they are 0 where
// it is about the whole file.
type problem struct {
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Message string `json:"message"`
}

func check(f *command.Factory) error {
	c, err := f.Config()
	if err != nil {
		if !f.JSON || fault.Of(err) != fault.Invalid {
			return err
		}
		if err := f.PrintJSON(checked{File: f.File, Errors: problems(err.Error()), Warnings: []problem{}}); err != nil {
			return err
		}
		return command.Exit(command.ExitUsage, nil)
	}
	keys := map[string]bool{}
	for _, p := range c.Pools {
		for _, k := range p.Items {
			keys[k] = true
		}
	}
	found := checked{
		File: c.Path, OK: true, Project: c.Project, Pools: len(c.Pools), Keys: len(keys), Stages: len(c.Stages),
		Errors: []problem{}, Warnings: warnings(c),
	}
	if f.JSON {
		return f.PrintJSON(found)
	}
	for _, w := range found.Warnings {
		f.Sayf("%s:%d:%d: warning: %s", c.Path, w.Line, w.Column, w.Message)
	}
	_, err = fmt.Fprintf(f.Out(), "%s: %s, %s, %s\n", c.Path, count(found.Pools, "pool"), count(found.Keys, "key"), count(found.Stages, "stage"))
	return err
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// placed is a line of what config says of a file: "FILE:LINE:COLUMN: MESSAGE".
var placed = regexp.MustCompile(`^.*?:([0-9]+):([0-9]+): (.*)$`)

// problems takes the text of an error about a file apart, a line each.
func problems(text string) []problem {
	var out []problem
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		p := problem{Message: line}
		if m := placed.FindStringSubmatch(line); m != nil {
			at, errLine := strconv.Atoi(m[1])
			column, errColumn := strconv.Atoi(m[2])
			if errLine == nil && errColumn == nil {
				p = problem{at, column, m[3]}
			}
		}
		out = append(out, p)
	}
	return out
}
