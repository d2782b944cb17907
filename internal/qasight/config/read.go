package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// scalar is a text and where it stands.
type scalar struct {
	text string
	at   Position
}

// values are a section's fields as the file has them.
type values struct {
	// given is where each field's name stands, also of those with a bad value.
	given map[string]Position
	// good are the values that are right in themselves.
	good map[string]value
}

// value is a field's value; its kind says which part holds it.
type value struct {
	scalar
	count    int
	duration time.Duration
	list     []scalar
	single   values
	many     []entry
}

// entry is a named section.
type entry struct {
	name   scalar
	values values
}

// reader turns YAML into values by the table of fields.
type reader struct{ problems *problems }

// section reads a mapping; where names it in errors ("pool \"db\""), at is where a
// field that is missing is missing, and aside ends what is said of one that is no
// such mapping at all.
func (r reader) section(s *section, where string, at Position, n ast.Node, aside string) values {
	out := values{given: map[string]Position{}, good: map[string]value{}}
	pairs, ok := mapping(n)
	if !ok {
		r.problems.add(position(n), "%s is a mapping with fields such as %s, not %s%s", where, s.fields[0].name, describe(n), aside)
		return out
	}
	for _, kv := range pairs {
		key, at := kv.Key.GetToken().Value, position(kv.Key)
		f, known := s.field(key)
		if !known {
			r.problems.add(at, "unknown field %s in %s: %s", quoted(key), where, s.hint(key))
			continue
		}
		if first, twice := out.given[key]; twice {
			r.problems.add(at, "%s is there twice in %s: it is at %s already: keep one of them", key, where, first)
			continue
		}
		out.given[key] = at
		if v, ok := r.value(f, where, at, kv.Value); ok {
			out.good[key] = v
		}
	}
	for _, f := range s.fields {
		if _, there := out.given[f.name]; f.required && !there {
			r.problems.add(at, "%s has no %s: %s%s", where, f.name, missing(f), aside)
		}
		if _, there := out.given[f.name]; f.preset != "" && !there {
			out.good[f.name] = preset(f)
		}
	}
	return out
}

// preset is the value that a field has when it is left out.
func preset(f field) value {
	var v value
	switch f.kind {
	case duration:
		v.duration, _ = durationOf(f, f.preset)
	case count:
		v.count, _ = strconv.Atoi(f.preset)
	default: // no other kind has one
	}
	return v
}

// hint says what an unknown field may have been meant to be.
func (s *section) hint(key string) string {
	var hints []string
	if near := nearest(key, s.names()); near != "" {
		hints = append(hints, "did you mean "+near+"?")
	}
	for _, other := range []*section{format(), poolFields(), providerFields(), stageFields()} {
		if _, known := other.field(key); known {
			hints = append(hints, fmt.Sprintf("%s is a field of %s", key, other.what))
			break
		}
	}
	if hints == nil {
		return "the fields of " + s.what + " are " + strings.Join(s.names(), ", ")
	}
	return strings.Join(hints, " ")
}

func missing(f field) string {
	switch f.kind {
	case name, prefix:
		return fmt.Sprintf("add %q with a name", f.name+":")
	case names:
		return fmt.Sprintf("add %q with a list of keys; [] is an empty one", f.name+":")
	case command:
		return fmt.Sprintf("add %q with the command to run", f.name+":")
	default:
		return fmt.Sprintf("add %q", f.name+":")
	}
}

// value reads one field. It is false when the value is wrong, which is noted.
func (r reader) value(f field, where string, key Position, n ast.Node) (value, bool) {
	if _, null := n.(*ast.NullNode); null {
		r.problems.add(key, "%s has no value: %s", f.name, empty(f))
		return value{}, false
	}
	switch f.kind {
	case single:
		return value{single: r.section(f.section, "the "+f.name+" of "+where, key, n, "")}, true
	case many:
		return r.many(f, n)
	case names, verbs:
		return r.list(f, where, n)
	}
	s, ok := text(n)
	if !ok {
		advice := ""
		if f.kind == command {
			// Brackets and braces are the shell's too.
			advice = ": quote it"
		}
		r.problems.add(position(n), "%s is %s, not %s%s", f.name, f.kind, describe(n), advice)
		return value{}, false
	}
	v := value{scalar: s}
	wrong := plainFault(n)
	if wrong != "" {
		r.problems.add(s.at, "%s: %s", f.name, wrong)
		return value{}, false
	}
	switch f.kind {
	case name:
		wrong = nameFault(s.text)
	case prefix:
		wrong = prefixFault(s.text)
	case address:
		wrong = addressFault(s.text)
	case command:
		wrong = commandFault(f, s.text, n)
	case duration:
		v.duration, wrong = durationOf(f, s.text)
	case count:
		v.count, wrong = countOf(f, s.text, n)
	}
	if wrong != "" {
		r.problems.add(s.at, "%s: %s", f.name, wrong)
		return value{}, false
	}
	return v, true
}

// empty says what to do about a field without a value.
func empty(f field) string {
	switch {
	case f.kind == names:
		return "write [] for an empty list"
	case f.required:
		return "it needs " + f.kind.String()
	default:
		return "give it " + f.kind.String() + ", or leave the line out"
	}
}

// many reads a mapping of names to sections. Entries with a bad name are left
// out; those with bad fields stay, so that others can refer to them.
func (r reader) many(f field, n ast.Node) (value, bool) {
	pairs, ok := mapping(n)
	if !ok {
		r.problems.add(position(n), "%s is %s, not %s", f.name, f.kind, describe(n))
		return value{}, false
	}
	one := strings.TrimSuffix(f.name, "s")
	out := value{scalar: scalar{at: position(n)}}
	seen := map[string]Position{}
	for i, kv := range pairs {
		key := scalar{kv.Key.GetToken().Value, position(kv.Key)}
		if int64(i) == f.high {
			r.problems.add(key.at, "%d %s are more than a file may have (%d): split the project", len(pairs), f.name, f.high)
			break
		}
		if _, null := kv.Key.(*ast.NullNode); null {
			r.problems.add(key.at, "a %s has no name: give it one, or quote %s if that is its name", one, quoted(key.text))
			continue
		}
		wrong := plainFault(kv.Key)
		if wrong == "" {
			wrong = nameFault(key.text)
		}
		if wrong != "" {
			r.problems.add(key.at, "name of a %s: %s", one, wrong)
			continue
		}
		if first, twice := seen[key.text]; twice {
			r.problems.add(key.at, "%s %s is there twice: it is at %s already: give one of them another name", one, quoted(key.text), first)
			continue
		}
		seen[key.text] = key.at
		where, aside := one+" "+quoted(key.text), ""
		if _, field := f.section.field(key.text); field {
			aside = fmt.Sprintf(": is it indented as the %s's fields?", one)
		}
		if _, null := kv.Value.(*ast.NullNode); null {
			r.problems.add(key.at, "%s is empty: give it the field %s%s", where, f.section.fields[0].name, aside)
			out.many = append(out.many, entry{key, values{}})
			continue
		}
		out.many = append(out.many, entry{key, r.section(f.section, where, key.at, kv.Value, aside)})
	}
	if int64(len(pairs)) < f.low {
		r.problems.add(out.at, "%s is empty: there must be one at least", f.name)
	}
	return out, true
}

// list reads a list of names or verbs, each once.
func (r reader) list(f field, where string, n ast.Node) (value, bool) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		advice := ""
		if s, ok := text(n); ok && !strings.ContainsAny(s.text, "\n[]{}") {
			advice = fmt.Sprintf(": write %s: [%.40s]", f.name, s.text)
		}
		r.problems.add(position(n), "%s is %s, not %s%s", f.name, f.kind, describe(n), advice)
		return value{}, false
	}
	out := value{scalar: scalar{at: position(n)}, list: make([]scalar, 0, len(seq.Values))}
	seen := make(map[string]Position, len(seq.Values))
	good := true
	bad := func(at Position, format string, args ...any) {
		good = false
		r.problems.add(at, format, args...)
	}
	for i, item := range seq.Values {
		if int64(i) == f.high && f.kind == names {
			bad(position(item), "%s of %s has %d keys: at most %d are possible: make several pools of them", f.name, where, len(seq.Values), f.high)
			break
		}
		if item.GetToken().Type == token.ImplicitNullType {
			// It has no place of its own; its dash does.
			at := position(item)
			if len(seq.Entries) == len(seq.Values) {
				at = placeOf(seq.Entries[i].Start)
			}
			bad(at, "this item of a list is empty: delete it")
			continue
		}
		if _, null := item.(*ast.NullNode); null {
			bad(position(item), "%s has an empty item: delete it, or quote it if %s is its name", f.name, quoted(item.GetToken().Value))
			continue
		}
		s, ok := text(item)
		if !ok {
			bad(position(item), "an item of %s is a name, not %s", f.name, describe(item))
			continue
		}
		wrong := plainFault(item)
		if wrong == "" {
			wrong = itemFault(f, s.text)
		}
		if wrong != "" {
			bad(s.at, "%s: %s", f.name, wrong)
			continue
		}
		if first, twice := seen[s.text]; twice {
			bad(s.at, "%s is in %s of %s twice: it is at %s already: delete one of them", quoted(s.text), f.name, where, first)
			continue
		}
		seen[s.text] = s.at
		out.list = append(out.list, s)
	}
	return out, good
}

// mapping returns the pairs of a mapping, in the file's order.
func mapping(n ast.Node) ([]*ast.MappingValueNode, bool) {
	switch m := n.(type) {
	case *ast.MappingNode:
		return m.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{m}, true
	}
	return nil, false
}

// text returns a scalar as the file has it: 01 and 2026-01-01 are what they
// look like, whatever YAML would make of them.
func text(n ast.Node) (scalar, bool) {
	switch s := n.(type) {
	case *ast.LiteralNode:
		return scalar{s.Value.Value, position(n)}, true
	case *ast.StringNode:
		return scalar{s.Value, position(n)}, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return scalar{n.GetToken().Value, position(n)}, true
	}
	return scalar{}, false
}

// plain reports whether a scalar stands without quotes and in one piece.
func plain(n ast.Node) bool {
	if _, block := n.(*ast.LiteralNode); block {
		return false
	}
	t := n.GetToken().Type
	return t != token.SingleQuoteType && t != token.DoubleQuoteType
}

// position is where a node begins.
func position(n ast.Node) Position {
	tk := n.GetToken()
	switch m := n.(type) {
	case *ast.MappingNode:
		switch {
		case m.IsFlowStyle:
			tk = m.Start
		case len(m.Values) > 0:
			tk = m.Values[0].Key.GetToken()
		}
	case *ast.MappingValueNode:
		tk = m.Key.GetToken()
	}
	if tk == nil {
		return Position{1, 1}
	}
	return placeOf(tk)
}

func placeOf(tk *token.Token) Position {
	if tk.Position == nil {
		return Position{1, 1}
	}
	return Position{max(1, tk.Position.Line), max(1, tk.Position.Column)}
}

// describe says what a node is, for people.
func describe(n ast.Node) string {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode:
		return "nothing"
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "a number"
	case *ast.BoolNode:
		return "true or false"
	case *ast.StringNode, *ast.LiteralNode:
		return "a text"
	}
	return "something else"
}

func (k kind) String() string {
	switch k {
	case name:
		return "a name"
	case prefix:
		return "the beginning of a name"
	case address:
		return "a URL"
	case command:
		return "a command"
	case duration:
		return "a time such as 30m"
	case count:
		return "a whole number"
	case names:
		return "a list of names"
	case verbs:
		return "a list of verbs"
	case single:
		return "a mapping of fields"
	default:
		return "a mapping of names to fields"
	}
}
