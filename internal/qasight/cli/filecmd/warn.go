package filecmd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"fleetdesk/internal/qasight/config"
)

// warnings are what is well-formed and will not work as meant, in the file's order.
func warnings(c *config.File) []problem {
	out := []problem{}
	warn := func(at config.Position, format string, args ...any) {
		out = append(out, problem{at.Line, at.Column, fmt.Sprintf(format, args...)})
	}
	for i := range c.Pools {
		p := &c.Pools[i]
		if other, ok := c.OverlappingPrefix(p); ok {
			warn(p.At, "pool %s: its name_prefix %q overlaps with %q of pool %s: pool add, remove and sweep refuse both until one of them changes",
				p.Name, p.Provider.Prefix, other.Provider.Prefix, other.Name)
		}
		out = append(out, provided(p)...)
		commands := []named{{"on_check", p.Hooks.Check}, {"on_reset", p.Hooks.Reset}}
		if r := p.Provider; r != nil {
			commands = append(commands, named{"list", r.List}, named{"create", r.Create}, named{"destroy", r.Destroy})
		}
		for _, n := range commands {
			if why := unusable(c.Dir, n.command); why != "" {
				warn(p.At, "pool %s: %s: %s", p.Name, n.name, why)
			}
		}
	}
	for _, s := range c.Stages {
		if why := unusable(c.Dir, s.Command); why != "" {
			warn(s.At, "stage %s: command: %s", s.Name, why)
		}
		if p, err := c.Pool(s.Pool); err == nil && s.Workers > len(p.Items) {
			warn(s.At, "stage %s has %s, and pool %s has %s: as many workers always wait as there are too many",
				s.Name, count(s.Workers, "worker"), p.Name, count(len(p.Items), "key"))
		}
	}
	return out
}

// provided are warnings about a pool's items that its own provider would not have
// made.
func provided(p *config.Pool) []problem {
	r := p.Provider
	if r == nil || len(r.Allow) == 0 {
		return nil
	}
	var out []problem
	var others []string
	for _, item := range p.Items {
		if !strings.HasPrefix(item, r.Prefix) {
			others = append(others, item)
		}
	}
	if n := len(others); n > 0 {
		at, more := p.ItemAt(others[0]), ""
		if n > 1 {
			more = fmt.Sprintf(" (and %d more)", n-1)
		}
		out = append(out, problem{at.Line, at.Column, fmt.Sprintf(
			"pool %s: item %s%s does not begin with name_prefix %q: pool add, remove and sweep never touch such a machine", p.Name, others[0], more, r.Prefix)})
	}
	if n := len(p.Items); r.MaxItems > 0 && n > r.MaxItems {
		out = append(out, problem{p.At.Line, p.At.Column, fmt.Sprintf(
			"pool %s has %s, and max_items is %d: pool add refuses until it is raised", p.Name, count(n, "item"), r.MaxItems)})
	}
	return out
}

// named is a command and the field that holds it.
type named struct{ name, command string }

// unusable says why a command that begins with a script by its relative path cannot
// start; "" when it can, or when only a shell could tell.
func unusable(dir, command string) string {
	script := scriptOf(command)
	if script == "" {
		return ""
	}
	info, err := os.Stat(filepath.Join(dir, script))
	switch {
	case os.IsNotExist(err):
		return fmt.Sprintf("there is no %s in %s", script, dir)
	case err != nil:
		return fmt.Sprintf("%s cannot be looked at: %v", script, err)
	case !info.Mode().IsRegular():
		return script + " is no file"
	case info.Mode()&0o111 == 0:
		return fmt.Sprintf("%s is not executable: chmod +x %s", script, script)
	}
	return ""
}

// scriptOf returns the first word of a command when it is a path such as
// ./check.sh or ../tools/check.sh, and else "".
func scriptOf(command string) string {
	word := strings.TrimLeft(command, " \t\n")
	if !strings.HasPrefix(word, "./") && !strings.HasPrefix(word, "../") {
		return ""
	}
	if end := strings.IndexAny(word, " \t\n;|&()<>"); end >= 0 {
		word = word[:end]
	}
	// A shell makes something else of these.
	if strings.ContainsAny(word, "$`\\\"'*?[]{}~#!") {
		return ""
	}
	return word
}
