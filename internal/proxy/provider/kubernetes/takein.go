package kubernetes

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
)

// begin says that a whole list is asked for: what calls take in from now on may
// be newer than it.
func (f *follower) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.since = map[string]metav1.Object{}
}

// replace takes a whole list in. Newer is alone what our calls have seen since
// it was asked for; a higher number is not, since the numbers go back when a
// cluster's data are restored from a copy. Then nothing known before holds.
func (f *follower) replace(all map[string]metav1.Object, version string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if above(f.high, version) {
		f.gone, f.since = map[types.UID]bool{}, nil
	}
	f.high = version
	listed := map[types.UID]bool{}
	for name, obj := range all {
		listed[obj.GetUID()] = true
		if f.gone[obj.GetUID()] {
			delete(all, name)
		}
	}
	for name, obj := range f.since {
		if known := f.objects[name]; known == nil || known.GetUID() != obj.GetUID() {
			continue // it was seen gone since
		}
		if newer(obj, version) && (all[name] == nil || newer(obj, all[name].GetResourceVersion())) {
			all[name] = obj
		}
	}
	for uid := range f.gone {
		if !listed[uid] {
			delete(f.gone, uid)
		}
	}
	f.objects, f.since = all, nil
}

// above reports that a version is higher than another; false where one is no
// number.
func above(version, other string) bool {
	order, err := resourceversion.CompareResourceVersion(version, other)
	return err == nil && order > 0
}

func newer(obj metav1.Object, version string) bool {
	return obj != nil && above(obj.GetResourceVersion(), version)
}

// reached takes in up to where the watch has told everything, as a bookmark says.
func (f *follower) reached(version string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reach(version)
}

// reach is reached with mu held.
func (f *follower) reach(version string) {
	if f.high == "" || above(version, f.high) {
		f.high = version
	}
}

// version is up to where the watch has told everything.
func (f *follower) version() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.high
}

func (f *follower) event(kind watch.EventType, obj metav1.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reach(obj.GetResourceVersion())
	old := f.objects[obj.GetName()]
	switch {
	case kind == watch.Deleted:
		delete(f.gone, obj.GetUID())
		if old != nil && old.GetUID() == obj.GetUID() {
			delete(f.objects, obj.GetName())
		}
	case f.gone[obj.GetUID()], newer(old, obj.GetResourceVersion()):
	default:
		f.objects[obj.GetName()] = obj
	}
}

// learn takes in what a call of ours has read or written. A call may be late:
// what the watch had told the end of by then does not come back.
func (f *follower) learn(obj metav1.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	version, old := obj.GetResourceVersion(), f.objects[obj.GetName()]
	switch _, err := resourceversion.CompareResourceVersion(version, "1"); {
	case err != nil, f.gone[obj.GetUID()], newer(old, version):
		return
	case (old == nil || old.GetUID() != obj.GetUID()) && f.high != "" && !above(version, f.high):
		return // the watch knows better up to there
	case obj.GetLabels()[labelManaged] != managedBy:
		return // the watch does not tell of it either
	}
	f.objects[obj.GetName()] = lean(obj)
	if f.since != nil {
		f.since[obj.GetName()] = obj
	}
}

// uid is that of the known object of a name; empty for none.
func (f *follower) uid(name string) types.UID {
	f.mu.Lock()
	defer f.mu.Unlock()
	if obj := f.objects[name]; obj != nil {
		return obj.GetUID()
	}
	return ""
}

// learnGone takes in that a call which began when uid was known found nothing
// of that name.
func (f *follower) learnGone(name string, uid types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if obj := f.objects[name]; uid != "" && obj != nil && obj.GetUID() == uid {
		delete(f.objects, name)
		f.gone[uid] = true
	}
}
