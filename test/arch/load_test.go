package arch_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// tagSets are the build tags under which the tree is read.
var tagSets = []string{"", "integration"}

// tree is the repository as go list and the file system show it. Paths in it
// are relative to root, with slashes.
type tree struct {
	root string
	// modules are the folders that hold a go.mod, "." first.
	modules []string
	// packages are the project's own, once per module and tag set.
	packages []pkg
	// standard says for each import path in a closure whether go list calls
	// it Standard: the module path fleetdesk has no dot and is not.
	standard map[string]bool
	// modulePath maps the import paths of third parties to their modules.
	modulePath map[string]string
	// files are all files but those of .git, bin and other ignored folders.
	files []string
}

// pkg is what the rules ask of a package.
type pkg struct {
	// folder is the package's place and name in the rules: internal/core/fault.
	folder, name, tags string
	// imports are direct, of production files; tests those of test files.
	imports, tests []string
	// deps is the closure of the production files.
	deps []string
	// files are all Go files of the folder that its build constraints may
	// choose at some time, tests apart.
	files []string
}

const project = "fleetdesk"

// own cuts the project's name off an import path; ok is false for others'.
func own(importPath string) (folder string, ok bool) {
	return strings.CutPrefix(importPath, project+"/")
}

// load reads the tree at root.
func load(ctx context.Context, root string, tags ...string) (*tree, error) {
	t := &tree{root: root, standard: map[string]bool{}, modulePath: map[string]string{}}
	if err := t.walk(); err != nil {
		return nil, err
	}
	for _, m := range t.modules {
		for _, tag := range tags {
			if err := t.list(ctx, m, tag); err != nil {
				return nil, fmt.Errorf("module %s, tags %q: %w", m, tag, err)
			}
		}
	}
	if len(t.packages) == 0 {
		return nil, fmt.Errorf("%s holds no Go package: the rules would pass on nothing", root)
	}
	return t, nil
}

// ignored folders hold what builds and runs leave behind.
var ignored = []string{".git", ".demo", "bin"}

func (t *tree) walk() error {
	err := filepath.WalkDir(t.root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(t.root, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if slices.Contains(ignored, rel) {
				return fs.SkipDir
			}
			return nil
		}
		t.files = append(t.files, rel)
		if d.Name() == "go.mod" && !strings.Contains("/"+rel, "/testdata/") && !strings.HasPrefix(rel, "stubs/") {
			t.modules = append(t.modules, path.Dir(rel))
		}
		return nil
	})
	slices.Sort(t.modules)
	return err
}

// listed is go list's own record; see `go help list`.
type listed struct {
	ImportPath, Name, Dir             string
	Standard                          bool
	Module                            *struct{ Path string }
	Imports, Deps                     []string
	TestImports, XTestImports         []string
	GoFiles, CgoFiles, IgnoredGoFiles []string
}

func (t *tree) list(ctx context.Context, module, tags string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "list", "-deps", "-tags="+tags,
		"-json=ImportPath,Name,Dir,Standard,Module,Imports,Deps,TestImports,XTestImports,GoFiles,CgoFiles,IgnoredGoFiles", "./...")
	cmd.Dir = filepath.Join(t.root, module)
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("go list: %w\n%s", err, stderr.String())
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var l listed
		if err := d.Decode(&l); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("go list: %w", err)
		}
		t.standard[l.ImportPath] = l.Standard
		folder, mine := own(l.ImportPath)
		if !mine {
			if l.Module != nil {
				t.modulePath[l.ImportPath] = l.Module.Path
			}
			continue
		}
		if moduleOf(t.modules, folder) != module {
			continue // a dependency in another module, which is listed by itself
		}
		t.packages = append(t.packages, pkg{
			folder:  folder,
			name:    l.Name,
			tags:    tags,
			imports: l.Imports,
			tests:   slices.Concat(l.TestImports, l.XTestImports),
			deps:    l.Deps,
			files:   production(folder, l.GoFiles, l.CgoFiles, l.IgnoredGoFiles),
		})
	}
}

// moduleOf returns the module folder that holds a package's folder.
func moduleOf(modules []string, folder string) string {
	best := "."
	for _, m := range modules {
		if (folder == m || strings.HasPrefix(folder, m+"/")) && len(m) > len(best) {
			best = m
		}
	}
	return best
}

func production(folder string, lists ...[]string) []string {
	var out []string
	for _, f := range slices.Concat(lists...) {
		if !strings.HasSuffix(f, "_test.go") {
			out = append(out, folder+"/"+f)
		}
	}
	return out
}

// parse reads one Go file with its comments.
func (t *tree) parse(file string) (*ast.File, error) {
	return parser.ParseFile(token.NewFileSet(), filepath.Join(t.root, file), nil, parser.ParseComments|parser.SkipObjectResolution)
}

func (t *tree) read(file string) ([]byte, error) {
	return os.ReadFile(filepath.Join(t.root, file))
}

// exists says whether a folder (with or without "/...") holds anything.
func (t *tree) exists(folder string) bool {
	dir := strings.TrimSuffix(folder, "/...") + "/"
	return slices.ContainsFunc(t.files, func(f string) bool { return strings.HasPrefix(f, dir) })
}

// within says whether a path is what a pattern names: "a/b" is itself alone,
// "a/b/..." is it and all below.
func within(p, pattern string) bool {
	if base, ok := strings.CutSuffix(pattern, "/..."); ok {
		return p == base || strings.HasPrefix(p, base+"/")
	}
	return p == pattern
}

func withinAny(p string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return within(p, pattern) })
}
