package arch_test

import (
	"bytes"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// docRules hold the documents to the tree that they describe.
var docRules = []rule{
	{"links", "a link leads somewhere", checkLinks},
	{"places", "what a document names exists", checkPlaces},
	{"targets", "a command that a document shows can be typed", checkTargets},
	{"lines", "symbols stay, line numbers move", checkLineNumbers},
	{"decisions", "a decision can be found, and says why", checkDecisions},
}

var (
	link      = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	code      = regexp.MustCompile("`([^`\n]+)`")
	place     = regexp.MustCompile(`^(api|client|cmd|config|docs|hack|internal|standalone|test|tools|\.ci)/[A-Za-z0-9_./-]*$`)
	document  = regexp.MustCompile(`\bdocs/[a-z0-9/-]+\.md\b`)
	target    = regexp.MustCompile(`(?m)(?:^\s*(?:\$ )?|[` + "`" + `])make ([a-z][a-z-]*)`)
	targetDef = regexp.MustCompile(`(?m)^([a-z][a-z-]*(?: [a-z][a-z-]*)*):(?:[^=]|$)`)
	lineCite  = regexp.MustCompile(`\b[a-z0-9_]+\.go:[0-9]+`)
)

func (t *tree) documents() []string {
	var out []string
	for _, f := range t.files {
		if path.Ext(f) == ".md" && !strings.Contains(f, "testdata/") {
			out = append(out, f)
		}
	}
	return out
}

// each reads every document and hands it to f.
func (t *tree) each(f func(file string, text []byte)) error {
	for _, file := range t.documents() {
		text, err := t.read(file)
		if err != nil {
			return err
		}
		f(file, text)
	}
	return nil
}

// has says whether a path is a file or a folder of the tree.
func (t *tree) has(p string) bool {
	p = path.Clean(p)
	return p == "." || slices.Contains(t.files, p) || t.exists(p)
}

func checkLinks(t *tree, _ table) ([]string, error) {
	var out findings
	err := t.each(func(file string, text []byte) {
		for _, m := range link.FindAllSubmatch(text, -1) {
			to, _, _ := strings.Cut(string(m[1]), "#")
			if to == "" || strings.Contains(to, "://") || strings.HasPrefix(to, "mailto:") {
				continue
			}
			if !t.has(path.Join(path.Dir(file), to)) {
				out.addf("%s links to %s, which does not exist", file, m[1])
			}
		}
	})
	return out, err
}

func checkPlaces(t *tree, _ table) ([]string, error) {
	var out findings
	err := t.each(func(file string, text []byte) {
		for _, m := range code.FindAllSubmatch(text, -1) {
			p := string(m[1])
			if place.MatchString(p) && !strings.Contains(p, "...") && !t.has(p) {
				out.addf("%s names %s, which does not exist", file, p)
			}
		}
	})
	if err != nil {
		return nil, err
	}
	for _, file := range t.files {
		if ext := path.Ext(file); ext != ".go" && ext != ".sh" && ext != ".yaml" && ext != ".yml" || within(file, "test/arch/...") {
			continue
		}
		text, err := t.read(file)
		if err != nil {
			return nil, err
		}
		for _, m := range document.FindAll(text, -1) {
			if !t.has(string(m)) {
				out.addf("%s names %s, which does not exist", file, m)
			}
		}
	}
	return out, nil
}

func checkTargets(t *tree, _ table) ([]string, error) {
	makefile, err := t.read("Makefile")
	if err != nil {
		return nil, err
	}
	var known []string
	for _, m := range targetDef.FindAllSubmatch(makefile, -1) {
		known = append(known, strings.Fields(string(m[1]))...)
	}
	var out findings
	err = t.each(func(file string, text []byte) {
		for _, m := range target.FindAllSubmatch(text, -1) {
			name := string(m[1])
			// `make bench-…` speaks of all of them.
			if !strings.HasSuffix(name, "-") && !slices.Contains(known, name) {
				out.addf("%s says make %s, which the Makefile does not know", file, name)
			}
		}
	})
	return out, err
}

func checkLineNumbers(t *tree, _ table) ([]string, error) {
	var out findings
	err := t.each(func(file string, text []byte) {
		for _, m := range lineCite.FindAll(text, -1) {
			out.addf("%s cites %s: cite the symbol", file, m)
		}
	})
	return out, err
}

// decisionParts are the headings of each decision.
var decisionParts = []string{"## Context", "## Decision", "## Options", "## Consequences"}

func checkDecisions(t *tree, _ table) ([]string, error) {
	const folder = "docs/decisions"
	index, err := t.read(folder + "/README.md")
	if err != nil {
		return nil, err
	}
	var out findings
	seen := map[string]string{}
	for _, file := range t.documents() {
		name := path.Base(file)
		if path.Dir(file) != folder || name == "README.md" {
			continue
		}
		text, err := t.read(file)
		if err != nil {
			return nil, err
		}
		if !bytes.Contains(index, []byte("]("+name+")")) {
			out.addf("%s is not in %s/README.md", file, folder)
		}
		number, _, _ := strings.Cut(name, "-")
		if other := seen[number]; other != "" {
			out.addf("%s and %s have one number", other, name)
		}
		seen[number] = name
		for _, part := range decisionParts {
			if !bytes.Contains(text, []byte("\n"+part+"\n")) {
				out.addf("%s has no part %q", file, part)
			}
		}
	}
	return out, nil
}

func TestDocs(t *testing.T) {
	tr := repository(t)
	for _, r := range docRules {
		t.Run(r.name, func(t *testing.T) {
			found, err := r.look(tr, rules)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range found {
				t.Errorf("%s (%s)", f, r.reason)
			}
		})
	}
}

func TestDocsBroken(t *testing.T) {
	t.Parallel()
	decision := "# x\n\n## Context\n\nx\n\n## Decision\n\nx\n\n## Options\n\nx\n\n## Consequences\n\nx\n"
	tr := plant(t, files{
		"Makefile": "demo: setup\n\techo\nlint test: x\n\techo\nX := y\n",
		"a.md": "[good](docs/architecture.md#x) [web](https://example.com/x) [gone](docs/gone.md)\n" +
			"`internal/core/fault` `internal/core/gone` `internal/.../x` `docs/` see api.go:17\n" +
			"`make demo`, `make test`, `make dmeo`; make do is no command\n\n    make bench-…\n    make gnoe\n",
		"docs/decisions/README.md":   "[one](0001-a.md)\n",
		"docs/decisions/0001-a.md":   decision,
		"docs/decisions/0001-b.md":   strings.Replace(decision, "## Options", "## Choices", 1),
		"internal/core/fault/doc.go": "// See docs/architecture.md and docs/vanished.md.\n\npackage fault\n",
	})
	var found []string
	for _, r := range docRules {
		f, err := r.look(tr, rules)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, f...)
	}
	want := []string{
		"a.md links to docs/gone.md, which does not exist",
		"a.md names internal/core/gone, which does not exist",
		"internal/core/fault/doc.go names docs/vanished.md, which does not exist",
		"a.md says make dmeo, which the Makefile does not know",
		"a.md says make gnoe, which the Makefile does not know",
		"a.md cites api.go:17: cite the symbol",
		"0001-a.md and 0001-b.md have one number",
		"docs/decisions/0001-b.md has no part \"## Options\"",
		"docs/decisions/0001-b.md is not in docs/decisions/README.md",
	}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
