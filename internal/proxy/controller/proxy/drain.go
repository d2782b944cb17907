package proxy

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/deskkeys"
)

// Desk is where Proxies are leased.
type Desk interface {
	// Drain sees to it that the Proxy is not handed out any more, and tells who
	// holds it still; the zero Holder is nobody. Once it answered, no take gets
	// the Proxy. It returns before ctx ends; an error means that nothing is
	// known. When there is a holder, the reconciler is woken when its lease has
	// ended.
	Drain(ctx context.Context, proxy types.NamespacedName, uid string) (deskkeys.Holder, error)
	// DrainTimeout is how long the Proxy's deletion waits for its lease at most.
	DrainTimeout(ctx context.Context, px *v1alpha1.Proxy) time.Duration
}

const (
	// drainStep bounds one question to the desk: a worker waits for it.
	drainStep = 3 * time.Second
	// drainPause is the time between two questions, behind being woken.
	drainPause = 15 * time.Second
	// deskPause is that when the desk did not answer.
	deskPause = 5 * time.Second
)

// drain has a Proxy under deletion wait for its lease, at most until its time
// to drain is over. It reports whether the deletion may go on.
//
// The time counts from the deletion, so that no restart begins it anew. A desk
// that does not answer holds the deletion up no longer than a holder could.
func (r *Reconciler) drain(ctx context.Context, px *v1alpha1.Proxy) (outcome, bool) {
	if r.o.Desk == nil || r.drained.has(key(px), px.UID) {
		return outcome{}, true
	}
	deadline := px.DeletionTimestamp.Add(r.o.Desk.DrainTimeout(ctx, px))
	left := time.Until(deadline)
	if left <= 0 {
		if c := apimeta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionReady); c != nil && c.Reason == v1alpha1.ReasonDraining {
			r.o.Log.Warn("a Proxy is removed although its lease did not end in time", "proxy", key(px).String())
			r.event(px, corev1.EventTypeWarning, "DrainTimedOut", "Delete", "the deletion goes on without waiting any longer: %s", clip(c.Message, maxQuote))
		}
		r.drained.add(key(px), px.UID)
		return outcome{}, true
	}
	asked, cancel := context.WithTimeout(ctx, drainStep)
	holder, err := r.o.Desk.Drain(asked, key(px), string(px.UID))
	cancel()
	at := func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 MST") }
	switch {
	case err != nil:
		return r.say(ctx, px, v1alpha1.ReasonDraining, fmt.Sprintf(
			"whether somebody holds it is not known, since the desk does not answer (%s): %s. The deletion goes on when it does, or at %s; to hurry, %s",
			fault.Of(err), clip(err.Error(), maxQuote), at(deadline), wayOut(px)), nil, wait(min(left, spread(deskPause)))), false
	case holder != deskkeys.Holder{}:
		who := "account " + holder.Account
		if holder.Name != "" {
			who += " (" + clip(holder.Name, 120) + ")"
		}
		return r.say(ctx, px, v1alpha1.ReasonDraining, fmt.Sprintf(
			"%s holds it until %s unless that is renewed (lease %s). The deletion goes on when it is given back, or at %s; to hurry, end the lease (POST /api/v1/pools/%s/keys/%s/release), or %s",
			who, at(holder.Until), holder.Lease, at(deadline), holder.Pool, deskkeys.KeyName(px.Namespace, px.Name), wayOut(px)), nil, wait(min(left, spread(drainPause)))), false
	}
	r.drained.add(key(px), px.UID)
	return outcome{}, true
}

// drained remembers which Proxies need not be asked about again: nobody holds
// them, and nobody can take them. It is lost on restart, and asked anew.
type drained struct {
	mu sync.Mutex
	of map[types.NamespacedName]types.UID
}

func (d *drained) has(name types.NamespacedName, uid types.UID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.of[name] == uid
}

func (d *drained) add(name types.NamespacedName, uid types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.of[name] = uid
}

func (d *drained) clear(name types.NamespacedName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.of, name)
}
