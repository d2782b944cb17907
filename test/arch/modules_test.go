package arch_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write testdata/modules/*.golden anew")

// gomod is what the rules ask of a go.mod; see `go help mod edit`.
type gomod struct {
	Go      string
	Require []struct {
		Path, Version string
		Indirect      bool
	}
	Replace []struct{ Old, New struct{ Path string } }
	Exclude []struct{ Path, Version string }
	Tool    []struct{ Path string }
}

func (t *tree) gomod(module string) (gomod, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "mod", "edit", "-json")
	cmd.Dir = filepath.Join(t.root, module)
	var m gomod
	out, err := cmd.Output()
	if err != nil {
		return m, fmt.Errorf("go mod edit -json in %s: %w", module, err)
	}
	return m, json.Unmarshal(out, &m)
}

// checkModules holds the go.mod files: the root bends nothing and carries no
// tools, other modules follow its versions, so that what was tested is what is
// built, from one build cache.
func checkModules(t *tree, _ table) ([]string, error) {
	var out findings
	root, err := t.gomod(".")
	if err != nil {
		return nil, err
	}
	for _, r := range root.Replace {
		out.addf("go.mod replaces %s: whoever installs the program would get another one", r.Old.Path)
	}
	for _, e := range root.Exclude {
		out.addf("go.mod excludes %s: the module stays as lean as it is plain", e.Path)
	}
	for _, tool := range root.Tool {
		out.addf("go.mod carries the tool %s: a tool's module must not shift the program's versions", tool.Path)
	}
	chosen := map[string]string{}
	for _, r := range root.Require {
		chosen[r.Path] = r.Version
	}
	for _, module := range t.modules {
		if module == "." {
			continue
		}
		m, err := t.gomod(module)
		if err != nil {
			return nil, err
		}
		if m.Go != root.Go {
			out.addf("%s/go.mod says go %s and the root go %s", module, m.Go, root.Go)
		}
		if strings.HasPrefix(module, "tools/") {
			for _, r := range m.Replace {
				out.addf("%s/go.mod replaces %s", module, r.Old.Path)
			}
			if len(m.Tool) == 0 {
				out.addf("%s/go.mod has no tool line", module)
			}
			continue
		}
		for _, r := range m.Replace {
			if r.Old.Path != project {
				out.addf("%s/go.mod replaces %s", module, r.Old.Path)
			}
		}
		for _, r := range m.Require {
			if v := chosen[r.Path]; v != "" && v != r.Version {
				out.addf("%s/go.mod has %s %s and the root %s", module, r.Path, r.Version, v)
			}
		}
	}
	for _, p := range t.packages {
		if within(p.folder, "tools/...") {
			out.addf("%s holds code: tools/ pins tools and nothing else", p.folder)
		}
	}
	return out, nil
}

// TestModulesOfPrograms keeps the list of third-party modules in each program
// under review: a new name in it is a decision. Run with -update after one.
func TestModulesOfPrograms(t *testing.T) {
	tr := repository(t)
	seen := 0
	for _, p := range tr.packages {
		if p.name != "main" || !withinAny(p.folder, rules.mains) || p.tags != "" {
			continue
		}
		seen++
		golden := filepath.Join("testdata", "modules", filepath.Base(p.folder)+".golden")
		got := strings.Join(tr.modulesOf(p), "\n") + "\n"
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Error(err)
			continue
		}
		if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
			t.Errorf("%s holds other modules than %s (go test ./test/arch -update, and say why in the commit; -want +got):\n%s",
				p.folder, golden, diff)
		}
	}
	if seen == 0 {
		t.Error("no program was found")
	}
	goldens, err := filepath.Glob("testdata/modules/*.golden")
	if err != nil {
		t.Fatal(err)
	}
	if len(goldens) != seen {
		t.Errorf("%d programs and %d golden files: %s", seen, len(goldens), strings.Join(goldens, ", "))
	}
}

// modulesOf returns the third-party modules in a package's closure.
func (t *tree) modulesOf(p pkg) []string {
	var out []string
	for _, d := range p.deps {
		if m := t.modulePath[d]; m != "" {
			out = append(out, m)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
