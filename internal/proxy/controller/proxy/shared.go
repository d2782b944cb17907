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
// of them hundreds of times.
const (
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
	mu sync.Mutex
	of map[types.NamespacedName]int
}

func newGroups() *groups { return &groups{of: map[types.NamespacedName]int{}} }

func (g *groups) size(group types.NamespacedName) (n int, known bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, known = g.of[group]
	return n, known
}

func (g *groups) set(group types.NamespacedName, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.of[group] = n; n == 0 {
		delete(g.of, group)
	}
}

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
	px.Status.ExitIPShared = int32(max(n-1, 0))
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

// wakeGroup has all Proxies of a namespace that leave by an address looked at.
func (r *Reconciler) wakeGroup(ctx context.Context, namespace, exitIP string) {
	q := r.queue.Load()
	if q == nil {
		return // as for Wake
	}
	for i, req := range r.group(ctx, namespace, exitIP) {
		(*q).AddAfter(req, time.Duration(i)*groupPace)
	}
}
