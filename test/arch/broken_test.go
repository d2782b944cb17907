package arch_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// files is a small tree: what stands in each file.
type files map[string]string

// sound is a small tree that keeps every rule. Cases lay their files over it;
// an empty text takes a file away.
var sound = files{
	"go.mod":                       "module fleetdesk\n\ngo 1.26.0\n",
	"cmd/proxy-operator/main.go":   "// Command proxy-operator is a program.\npackage main\n\nimport (\n\t\"os\"\n\n\t\"fleetdesk/internal/proxy/operator\"\n)\n\nfunc main() { operator.X(); os.Exit(len(os.Getenv(\"X\"))) }\n",
	"client/a.go":                  source("client", "net/http"),
	"internal/core/fault/a.go":     source("fault", "errors"),
	"internal/platform/sqldb/a.go": source("sqldb", "fleetdesk/internal/core/fault"),
	"internal/desk/api/a.go":       source("api", "fleetdesk/internal/platform/sqldb", "fleetdesk/client"),
	"internal/proxy/provider/a.go": source("provider", "fleetdesk/internal/core/fault"),
	local + "/a.go":                source("local", "os/exec", "fleetdesk/internal/proxy/provider"),
	contract + "/builtin/a.go":     source("builtin", "fleetdesk/"+local),
	contract + "/fake/a.go":        source("fake", "fleetdesk/internal/proxy/provider"),
	controller + "/a.go":           source("proxy", "fleetdesk/internal/proxy/provider"),
	controller + "/a_test.go":      "package proxy_test\n\nimport _ \"fleetdesk/internal/proxy/provider/fake\"\n",
	"internal/proxy/operator/a.go": source("operator", "fleetdesk/internal/desk/api", "fleetdesk/internal/proxy/controller/proxy", "fleetdesk/internal/proxy/provider/builtin"),
	"tools/lint/go.mod":            "module fleetdesk/tools/lint\n\ngo 1.26.0\n\ntool example.com/linter\n",
	"docs/architecture.md": "| folder | what |\n| --- | --- |\n" +
		"| `internal/core/fault` | x |\n| `internal/platform/sqldb` | x |\n| `internal/desk/api` | x |\n" +
		"| `internal/proxy/provider` | x |\n| `internal/proxy/provider/local` | x |\n| `internal/proxy/provider/builtin` | x |\n" +
		"| `internal/proxy/provider/fake` | x |\n| `internal/proxy/controller/proxy` | x |\n| `internal/proxy/operator` | x |\n",
}

const (
	local      = contract + "/local"
	controller = "internal/proxy/controller/proxy"
)

// source is a file with a package comment, imports, and an X to call.
func source(name string, imports ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "// Package %s is part of a small tree.\npackage %s\n\n", name, name)
	for _, i := range imports {
		fmt.Fprintf(&b, "import _ %q\n", i)
	}
	b.WriteString("\n// X does nothing.\nfunc X() {}\n")
	return b.String()
}

// stubs are third parties that small trees may import: the module of each
// import path, written beside the tree and put in its place.
var stubs = map[string]string{
	"k8s.io/apimachinery/pkg/runtime":                "k8s.io/apimachinery",
	"k8s.io/api/core/v1":                             "k8s.io/api",
	"k8s.io/kubernetes/pkg/x":                        "k8s.io/kubernetes",
	"sigs.k8s.io/controller-runtime":                 "sigs.k8s.io/controller-runtime",
	"github.com/spf13/cobra":                         "github.com/spf13/cobra",
	"github.com/elazarl/goproxy":                     "github.com/elazarl/goproxy",
	"modernc.org/sqlite":                             "modernc.org/sqlite",
	"github.com/prometheus/client_golang/prometheus": "github.com/prometheus/client_golang",
	"github.com/google/go-cmp/cmp":                   "github.com/google/go-cmp",
	"nodot/lib":                                      "nodot",
}

// plant writes the sound tree with the given files over it, adds the stubs it
// imports, and loads it as the repository is loaded.
func plant(t *testing.T, over files) *tree {
	t.Helper()
	tree := maps.Clone(sound)
	maps.Copy(tree, over)
	maps.DeleteFunc(tree, func(_, text string) bool { return text == "" })

	needed := map[string]string{}
	for name, text := range tree {
		if filepath.Ext(name) != ".go" {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range parsed.Imports {
			if p, _ := strconv.Unquote(i.Path.Value); stubs[p] != "" {
				needed[p] = stubs[p]
			}
		}
	}
	for p, module := range needed {
		dir := "stubs/" + module
		tree[dir+"/go.mod"] = "module " + module + "\n\ngo 1.26.0\n"
		tree["stubs/"+p+"/a.go"] = "package stub\n"
	}
	for _, module := range slices.Compact(slices.Sorted(maps.Values(needed))) {
		tree["go.mod"] += fmt.Sprintf("\nrequire %s v0.0.0\nreplace %s => ./stubs/%s\n", module, module, module)
	}

	root := t.TempDir()
	for name, text := range tree {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tr, err := load(t.Context(), root, tagSets...)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestBrokenTrees(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		rule   string
		over   files
		// want is the beginning of each finding, in order.
		want []string
	}{
		"core does I/O through a library": {
			reason: "a third party in the rules", rule: "floors",
			over: files{"internal/core/fault/a.go": source("fault", "modernc.org/sqlite")},
			want: []string{"internal/core/fault imports modernc.org/sqlite"},
		},
		"core knows the platform": {
			reason: "a floor above", rule: "floors",
			over: files{"internal/core/health/a.go": source("health", "fleetdesk/internal/platform/obs"), "internal/platform/obs/a.go": source("obs")},
			want: []string{"internal/core/health imports fleetdesk/internal/platform/obs"},
		},
		"platform knows a product": {
			reason: "a floor above", rule: "floors",
			over: files{"internal/platform/obs/a.go": source("obs", "fleetdesk/internal/proxy/provider")},
			want: []string{"internal/platform/obs imports fleetdesk/internal/proxy/provider"},
		},
		"desk knows a product": {
			reason: "a floor above", rule: "floors",
			over: files{"internal/desk/web/a.go": source("web", "fleetdesk/internal/proxy/provider")},
			want: []string{"internal/desk/web imports fleetdesk/internal/proxy/provider"},
		},
		"client brings a library": {
			reason: "the client is the standard library", rule: "floors",
			over: files{"client/a.go": source("client", "github.com/spf13/cobra")},
			want: []string{"client imports github.com/spf13/cobra"},
		},
		"client uses our own rules": {
			reason: "a module path without a dot is not the standard library", rule: "floors",
			over: files{"client/a.go": source("client", "fleetdesk/internal/core/fault")},
			want: []string{"client imports fleetdesk/internal/core/fault"},
		},
		"client uses somebody's module without a dot": {
			reason: "go list says what is standard, not the name", rule: "floors",
			over: files{"client/a.go": source("client", "nodot/lib")},
			want: []string{"client imports nodot/lib"},
		},
		"api imports more than apimachinery": {
			reason: "k8s.io/api is a provider's SDK", rule: "floors",
			over: files{"api/v1alpha1/a.go": source("v1alpha1", "k8s.io/apimachinery/pkg/runtime", "k8s.io/api/core/v1")},
			want: []string{"api/v1alpha1 imports k8s.io/api/core/v1"},
		},
		"a main does more": {
			reason: "a main calls its composition root", rule: "floors",
			over: files{"cmd/proxy-operator/more.go": "package main\n\nimport _ \"fleetdesk/internal/desk/api\"\n"},
			want: []string{"cmd/proxy-operator imports fleetdesk/internal/desk/api"},
		},
		"the contract has a library": {
			reason: "each provider would take it over", rule: "floors",
			over: files{"internal/proxy/provider/a.go": source("provider", "github.com/prometheus/client_golang/prometheus")},
			want: []string{"internal/proxy/provider imports github.com/prometheus/client_golang/prometheus"},
		},
		"a provider knows the objects": {
			reason: "a provider runs without a cluster", rule: "floors",
			over: files{"api/v1alpha1/a.go": source("v1alpha1"), local + "/a.go": source("local", "fleetdesk/api/v1alpha1")},
			want: []string{"internal/proxy/provider/local imports fleetdesk/api/v1alpha1"},
		},
		"a provider knows its sibling": {
			reason: "providers are told apart by the list alone", rule: "floors",
			over: files{contract + "/other/a.go": source("other", "fleetdesk/"+local)},
			want: []string{"internal/proxy/provider/other imports fleetdesk/internal/proxy/provider/local"},
		},
		"a provider has an SDK without a row": {
			reason: "an SDK is a decision", rule: "floors",
			over: files{contract + "/other/a.go": source("other", "sigs.k8s.io/controller-runtime")},
			want: []string{"internal/proxy/provider/other imports sigs.k8s.io/controller-runtime"},
		},
		"proxy knows the other product": {
			reason: "products never import each other", rule: "floors",
			over: files{"internal/qasight/pool/a.go": source("pool"), controller + "/a.go": source("proxy", "fleetdesk/internal/qasight/pool")},
			want: []string{"internal/proxy/controller/proxy imports fleetdesk/internal/qasight/pool"},
		},
		"only with a tag": {
			reason: "a file behind a build tag keeps the floors too", rule: "floors",
			over: files{"internal/core/fault/tagged.go": "//go:build integration\n\npackage fault\n\nimport _ \"fleetdesk/internal/platform/sqldb\"\n", "internal/platform/sqldb/a.go": source("sqldb")},
			want: []string{"internal/core/fault imports fleetdesk/internal/platform/sqldb"},
		},
		"only in a test": {
			reason: "a test that needs a floor above belongs there", rule: "floors",
			over: files{"internal/core/fault/a_test.go": "package fault_test\n\nimport _ \"fleetdesk/internal/desk/api\"\n"},
			want: []string{"tests of internal/core/fault import fleetdesk/internal/desk/api"},
		},
		"in the other module": {
			reason: "standalone calls the composition root and nothing behind it", rule: "floors",
			over: files{
				"standalone/go.mod":        "module fleetdesk/standalone\n\ngo 1.26.0\n\nrequire fleetdesk v0.0.0\n\nreplace fleetdesk => ../\n",
				"standalone/cmd/x/main.go": "// Command x is a program.\npackage main\n\nimport _ \"fleetdesk/internal/desk/api\"\n\nfunc main() {}\n",
				"standalone/control/a.go":  source("control", "fleetdesk/internal/proxy/operator"),
			},
			want: []string{"standalone/cmd/x imports fleetdesk/internal/desk/api"},
		},
		"no floor": {
			reason: "a new folder says where it stands", rule: "floors",
			over: files{"attic/a.go": source("attic")},
			want: []string{"attic stands on no floor"},
		},

		"a suite uses a library": {
			reason: "what only tests import may import what tests may", rule: "floors",
			over: files{
				"internal/core/token/a.go":           source("token"),
				"internal/core/token/tokentest/a.go": source("tokentest", "testing", "github.com/google/go-cmp/cmp", "fleetdesk/internal/core/token"),
			},
			want: nil,
		},

		"a second list of providers": {
			reason: "builtin is for the operator alone", rule: "importers",
			over: files{"internal/proxy/sweep/a.go": source("sweep", "fleetdesk/"+contract+"/builtin")},
			want: []string{"internal/proxy/sweep imports internal/proxy/provider/builtin"},
		},
		"a hook runs a provider's command": {
			reason: "a person's commands have one door", rule: "importers",
			over: files{
				"internal/qasight/humanrun/a.go": source("humanrun"),
				"internal/qasight/hooks/a.go":    source("hooks", "fleetdesk/internal/qasight/humanrun"),
			},
			want: []string{"internal/qasight/hooks imports internal/qasight/humanrun"},
		},
		"a root below another": {
			reason: "a composition root that others import is no root", rule: "importers",
			over: files{"internal/testkit/run/a.go": source("run", "fleetdesk/internal/proxy/operator")},
			want: []string{"internal/testkit/run imports internal/proxy/operator"},
		},

		"a controller reaches an implementation by a detour": {
			reason: "what decides sees the contract alone, also transitively", rule: "closures",
			over: files{
				"internal/proxy/selection/a.go": source("selection", "fleetdesk/"+local),
				controller + "/a.go":            source("proxy", "fleetdesk/internal/proxy/selection"),
			},
			want: []string{"internal/proxy/controller/proxy reaches internal/proxy/provider/local"},
		},
		"desk brings Kubernetes": {
			reason: "the other product has none", rule: "closures",
			over: files{"internal/platform/sqldb/a.go": source("sqldb", "sigs.k8s.io/controller-runtime")},
			want: []string{
				"internal/desk/api reaches sigs.k8s.io/controller-runtime",
				"internal/platform/sqldb reaches sigs.k8s.io/controller-runtime",
			},
		},
		"the operator carries an API server": {
			reason: "the operator's module stays lean", rule: "closures",
			over: files{"internal/proxy/operator/a.go": source("operator", "k8s.io/kubernetes/pkg/x")},
			want: []string{"cmd/proxy-operator reaches k8s.io/kubernetes/pkg/x"},
		},
		"qasight brings Kubernetes": {
			reason: "a laptop that leases machines has no cluster", rule: "closures",
			over: files{"internal/qasight/pool/a.go": source("pool", "sigs.k8s.io/controller-runtime")},
			want: []string{"internal/qasight/pool reaches sigs.k8s.io/controller-runtime"},
		},
		"a stage runs provider commands by a detour": {
			reason: "only a typed pool command may, however far away", rule: "closures",
			over: files{
				"internal/qasight/humanrun/a.go":     source("humanrun"),
				"internal/qasight/cli/poolcmd/a.go":  source("poolcmd", "fleetdesk/internal/qasight/humanrun"),
				"internal/qasight/cli/stagecmd/a.go": source("stagecmd", "fleetdesk/internal/qasight/cli/poolcmd"),
			},
			want: []string{"internal/qasight/cli/stagecmd reaches internal/qasight/humanrun"},
		},
		"what speaks to a server knows the file": {
			reason: "it could send a provider's command", rule: "closures",
			over: files{
				"internal/qasight/config/a.go": source("config"),
				"internal/qasight/broker/a.go": source("broker", "fleetdesk/internal/qasight/config"),
			},
			want: []string{"internal/qasight/broker reaches internal/qasight/config"},
		},
		"a program holds test code": {
			reason: "testing registers flags", rule: "closures",
			over: files{"internal/desk/api/a.go": source("api", "testing")},
			want: []string{"cmd/proxy-operator reaches testing"},
		},

		"a command from anywhere": {
			reason: "os/exec has its doors", rule: "doors",
			over: files{"internal/desk/api/a.go": source("api", "os/exec")},
			want: []string{"internal/desk/api uses os/exec"},
		},
		"SQL from anywhere": {
			reason: "one place knows SQL dialects", rule: "doors",
			over: files{"internal/desk/api/a.go": source("api", "modernc.org/sqlite"), "internal/platform/sqldb/a.go": source("sqldb", "modernc.org/sqlite")},
			want: []string{"internal/desk/api uses modernc.org/sqlite"},
		},
		"the environment under another name": {
			reason: "the import counts, not what it is called", rule: "doors",
			over: files{"internal/desk/api/a.go": "// Package api is x.\npackage api\n\nimport env \"os\"\n\n// X does nothing.\nfunc X() { env.Exit(len(env.Getenv(\"X\"))) }\n"},
			want: []string{"internal/desk/api uses os.Exit", "internal/desk/api uses os.Getenv"},
		},
		"in a file for another system": {
			reason: "what this machine does not build is read too", rule: "doors",
			over: files{"internal/desk/api/a_windows.go": "package api\n\nimport \"os\"\n\nfunc init() { os.Exit(1) }\n"},
			want: []string{"internal/desk/api uses os.Exit"},
		},

		"a fake in the program": {
			reason: "fakes are for tests", rule: "test code",
			over: files{"internal/proxy/operator/a.go": source("operator", "fleetdesk/"+contract+"/fake")},
			want: []string{"internal/proxy/operator imports internal/proxy/provider/fake"},
		},

		"a folder called helpers": {
			reason: "the name says nothing", rule: "names",
			over: files{"internal/desk/helpers/a.go": source("helpers")},
			want: []string{"internal/desk/helpers: the name helpers"},
		},
		"a package called util in a good folder": {
			reason: "the package's name counts as well", rule: "names",
			over: files{"internal/desk/words/a.go": source("util")},
			want: []string{"internal/desk/words: the name util"},
		},

		"a folder called misc with a good name inside": {
			reason: "the folder's name counts as well", rule: "names",
			over: files{"internal/desk/misc/a.go": source("words")},
			want: []string{"internal/desk/misc: the name misc"},
		},

		"no package comment": {
			reason: "each package says what it is", rule: "comments",
			over: files{"internal/desk/api/a.go": "package api\n\n// X does nothing.\nfunc X() {}\n"},
			want: []string{"internal/desk/api has no package comment"},
		},
		"two package comments": {
			reason: "two drift apart", rule: "comments",
			over: files{"internal/desk/api/b.go": "// Package api is something else.\npackage api\n"},
			want: []string{"internal/desk/api has a package comment in each of a.go, b.go"},
		},

		"a folder off the map": {
			reason: "the map shows the house", rule: "chart",
			over: files{"internal/desk/web/a.go": source("web")},
			want: []string{"docs/architecture.md has no row for `internal/desk/web`"},
		},
		"a row for a vanished folder": {
			reason: "the map shows no other house", rule: "chart",
			over: files{"docs/architecture.md": sound["docs/architecture.md"] + "| `internal/desk/gone` | x |\n| `internal/desk/api` | again |\n"},
			want: []string{
				"docs/architecture.md has 2 rows for `internal/desk/api`",
				"docs/architecture.md has a row for `internal/desk/gone`, which does not exist",
			},
		},

		"a main of 41 lines": {
			reason: "no test reaches a main", rule: "mains",
			over: files{"cmd/proxy-operator/main.go": sound["cmd/proxy-operator/main.go"] + strings.Repeat("// more\n", 31)},
			want: []string{"cmd/proxy-operator/main.go has 41 lines, 40 at most"},
		},
		"a file of 501 lines": {
			reason: "find its seam; generated files and tests are excused", rule: "length",
			over: files{
				"internal/desk/api/long.go":      "package api\n" + strings.Repeat("\n", 500),
				"internal/desk/api/generated.go": "// Code generated by x. DO NOT EDIT.\n\npackage api\n" + strings.Repeat("\n", 500),
				"internal/desk/api/long_test.go": "package api\n" + strings.Repeat("\n", 500),
			},
			want: []string{"internal/desk/api/long.go has 501 lines, 500 at most"},
		},
		"somebody's folder": {
			reason: "it is wrong on every other machine", rule: "paths",
			over: files{
				"docs/a.md": "see\n" + "/ro" + "ot/notes.txt, but not https://example.com/work/a\n",
			},
			want: []string{"docs/a.md:2 holds a path of one machine"},
		},

		"the root bends a version": {
			reason: "whoever installs the program would get another", rule: "modules",
			over: files{"go.mod": "module fleetdesk\n\ngo 1.26.0\n\ntool example.com/gen\n\nexclude example.com/b v1.0.0\n\nreplace example.com/a => ./a\n"},
			want: []string{"go.mod carries the tool example.com/gen", "go.mod excludes example.com/b", "go.mod replaces example.com/a"},
		},
		"another module goes its own way": {
			reason: "what was tested is what is built", rule: "modules",
			over: files{
				"go.mod":            "module fleetdesk\n\ngo 1.26.0\n\nrequire example.com/a v1.0.0\n",
				"other/go.mod":      "module fleetdesk/other\n\ngo 1.25.0\n\nrequire example.com/a v1.1.0\n\nreplace example.com/b => ../b\n",
				"tools/lint/go.mod": "module fleetdesk/tools/lint\n\ngo 1.26.0\n\nrequire example.com/a v1.1.0\n",
			},
			want: []string{
				"other/go.mod has example.com/a v1.1.0 and the root v1.0.0",
				"other/go.mod replaces example.com/b",
				"other/go.mod says go 1.25.0 and the root go 1.26.0",
				"tools/lint/go.mod has no tool line",
			},
		},
	}

	broken := map[string]bool{}
	for name, tc := range cases {
		broken[tc.rule] = true
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := slices.IndexFunc(all, func(r rule) bool { return r.name == tc.rule })
			if at < 0 {
				t.Fatalf("no rule is called %q", tc.rule)
			}
			found, err := all[at].look(plant(t, tc.over), rules)
			if err != nil {
				t.Fatal(err)
			}
			got := slices.Clone(found)
			for i := range got {
				if i < len(tc.want) && strings.HasPrefix(got[i], tc.want[i]) {
					got[i] = tc.want[i]
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got)\n%s", tc.reason, diff)
			}
		})
	}
	for _, r := range all {
		if !broken[r.name] && !aboutTable(r) {
			t.Errorf("no tree breaks the rule %q", r.name)
		}
	}
}

// aboutTable names the rules that look for superfluous rows; each has a test
// with a table of its own.
func aboutTable(r rule) bool { return r.name == "vanished" || r.name == "unused" }

func TestSoundTree(t *testing.T) {
	t.Parallel()
	tr := plant(t, nil)
	for _, r := range all {
		if aboutTable(r) {
			continue // the table's rows are about more than a small tree has
		}
		found, err := r.look(tr, rules)
		if err != nil {
			t.Errorf("%s: %v", r.name, err)
		}
		if diff := cmp.Diff([]string(nil), found); diff != "" {
			t.Errorf("%s finds fault with a sound tree, so a broken one proves nothing (-want +got)\n%s", r.name, diff)
		}
	}
}

func TestFloorOf(t *testing.T) {
	t.Parallel()
	tab := table{floors: []floor{{folder: "a/..."}, {folder: "a/b/..."}, {folder: "a/b"}, {folder: "a"}}}
	slices.SortFunc(tab.floors, func(x, y floor) int { return strings.Compare(y.folder, x.folder) })
	for range 2 { // in either order of the rows
		got := map[string]string{}
		for _, folder := range []string{"a", "a/x", "a/b", "a/b/c", "ab"} {
			f, _ := tab.floorOf(folder)
			got[folder] = f.folder
		}
		want := map[string]string{"a": "a", "a/x": "a/...", "a/b": "a/b", "a/b/c": "a/b/...", "ab": ""}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the longest row decides, and of two equal ones that for the folder alone (-want +got)\n%s", diff)
		}
		slices.Reverse(tab.floors)
	}
}

func TestVanishedFolders(t *testing.T) {
	t.Parallel()
	tr := plant(t, nil)
	tab := table{
		floors:    []floor{{folder: "internal/gone1/...", may: []string{std, "k8s.io/...", "internal/gone2"}, tests: []string{third, "internal/gone3"}}},
		importers: []importers{{folder: "internal/gone4", by: []string{"internal/gone5", "internal/desk/..."}}},
		closures:  []closure{{from: []string{"internal/gone6"}, never: []string{"internal/gone7/...", "os"}, but: []string{"internal/gone8"}}},
		doors:     []door{{in: []string{"internal/gone9"}}},
		mains:     []string{"cmd/...", "gone10/..."},
	}
	found, err := checkVanished(tr, tab)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"the floor of internal/gone1/... names internal/gone1/..., which does not exist",
		"the floor of internal/gone1/... names internal/gone2, which does not exist",
		"the floor of internal/gone1/... names internal/gone3, which does not exist",
		"importers names internal/gone4, which does not exist",
		"importers of internal/gone4 names internal/gone5, which does not exist",
		"a closure names internal/gone6, which does not exist",
		"a closure names internal/gone7/..., which does not exist",
		"a closure names internal/gone8, which does not exist",
		"a door names internal/gone9, which does not exist",
		"mains names gone10/..., which does not exist",
	}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("a rule about what is gone holds nothing (-want +got)\n%s", diff)
	}
}

func TestUnusedExceptions(t *testing.T) {
	t.Parallel()
	tab := table{
		fileLines: 500,
		long:      []exception{{"internal/desk/api/a.go", "it was long once"}},
		doors: []door{
			{imports: []string{"os/exec"}, in: []string{local + "/...", "internal/desk/..."}},
			{uses: []string{"os.Exit"}, in: []string{"cmd/...", controller}},
		},
	}
	found, err := rule{check: checkUnused}.look(plant(t, nil), tab)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"internal/desk/... has a door to os/exec and does not use it: take it out of the row",
		"internal/desk/api/a.go is not too long: drop its exception",
		"internal/proxy/controller/proxy has a door to os.Exit and does not use it: take it out of the row",
	}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("an exception that excuses nothing is an invitation (-want +got)\n%s", diff)
	}
}

func TestEmptyTreeIsRefused(t *testing.T) {
	t.Parallel()
	if _, err := load(t.Context(), t.TempDir(), ""); err == nil {
		t.Error("rules that look at nothing pass on everything")
	}
}
