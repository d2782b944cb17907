package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"fleetdesk/internal/core/fault"
)

// maxDepth bounds how deep a file nests. The parser needs time and memory in
// the square of the depth: some hundred kilobytes of "[" would end the process.
const maxDepth = 100

// shallow refuses a file that nests too deep, by one walk over its tokens.
func shallow(name string, tokens token.Tokens) error {
	// open is how many brackets are open, columns where the blocks begin that
	// the present one is in.
	open := 0
	var columns []int
	for i, tk := range tokens {
		at := tk
		switch tk.Type {
		case token.SequenceStartType, token.MappingStartType:
			open++
		case token.SequenceEndType, token.MappingEndType:
			open = max(open-1, 0)
		case token.SequenceEntryType, token.MappingKeyType, token.MappingValueType:
			if tk.Type == token.MappingValueType && i > 0 {
				at = tokens[i-1] // the key
			}
			if open == 0 && at.Position != nil {
				for len(columns) > 0 && columns[len(columns)-1] >= at.Position.Column {
					columns = columns[:len(columns)-1]
				}
				columns = append(columns, at.Position.Column)
			}
		}
		if open+len(columns) > maxDepth {
			return fault.Errorf(fault.Invalid, "%s:%d: nested more than %d deep: no providers file is", name, tk.Position.Line, maxDepth)
		}
	}
	return nil
}

// Hash changes when what the entry says does: comments, line breaks, quotes
// and indentation are not part of it, nor is its place in the file. The order
// of fields is. A provider is built anew only when it changes.
func (e Entry) Hash() string {
	sum := sha256.New()
	write(sum, e.node)
	return hex.EncodeToString(sum.Sum(nil)[:8])
}

// write puts a node's meaning into w, each part with its length or its end, so
// that no two meanings read alike. References stay references: expanding them
// would let a small file grow without bound.
func write(w io.Writer, node ast.Node) {
	switch n := node.(type) {
	case nil:
		fmt.Fprint(w, "nothing;")
	case *ast.MappingNode:
		fmt.Fprint(w, "{")
		for _, kv := range n.Values {
			write(w, kv)
		}
		fmt.Fprint(w, "}")
	case *ast.MappingValueNode:
		write(w, n.Key)
		fmt.Fprint(w, ":")
		write(w, n.Value)
	case *ast.MappingKeyNode:
		write(w, n.Value)
	case *ast.SequenceNode:
		fmt.Fprint(w, "[")
		for _, item := range n.Values {
			write(w, item)
		}
		fmt.Fprint(w, "]")
	case *ast.AnchorNode:
		fmt.Fprint(w, "&")
		write(w, n.Name)
		write(w, n.Value)
	case *ast.AliasNode:
		fmt.Fprint(w, "*")
		write(w, n.Value)
	case *ast.TagNode:
		fmt.Fprintf(w, "!%q", n.Start.Value)
		write(w, n.Value)
	case *ast.StringNode:
		fmt.Fprintf(w, "%q;", n.Value)
	case *ast.LiteralNode:
		fmt.Fprintf(w, "%q;", n.Value.Value)
	case *ast.NullNode:
		fmt.Fprint(w, "null;")
	default:
		fmt.Fprintf(w, "%s %q;", n.Type(), n.GetToken().Value)
	}
}
