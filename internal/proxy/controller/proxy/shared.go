package proxy

import (
	"context"
	"strings"
	"time"

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

// countShared says in the status how many others leave by the same address, as
// far as the cache knows.
func (r *Reconciler) countShared(ctx context.Context, px *v1alpha1.Proxy) {
	ip := px.Status.ExitIP
	if ip == "" {
		px.Status.ExitIPShared = 0
		return
	}
	var list v1alpha1.ProxyList
	// Read-only use: the cache's own objects may be looked at, not changed.
	err := r.o.Client.List(ctx, &list, client.InNamespace(px.Namespace), client.MatchingFields{indexExitIP: ip}, client.UnsafeDisableDeepCopy)
	if err != nil {
		r.o.Log.Error("Proxies could not be listed from the cache", "error", err)
		return // what stands stays
	}
	others := int32(0)
	for i := range list.Items {
		if list.Items[i].Name != px.Name {
			others++
		}
	}
	px.Status.ExitIPShared = others
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
	for i, req := range r.lookup(ctx, client.InNamespace(namespace), client.MatchingFields{indexExitIP: exitIP}) {
		(*q).AddAfter(req, time.Duration(i)*groupPace)
	}
}
