package proxyset_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/api/v1alpha1"
)

// checker follows the watch stream of a set's Proxies and looks at the bounds
// after each event: what anybody could have seen.
type checker struct {
	t      *testing.T
	cancel context.CancelFunc
	done   chan struct{}

	mu sync.Mutex
	// floor is how many must be Ready, ceiling how many there may be in all.
	floor, ceiling int
	of             map[types.UID]bool // whether it is Ready, and stays
	ready          int
	// least and most are the extremes since bounds was called last, events how
	// many were seen, made and gone how many Proxies came and went.
	least, most        int
	events, made, gone int
	broken             []string
}

// check starts a checker of a set by its label "app".
func (r *rig) check(set string, floor, ceiling int) *checker {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := &checker{t: r.t, cancel: cancel, done: make(chan struct{}), floor: floor, ceiling: ceiling, of: map[types.UID]bool{}}
	var list v1alpha1.ProxyList
	of := client.MatchingLabels{"app": set}
	if err := r.client.List(ctx, &list, client.InNamespace(r.ns), of); err != nil {
		r.t.Fatal(err)
	}
	for i := range list.Items {
		c.see(watch.Added, &list.Items[i])
	}
	go func() {
		defer close(c.done)
		// A server that is busy ends the watches of those that it takes for slow:
		// from the last event on there is another one, which misses nothing.
		for at := list.ResourceVersion; ctx.Err() == nil; {
			w, err := r.client.Watch(ctx, &v1alpha1.ProxyList{}, client.InNamespace(r.ns), of,
				&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: at}})
			if err != nil {
				if ctx.Err() == nil {
					c.fail("the watch cannot go on: %v", err)
				}
				return
			}
			at = c.follow(ctx, w, at)
		}
	}()
	r.t.Cleanup(c.end)
	return c
}

// follow looks at events until there are no more, and returns after which one.
func (c *checker) follow(ctx context.Context, w watch.Interface, at string) string {
	defer func() {
		w.Stop()
		for range w.ResultChan() { // what is left of it
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return at
		case e, ok := <-w.ResultChan():
			if !ok {
				return at
			}
			px, is := e.Object.(*v1alpha1.Proxy)
			if !is {
				c.fail("the watch says %+v", e.Object)
				c.cancel()
				return at
			}
			c.see(e.Type, px)
			at = px.ResourceVersion
		}
	}
}

func (c *checker) fail(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = append(c.broken, fmt.Sprintf(format, args...))
}

func (c *checker) see(what watch.EventType, px *v1alpha1.Proxy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events++
	was, known := c.of[px.UID]
	if what == watch.Deleted {
		c.gone++
		delete(c.of, px.UID)
		if was {
			c.ready--
		}
	} else {
		is := px.DeletionTimestamp.IsZero() && apimeta.IsStatusConditionTrue(px.Status.Conditions, v1alpha1.ConditionReady)
		c.of[px.UID] = is
		if !known {
			c.made++
		}
		switch {
		case is && !was:
			c.ready++
		case was && !is:
			c.ready--
		}
	}
	c.least, c.most = min(c.least, c.ready), max(c.most, len(c.of))
	if c.ready < c.floor || len(c.of) > c.ceiling {
		c.broken = append(c.broken, fmt.Sprintf("event %d (%s %s): %d Ready of at least %d, %d in all of at most %d",
			c.events, what, px.Name, c.ready, c.floor, len(c.of), c.ceiling))
	}
}

// bounds sets the bounds from now on.
func (c *checker) bounds(floor, ceiling int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.floor, c.ceiling, c.least, c.most = floor, ceiling, c.ready, len(c.of)
}

// seen returns what was seen so far.
func (c *checker) seen() (ready, all, least, most, made, gone int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ready, len(c.of), c.least, c.most, c.made, c.gone
}

// end stops the checker and fails the test when a bound was broken.
func (c *checker) end() {
	c.cancel()
	<-c.done
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, b := range c.broken {
		if i == 5 {
			c.t.Errorf("and %d more", len(c.broken)-5)
			break
		}
		c.t.Error(b)
	}
	c.broken = nil
}
