package kubernetes

import (
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// lateness is how long after its grace a Pod that is to end may still be there
	// before its node is thought to be away.
	lateness = time.Minute
	// partLateness is the same for a Service or Secret: a cloud takes some minutes
	// to give a load balancer back.
	partLateness = 5 * time.Minute
	// maxEndings is how many that are to end are remembered before old ones are
	// dropped, endingKept how long one is that nobody looks at.
	maxEndings = 1000
	endingKept = time.Hour
)

// endings remembers since when this process has known that something is to end.
// The cluster's own time says nothing here: two clocks differ, and who takes a
// usual deletion for one that hangs advises to force it.
type endings struct {
	mu   sync.Mutex
	seen map[types.UID]*ending
}

type ending struct{ first, last time.Time }

// since is how long it has been known.
func (e *endings) since(uid types.UID, now time.Time) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	one := e.seen[uid]
	if one == nil {
		if len(e.seen) >= maxEndings {
			for uid, old := range e.seen {
				if now.Sub(old.last) > endingKept {
					delete(e.seen, uid)
				}
			}
		}
		if e.seen == nil {
			e.seen = map[types.UID]*ending{}
		}
		one = &ending{first: now}
		e.seen[uid] = one
	}
	one.last = now
	return now.Sub(one.first)
}

// overdue reports that a Pod was to end long ago.
func (p *Provider) overdue(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp == nil {
		return false
	}
	wait := lateness
	if s := pod.DeletionGracePeriodSeconds; s != nil {
		wait += time.Duration(*s) * time.Second
	}
	return p.endings.since(pod.UID, p.now()) > wait
}

// stuck reports that a part was to be removed long ago.
func (p *Provider) stuck(m metav1.Object) bool {
	return m.GetDeletionTimestamp() != nil && p.endings.since(m.GetUID(), p.now()) > partLateness
}

// holders names what keeps an object that is being deleted.
func holders(m metav1.Object) string {
	return or(line(strings.Join(m.GetFinalizers(), ", ")), "none")
}
