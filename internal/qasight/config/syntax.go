package config

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// tree reads a text as one YAML document. What is wrong is noted, and then nil
// is returned.
func tree(text []byte, p *problems) ast.Node {
	text = bytes.TrimPrefix(text, []byte("\uFEFF"))
	if !characters(text, p) {
		return nil
	}
	// Editors of other systems end lines so; it must not end up in a command. The
	// scanner overlooks a tag at the end of a file without a line break.
	lines := strings.ReplaceAll(string(text), "\r\n", "\n") + "\n"
	tokens := lexer.Tokenize(lines)
	straighten(tokens, strings.Split(lines, "\n"))
	if !frugal(tokens, p) {
		return nil
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		at, what := explain(err)
		p.add(at, "%s", what)
		return nil
	}
	return document(file, p)
}

// characters refuses text that is not UTF-8 or holds control characters. It
// tells the first only: the others are most often of the same making.
func characters(text []byte, p *problems) bool {
	at := Position{1, 1}
	for i := 0; i < len(text); {
		c, size := utf8.DecodeRune(text[i:])
		switch {
		case c == utf8.RuneError && size == 1:
			p.add(at, "byte 0x%02x is not UTF-8: save the file as UTF-8", text[i])
			return false
		case c == '\r' && i+1 < len(text) && text[i+1] == '\n':
		case c < ' ' && c != '\n' && c != '\t', c == 0x7f:
			p.add(at, "there is a control character (%#U): delete it", c)
			return false
		}
		i += size
		at.Column++
		if c == '\n' {
			at = Position{at.Line + 1, 1}
		}
	}
	return true
}

// straighten mends the columns of texts that blanks follow up to the end of their
// line: the scanner counts those blanks before the text.
func straighten(tokens token.Tokens, lines []string) {
	for _, tk := range tokens {
		last := tk.Next == nil || tk.Next.Position.Line > tk.Position.Line
		quotes := tk.Type == token.SingleQuoteType || tk.Type == token.DoubleQuoteType
		block := tk.Prev != nil && (tk.Prev.Type == token.LiteralType || tk.Prev.Type == token.FoldedType)
		if !last || quotes || block || tk.Value == "" || tk.Position.Line < 1 || tk.Position.Line > len(lines) {
			continue
		}
		line := strings.TrimRight(lines[tk.Position.Line-1], " \t")
		if before, ok := strings.CutSuffix(line, tk.Value); ok {
			tk.Position.Column = utf8.RuneCountInString(before) + 1
		}
	}
}

// frugal refuses what the format has no need of and what makes files large or
// deep that look small: anchors, aliases, merge keys, tags, directives, mappings
// as keys, and nesting without end.
func frugal(tokens token.Tokens, p *problems) bool {
	before := p.count
	depth, entries, line, fields := 0, 0, 0, 0
	// last is an item's dash that nothing but comments followed yet.
	var last *token.Token
	for _, tk := range tokens {
		at := placeOf(tk)
		if last != nil && tk.Type == token.SequenceEntryType && at.Line > placeOf(last).Line && at.Column <= placeOf(last).Column {
			// The parser would note it too, in a time that grows with the square of
			// their number.
			p.add(placeOf(last), "this item of a list is empty: delete it")
		}
		switch tk.Type {
		case token.SequenceEntryType:
			last = tk
		case token.CommentType:
		default:
			last = nil
		}
		if at.Line != line {
			line, entries = at.Line, 0
		}
		switch tk.Type {
		case token.InvalidType:
			p.add(at, "%s", advice(tk.Error))
			return false
		case token.AnchorType:
			p.add(at, "anchors (&) are not possible here: write the value out; a value that begins with & needs quotes")
		case token.AliasType:
			p.add(at, "aliases (*) are not possible here: write the value out; a value that begins with * needs quotes")
		case token.MergeKeyType:
			p.add(at, "merge keys (<<) are not possible here: write the fields out")
		case token.TagType:
			p.add(at, "tags (!) are not possible here: delete it; a value that begins with ! needs quotes")
		case token.MappingKeyType:
			p.add(at, "keys marked by ? are not possible here: write NAME: VALUE")
		case token.DirectiveType:
			p.add(at, "directives (%%) are not possible here: delete the line")
		case token.SequenceStartType, token.MappingStartType:
			depth++
		case token.SequenceEndType, token.MappingEndType:
			depth--
			if next := tk.Next; depth == 0 && next != nil && next.Type != token.CommentType && placeOf(next).Line == at.Line {
				p.add(placeOf(next), "nothing can stand behind %s: begin a new line, or quote the whole value", tk.Value)
				return false
			}
		case token.SequenceEntryType:
			entries++
		case token.MappingValueType:
			fields++
			if joined(tk) {
				p.add(at, "a blank is missing behind this colon: add it, or quote the text if the colon is part of it")
			}
		}
		if depth > maxDepth || entries > maxDepth {
			p.add(at, "this is nested deeper than %d levels: the format needs six", maxDepth)
			return false
		}
		if fields > maxFields {
			p.add(at, "there are more than %d fields, which no such file has: look for what repeats itself", maxFields)
			return false
		}
	}
	return p.count == before
}

// joined reports whether a colon and what follows it are one text by the rules of
// YAML. The parser divides them inside brackets and braces.
func joined(colon *token.Token) bool {
	before, next := colon.Prev, colon.Next
	if before != nil && (before.Type == token.SingleQuoteType || before.Type == token.DoubleQuoteType) {
		return false
	}
	at := placeOf(colon)
	return next != nil && placeOf(next) == Position{at.Line, at.Column + 1}
}

// document returns the file's only document, which must be a mapping.
func document(file *ast.File, p *problems) ast.Node {
	var bodies []ast.Node
	for _, d := range file.Docs {
		if d.Body == nil || d.Body.Type() == ast.CommentType {
			continue
		}
		if len(bodies) > 0 {
			at := position(d.Body)
			if d.Start != nil {
				at = placeOf(d.Start)
			}
			p.add(at, "a second YAML document begins: keep everything in one")
			return nil
		}
		bodies = append(bodies, d.Body)
	}
	if len(bodies) == 0 || bodies[0].Type() == ast.NullType {
		p.add(Position{1, 1}, "the file is empty: `qasight init` writes one to begin with")
		return nil
	}
	if _, ok := mapping(bodies[0]); !ok {
		p.add(position(bodies[0]), "the file is a mapping with fields such as project and pools, not %s: `qasight init` shows one", describe(bodies[0]))
		return nil
	}
	return bodies[0]
}

// explain turns a parser's error into a place and a text. The parser's own form
// prints an excerpt of the file, which belongs in no log.
func explain(err error) (Position, string) {
	var e yaml.Error
	if !errors.As(err, &e) {
		return Position{1, 1}, "this is not YAML: " + err.Error()
	}
	at := Position{1, 1}
	if tk := e.GetToken(); tk != nil {
		at = placeOf(tk)
	}
	return at, advice(e.GetMessage())
}

// advice adds what to do to a parser's message. It is a help for people: nothing
// is decided by it, and a message that it does not know stays as it is.
func advice(message string) string {
	for _, known := range []struct{ part, text string }{
		{"'\t'", "a tab stands where only spaces can: indent with spaces"},
		{"tab character", "a tab stands where only spaces can: use spaces"},
		{"end character of double-quoted", `a text in double quotes has no end: add the closing "`},
		{"end character of single-quoted", "a text in single quotes has no end: add the closing '"},
		{"']' not found", "a list in brackets has no end: add the closing ]"},
		{"end token '}'", "a mapping in braces has no end: add the closing }"},
		{"or ']' must be", "a comma or ] is missing before this"},
		{"or '}' must be", "a comma or } is missing before this"},
		{"corresponding to ']'", "this ] closes nothing: delete it, or quote the value"},
		{"corresponding to '}'", "this } closes nothing: delete it, or quote the value"},
		{"mapping value is not allowed", "a colon stands where none can: quote the value that holds it, or give the line the indentation of its neighbours"},
		{"reserved character", message + ": quote the value"},
		{"block sequence entries", "a list item stands behind a field's name: begin it on a line of its own, or write [a, b]"},
		{"unexpected key name", "this line is no field: a colon is missing, or the indentation is not that of its neighbours"},
		{"non-map value", "this line is no field: a colon is missing, or the indentation is not that of its neighbours"},
		{"value is not allowed", "this does not belong here: give it the indentation of its neighbours, and quote values with special characters"},
	} {
		if strings.Contains(message, known.part) {
			return known.text
		}
	}
	return fmt.Sprintf("this is not YAML (%s): look at indentation, quotes and brackets here", oneLine(message))
}

// oneLine is a text in one line of a length that people read.
func oneLine(s string) string {
	const most = 100
	s = strings.Join(strings.Fields(s), " ")
	if utf8.RuneCountInString(s) > most {
		return string([]rune(s)[:most]) + "…"
	}
	return s
}
