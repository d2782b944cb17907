package virttest

import (
	"encoding/xml"
	"strings"

	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// metadataOf is the element of our namespace in a domain's <metadata>, as
// libvirt hands it back: without its prefix and its declaration. Of several the
// first stays.
func metadataOf(domain *node) string {
	for _, n := range domain.child("metadata").elements() {
		if n.space == virt.MetadataNamespace {
			return n.bare().String()
		}
	}
	return ""
}

func (n *node) elements() []*node {
	var out []*node
	if n != nil {
		for _, k := range n.kids {
			if k.local != "" {
				out = append(out, k)
			}
		}
	}
	return out
}

// bare is the element without our namespace: neither its declaration nor the
// prefix that stands for it, also inside.
func (n *node) bare() *node {
	prefixes := map[string]bool{n.prefix: true}
	for _, a := range n.attrs {
		if a.Name.Space == "xmlns" && a.Value == virt.MetadataNamespace {
			prefixes[a.Name.Local] = true
		}
	}
	return n.without(prefixes)
}

func (n *node) without(prefixes map[string]bool) *node {
	out := *n
	if prefixes[out.prefix] {
		out.prefix = ""
	}
	out.attrs, out.kids = nil, nil
	for _, a := range n.attrs {
		declares := a.Value == virt.MetadataNamespace && (a.Name.Space == "xmlns" || a.Name.Space == "" && a.Name.Local == "xmlns")
		if declares {
			continue
		}
		if a.Name.Space != "xmlns" && prefixes[a.Name.Space] {
			a.Name.Space = ""
		}
		out.attrs = append(out.attrs, a)
	}
	for _, k := range n.kids {
		out.kids = append(out.kids, k.without(prefixes))
	}
	return &out
}

// newMetadata is what SetMetadata keeps of an element that it is given.
// Libvirt declares its own prefix on the element; one that has a declaration
// of that prefix already cannot be taken.
func newMetadata(element string) (string, error) {
	n, err := parseXML("metadata_xml", element)
	if err != nil {
		return "", err
	}
	taken := failure(virt.CodeInternalError, "internal error: failed to create a new XML namespace")
	if strings.HasPrefix(strings.TrimSpace(element), "<!--") {
		return "", taken
	}
	for i, a := range n.attrs {
		if a.Name.Space == "xmlns" && a.Name.Local == virt.MetadataPrefix {
			return "", taken
		}
		if a.Name.Space == "" && a.Name.Local == "xmlns" {
			n.attrs[i].Name = xml.Name{Space: "xmlns", Local: virt.MetadataPrefix}
		}
	}
	return n.String(), nil
}
