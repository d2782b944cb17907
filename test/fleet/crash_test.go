package fleet_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/config/crd"
	"fleetdesk/internal/testkit/kube"
)

func identityOf(t testing.TB, c client.Client, namespace string) string {
	t.Helper()
	ns := &corev1.Namespace{}
	if err := c.Get(context.WithoutCancel(t.Context()), client.ObjectKey{Name: "kube-system"}, ns); err != nil {
		t.Fatal(err)
	}
	return string(ns.UID) + "/" + namespace
}

// phase is one thing that an operator does to a Proxy: it begins with before,
// done while a living operator runs, and prepare, done while none does, and it
// is over when done says nothing any more.
type phase struct {
	before  bool
	prepare func(w *world, name string)
	done    func(w *world, name string) string
	gone    bool
}

var phases = map[string]phase{
	"create": {
		prepare: func(w *world, name string) { w.create(name) },
		done:    (*world).runs,
	},
	"start again": {
		before:  true,
		prepare: func(w *world, name string) { w.backend.Stop(w.get(name).Status.ProviderID) },
		done:    (*world).runs,
	},
	"make again": {
		before:  true,
		prepare: func(w *world, name string) { w.backend.Vanish(w.get(name).Status.ProviderID) },
		done:    (*world).runs,
	},
	"delete": {
		before:  true,
		prepare: func(w *world, name string) { w.delete(name) },
		done:    (*world).gone, gone: true,
	},
	"abandon": {
		before: true,
		prepare: func(w *world, name string) {
			px := w.get(name)
			px.Annotations = map[string]string{"crawl.example.com/skip-cleanup": "true"}
			if err := w.client.Update(w.t.Context(), px); err != nil {
				w.t.Fatal(err)
			}
			w.delete(name)
		},
		done: (*world).abandoned, gone: true,
	},
}

// abandoned is empty when the Proxy is gone, and its machine is there and
// written down.
func (w *world) abandoned(name string) string {
	if px := w.get(name); px != nil {
		return fmt.Sprintf("%+v", px.Status)
	}
	written := w.written()
	for _, m := range w.machines() {
		if m.Owner.Name == name {
			if !written[m.Owner.UID] {
				w.t.Errorf("machine %s of the abandoned Proxy %s is written down nowhere", m.ID, name)
			}
			return ""
		}
	}
	w.t.Errorf("the machine of the abandoned Proxy %s was removed", name)
	return ""
}

// The operator is killed at each of its points, one after the other, while it
// makes, heals, deletes and abandons a machine. The next one brings to its end
// what that one began: nothing leaked, nothing doubled.
func TestKilledAtEachPoint(t *testing.T) {
	for name, p := range phases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, kube.Start(t, kube.Options{CRDs: crd.Bases}), scripted(t, "h1", "h2"))
			stop := w.watchDoubles()
			defer stop()
			kills := int64(0)
			for w.round(p, kills+1) {
				kills++
			}
			if kills < 3 {
				t.Errorf("%d points: want more, or nothing was killed", kills)
			}
			t.Logf("DRILL operator.fake.%s.kills %d", strings.ReplaceAll(name, " ", "_"), kills)
		})
	}
}

// round does one phase with an operator that is killed at a point, and reports
// whether it came to that.
func (w *world) round(p phase, at int64) (killed bool) {
	w.t.Helper()
	name := fmt.Sprintf("p%d", at)
	if p.before {
		o := w.start(nil)
		w.create(name)
		w.until(nil, name+" before", func() string { return w.runs(name) })
		o.stop()
	}
	p.prepare(w, name)
	o := w.start(newKiller(at))
	killed = w.until(o, name, func() string { return p.done(w, name) })
	if killed || !o.k.spare() {
		o.stop()
		o = w.start(nil)
		w.until(nil, fmt.Sprintf("%s after a kill at point %d", name, at), func() string { return p.done(w, name) })
	}
	if !p.gone {
		w.delete(name)
		w.until(nil, name+" going", func() string { return w.gone(name) })
	}
	o.stop()
	return killed
}
