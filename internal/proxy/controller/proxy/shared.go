package proxy

import (
	"context"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fleetdesk/api/v1alpha1"
)

// Proxies of a namespace that leave by one address are one address to a site:
// each says how many others there are. When one comes or goes, the others are
// looked at again as a group, a while later and one after the other: a fleet of
// hundreds behind one router that starts all at once would otherwise write each
// of them hundreds of times. And after a count that wrote a group it is not
// counted again for a while ([Options.Recount]): one Proxy whose exit IP goes to
// and fro would otherwise write all others that leave by the address, each time.
const (
	// defaultRecount is the least time between two counts that write a group.
	defaultRecount = time.Minute
	// groupGather is how long what happens in a group is gathered.
	groupGather = 2 * time.Second
	// groupPace is the time between two of a group that are looked at for it.
	groupPace = 50 * time.Millisecond
)

func exitIPOf(px *v1alpha1.Proxy) []string {
	if px.Status.ExitIP == "" {
		return nil
	}
	return []string{px.Status.ExitIP}
}

// groups are how many Proxies leave by an address, by namespace and address, as
// of the last look at the group. All of a group show the same number until the
// next look: counted anew in each reconcile, it would have each write of a Proxy
// follow from its own last one while others still come.
type groups struct {
	// pause is [Options.Recount].
	pause time.Duration

	mu sync.Mutex
	of map[types.NamespacedName]counted
}

// counted is a group as of the last look at it.
type counted struct {
	n int
	// written is when a look last changed what all of them show.
	written time.Time
}

func newGroups(pause time.Duration) *groups {
	return &groups{pause: pause, of: map[types.NamespacedName]counted{}}
}

func (g *groups) size(group types.NamespacedName) (n int, known bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c, known := g.of[group]
	return c.n, known
}

func (g *groups) set(group types.NamespacedName, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n == 0 {
		// Nobody is left to be written. Its pause goes with it.
		delete(g.of, group)
		return
	}
	g.of[group] = counted{n, g.of[group].written}
}

// left is how long a group must not be counted again; at most 0 is now.
func (g *groups) left(group types.NamespacedName, now time.Time) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.of[group].written.Add(g.pause).Sub(now)
}

// rest begins the pause of a group that a look wrote.
func (g *groups) rest(group types.NamespacedName, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c, known := g.of[group]; known {
		g.of[group] = counted{c.n, now}
	}
}

// others is what each of a group of n shows.
func others(n int) int { return max(n-1, 0) }

// countShared says in the status how many others leave by the same address, as
// far as the cache knew at the last look. A Proxy that has just joined or left a
// group is not counted before the next one.
func (r *Reconciler) countShared(ctx context.Context, px *v1alpha1.Proxy) {
	ip := px.Status.ExitIP
	if ip == "" {
		px.Status.ExitIPShared = 0
		return
	}
	n, known := r.groups.size(nameOf(px.Namespace, ip))
	if !known {
		n = len(r.group(ctx, px.Namespace, ip))
	}
	px.Status.ExitIPShared = int32(others(n))
}

// group looks who leaves by an address, and remembers how many.
func (r *Reconciler) group(ctx context.Context, namespace, exitIP string) []reconcile.Request {
	members := r.lookup(ctx, client.InNamespace(namespace), client.MatchingFields{indexExitIP: exitIP}, client.UnsafeDisableDeepCopy)
	r.groups.set(nameOf(namespace, exitIP), len(members))
	return members
}

// groupPrefix begins the name of a request that is for all Proxies of an exit
// IP; no Proxy can have such a name.
const groupPrefix = "@"

func groupOf(req reconcile.Request) (exitIP string, ok bool) {
	return strings.CutPrefix(req.Name, groupPrefix)
}

// siblings asks for a look at a group that a Proxy joined or left.
func siblings() handler.EventHandler {
	ask := func(q queue, o client.Object) {
		if px, ok := o.(*v1alpha1.Proxy); ok && px.Status.ExitIP != "" {
			q.AddAfter(reconcile.Request{NamespacedName: nameOf(px.Namespace, groupPrefix+px.Status.ExitIP)}, groupGather)
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) {
			if !e.IsInInitialList { // the start looks at every Proxy
				ask(q, e.Object)
			}
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			was, okWas := e.ObjectOld.(*v1alpha1.Proxy)
			is, okIs := e.ObjectNew.(*v1alpha1.Proxy)
			if okWas && okIs && was.Status.ExitIP != is.Status.ExitIP {
				ask(q, was)
				ask(q, is)
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) { ask(q, e.Object) },
	}
}

// wakeGroup has all Proxies of a namespace that leave by an address looked at,
// or says how long that must wait.
func (r *Reconciler) wakeGroup(ctx context.Context, namespace, exitIP string) time.Duration {
	q := r.queue.Load()
	if q == nil {
		return 0 // as for Wake
	}
	group, now := nameOf(namespace, exitIP), time.Now()
	if left := r.groups.left(group, now); left > 0 {
		return left
	}
	was, _ := r.groups.size(group)
	members := r.group(ctx, namespace, exitIP)
	if others(was) != others(len(members)) {
		r.groups.rest(group, now)
	}
	for i, req := range members {
		(*q).AddAfter(req, time.Duration(i)*groupPace)
	}
	return 0
}
