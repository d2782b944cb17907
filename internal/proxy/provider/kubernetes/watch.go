package kubernetes

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"fleetdesk/internal/proxy/provider"
)

// Watch implements [provider.Watcher] by the watch that listings use: the
// cluster is asked nothing more, and nothing is kept for a reader.
func (p *Provider) Watch(ctx context.Context, installation string, changed func(provider.Change)) error {
	if ctx.Err() != nil {
		return nil
	}
	e := &ear{tag: TagOf(installation), host: p.host, changed: changed}
	p.ears.add(e)
	defer p.ears.remove(e)
	p.follow()
	if p.pods.standing() {
		e.tell("")
	}
	select {
	case <-ctx.Done():
	case <-p.done:
	}
	return nil
}

// ear is one running Watch.
type ear struct {
	tag, host string
	changed   func(provider.Change)

	mu   sync.Mutex
	over bool
}

// tell says that the instance of a UID, or any for "", may have changed.
func (e *ear) tell(uid string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.over {
		e.changed(provider.Change{Host: e.host, UID: uid})
	}
}

// ears are the running Watches.
type ears struct {
	mu   sync.Mutex
	open map[*ear]bool
}

func (s *ears) add(e *ear) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = map[*ear]bool{}
	}
	s.open[e] = true
}

// remove returns when e is told nothing any more.
func (s *ears) remove(e *ear) {
	s.mu.Lock()
	delete(s.open, e)
	s.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.over = true
}

// of returns the Watches of an installation's tag; of all for "".
func (s *ears) of(tag string) []*ear {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*ear
	for e := range s.open {
		if tag == "" || e.tag == tag {
			out = append(out, e)
		}
	}
	return out
}

// listeners are what a follower tells. A Pod's status changes more often than
// what it means here: told is only what a reader would see.
func (p *Provider) listeners() (told func(watch.EventType, metav1.Object), heard func()) {
	said := map[types.UID]string{}
	told = func(kind watch.EventType, obj metav1.Object) {
		o, says := ownerOf(obj)
		if says == strange {
			return
		}
		if pod, is := obj.(*corev1.Pod); is && p.serviceKind(pod) != noService {
			p.services.start(p)
		}
		if kind == watch.Deleted {
			delete(said, obj.GetUID())
		} else {
			text := p.sight(obj)
			if said[obj.GetUID()] == text {
				return
			}
			said[obj.GetUID()] = text
		}
		for _, e := range p.ears.of(obj.GetLabels()[labelInstallation]) {
			e.tell(o.UID)
		}
	}
	heard = func() {
		clear(said) // what went meanwhile is not told
		for _, e := range p.ears.of("") {
			e.tell("")
		}
	}
	return told, heard
}

// sight is what a reader would see of an object.
func (p *Provider) sight(obj metav1.Object) string {
	switch obj := obj.(type) {
	case *corev1.Pod:
		in := p.instance(obj, nil)
		return fmt.Sprint(in.State, in.Address, in.Message, obj.Status.PodIP)
	case *corev1.Service:
		return fmt.Sprint(obj.Spec.ClusterIP, obj.Status.LoadBalancer, obj.DeletionTimestamp)
	}
	return ""
}
