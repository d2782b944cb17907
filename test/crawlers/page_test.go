package crawlers_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

var (
	blocks = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")
	// A program of the page begins with its name, behind a shell's first line.
	named = regexp.MustCompile(`\A(?:#!.*\n)?(?:#|//) ([a-z_]+\.[a-z]+): .+\n`)
)

// programs returns the programs of docs/crawlers.md by their names.
func programs(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../docs/crawlers.md")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, m := range blocks.FindAllStringSubmatch(string(text), -1) {
		name := named.FindStringSubmatch(m[2])
		switch {
		case name == nil:
			t.Errorf("a block of docs/crawlers.md has no name, so no test would run it:\n%.80s", m[2])
		case all[name[1]] != "":
			t.Errorf("docs/crawlers.md has %s twice", name[1])
		default:
			all[name[1]] = m[2]
		}
	}
	if open := strings.Count("\n"+string(text), "\n```"); open != 2*len(all) {
		t.Errorf("docs/crawlers.md has %d fences and %d programs: a block is not seen", open, len(all))
	}
	return all
}
