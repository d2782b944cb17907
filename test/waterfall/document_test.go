package waterfall_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

var document = filepath.Join("..", "..", "docs", "waterfall.md")

// compareDocument holds a table of docs/waterfall.md to what was simulated.
func compareDocument(t *testing.T, name, table string) {
	t.Helper()
	begin, end := "<!-- begin "+name+" -->\n", "<!-- end "+name+" -->\n"
	raw, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(raw), begin)
	had, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("docs/waterfall.md has no place for the table %s: it stands between %q and %q", name, begin, end)
	}
	if *update {
		if err := os.WriteFile(document, []byte(before+begin+table+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(had, table); diff != "" {
		t.Errorf("docs/waterfall.md does not show what is simulated; -update writes it anew (-document +simulated):\n%s", diff)
	}
}

// table makes a table of Markdown that is one on a terminal too; all columns but
// the first are numbers.
func table(rows [][]string) string {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell), 4)
		}
	}
	var b strings.Builder
	for n, row := range rows {
		for i, cell := range row {
			gap := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				b.WriteString("| " + cell + gap)
			} else {
				b.WriteString(" | " + gap + cell)
			}
		}
		b.WriteString(" |\n")
		if n > 0 {
			continue
		}
		for i, width := range widths {
			if i == 0 {
				b.WriteString("| " + strings.Repeat("-", width))
			} else {
				b.WriteString(" | " + strings.Repeat("-", width-1) + ":")
			}
		}
		b.WriteString(" |\n")
	}
	return b.String()
}
