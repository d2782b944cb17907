package config_test

import (
	"strings"
	"testing"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/config"
)

type section struct {
	StateDir string `yaml:"stateDir"`
	Depth    int    `yaml:"depth"`
}

func TestParseRefusesTheWholeFile(t *testing.T) {
	for name, tc := range map[string]struct{ reason, in, want string }{
		"not yaml":        {"half a file must not be taken for a small one", "providers:\n  - name: [a\n", "providers.yaml"},
		"equal names":     {"one of the two would win by chance", "providers:\n- name: a\n  kind: local\n- name: a\n  kind: local\n", `providers.yaml:4: provider "a" is there already, on line 2`},
		"unknown field":   {"a typo at the top would hide all providers", "provider:\n- name: a\n", `providers.yaml:1: unknown field "provider"`},
		"no name":         {"nothing could be disabled without a name", "providers:\n- kind: local\n", "providers.yaml:2: providers need a name"},
		"bad name":        {"names stand in paths and IDs", "providers:\n- name: ../x\n  kind: local\n", `got "../x"`},
		"not a list":      {"a mapping is a likely mistake", "providers:\n  a: {kind: local}\n", `"providers" must be a list`},
		"not a mapping":   {"a bare list too", "- name: a\n", `want a mapping with the key "providers"`},
		"two documents":   {"the second would be ignored in silence", "providers: []\n---\nproviders: []\n", "second YAML document"},
		"scalar provider": {"a bare name has no kind", "providers:\n- local\n", "a provider must be a mapping"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.Parse("providers.yaml", []byte(tc.in))
			if err == nil || !strings.Contains(err.Error(), tc.want) || fault.Of(err) != fault.Invalid {
				t.Errorf("%s: got %v (%s), want an Invalid error with %q", tc.reason, err, fault.Of(err), tc.want)
			}
		})
	}
}

func TestAnErrorInsideOneSectionDisablesThatProviderAlone(t *testing.T) {
	f, err := config.Parse("providers.yaml", []byte(`# fleet
providers:
  - name: good
    kind: local
    local:
      stateDir: /var/lib/good
  - name: typo
    kind: local
    local:
      stateDirr: /var/lib/typo
  - name: type
    kind: local
    local:
      depth: deep
  - name: stray
    kind: local
    kvm: {}
  - name: twice
    kind: local
    local:
      depth: 1
      depth: 2
  - name: bare
    kind: local
  - name: kindless
`))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct{ name, err string }{
		{"good", ""},
		{"typo", `provider "typo": providers.yaml:10: unknown field "stateDirr"`},
		{"type", "providers.yaml:14:"},
		{"stray", `providers.yaml:17: provider "stray": unknown field "kvm"`},
		{"twice", `provider "twice": providers.yaml:22:`},
		{"bare", ""},
		{"kindless", `providers.yaml:25: provider "kindless" has no kind`},
	} {
		e := f.Providers[i]
		var s section
		err := e.Decode(&s)
		switch {
		case e.Name != want.name:
			t.Errorf("provider %d is %q, want %q", i, e.Name, want.name)
		case want.err == "" && err != nil:
			t.Errorf("%s: %v", want.name, err)
		case want.err != "" && (err == nil || !strings.Contains(err.Error(), want.err)):
			t.Errorf("%s: got %v, want %q", want.name, err, want.err)
		case want.err != "" && strings.Contains(err.Error(), "\n"):
			t.Errorf("%s: the error has an excerpt of the file: %v", want.name, err)
		}
		if want.name == "good" && s.StateDir != "/var/lib/good" {
			t.Errorf("good: %+v", s)
		}
	}
}

func TestHashFollowsWhatTheEntrySays(t *testing.T) {
	parse := func(s string) config.Entry {
		f, err := config.Parse("f", []byte(s))
		if err != nil {
			t.Fatal(err)
		}
		return f.Providers[0]
	}
	was := parse("providers:\n- name: a\n  kind: local\n  local: {depth: 1, list: [x, y], text: \"hello\"}\n").Hash()
	for name, tc := range map[string]struct {
		reason, in string
		same       bool
	}{
		"moved":        {"another provider must not rebuild this one", "# moved\n\nproviders:\n- name: a\n  kind: local\n  local: {depth: 1, list: [x, y], text: \"hello\"}\n- name: b\n  kind: local\n", true},
		"comments":     {"a comment changes nothing", "providers:\n# first\n- name: a # the name\n  kind: local\n  # its section\n  local: {depth: 1, list: [x, y], text: \"hello\"} # all\n  # end\n", true},
		"block style":  {"nor does layout", "providers:\n  - name: a\n    kind: local\n\n    local:\n        depth: 1 # deep\n        list:\n        # both\n        - x\n        - y\n        text: hello\n", true},
		"quotes":       {"nor do quotes", "providers:\n- name: 'a'\n  kind: \"local\"\n  local: {depth: 1, \"list\": ['x', \"\\x79\"], text: 'hello'}\n", true},
		"value":        {"a changed setting must apply", "providers:\n- name: a\n  kind: local\n  local: {depth: 2, list: [x, y], text: hello}\n", false},
		"type":         {"a text is no number", "providers:\n- name: a\n  kind: local\n  local: {depth: \"1\", list: [x, y], text: hello}\n", false},
		"order":        {"a list has an order", "providers:\n- name: a\n  kind: local\n  local: {depth: 1, list: [y, x], text: hello}\n", false},
		"nesting":      {"what is inside counts", "providers:\n- name: a\n  kind: local\n  local: {depth: 1, list: [x, [y]], text: hello}\n", false},
		"glued":        {"parts must not run together", "providers:\n- name: a\n  kind: local\n  local: {depth: 1, list: [xy], text: hello}\n", false},
		"field":        {"a field too many", "providers:\n- name: a\n  kind: local\n  local: {depth: 1, list: [x, y], text: hello, more: }\n", false},
		"key":          {"another key", "providers:\n- name: a\n  kind: local\n  local: {depth: 1, lists: [x, y], text: hello}\n", false},
		"kind":         {"another kind", "providers:\n- name: a\n  kind: kvm\n  local: {depth: 1, list: [x, y], text: hello}\n", false},
		"null":         {"null is not the text", "providers:\n- name: a\n  kind: local\n  local: {depth: 1, list: [x, y], text: null}\n", false},
		"tag":          {"a tag changes the type", "providers:\n- name: a\n  kind: local\n  local: {depth: !!str 1, list: [x, y], text: hello}\n", false},
		"no section":   {"nothing at all", "providers:\n- name: a\n  kind: local\n", false},
		"null section": {"an empty section", "providers:\n- name: a\n  kind: local\n  local:\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := parse(tc.in).Hash(); (got == was) != tc.same {
				t.Errorf("%s: same hash = %v", tc.reason, got == was)
			}
		})
	}
	text := func(value string) string {
		return parse("providers:\n- name: a\n  kind: local\n  local:\n    text: " + value + "\n").Hash()
	}
	if text("null") == text("\"null\"") {
		t.Error("null reads like a text")
	}
	if text("|\n      one\n      two") == text("|\n      one\n      # two") {
		t.Error("a line of a text that looks like a comment is part of the text")
	}
	if text("&x y\n    more: *x") == text("&x z\n    more: *x") {
		t.Error("an anchor's value kept the hash")
	}
	if text("&x y\n    more: *x") == text("&x y\n    more: x") {
		t.Error("a reference reads like a text")
	}
}

// The parser needs the square of the depth: a file that nests without end would
// take the memory of the whole process.
func TestDeepNestingIsRefused(t *testing.T) {
	deep := func(n int, open, end string) string {
		return "providers:\n- name: a\n  kind: local\n  local: " + strings.Repeat(open, n) + strings.Repeat(end, n) + "\n"
	}
	steps := func(n int) string {
		var b strings.Builder
		b.WriteString("providers:\n- name: a\n  kind: local\n  local:\n")
		for i := range n {
			b.WriteString(strings.Repeat(" ", i+4) + "a:\n")
		}
		return b.String()
	}
	// The colons stand below each other; the keys do not.
	var slanted strings.Builder
	slanted.WriteString("providers:\n- name: a\n  kind: local\n  local:\n")
	for i := range 400 {
		slanted.WriteString(strings.Repeat(" ", i+4) + strings.Repeat("a", 401-i) + ":\n")
	}
	wide := deep(0, "", "") + strings.Repeat("- {name: x, kind: [a, b], local: {a: 1}}\n", 1000)
	for name, in := range map[string]string{
		"lists": deep(20_000, "[", "]"), "never closed": deep(30_000, "[", ""), "mappings": deep(10_000, "{a: ", "}"),
		"dashes": strings.Repeat("- ", 40_000), "keys": strings.Repeat("? ", 40_000), "blocks": steps(400), "slanted": slanted.String(),
	} {
		_, err := config.Parse("f", []byte(in))
		if fault.Of(err) != fault.Invalid || !strings.Contains(err.Error(), "deep") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, in := range map[string]string{"lists": deep(config.MaxDepth-10, "[", "]"), "blocks": steps(config.MaxDepth - 10), "wide": wide} {
		if _, err := config.Parse("f", []byte(in)); err != nil && strings.Contains(err.Error(), "deep") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEmptyFiles(t *testing.T) {
	for _, in := range []string{"", "# nothing\n", "providers:\n", "providers: []\n", "---\n"} {
		f, err := config.Parse("f", []byte(in))
		if err != nil || len(f.Providers) != 0 {
			t.Errorf("%q: %v, %v", in, f, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("providers:\n- name: a\n  kind: local\n  local: {depth: 1}\n"))
	f.Add([]byte("providers: &x\n- *x\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := config.Parse("f", b)
		if err != nil {
			if fault.Of(err) != fault.Invalid {
				t.Errorf("class %s", fault.Of(err))
			}
			return
		}
		for _, e := range file.Providers {
			var s section
			_ = e.Decode(&s)
			_ = e.Hash()
			if e.Name == "" {
				t.Error("a provider without a name")
			}
		}
	})
}

// A value that is wrong only to the provider is still named by its line.
func TestLineOf(t *testing.T) {
	f, err := config.Parse("f", []byte(`providers:
- name: a
  kind: kvm
  kvm:
    hosts:
      box-1:
        address: 192.0.2.5
        port: 70000
    list:
    - x
    - y
`))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{
		"hosts": 5, "hosts box-1": 6, "hosts box-1 port": 8, "list 1": 11,
		"hosts box-1 bridge": 6, "hosts box-2": 5, "list 7": 9, "list x": 9, "list 0 deeper": 10, "nothing": 2, "": 2,
	} {
		if got := f.Providers[0].LineOf(strings.Fields(path)...); got != want {
			t.Errorf("%q is on line %d; LineOf says %d", path, want, got)
		}
	}
}
