package kubernetes

import (
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// Numbers alone do not say what is newer: a cluster goes back to a copy of its
// data, and an answer is on its way while the watch tells of the end.
func TestFollowerGoesBack(t *testing.T) {
	listed := func(objs ...metav1.Object) map[string]metav1.Object {
		out := map[string]metav1.Object{}
		for _, o := range objs {
			out[o.GetName()] = o
		}
		return out
	}
	// known is a cache after a list and some events, up to version 920.
	known := func(f *follower) {
		f.begin()
		f.replace(listed(object("a", "1", "900")), "905")
		f.event(watch.Added, object("lost", "2", "910"))
		f.reached("920")
	}
	for name, tc := range map[string]struct {
		reason string
		do     func(f *follower)
		want   []string
	}{
		"restored": {"what was made after the copy is not there any more, and what is there is as it was", func(f *follower) {
			f.begin()
			f.replace(listed(object("a", "1", "500")), "510")
		}, []string{"a 1 500"}},
		"restored, and it goes on": {"events of the restored cluster have low numbers", func(f *follower) {
			f.begin()
			f.replace(listed(object("a", "1", "500")), "510")
			f.event(watch.Modified, object("a", "1", "520"))
			f.learn(object("b", "3", "530"))
		}, []string{"a 1 520", "b 3 530"}},
		"restored, seen gone before": {"it is back", func(f *follower) {
			f.learnGone("a", "1")
			f.begin()
			f.replace(listed(object("a", "1", "500")), "510")
		}, []string{"a 1 500"}},
		"restored beyond where it was": {"what no call has seen since the list was asked for is not newer than it", func(f *follower) {
			f.learn(object("b", "3", "990"))
			f.begin()
			f.replace(listed(object("a", "1", "500")), "925")
		}, []string{"a 1 500"}},
		"made while the list was under way": {"a list after a Create shows it", func(f *follower) {
			f.begin()
			f.learn(object("b", "3", "990"))
			f.replace(listed(object("a", "1", "900")), "980")
		}, []string{"a 1 900", "b 3 990"}},
		"made and gone while the list was under way": {"the last word counts", func(f *follower) {
			f.begin()
			f.learn(object("b", "3", "990"))
			f.learnGone("b", "3")
			f.replace(listed(object("a", "1", "900")), "980")
		}, []string{"a 1 900"}},
		"a late answer": {"the watch has told of its end", func(f *follower) {
			f.event(watch.Deleted, object("lost", "2", "930"))
			f.learn(object("lost", "2", "910"))
		}, []string{"a 1 900"}},
		"a late answer, after a bookmark": {"the watch has told everything up to there", func(f *follower) {
			f.event(watch.Deleted, object("lost", "2", "930"))
			f.reached("950")
			f.learn(object("other", "4", "940"))
		}, []string{"a 1 900"}},
		"an early answer": {"the watch has not told of it yet", func(f *follower) {
			f.learn(object("other", "4", "940"))
		}, []string{"a 1 900", "lost 2 910", "other 4 940"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newTestFollower()
			known(f)
			tc.do(f)
			var got []string
			for _, n := range slices.Sorted(maps.Keys(f.objects)) {
				got = append(got, strings.Join([]string{n, string(f.objects[n].GetUID()), f.objects[n].GetResourceVersion()}, " "))
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("%s: %q; want %q", tc.reason, got, tc.want)
			}
		})
	}
}

// What calls take in is not collected while no list is under way.
func TestFollowerCollectsWhileItLists(t *testing.T) {
	f := newTestFollower()
	f.begin()
	f.replace(map[string]metav1.Object{}, "1")
	f.learn(object("a", "1", "5"))
	if len(f.since) != 0 {
		t.Errorf("kept for ever: %v", f.since)
	}
}
