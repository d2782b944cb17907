package kubernetes

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"fleetdesk/internal/proxy/provider"
)

func object(name, uid, version string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID(uid), ResourceVersion: version, Labels: map[string]string{labelManaged: managedBy},
	}}
}

func newTestFollower() *follower {
	return &follower{
		objects: map[string]metav1.Object{}, gone: map[types.UID]bool{}, since: map[string]metav1.Object{}, turned: make(chan struct{}), kick: make(chan struct{}, 1),
	}
}

// What our own calls saw and what the watch tells meet in any order.
func TestFollowerTakesIn(t *testing.T) {
	listed := func(objs ...*corev1.Pod) map[string]metav1.Object {
		out := map[string]metav1.Object{}
		for _, o := range objs {
			out[o.Name] = o
		}
		return out
	}
	for name, tc := range map[string]struct {
		reason string
		do     func(f *follower)
		want   []string
	}{
		"learned": {"a list after a Create shows it", func(f *follower) { f.learn(object("a", "1", "5")) }, []string{"a 1 5"}},
		"an event that is older": {"the watch is behind what was read", func(f *follower) {
			f.learn(object("a", "1", "9"))
			f.event(watch.Modified, object("a", "1", "5"))
		}, []string{"a 1 9"}},
		"an event that is newer, with more digits": {"versions are numbers, not texts", func(f *follower) {
			f.learn(object("a", "1", "9"))
			f.event(watch.Modified, object("a", "1", "10"))
		}, []string{"a 1 10"}},
		"a read that is older": {"two calls at once", func(f *follower) {
			f.event(watch.Added, object("a", "1", "10"))
			f.learn(object("a", "1", "9"))
		}, []string{"a 1 10"}},
		"seen gone": {"a list after a Delete does not show it", func(f *follower) {
			f.event(watch.Added, object("a", "1", "5"))
			f.learnGone("a", f.uid("a"))
		}, nil},
		"seen gone, and a late event": {"the watch still tells of its end", func(f *follower) {
			f.event(watch.Added, object("a", "1", "5"))
			f.learnGone("a", f.uid("a"))
			f.event(watch.Modified, object("a", "1", "7"))
		}, nil},
		"seen gone, and made again": {"the name comes back as another object", func(f *follower) {
			f.event(watch.Added, object("a", "1", "5"))
			f.learnGone("a", f.uid("a"))
			f.event(watch.Added, object("a", "2", "8"))
			f.event(watch.Deleted, object("a", "1", "7"))
		}, []string{"a 2 8"}},
		"not found, and made meanwhile": {"the read began before the Pod was made: it says nothing of it", func(f *follower) {
			before := f.uid("a")
			f.event(watch.Added, object("a", "2", "8"))
			f.learnGone("a", before)
		}, []string{"a 2 8"}},
		"deleted": {"the plain case", func(f *follower) {
			f.event(watch.Added, object("a", "1", "5"))
			f.event(watch.Deleted, object("a", "1", "6"))
		}, nil},
		"deleted late": {"the end of the old one does not take the new one along", func(f *follower) {
			f.learn(object("a", "2", "8"))
			f.event(watch.Deleted, object("a", "1", "9"))
		}, []string{"a 2 8"}},
		"a whole list": {"what it does not have is gone", func(f *follower) {
			f.event(watch.Added, object("a", "1", "5"))
			f.replace(listed(object("b", "2", "6")), "7")
		}, []string{"b 2 6"}},
		"a whole list, and a Create since": {"the list was taken before", func(f *follower) {
			f.learn(object("a", "1", "9"))
			f.replace(listed(object("b", "2", "6")), "7")
		}, []string{"a 1 9", "b 2 6"}},
		"a whole list, and a read since": {"as above", func(f *follower) {
			f.learn(object("a", "1", "9"))
			f.replace(listed(object("a", "1", "6")), "7")
		}, []string{"a 1 9"}},
		"a whole list, and a Delete since": {"as above", func(f *follower) {
			f.event(watch.Added, object("a", "1", "5"))
			f.learnGone("a", "1")
			f.replace(listed(object("a", "1", "5")), "7")
		}, nil},
		"a late answer after it was seen gone": {"a UID does not come back", func(f *follower) {
			f.event(watch.Added, object("a", "1", "5"))
			f.learnGone("a", "1")
			f.learn(object("a", "1", "9"))
		}, nil},
		"versions that are no numbers": {"the watch alone is believed", func(f *follower) {
			f.learn(object("a", "1", "x9"))
			f.event(watch.Added, object("b", "2", "x1"))
			f.event(watch.Modified, object("b", "2", "w1"))
		}, []string{"b 2 w1"}},
		"without our label": {"the watch does not tell of its end", func(f *follower) {
			o := object("a", "1", "5")
			o.Labels = nil
			f.learn(o)
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := newTestFollower()
			tc.do(f)
			var got []string
			for _, n := range slices.Sorted(maps.Keys(f.objects)) {
				o := f.objects[n]
				got = append(got, strings.Join([]string{n, string(o.GetUID()), o.GetResourceVersion()}, " "))
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("%s: %q; want %q", tc.reason, got, tc.want)
			}
		})
	}
}

// What our calls saw gone is forgotten when the watch knows it too.
func TestFollowerForgetsTheGone(t *testing.T) {
	f := newTestFollower()
	f.event(watch.Added, object("a", "1", "5"))
	f.learnGone("a", "1")
	f.event(watch.Deleted, object("a", "1", "6"))
	f.event(watch.Added, object("b", "2", "7"))
	f.learnGone("b", "2")
	f.replace(map[string]metav1.Object{}, "9")
	if len(f.gone) != 0 {
		t.Errorf("kept for ever: %v", f.gone)
	}
}

// A list waits for a watch that does not stand, and is told why it cannot be
// had: after a try of its own, or at its deadline.
func TestFollowerAwait(t *testing.T) {
	refused := errors.New("refused")
	f := newTestFollower()
	f.set(false, refused)
	done := make(chan error, 1)
	go func() { done <- f.await(t.Context()) }()
	for range 2 { // a try that had begun before, and one since
		select {
		case <-f.kick:
		case <-time.After(time.Minute):
			t.Fatal("nobody asks for another try")
		}
		f.set(false, refused)
	}
	if err := <-done; !errors.Is(err, refused) {
		t.Errorf("await = %v", err)
	}
	f.set(true, nil)
	if err := f.await(t.Context()); err != nil {
		t.Errorf("await while the watch stands = %v", err)
	}
	f.doubt()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.await(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("await of a doubted one = %v", err)
	}
}

// A Watch that has returned is told nothing, also by who had just looked it up.
func TestEarsThatAreGone(t *testing.T) {
	var s ears
	told := 0
	e := &ear{tag: "t", changed: func(provider.Change) { told++ }}
	s.add(e)
	for _, found := range s.of("t") {
		found.tell("u")
		s.remove(e)
		found.tell("u")
	}
	if told != 1 || len(s.of("")) != 0 {
		t.Errorf("told %d times, %d are open", told, len(s.of("")))
	}
}
