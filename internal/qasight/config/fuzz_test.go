package config_test

import (
	"encoding/json"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/qasight/config"
)

var (
	nameForm    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
	problemForm = regexp.MustCompile(`^qasight\.yaml:(\d+):(\d+): (\S.*)$`)
	restForm    = regexp.MustCompile(`^qasight\.yaml: and \d+ more: mend these first$`)
)

// holds checks that a file which was accepted keeps every rule of the format,
// said here once more and in other words than the parser's.
func holds(t *testing.T, text string, f *config.File) {
	t.Helper()
	wrong := func(format string, args ...any) {
		t.Helper()
		t.Errorf(format+"\n%.2000q", append(args, text)...)
	}
	lines := linesOf(text)
	within := func(what string, d, low, high time.Duration) {
		if d < low || d > high {
			wrong("%s is %s", what, d)
		}
	}
	runs := func(what, command string) {
		if strings.TrimSpace(command) == "" || strings.Contains(command, "\x00") || strings.Contains(command, "\r") || len(command) > 64<<10 {
			wrong("%s is %q", what, command)
		}
	}
	if !nameForm.MatchString(f.Project) || len(f.Pools) == 0 || len(f.Pools) > config.MaxPools {
		wrong("project %q has %d pools", f.Project, len(f.Pools))
	}
	if f.Server != "" {
		u, err := url.Parse(f.Server)
		if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			wrong("server is %q", f.Server)
		}
	}
	pools := map[string]bool{}
	for i := range f.Pools {
		p := &f.Pools[i]
		if !nameForm.MatchString(p.Name) || pools[p.Name] {
			wrong("pool %q is there", p.Name)
		}
		pools[p.Name] = true
		stands(t, lines, p.Name, p.At)
		if len(p.Items) > lease.MaxItems || p.Items == nil {
			wrong("pool %s has %d items", p.Name, len(p.Items))
		}
		items := map[string]bool{}
		for _, item := range p.Items {
			if !nameForm.MatchString(item) || items[item] {
				wrong("item %q is in pool %s", item, p.Name)
			}
			items[item] = true
			stands(t, lines, item, p.ItemAt(item))
		}
		within("lease_ttl", p.TTL, 5*time.Second, 24*time.Hour)
		within("cooldown", p.Cooldown, 0, 720*time.Hour)
		within("hook_timeout", p.Hooks.Timeout, time.Second, 24*time.Hour)
		if p.TTL%time.Second != 0 || p.Cooldown%time.Second != 0 {
			wrong("pool %s has times %s and %s", p.Name, p.TTL, p.Cooldown)
		}
		if p.Check != (p.Hooks.Check != "") || p.Reset != (p.Hooks.Reset != "") {
			wrong("pool %s does not say what hooks it has: %+v", p.Name, p)
		}
		for hook, command := range map[string]string{"on_check": p.Hooks.Check, "on_reset": p.Hooks.Reset} {
			if command != "" {
				runs(hook, command)
			}
		}
		if v := p.Provider; v != nil {
			runs("list", v.List)
			within("timeout", v.Timeout, time.Second, 24*time.Hour)
			if v.Prefix != "" && (!nameForm.MatchString(v.Prefix) || len(v.Prefix) > 64) || v.MaxItems < 0 || v.MaxItems > lease.MaxItems {
				wrong("provider %+v", v)
			}
			for _, verb := range v.Allow {
				switch {
				case v.Prefix == "", verb == config.Create && (v.Create == "" || v.MaxItems < 1), verb == config.Destroy && v.Destroy == "",
					verb != config.Create && verb != config.Destroy:
					wrong("%q is allowed by %+v", verb, v)
				}
			}
			if len(v.Allow) == 2 && v.Allow[0] == v.Allow[1] || len(v.Allow) > 2 {
				wrong("provider allows %v", v.Allow)
			}
		}
	}
	stages := map[string]bool{}
	for _, s := range f.Stages {
		if !nameForm.MatchString(s.Name) || stages[s.Name] || !pools[s.Pool] || s.Workers < 1 || s.Workers > config.MaxWorkers {
			wrong("stage %+v", s)
		}
		stages[s.Name] = true
		runs("command", s.Command)
		stands(t, lines, s.Name, s.At)
	}
}

// linesOf are a text's lines in characters, as positions count them.
func linesOf(text string) [][]rune {
	var out [][]rune
	for _, l := range strings.Split(strings.TrimPrefix(text, "\uFEFF"), "\n") {
		out = append(out, []rune(strings.TrimSuffix(l, "\r")))
	}
	return out
}

// stands checks that a name begins where its position says.
func stands(t rapid.TB, lines [][]rune, name string, at config.Position) {
	t.Helper()
	if at.Line < 1 || at.Line > len(lines) || at.Column < 1 || at.Column > len(lines[at.Line-1]) {
		t.Errorf("%q is said to stand at %s, which is not in the file", name, at)
		return
	}
	// In quotes it may be written in other ways.
	there := string(lines[at.Line-1][at.Column-1:])
	if !strings.HasPrefix(there, name) && !strings.HasPrefix(there, `"`) && !strings.HasPrefix(there, "'") && there[0] != '|' && there[0] != '>' {
		t.Errorf("%q is said to stand at %s, and there is %.60q", name, at, there)
	}
}

// told checks an error: at most ten problems, a line each, in the file's order,
// each at a place in the file.
func told(t *testing.T, text string, err error) {
	t.Helper()
	all := strings.Split(err.Error(), "\n")
	if len(all) > 1 && restForm.MatchString(all[len(all)-1]) {
		all = all[:len(all)-1]
	}
	if len(all) > 10 {
		t.Errorf("%d problems are told", len(all))
	}
	lines, line, column := linesOf(text), 0, 0
	for _, one := range all {
		m := problemForm.FindStringSubmatch(one)
		if m == nil {
			t.Errorf("a problem reads %q", one)
			continue
		}
		l, _ := strconv.Atoi(m[1])
		c, _ := strconv.Atoi(m[2])
		// What is missing is missing behind the last character.
		if l < 1 || l > len(lines) || c < 1 || c > len(lines[l-1])+1 {
			t.Errorf("%q is not in the file, which has %d lines: %.2000q", one, len(lines), text)
		}
		if l < line || l == line && c < column {
			t.Errorf("%q comes after line %d", one, line)
		}
		line, column = l, c
		if len(m[3]) > 400 {
			t.Errorf("a problem is told in %d bytes: %s", len(m[3]), m[3])
		}
		if strings.ContainsFunc(m[3], func(r rune) bool { return r < ' ' || r == 0x7f }) {
			t.Errorf("a problem has control characters: %q", m[3])
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range good() {
		f.Add(s.text)
	}
	for _, s := range bad() {
		if len(s.text) < 10_000 {
			f.Add(s.text)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := config.Parse("qasight.yaml", "/srv/shop", []byte(text))
		if (got == nil) == (err == nil) {
			t.Fatalf("got %v and %v", got, err)
		}
		if err != nil {
			told(t, text, err)
			return
		}
		holds(t, text, got)
	})
}

// fieldsOf are the names of all fields, as the schema has them.
func fieldsOf(t *testing.T) map[string]bool {
	t.Helper()
	var root any
	if err := json.Unmarshal(config.Schema(), &root); err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	var walk func(v any)
	walk = func(v any) {
		m, ok := v.(map[string]any)
		if !ok {
			return
		}
		if m["type"] == "object" {
			props, _ := m["properties"].(map[string]any)
			for name, p := range props {
				out[name] = true
				walk(p)
			}
			walk(m["additionalProperties"])
		}
	}
	walk(root)
	return out
}
