package cli_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/qasight/cli/command"
)

// The table of exit codes is in one place in the code, and the guide shows it.
func TestGuideShowsTheExitCodes(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/qasight.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(text), "\n## Exit codes\n")
	if !found {
		t.Fatal("docs/qasight.md has no section on exit codes")
	}
	section, _, _ := strings.Cut(after, "\n## ")
	var shown, want []string
	for _, m := range regexp.MustCompile(`(?m)^\| ([0-9, ]+) \| (.*) \|$`).FindAllStringSubmatch(section, -1) {
		shown = append(shown, m[1]+": "+m[2])
	}
	for _, c := range command.ExitCodes() {
		want = append(want, c.Code+": "+c.Meaning)
	}
	if diff := cmp.Diff(want, shown); diff != "" {
		t.Errorf("docs/qasight.md (-code +shown):\n%s", diff)
	}
}

// What the guide has people type are commands that exist.
func TestGuideShowsCommandsThatExist(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/qasight.md")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, m := range regexp.MustCompile("(?ms)^```(?:sh|console)\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		lines = append(lines, strings.Split(m[1], "\n")...)
	}
	for _, m := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(string(text), -1) {
		lines = append(lines, m[1])
	}
	all, typed := commands(), 0
	for _, line := range lines {
		words := strings.Fields(strings.TrimPrefix(line, "$ "))
		if len(words) < 2 || words[0] != "qasight" || words[1] == "never" { // what it prints
			continue
		}
		typed++
		name := words[0]
		for _, word := range words[1:] {
			if c := all[name]; c == nil || !c.HasSubCommands() || strings.HasPrefix(word, "-") {
				break // its arguments
			}
			name += " " + word
		}
		if all[name] == nil {
			t.Errorf("docs/qasight.md shows %q: there is no %s", line, name)
		}
	}
	if typed < 20 {
		t.Errorf("only %d commands were found", typed)
	}
}
