package builtin_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/config/samples"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/builtin"
	"fleetdesk/internal/proxy/provider/fake"
)

// sampleOf is a providers file whose first provider is of that kind.
var sampleOf = map[string]string{"gcp": "providers_gcp.yaml", "kubernetes": "providers_kubernetes.yaml", "kvm": "providers_kvm.yaml", "local": "providers.yaml"}

// The table of features in docs/providers.md names each kind that Build knows,
// and the fake; what it says of optional interfaces is so.
func TestFeatureTable(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/providers.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "\n## Providers\n")
	if !ok {
		t.Fatal("the page has no section Providers")
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	var table [][]string
	for _, line := range strings.Split(rest, "\n") {
		if !strings.HasPrefix(line, "| ") {
			if len(table) > 0 {
				break // another table follows
			}
			continue
		}
		cells := strings.Split(strings.Trim(line, "| "), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		table = append(table, cells)
	}
	if len(table) < 3 {
		t.Fatalf("the table of features has %d lines", len(table))
	}
	head, rows := table[0], table[2:]
	var names []string
	for _, cells := range rows {
		name, _, _ := strings.Cut(cells[0], " ")
		names = append(names, name)
		if len(cells) != len(head) {
			t.Errorf("the row of %s has %d cells; the table has %d columns", name, len(cells), len(head))
			continue
		}
		p := ofKind(t, name)
		for column, has := range map[string]bool{
			"Check": is[provider.Checker](p),
			"Watch": is[provider.Watcher](p),
			"Claim": is[provider.Claimer](p),
			"Clean": is[provider.Cleaner](p),
		} {
			i := slices.Index(head, column)
			if i < 0 {
				t.Fatalf("the table has no column %s", column)
			}
			want := "no"
			if has {
				want = "yes"
			}
			if cells[i] != want {
				t.Errorf("the table says %q of %s and %s; the code says %q", cells[i], name, column, want)
			}
		}
	}
	slices.Sort(names)
	want := slices.Sorted(slices.Values(append(builtin.Kinds(), "fake")))
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("kinds of providers (-) and rows of the table (+) differ:\n%s", diff)
	}
}

func is[I any](p provider.Provider) bool {
	_, ok := provider.As[I](p)
	return ok
}

// ofKind builds a provider of that kind from its sample.
func ofKind(t *testing.T, kind string) provider.Provider {
	t.Helper()
	if kind == "fake" {
		return fake.New(fake.Options{})
	}
	text, err := samples.Files.ReadFile(sampleOf[kind])
	if err != nil {
		t.Fatalf("kind %s: no sample: %v", kind, err)
	}
	p, err := build(t, string(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}
