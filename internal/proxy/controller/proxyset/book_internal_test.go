package proxyset

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fleetdesk/api/v1alpha1"
)

func namesOf(members []member) (live, terminating []string) {
	for _, m := range members {
		if m.terminating {
			terminating = append(terminating, m.name)
		} else {
			live = append(live, m.name)
		}
	}
	slices.Sort(live)
	return live, terminating
}

// What was done counts until the cache shows it, and is neither counted twice
// nor missed, whenever the cache comes to show it.
func TestWhatWasDoneCountsUntilItIsSeen(t *testing.T) {
	set := types.NamespacedName{Namespace: "ns", Name: "s"}
	check := func(what string, members []member, wantLive, wantTerminating []string) {
		t.Helper()
		live, terminating := namesOf(members)
		if !slices.Equal(live, wantLive) || !slices.Equal(terminating, wantTerminating) {
			t.Errorf("%s: live %v, want %v; being deleted %v, want %v", what, live, wantLive, terminating, wantTerminating)
		}
	}
	b := newBooks()
	k := b.get(set, "u1")
	if !k.stale(noon) {
		t.Error("a set that was never looked at uncached need not be")
	}
	k.found(map[string]bool{}, nil, noon)
	k.make("new", noon)
	check("not seen", k.apply(nil, k.unseen()), []string{"new"}, nil)

	unseen := k.unseen() // then the cache is listed, and then it gets the Proxy
	b.seen("u1", "new")
	check("seen after the cache was listed", k.apply(nil, unseen), []string{"new"}, nil)
	check("seen", k.apply([]member{{name: "new", uid: "1"}}, k.unseen()), []string{"new"}, nil)

	k.delete("1")
	check("deleted, not seen", k.apply([]member{{name: "new", uid: "1"}}, k.unseen()), nil, []string{"new"})
	check("deleted, still not seen", k.apply([]member{{name: "new", uid: "1"}}, k.unseen()), nil, []string{"new"})
	check("gone", k.apply(nil, k.unseen()), nil, nil)
	check("another one of the name", k.apply([]member{{name: "new", uid: "2"}}, k.unseen()), []string{"new"}, nil)

	k.make("lost", noon)
	if k.stale(noon.Add(seenAfter)) || !k.stale(noon.Add(seenAfter+time.Second)) {
		t.Error("one that is not seen for long is not looked for, or too early")
	}
	k.lose("lost", noon)
	if !k.awaited(noon) {
		t.Error("one whose making was not answered is not waited for")
	}
	if b.seen("u1", "lost"); k.awaited(noon) {
		t.Error("one that was seen is waited for")
	}
	k.delete("a") // as it was thought, and was not so
	k.doubt()
	if !k.stale(noon) {
		t.Error("what is in doubt is not looked for")
	}
	cached := []*v1alpha1.Proxy{
		{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "b", UID: "b"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "c"}},
	}
	unseen = k.found(map[string]bool{"a": false, "b": true, "d": false}, cached, noon)
	check("looked for", k.apply([]member{{name: "a", uid: "a"}, {name: "b", uid: "b"}, {name: "c", uid: "c"}}, unseen), []string{"a", "d"}, []string{"b", "c"})

	if b.get(set, "u2") == k {
		t.Error("another set of the name has the book of the earlier one")
	}
	b.forget(set)
	if len(b.of) != 0 || len(b.name) != 0 {
		t.Error("a set that is gone is remembered")
	}
}
