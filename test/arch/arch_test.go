package arch_test

import (
	"context"
	"sync"
	"testing"
)

// top is the repository's root, seen from this folder.
const top = "../.."

var loadOnce = sync.OnceValues(func() (*tree, error) {
	return load(context.Background(), top, tagSets...)
})

// repository is the tree that this test stands in, read once.
func repository(t *testing.T) *tree {
	t.Helper()
	tr, err := loadOnce()
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestRules(t *testing.T) {
	tr := repository(t)
	for _, r := range all {
		t.Run(r.name, func(t *testing.T) {
			found, err := r.look(tr, rules)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range found {
				t.Error(f)
			}
			if len(found) > 0 {
				t.Logf("the rule: %s", r.reason)
			}
		})
	}
}

func TestEveryRowHasAReason(t *testing.T) {
	t.Parallel()
	var reasons []string
	for _, f := range rules.floors {
		reasons = append(reasons, f.reason)
	}
	for _, i := range rules.importers {
		reasons = append(reasons, i.reason)
	}
	for _, c := range rules.closures {
		reasons = append(reasons, c.reason)
	}
	for _, d := range rules.doors {
		reasons = append(reasons, d.reason)
	}
	for _, e := range rules.long {
		reasons = append(reasons, e.reason)
	}
	for i, r := range reasons {
		if r == "" {
			t.Errorf("row %d of the table has no reason", i)
		}
	}
}
