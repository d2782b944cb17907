package kubernetes_test

import (
	"testing"
)

// A cluster whose data went back to a copy answers with lower versions than the
// watch has told: the next list is made anew, and has nothing that is not there.
func TestListAfterARestore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	p := w.open(t)
	spec := specOf(w, "kept")
	running(t, p, spec)
	if rows, err := p.ListByTag(t.Context(), installation); err != nil || rows[0].Err != nil || len(rows[0].Instances) != 1 {
		t.Fatalf("the list = %+v, %v", rows, err)
	}
	lost := w.pod(t, nameOf(spec.Owner)).DeepCopy()
	lost.Name, lost.UID, lost.ResourceVersion = nameOf(ownerOf("lost")), "lost", "999999999999"
	lost.Labels["crawl.example.com/proxy-uid"] = "lost"
	p.Restore(lost)
	if !p.Known(lost.Name) {
		t.Fatal("the Pod that is lost was not known before")
	}
	rows, err := p.ListByTag(t.Context(), installation)
	if err != nil || rows[0].Err != nil || len(rows[0].Instances) != 1 || rows[0].Instances[0].Owner != spec.Owner {
		t.Errorf("the list after a restore = %+v, %v", rows, err)
	}
	if p.Known(lost.Name) {
		t.Error("the Pod that is lost is still known")
	}
}
