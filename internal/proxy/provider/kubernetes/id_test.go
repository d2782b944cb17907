package kubernetes_test

import (
	"strings"
	"testing"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kubernetes"
)

func FuzzParseID(f *testing.F) {
	f.Add("kubernetes://away/away/proxies/px-u-0123456789abcdef")
	f.Add("kubernetes://away/away/proxies/px--0123456789abcdef")
	f.Add("kubernetes://a/b/../px-u-0123456789abcdef")
	f.Fuzz(func(t *testing.T, s string) {
		id, err := kubernetes.ParseID(s)
		if err != nil {
			if fault.Of(err) != fault.Invalid {
				t.Errorf("%q: %v is not Invalid", s, err)
			}
			return
		}
		if id.String() != s {
			t.Errorf("%q is read as %q", s, id.String())
		}
		for _, part := range []string{id.Provider, id.Cluster, id.Namespace, id.Pod} {
			if part == "" || len(part) > 63 || strings.ContainsAny(part, "/.%?#") {
				t.Errorf("%q has the part %q, which becomes part of a URL", s, part)
			}
		}
	})
}

// Names are labels at the greatest length of a UID, and differ by installation.
func TestNamesAtTheLimits(t *testing.T) {
	o := ownerOf("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0")
	if name := nameOf(o); len(name) > 63 {
		t.Errorf("%s has %d characters; a Service's name and a Pod's host name have 63 at most", name, len(name))
	}
	other := o
	other.Installation += "2"
	if nameOf(o) == nameOf(other) {
		t.Error("two installations have one name")
	}
}
