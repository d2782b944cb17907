package arch_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// rule is one check of the tree against the table. It returns what is wrong,
// a line each, and an error when it could not look.
type rule struct {
	name, reason string
	check        func(t *tree, tab table) ([]string, error)
}

// all is every rule. broken_test.go has a tree that breaks each.
var all = []rule{
	{"floors", "a package imports only from floors below it", checkFloors},
	{"importers", "some packages have one door in", checkImporters},
	{"closures", "what must not be in a program is not there by a detour either", checkClosures},
	{"doors", "one door per SDK and per way out of the process", checkDoors},
	{"test code", "packages for tests are imported by tests and each other alone", checkTestCode},
	{"names", "a name says what a package holds", checkNames},
	{"comments", "each package says once what it is", checkComments},
	{"chart", "the map of the house shows each folder that exists, and no other", checkChart},
	{"mains", "a main that grows holds code that no test reaches", checkMains},
	{"length", "a file of thousands of lines is read by nobody", checkLength},
	{"paths", "a path of somebody's machine is wrong on every other", checkPaths},
	{"modules", "versions are chosen in the root module and nowhere bent", checkModules},
	{"unused", "an exception that excuses nothing is an invitation", checkUnused},
	{"vanished", "a rule about what is gone holds nothing", checkVanished},
}

// look runs the check and sorts what it finds.
func (r rule) look(t *tree, tab table) ([]string, error) {
	found, err := r.check(t, tab)
	slices.Sort(found)
	return found, err
}

// findings collects lines without repeats: a package is seen once per tag set.
type findings []string

func (f *findings) addf(format string, args ...any) {
	if line := fmt.Sprintf(format, args...); !slices.Contains(*f, line) {
		*f = append(*f, line)
	}
}

// floorOf returns the row with the longest folder that holds the package; of
// two that are equally long, the one for that folder alone.
func (tab table) floorOf(folder string) (floor, bool) {
	best, found := floor{}, false
	for _, f := range tab.floors {
		if !within(folder, f.folder) {
			continue
		}
		length := len(strings.TrimSuffix(f.folder, "/..."))
		longest := len(strings.TrimSuffix(best.folder, "/..."))
		if !found || length > longest || length == longest && f.folder == folder {
			best, found = f, true
		}
	}
	return best, found
}

// isTestCode names the packages that only tests may import.
func isTestCode(folder string) bool {
	base := path.Base(folder)
	return base == "fake" || strings.HasSuffix(base, "test") ||
		within(folder, testkit) || within(folder, "test/...")
}

func (t *tree) allowed(imported string, may []string) bool {
	folder, mine := own(imported)
	for _, m := range may {
		switch {
		case m == std:
			if t.standard[imported] {
				return true
			}
		case m == third:
			if !mine && !t.standard[imported] {
				return true
			}
		case mine:
			if within(folder, m) {
				return true
			}
		case within(imported, m):
			return true
		}
	}
	return false
}

func checkFloors(t *tree, tab table) ([]string, error) {
	var out findings
	for _, p := range t.packages {
		f, found := tab.floorOf(p.folder)
		if !found {
			out.addf("%s stands on no floor: give it a row", p.folder)
			continue
		}
		may := f.may
		if isTestCode(p.folder) {
			may = slices.Concat(f.may, f.tests)
		}
		for _, i := range p.imports {
			if !t.allowed(i, may) {
				out.addf("%s imports %s; %s may import %s: %s", p.folder, i, f.folder, strings.Join(may, ", "), f.reason)
			}
		}
		// Tests bring their own libraries; within the project they stay on
		// their floor, and may use test code of the floors below.
		for _, i := range p.tests {
			folder, mine := own(i)
			if mine && folder != p.folder && !t.allowed(i, slices.Concat(f.may, f.tests)) &&
				(!isTestCode(folder) || !t.allowed(project+"/"+path.Dir(folder), f.may)) {
				out.addf("tests of %s import %s; %s may import %s: %s", p.folder, i, f.folder,
					strings.Join(slices.Concat(f.may, f.tests), ", "), f.reason)
			}
		}
	}
	return out, nil
}

func checkImporters(t *tree, tab table) ([]string, error) {
	var out findings
	for _, row := range tab.importers {
		for _, p := range t.packages {
			for _, i := range p.imports {
				if folder, mine := own(i); mine && within(folder, row.folder) && !withinAny(p.folder, row.by) {
					out.addf("%s imports %s, which is for %s alone: %s", p.folder, folder, strings.Join(row.by, ", "), row.reason)
				}
			}
		}
	}
	return out, nil
}

func checkClosures(t *tree, tab table) ([]string, error) {
	var out findings
	for _, row := range tab.closures {
		for _, p := range t.packages {
			if !withinAny(p.folder, row.from) || isTestCode(p.folder) {
				continue
			}
			for _, d := range p.deps {
				name := d
				if folder, mine := own(d); mine {
					name = folder
				}
				if withinAny(name, row.never) && !withinAny(name, row.but) {
					out.addf("%s reaches %s: %s", p.folder, name, row.reason)
				}
			}
		}
	}
	return out, nil
}

func checkDoors(t *tree, tab table) ([]string, error) {
	var out findings
	for _, d := range tab.doors {
		for _, p := range t.packages {
			if withinAny(p.folder, d.in) {
				continue
			}
			found, err := t.through(p, d)
			if err != nil {
				return nil, err
			}
			for _, f := range found {
				out.addf("%s uses %s, which is for %s: %s", p.folder, f, strings.Join(d.in, ", "), d.reason)
			}
		}
	}
	return out, nil
}

// checkUnused finds what the table allows and nobody needs any more.
func checkUnused(t *tree, tab table) ([]string, error) {
	var out findings
	for _, d := range tab.doors {
		for _, in := range d.in {
			used := false
			for _, p := range t.packages {
				if used || !within(p.folder, in) {
					continue
				}
				found, err := t.through(p, d)
				if err != nil {
					return nil, err
				}
				used = len(found) > 0
			}
			if !used {
				out.addf("%s has a door to %s and does not use it: take it out of the row", in, strings.Join(slices.Concat(d.imports, d.uses), ", "))
			}
		}
	}
	long, err := t.longFiles(tab)
	if err != nil {
		return nil, err
	}
	for _, e := range tab.long {
		if long[e.file] == 0 {
			out.addf("%s is not too long: drop its exception", e.file)
		}
	}
	return out, nil
}

// through returns what a package takes through a door.
func (t *tree) through(p pkg, d door) ([]string, error) {
	var out findings
	for _, i := range p.imports {
		if withinAny(i, d.imports) {
			out.addf("%s", i)
		}
	}
	if len(d.uses) == 0 {
		return out, nil
	}
	for _, file := range p.files {
		parsed, err := t.parse(file)
		if err != nil {
			return nil, err
		}
		for _, u := range uses(parsed) {
			if slices.Contains(d.uses, u) {
				out.addf("%s", u)
			}
		}
	}
	return out, nil
}

// uses returns the selectors of a file whose left side is an import, by the
// import's own path: "os.Exit" also where os was given another name.
func uses(f *ast.File) []string {
	names := map[string]string{}
	for _, i := range f.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			continue // go list would have refused the file
		}
		name := path.Base(p)
		if i.Name != nil {
			name = i.Name.Name
		}
		names[name] = p
	}
	var out []string
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && names[x.Name] != "" {
				out = append(out, names[x.Name]+"."+s.Sel.Name)
			}
		}
		return true
	})
	return out
}

func checkTestCode(t *tree, _ table) ([]string, error) {
	var out findings
	for _, p := range t.packages {
		if isTestCode(p.folder) {
			continue
		}
		for _, i := range p.imports {
			if folder, mine := own(i); mine && isTestCode(folder) {
				out.addf("%s imports %s outside of its tests", p.folder, folder)
			}
		}
	}
	return out, nil
}

func checkNames(t *tree, tab table) ([]string, error) {
	var out findings
	for _, p := range t.packages {
		for _, name := range []string{p.name, path.Base(p.folder)} {
			if slices.Contains(tab.names, name) {
				out.addf("%s: the name %s says nothing", p.folder, name)
			}
		}
	}
	return out, nil
}

func checkComments(t *tree, _ table) ([]string, error) {
	var out findings
	for _, p := range t.packages {
		var with []string
		for _, file := range p.files {
			parsed, err := t.parse(file)
			if err != nil {
				return nil, err
			}
			if parsed.Doc != nil && strings.TrimSpace(parsed.Doc.Text()) != "" {
				with = append(with, path.Base(file))
			}
		}
		switch {
		case len(p.files) == 0: // tests alone
		case len(with) == 0:
			out.addf("%s has no package comment", p.folder)
		case len(with) > 1:
			out.addf("%s has a package comment in each of %s", p.folder, strings.Join(with, ", "))
		}
	}
	return out, nil
}

// chartRow is a table row whose first cell is a folder in backticks.
var chartRow = regexp.MustCompile("(?m)^\\| *`([a-z0-9_./*-]+?)/?` *\\|")

// charted are the folders that the chart must show.
var charted = []string{"internal/..."}

func checkChart(t *tree, tab table) ([]string, error) {
	text, err := t.read(tab.chart)
	if err != nil {
		return nil, err
	}
	var out findings
	rows := map[string]int{}
	for _, m := range chartRow.FindAllSubmatch(text, -1) {
		rows[string(m[1])]++
	}
	for _, p := range t.packages {
		if withinAny(p.folder, charted) && rows[p.folder] == 0 {
			out.addf("%s has no row for `%s`", tab.chart, p.folder)
		}
	}
	for folder, n := range rows {
		if n > 1 {
			out.addf("%s has %d rows for `%s`", tab.chart, n, folder)
		}
		if !t.exists(folder) {
			out.addf("%s has a row for `%s`, which does not exist", tab.chart, folder)
		}
	}
	return out, nil
}

func checkMains(t *tree, tab table) ([]string, error) {
	var out findings
	for _, p := range t.packages {
		if p.name != "main" || !withinAny(p.folder, tab.mains) {
			continue
		}
		for _, file := range p.files {
			text, err := t.read(file)
			if err != nil {
				return nil, err
			}
			if n := bytes.Count(text, []byte("\n")); n > tab.mainLines {
				out.addf("%s has %d lines, %d at most: move what it does below its composition root", file, n, tab.mainLines)
			}
		}
	}
	return out, nil
}

var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// longFiles are the hand-written production files above the limit, and their
// lines.
func (t *tree) longFiles(tab table) (map[string]int, error) {
	long := map[string]int{}
	for _, file := range t.files {
		if path.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := t.read(file)
		if err != nil {
			return nil, err
		}
		if n := bytes.Count(text, []byte("\n")); n > tab.fileLines && !generated.Match(text) {
			long[file] = n
		}
	}
	return long, nil
}

func checkLength(t *tree, tab table) ([]string, error) {
	long, err := t.longFiles(tab)
	if err != nil {
		return nil, err
	}
	var out findings
	for file, n := range long {
		if !slices.ContainsFunc(tab.long, func(e exception) bool { return e.file == file }) {
			out.addf("%s has %d lines, %d at most: find its seam", file, n, tab.fileLines)
		}
	}
	return out, nil
}

// machinePath finds the home of a checkout or of a person. It is put together
// from parts, or this file would hold what it looks for.
var machinePath = regexp.MustCompile(`(^|[^A-Za-z0-9_.~*-])/(` + strings.Join([]string{"work", "farm", "root"}, "|") + `)/[A-Za-z.]`)

func checkPaths(t *tree, _ table) ([]string, error) {
	var out findings
	for _, file := range t.files {
		text, err := t.read(file)
		if err != nil {
			return nil, err
		}
		if bytes.IndexByte(text, 0) >= 0 {
			continue // binary data
		}
		for n, line := range bytes.Split(text, []byte("\n")) {
			if m := machinePath.Find(line); m != nil {
				out.addf("%s:%d holds a path of one machine: %s", file, n+1, bytes.TrimSpace(line))
			}
		}
	}
	return out, nil
}

// checkVanished looks at every folder that the table names. A row may name a
// folder of a module that the tree at hand does not have only by being wrong.
func checkVanished(t *tree, tab table) ([]string, error) {
	var out findings
	named := func(where string, patterns ...string) {
		for _, p := range patterns {
			first, _, _ := strings.Cut(p, "/")
			if p == std || p == third || strings.Contains(first, ".") || t.standard[p] {
				continue
			}
			if !t.exists(p) {
				out.addf("%s names %s, which does not exist", where, p)
			}
		}
	}
	for _, f := range tab.floors {
		named("the floor of "+f.folder, f.folder)
		named("the floor of "+f.folder, f.may...)
		named("the floor of "+f.folder, f.tests...)
	}
	for _, i := range tab.importers {
		named("importers", i.folder)
		named("importers of "+i.folder, i.by...)
	}
	for _, c := range tab.closures {
		named("a closure", c.from...)
		named("a closure", c.never...)
		named("a closure", c.but...)
	}
	for _, d := range tab.doors {
		named("a door", d.in...)
	}
	named("mains", tab.mains...)
	return out, nil
}
