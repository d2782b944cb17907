package providertest_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/providertest"
)

const page = "../../../../docs/providers.md"

var row = regexp.MustCompile(`(?m)^\| (P-[A-Z]{3}-\d+) \| ([A-Z ]+) \| ([^|]+) \| ([^|]+) \|$`)

func read(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestEveryMustHasASubtest holds the page and the suite together.
func TestEveryMustHasASubtest(t *testing.T) {
	text := read(t)
	var musts, all []string
	for _, m := range row.FindAllStringSubmatch(text, -1) {
		if slices.Contains(all, m[1]) {
			t.Errorf("clause %s is there twice", m[1])
		}
		all = append(all, m[1])
		switch m[2] {
		case "MUST":
			musts = append(musts, m[1])
		case "SHOULD", "MAY":
		default:
			t.Errorf("clause %s has level %q", m[1], m[2])
		}
	}
	slices.Sort(musts)
	if diff := cmp.Diff(musts, providertest.Clauses()); diff != "" {
		t.Errorf("MUST clauses of docs/providers.md (-) and clauses with a subtest (+) differ:\n%s", diff)
	}
	// What looks like a clause and was not read as a row would be unproven.
	for _, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, "| P-") && !row.MatchString(line) {
			t.Errorf("this row cannot be read as a clause: %s", line)
		}
	}
	for _, id := range regexp.MustCompile(`P-[A-Z]{3}-\d+`).FindAllString(text, -1) {
		if !slices.Contains(all, id) {
			t.Errorf("the page speaks of %s, which has no row", id)
		}
	}
}

func TestSubtestNames(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range providertest.Subtests() {
		if len(s.Clauses) == 0 || s.Title == "" || seen[s.Name()] {
			t.Errorf("subtest %q: no clause, no title, or there twice", s.Name())
		}
		seen[s.Name()] = true
	}
}

// TestClassTable compares the page's copy with fault.Table.
func TestClassTable(t *testing.T) {
	_, rest, ok := strings.Cut(read(t), "\n## Classes\n")
	if !ok {
		t.Fatal("the page has no section Classes")
	}
	var got []string
	for _, line := range strings.Split(strings.SplitN(rest, "\n## ", 2)[0], "\n") {
		if strings.HasPrefix(line, "| ") {
			got = append(got, line)
		}
	}
	want := []string{
		"| class | pause before the next try | condition reason | HTTP | exit code | label | meaning |",
		"| --- | --- | --- | --- | --- | --- | --- |",
	}
	for _, m := range fault.Table() {
		pause := m.Retry.Min.String()
		if m.Retry.Max != m.Retry.Min {
			pause += " to " + m.Retry.Max.String()
		}
		want = append(want, fmt.Sprintf("| %s | %s | %s | %d | %d | %s | %s |",
			m.Class, pause, m.Reason, m.HTTPStatus, m.ExitCode, m.Label, m.Summary))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fault.Table (-) and the page (+) differ:\n%s", diff)
	}
}
