// Package config reads the providers file: which providers there are, of what
// kind, with what settings.
//
// Reading is strict. What makes the file as a whole unreadable (not YAML, an
// entry without a name, two equal names) refuses it; what is wrong inside one
// provider's section (an unknown field, a bad value) disables that provider
// alone, so that one typo does not take the others down.
package config

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"

	"fleetdesk/internal/core/fault"
)

// MaxBytes bounds a providers file.
const MaxBytes = 1 << 20

// File is a providers file, read.
type File struct {
	// Name is what errors call the file.
	Name string
	// Providers are in the file's order, with unique names.
	Providers []Entry

	// listed tells that the file has a list of providers, if an empty one.
	listed bool
}

// Entry is one provider of the file.
type Entry struct {
	// Name is what Proxy objects call the provider.
	Name string
	// Kind is the kind of provider: local, kvm, gcp, kubernetes.
	Kind string
	// Line is where the entry begins, from 1.
	Line int
	// Err says what is wrong with the entry itself; such a provider is
	// disabled. Invalid.
	Err error

	file    string
	section ast.Node
	node    ast.Node
}

// names are DNS labels: they stand in object fields, IDs and file names.
var nameForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// Parse reads a providers file; name is used in errors only. An error is
// Invalid, names line and field, and means that no part of the file is usable.
func Parse(name string, data []byte) (*File, error) {
	if len(data) > MaxBytes {
		return nil, fault.Errorf(fault.Invalid, "%s: %d bytes are more than a providers file may have (%d)", name, len(data), MaxBytes)
	}
	tokens := lexer.Tokenize(string(data))
	if err := shallow(name, tokens); err != nil {
		return nil, err
	}
	tree, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return nil, fault.Errorf(fault.Invalid, "%s is not YAML: %w", name, at(name, err))
	}
	root, err := document(name, tree)
	if err != nil {
		return nil, err
	}
	out := &File{Name: name}
	if root == nil {
		return out, nil
	}
	list, err := providerList(name, root)
	if err != nil {
		return nil, err
	}
	out.listed = list != nil
	lines := map[string]int{}
	for _, item := range list {
		e, err := entry(name, item)
		if err != nil {
			return nil, err
		}
		if first, twice := lines[e.Name]; twice {
			return nil, fault.Errorf(fault.Invalid,
				"%s:%d: provider %q is there already, on line %d: give one of them another name", name, e.Line, e.Name, first)
		}
		lines[e.Name] = e.Line
		out.Providers = append(out.Providers, e)
	}
	return out, nil
}

func document(name string, tree *ast.File) (*ast.MappingNode, error) {
	var bodies []ast.Node
	for _, d := range tree.Docs {
		if d.Body != nil && d.Body.Type() != ast.NullType && d.Body.Type() != ast.CommentType {
			bodies = append(bodies, d.Body)
		}
	}
	switch len(bodies) {
	case 0:
		return nil, nil
	case 1:
	default:
		return nil, fault.Errorf(fault.Invalid, "%s:%d: a second YAML document: keep all providers in one", name, line(bodies[1]))
	}
	m, ok := bodies[0].(*ast.MappingNode)
	if !ok {
		return nil, fault.Errorf(fault.Invalid, "%s:%d: want a mapping with the key \"providers\", got %s", name, line(bodies[0]), bodies[0].Type())
	}
	return m, nil
}

// providerList is nil when the file has no list, and else is not.
func providerList(name string, root *ast.MappingNode) ([]ast.Node, error) {
	var list []ast.Node
	seen := false
	for _, kv := range root.Values {
		key := kv.Key.GetToken().Value
		switch {
		case key != "providers":
			return nil, fault.Errorf(fault.Invalid, "%s:%d: unknown field %q: the file has one field, \"providers\"", name, line(kv.Key), key)
		case seen:
			return nil, fault.Errorf(fault.Invalid, "%s:%d: \"providers\" is there twice", name, line(kv.Key))
		}
		seen = true
		switch v := kv.Value.(type) {
		case *ast.SequenceNode:
			list = append([]ast.Node{}, v.Values...)
		case *ast.NullNode:
		default:
			return nil, fault.Errorf(fault.Invalid, "%s:%d: \"providers\" must be a list, got %s", name, line(kv.Value), v.Type())
		}
	}
	return list, nil
}

// entry reads one provider. An error refuses the whole file: without a name
// nothing can be disabled.
func entry(file string, node ast.Node) (Entry, error) {
	e := Entry{Line: line(node), file: file, node: node}
	m, ok := node.(*ast.MappingNode)
	if !ok {
		return e, fault.Errorf(fault.Invalid, "%s:%d: a provider must be a mapping with name and kind, got %s", file, e.Line, node.Type())
	}
	if len(m.Values) > 0 {
		e.Line = line(m.Values[0].Key)
	}
	fields := map[string]*ast.MappingValueNode{}
	for _, kv := range m.Values {
		key := kv.Key.GetToken().Value
		if _, twice := fields[key]; twice {
			e.fail("%s:%d: field %q is there twice", file, line(kv.Key), key)
			continue
		}
		fields[key] = kv
	}
	name := scalar(fields["name"])
	if !nameForm.MatchString(name) {
		return e, fault.Errorf(fault.Invalid,
			"%s:%d: providers need a name of lower-case letters, digits and dashes (at most 63), got %q", file, e.Line, name)
	}
	e.Name = name
	e.Kind = scalar(fields["kind"])
	if e.Kind == "" {
		e.fail("%s:%d: provider %q has no kind", file, e.Line, e.Name)
	}
	for key, kv := range fields {
		switch key {
		case "name", "kind":
		case e.Kind:
			e.section = kv.Value
		default:
			e.fail("%s:%d: provider %q: unknown field %q: besides name and kind there is only the section %q", file, line(kv.Key), e.Name, key, e.Kind)
		}
	}
	return e, nil
}

// fail notes the entry's first error, in the file's order.
func (e *Entry) fail(format string, args ...any) {
	if e.Err == nil {
		e.Err = fault.Errorf(fault.Invalid, format, args...)
	}
}

func scalar(kv *ast.MappingValueNode) string {
	if kv == nil {
		return ""
	}
	if s, ok := kv.Value.(ast.ScalarNode); ok && s.Type() != ast.NullType {
		return s.GetToken().Value
	}
	return ""
}

// Decode reads the entry's own section into a struct with yaml tags, strictly;
// no section leaves it as it is. Errors are Invalid and name line and field.
func (e Entry) Decode(into any) error {
	if e.Err != nil {
		return e.Err
	}
	if e.section == nil || e.section.Type() == ast.NullType {
		return nil
	}
	if err := yaml.NodeToValue(e.section, into, yaml.Strict()); err != nil {
		return fault.Errorf(fault.Invalid, "provider %q: %w", e.Name, at(e.file, err))
	}
	return nil
}

// LineOf returns the line of a field in the entry's section, by the keys that
// lead there (the index, in a list). Where the path leads nowhere, as with a
// field that is missing, it is the line of the last part that is there.
func (e Entry) LineOf(path ...string) int {
	at, node := e.Line, e.section
	for _, key := range path {
		var next ast.Node
		switch n := node.(type) {
		case *ast.MappingNode:
			for _, kv := range n.Values {
				if kv.Key.GetToken().Value == key {
					at, next = line(kv.Key), kv.Value
				}
			}
		case *ast.SequenceNode:
			if i, err := strconv.Atoi(key); err == nil && i >= 0 && i < len(n.Values) {
				next = n.Values[i]
				at = line(next)
			}
		}
		if next == nil {
			return at
		}
		node = next
	}
	return at
}

// File returns what errors call the file that the entry is from.
func (e Entry) File() string { return e.file }

// at turns a parser's error into one line, "file:line: text". The parser's own
// form prints an excerpt of the file, which belongs in no log.
func at(file string, err error) error {
	var e yaml.Error
	if !errors.As(err, &e) {
		return errors.New("unreadable")
	}
	if tk := e.GetToken(); tk != nil && tk.Position != nil {
		return fmt.Errorf("%s:%d: %s", file, tk.Position.Line, e.GetMessage())
	}
	return fmt.Errorf("%s: %s", file, e.GetMessage())
}

func line(n ast.Node) int {
	if tk := n.GetToken(); tk != nil && tk.Position != nil {
		return tk.Position.Line
	}
	return 0
}
