package virttest

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"

	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// node is an XML element, or a piece of text or a comment between elements.
// Prefixes stay as they were written.
type node struct {
	prefix, local string
	// space is the namespace that the prefix stands for.
	space   string
	attrs   []xml.Attr
	kids    []*node
	text    string
	comment bool
}

// failure is a daemon's answer, with its text as a connection hands it on: on
// one line.
func failure(code virt.Code, text string) error {
	return virt.Fault(code, strings.TrimSpace(strings.Join(strings.Split(text, "\n"), " ")))
}

// codeXMLDetail is VIR_ERR_XML_DETAIL: the parser's own message.
const codeXMLDetail virt.Code = 35

// parseXML reads one document; what is the document's name in the message of a
// document that does not parse.
func parseXML(what, doc string) (*node, error) {
	bad := func(msg string) error { return failure(codeXMLDetail, "("+what+"):1: "+msg) }
	if strings.TrimSpace(doc) == "" {
		return nil, bad("Document is empty\n(null)\n^")
	}
	if !strings.HasPrefix(strings.TrimSpace(doc), "<") {
		return nil, bad("Start tag expected, '<' not found\n" + doc + "\n^")
	}
	d := xml.NewDecoder(strings.NewReader(doc))
	d.CharsetReader = func(string, io.Reader) (io.Reader, error) { return nil, errors.New("unknown encoding") }
	var root *node
	var open []*node
	var spaces []map[string]string
	for {
		tok, err := d.RawToken()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, bad(err.Error())
		}
		switch t := tok.(type) {
		case xml.StartElement:
			n := &node{prefix: t.Name.Space, local: t.Name.Local, attrs: t.Copy().Attr}
			scope := map[string]string{}
			for _, a := range n.attrs {
				switch {
				case a.Name.Space == "xmlns":
					scope[a.Name.Local] = a.Value
				case a.Name.Space == "" && a.Name.Local == "xmlns":
					scope[""] = a.Value
				}
			}
			spaces = append(spaces, scope)
			for i := len(spaces) - 1; i >= 0 && n.space == ""; i-- {
				n.space = spaces[i][n.prefix]
			}
			if len(open) > 0 {
				top := open[len(open)-1]
				top.kids = append(top.kids, n)
			} else if root != nil {
				return nil, bad("Extra content at the end of the document\n" + doc + "\n^")
			} else {
				root = n
			}
			open = append(open, n)
		case xml.EndElement:
			if len(open) == 0 {
				return nil, bad("Extra content at the end of the document\n" + doc + "\n^")
			}
			top := open[len(open)-1]
			if top.prefix != t.Name.Space || top.local != t.Name.Local {
				return nil, bad(fmt.Sprintf("Opening and ending tag mismatch: %s line 1 and %s\n%s\n^", top.local, t.Name.Local, doc))
			}
			open, spaces = open[:len(open)-1], spaces[:len(spaces)-1]
		case xml.CharData:
			if len(open) > 0 {
				top := open[len(open)-1]
				top.kids = append(top.kids, &node{text: string(t)})
			} else if strings.TrimSpace(string(t)) != "" {
				return nil, bad("Extra content at the end of the document\n" + doc + "\n^")
			}
		case xml.Comment:
			if len(open) > 0 {
				top := open[len(open)-1]
				top.kids = append(top.kids, &node{text: string(t), comment: true})
			}
		}
	}
	if len(open) > 0 {
		return nil, bad(fmt.Sprintf("Premature end of data in tag %s line 1\n%s\n^", open[len(open)-1].local, doc))
	}
	if root == nil {
		return nil, bad("Start tag expected, '<' not found\n" + doc + "\n^")
	}
	return root, nil
}

// child is the first child element of that name along a path ("os/type"); nil
// when there is none. A nil node has no children.
func (n *node) child(path string) *node {
	for name := range strings.SplitSeq(path, "/") {
		if n = n.first(name); n == nil {
			return nil
		}
	}
	return n
}

func (n *node) first(name string) *node {
	for _, k := range n.all(name) {
		return k
	}
	return nil
}

// all are the child elements of that name.
func (n *node) all(name string) []*node {
	var out []*node
	if n != nil {
		for _, k := range n.kids {
			if k.local == name {
				out = append(out, k)
			}
		}
	}
	return out
}

// attr is an attribute's value, or "".
func (n *node) attr(name string) string {
	if n != nil {
		for _, a := range n.attrs {
			if a.Name.Space == "" && a.Name.Local == name {
				return a.Value
			}
		}
	}
	return ""
}

// value is the text inside, without the elements.
func (n *node) value() string {
	if n == nil {
		return ""
	}
	var b strings.Builder
	for _, k := range n.kids {
		if k.local == "" && !k.comment {
			b.WriteString(k.text)
		}
	}
	return b.String()
}

var (
	textEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "\r", "&#13;")
	attrEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;", "\n", "&#10;", "\t", "&#9;", "\r", "&#13;")
)

// write writes the element as libvirt does: double quotes, and two spaces of
// indent for each level as long as there are only elements.
func (n *node) write(b *strings.Builder, indent int) {
	switch {
	case n.comment:
		b.WriteString("<!--" + n.text + "-->")
		return
	case n.local == "":
		_, _ = textEscapes.WriteString(b, n.text)
		return
	}
	name := n.local
	if n.prefix != "" {
		name = n.prefix + ":" + name
	}
	b.WriteString("<" + name)
	for _, a := range n.attrs {
		key := a.Name.Local
		if a.Name.Space != "" {
			key = a.Name.Space + ":" + key
		}
		b.WriteString(" " + key + `="`)
		_, _ = attrEscapes.WriteString(b, a.Value)
		b.WriteString(`"`)
	}
	var inside []*node
	mixed := false
	for _, k := range n.kids {
		if k.local == "" && !k.comment && strings.TrimSpace(k.text) != "" {
			mixed = true
		}
	}
	for _, k := range n.kids {
		if mixed || k.local != "" || k.comment {
			inside = append(inside, k)
		}
	}
	if len(inside) == 0 {
		b.WriteString("/>")
		return
	}
	b.WriteString(">")
	for _, k := range inside {
		if !mixed {
			b.WriteString("\n" + strings.Repeat("  ", indent+1))
		}
		k.write(b, indent+1)
	}
	if !mixed {
		b.WriteString("\n" + strings.Repeat("  ", indent))
	}
	b.WriteString("</" + name + ">")
}

func (n *node) String() string {
	var b strings.Builder
	n.write(&b, 0)
	return b.String()
}
