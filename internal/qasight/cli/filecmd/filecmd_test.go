package filecmd_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/qasight/cli/filecmd"
	"fleetdesk/internal/qasight/config"
)

func TestProjectOf(t *testing.T) {
	t.Parallel()
	for in, tc := range map[string]struct{ reason, want string }{
		"/srv/shop":                    {"a folder's name", "shop"},
		"/srv/My Shop (2)":             {"blanks and signs", "My-Shop-2"},
		"/srv/.config":                 {"a name begins with a letter or digit", "config"},
		"/srv/übung":                   {"letters of other alphabets are none of the grammar", "bung"},
		"/srv/日本":                      {"nothing is left", "project"},
		"/":                            {"no name at all", "project"},
		"/srv/---":                     {"nothing is left", "project"},
		"/srv/123456":                  {"digits alone are a name", "123456"},
		"/srv/null":                    {"what YAML takes for nothing", "project"},
		"/srv/true":                    {"what YAML could take for something else", "true"},
		"/srv/v1.2_rc-":                {"it ends with a letter or digit, to read well", "v1.2_rc"},
		"/" + strings.Repeat("x", 300): {"it is cut", strings.Repeat("x", 128)},
	} {
		if got := filecmd.ProjectOf(in); got != tc.want {
			t.Errorf("%q: %s: got %q", in, tc.reason, got)
		}
	}
}

// Whatever the folder is called, the file that init writes is well-formed and has
// that project.
func FuzzProjectOf(f *testing.F) {
	for _, s := range []string{"shop", "My Shop", "\x00", "-", "true", "1e3", "0x1F", "null", "~", "2026-01-01", "1_000", "a:b", ".5"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		name := filecmd.ProjectOf("/srv/" + s)
		if err := lease.ValidName(name); err != nil || len(name) > lease.MaxFixedName {
			t.Fatalf("%q: %q: %v", s, name, err)
		}
		c, err := config.Parse("qasight.yaml", "/srv", config.Template(name))
		if err != nil || c.Project != name {
			t.Fatalf("%q: %q: %v", s, name, err)
		}
	})
}

func TestScriptOf(t *testing.T) {
	t.Parallel()
	for in, tc := range map[string]struct{ reason, want string }{
		"./check.sh":                {"a script", "./check.sh"},
		"./check.sh win 2>&1":       {"with arguments", "./check.sh"},
		"  ../tools/check.sh\n":     {"elsewhere", "../tools/check.sh"},
		"./check.sh;./other.sh":     {"the first of several", "./check.sh"},
		"./check.sh|tee log":        {"in a pipe", "./check.sh"},
		"./check.sh>log":            {"with a redirection", "./check.sh"},
		"check.sh":                  {"one that the shell looks for", ""},
		"/usr/bin/check":            {"another machine may have it", ""},
		"FOO=1 ./check.sh":          {"a shell's word", ""},
		"if ./check.sh; then :; fi": {"a shell's word", ""},
		"./$NAME.sh":                {"only a shell knows", ""},
		"./`name`":                  {"only a shell knows", ""},
		`"./my check.sh"`:           {"only a shell knows", ""},
		`./my\ check.sh`:            {"only a shell knows", ""},
		"./check*":                  {"only a shell knows", ""},
		"":                          {"no command", ""},
	} {
		if got := filecmd.ScriptOf(in); got != tc.want {
			t.Errorf("%q: %s: got %q", in, tc.reason, got)
		}
	}
}

func TestProblems(t *testing.T) {
	t.Parallel()
	type problem = filecmd.Problem
	for name, tc := range map[string]struct {
		reason, in string
		want       []problem
	}{
		"places":  {"each line has one", "a.yaml:3:14: what: 1:2: x\na.yaml:5:1: more", []problem{{3, 14, "what: 1:2: x"}, {5, 1, "more"}}},
		"rest":    {"the last line counts", "a.yaml:3:14: what\na.yaml: and 7 more: mend these first", []problem{{3, 14, "what"}, {0, 0, "a.yaml: and 7 more: mend these first"}}},
		"whole":   {"about the whole file", "there is no qasight.yaml", []problem{{0, 0, "there is no qasight.yaml"}}},
		"too far": {"a number that is none", "a:99999999999999999999:1: x", []problem{{0, 0, "a:99999999999999999999:1: x"}}},
	} {
		if diff := cmp.Diff(tc.want, filecmd.Problems(tc.in)); diff != "" {
			t.Errorf("%s: %s\n%s", name, tc.reason, diff)
		}
	}
}

func FuzzProblems(f *testing.F) {
	f.Add("a.yaml:3:14: what\nb")
	f.Add("\n\n:1:1: ")
	f.Fuzz(func(t *testing.T, s string) {
		for _, p := range filecmd.Problems(s) {
			if p.Line < 0 || p.Column < 0 || !strings.Contains(s, p.Message) {
				t.Errorf("%q: %+v", s, p)
			}
		}
	})
}
