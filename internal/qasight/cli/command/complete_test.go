package command_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/qasight/cli/command"
)

// Completing reads the file, and makes nothing: no lease database, and whatever the
// owner's commands would.
func TestComplete(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const text = `project: shop
pools:
  win-vms:
    items: [qa-1, qa-2, x-1]
    on_check: touch journal
    provider: {list: touch journal}
  win-10: {items: [w]}
  phones: {items: [p]}
`
	file := filepath.Join(dir, "qasight.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f := with("XDG_STATE_HOME=" + dir + "/state")
	f.File = file
	pools := func(prefix string) []string { all, _ := f.CompletePools(prefix); return all }
	keys := func(pool, prefix string) []string { all, _ := f.CompleteKeys(t.Context(), pool, prefix); return all }
	got := [][]string{pools(""), pools("win"), pools("z"), keys("win-vms", ""), keys("win-vms", "qa-"), keys("none", "")}
	want := [][]string{{"win-vms", "win-10", "phones"}, {"win-vms", "win-10"}, nil, {"qa-1", "qa-2", "x-1"}, {"qa-1", "qa-2"}, nil}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("something was made: %v, %v", entries, err)
	}
	if all, _ := (&command.Factory{File: dir + "/none.yaml"}).CompletePools(""); all != nil {
		t.Errorf("without a file: %q", all)
	}
}
