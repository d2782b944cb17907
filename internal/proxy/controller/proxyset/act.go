package proxyset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"golang.org/x/sync/errgroup"

	"fleetdesk/api/v1alpha1"
)

const (
	// atOnce is how many requests run at the same time, most how many Proxies one
	// reconcile makes or deletes; what is left comes in the next one.
	atOnce = 16
	most   = 256
)

// act carries a decision out. What fails is tried again by the reconcile that
// follows.
func (p *pass) act(ctx context.Context, s *state, d *decision) error {
	if err := p.deleteAll(ctx, s, d); err != nil {
		return err
	}
	return p.createAll(ctx, s, d)
}

func (p *pass) deleteAll(ctx context.Context, s *state, d *decision) error {
	if slices.ContainsFunc(d.deletions, func(v deletion) bool { return v.cause == causeUnhealthy && !v.worked }) {
		p.book.replacedUnborn()
	}
	var group errgroup.Group
	group.SetLimit(atOnce)
	for _, v := range d.deletions[:min(len(d.deletions), most)] {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err // the operator stops
			}
			px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: p.set.Namespace, Name: v.name, UID: v.uid}}
			// As it was seen, or not at all: another state might choose another one.
			if err := p.deleteProxy(ctx, px, v.uid, v.version); err != nil {
				return err
			}
			p.book.delete(v.uid)
			if v.cause != "" {
				p.r.metrics.replaced(v.cause)
			}
			p.event(px, corev1.EventTypeNormal, "Deleted", "Delete", "deleted Proxy %s: %s", v.name, s.reasonOf(v))
			return nil
		})
	}
	return group.Wait()
}

// deleteProxy deletes a Proxy; one that is gone, or is another one by now, is
// none to delete.
func (p *pass) deleteProxy(ctx context.Context, px *v1alpha1.Proxy, uid types.UID, version string) error {
	pre := metav1.Preconditions{UID: &uid, ResourceVersion: &version}
	asked, cancel := ending(ctx)
	defer cancel()
	switch err := p.r.o.Client.Delete(asked, px, client.Preconditions(pre)); {
	case err == nil, apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		return err // it is not as it was seen
	default:
		p.book.doubt()
		return fmt.Errorf("deleting Proxy %s: %w", px.Name, err)
	}
}

// reasonOf says why a Proxy is deleted.
func (s *state) reasonOf(v deletion) string {
	switch v.cause {
	case causeTemplate:
		return "it was made from an earlier template"
	case causeUnhealthy:
		return fmt.Sprintf("it has not worked for %s or longer, and its provider does (%s)", repairAfter, v.message)
	case causeBan:
		return fmt.Sprintf("%s it or its exit IP %s", plural(v.banned, "target bans", "targets ban"), v.exitIP)
	case causeAge:
		return fmt.Sprintf("it is %s old, and its own limit was %s", span(s.now.Sub(v.created)), span(v.limit.Sub(v.created)))
	}
	return fmt.Sprintf("there are more than the %d wanted", s.replicas)
}

func span(d time.Duration) string { return d.Round(time.Second).String() }

// createAll makes Proxies, a few at first and more when that works: an API
// server that refuses one refuses all.
func (p *pass) createAll(ctx context.Context, s *state, d *decision) error {
	if p.book.paused(p.set.Generation, p.now) > 0 {
		return nil // whatever wakes the set, such as its own status
	}
	left := min(d.creations, most)
	why := "it is one of the " + fmt.Sprint(s.replicas) + " wanted"
	if d.counts.live-len(d.deletions) >= s.replicas {
		why = "it stands in for one that is to be replaced"
	}
	for batch := 1; left > 0; batch = min(2*batch, atOnce) {
		var group errgroup.Group
		for range min(batch, left) {
			group.Go(func() error { return p.createOne(ctx, why) })
		}
		if err := group.Wait(); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err // the operator stops
		}
		left -= min(batch, left)
	}
	return nil
}

// ending is the context of a request that is brought to its end also while the
// operator stops: an API server may carry it out after the next operator looked
// at what there is, and that one would make one more.
func ending(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), apiTimeout)
}

func (p *pass) createOne(ctx context.Context, why string) error {
	px := newProxy(p.set, newName(p.set.Name), p.hash)
	// Before it is asked for: its own change may be seen before the answer.
	p.book.make(px.Name, p.now)
	asked, cancel := ending(ctx)
	defer cancel()
	switch err := p.r.o.Client.Create(asked, px); {
	case err == nil:
		p.book.refuse("", 0, p.now)
	case creationRefused(err):
		p.book.unmake(px.Name)
		p.refuse(px.Name, err)
		return fmt.Errorf("making Proxy %s: %w: %w", px.Name, errRefused, err)
	default:
		// It may have been made all the same, also when it is said to be there
		// already: who repeats a request whose answer was lost is told so. It is
		// looked for before long.
		p.book.lose(px.Name, p.now)
		p.refuse(px.Name, err)
		return fmt.Errorf("making Proxy %s: %w", px.Name, err)
	}
	p.event(px, corev1.EventTypeNormal, "Created", "Create", "made Proxy %s: %s", px.Name, why)
	return nil
}

// errRefused marks an error that says that a Proxy was not made.
var errRefused = errors.New("refused")

// refuse remembers why a Proxy was not made, without its name: that is another
// one each time, and the condition is to stay as it is while the reason does.
func (p *pass) refuse(name string, err error) {
	p.book.refuse(strings.ReplaceAll(err.Error(), name, p.set.Name+"-…"), p.set.Generation, p.now)
}
