package cli_test

import (
	"bytes"
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"fleetdesk/internal/qasight/cli"
	"fleetdesk/internal/qasight/cli/command"
)

var update = flag.Bool("update", false, "write the golden files")

// commands are all that a person can type, by their whole names.
func commands() map[string]*cobra.Command {
	all := map[string]*cobra.Command{}
	var add func(*cobra.Command)
	add = func(c *cobra.Command) {
		if c.Hidden {
			return
		}
		all[c.CommandPath()] = c
		for _, sub := range c.Commands() {
			add(sub)
		}
	}
	add(cli.Root(cli.Program{Streams: cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}}))
	return all
}

// Every command says in a line what it does, and shows how it is typed.
func TestEveryCommandIsExplained(t *testing.T) {
	t.Parallel()
	all := commands()
	for name, c := range all {
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: a line says what it does, without a full stop: %q", name, c.Short)
		}
		if c.Long == "" && c.Example == "" {
			t.Errorf("%s has neither a text nor an example", name)
		}
		if c.Example == "" && !strings.HasPrefix(name, "qasight completion ") {
			t.Errorf("%s shows no example", name)
		}
		if c.RunE == nil {
			t.Errorf("%s does nothing: what is mistyped below it would be no error", name)
		}
		if c.HasParent() && c.Parent() == c.Root() && c.GroupID == "" {
			t.Errorf("%s has no heading in the help of qasight", name)
		}
	}
	// Those of the table of commands.
	for _, name := range strings.Fields(`init config exec take renew release stage pool login whoami server token version completion help
		config/check config/schema stage/run pool/status pool/why pool/publish pool/disable pool/enable pool/force-release pool/add pool/remove
		pool/sweep pool/log server/admin-token token/create token/list token/revoke token/accounts token/disable token/enable token/role`) {
		if all["qasight "+strings.ReplaceAll(name, "/", " ")] == nil {
			t.Errorf("there is no command %s", name)
		}
	}
}

// Examples are what people copy: each is a command that exists, with flags that it
// has.
func TestExamplesCanBeTyped(t *testing.T) {
	t.Parallel()
	all := commands()
	typed := regexp.MustCompile(`qasight(?: [^\s<>|&;)"'` + "`" + `#]+)+`)
	for name, c := range all {
		for _, example := range typed.FindAllString(c.Example, -1) {
			words := strings.Fields(example)
			root := all["qasight"]
			found, rest, err := root.Find(words[1:])
			if err != nil || found == root {
				t.Errorf("%s: %q is no command: %v", name, example, err)
				continue
			}
			for _, w := range rest {
				if w == "--" {
					break // what follows is somebody else's
				}
				long, isLong := strings.CutPrefix(w, "--")
				if long, _, _ = strings.Cut(long, "="); isLong && found.Flag(long) == nil {
					t.Errorf("%s: %q: %s has no flag --%s", name, example, found.CommandPath(), long)
				}
			}
		}
	}
}

// The help of the root is what a newcomer sees first, and has the exit codes.
func TestRootHelp(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	root := commands()["qasight"]
	root.SetOut(&b)
	root.SetArgs([]string{"--help"})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	const golden = "testdata/help.golden"
	if *update {
		if err := os.WriteFile(golden, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("the help differs from %s (write it anew with -update):\n%s", golden, diff)
	}
	if !strings.Contains(b.String(), command.ExitHelp()) {
		t.Error("the exit codes are not in it")
	}
}

func TestNearest(t *testing.T) {
	t.Parallel()
	known := []string{"json", "server", "file", "api-rate", "log-json", "verbose"}
	for in, tc := range map[string]struct{ reason, want string }{
		"jsn":     {"a letter is missing", "json"},
		"sever":   {"a letter is missing", "server"},
		"api":     {"it begins so", "api-rate"},
		"jsonn":   {"a letter too many", "json"},
		"colour":  {"nothing reads alike", ""},
		"":        {"nothing at all", ""},
		"x":       {"too short to guess", ""},
		"verbsoe": {"two letters changed places", "verbose"},
	} {
		if got := cli.Nearest(in, known); got != tc.want {
			t.Errorf("%q: %s: got %q, want %q", in, tc.reason, got, tc.want)
		}
	}
}
