//go:build integration

package fleet_test

import (
	"fmt"
	"strings"
	"testing"

	apimeta "k8s.io/apimachinery/pkg/api/meta"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/proxy/provider/fake"
	"fleetdesk/internal/testkit/libvirthost"
)

// within puts all tests where real libvirt hosts can live.
func within(m tests) tests { return libvirthost.Around(m, libvirthost.Options{}) }

// domains are ours on a host, with their states.
func domains(t *testing.T, h *libvirthost.Host) map[string]string {
	t.Helper()
	out := map[string]string{}
	all, err := h.Domains(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		if !strings.HasPrefix(name, "fd-") {
			continue
		}
		state, err := h.Virsh(t.Context(), "domstate", name)
		if err != nil {
			state = err.Error()
		}
		out[name] = strings.TrimSpace(state)
	}
	return out
}

// An operator on a real libvirt host ends itself by SIGKILL at some of its
// points, while it makes, starts again and deletes a virtual machine. The next
// one goes on from there, and nothing is left in the end.
func TestRealKilledProcess(t *testing.T) {
	h := libvirthost.Start(t, libvirthost.HostOptions{N: 1})
	foreign, err := h.PlantForeign(t.Context(), "somebodys", "")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, cluster, fake.New(fake.Options{}))
	file := h.ProvidersFile(t)
	add := func(name string) {
		w.create(name, func(px *v1alpha1.Proxy) { px.Spec.Provider = "kvm-home" })
	}
	runs := func(name string) string {
		px := w.get(name)
		if px == nil {
			return "no Proxy"
		}
		there := domains(t, h)
		if !apimeta.IsStatusConditionTrue(px.Status.Conditions, v1alpha1.ConditionProvisioned) || len(there) != 1 {
			return fmt.Sprintf("%+v, domains %v", px.Status, there)
		}
		for _, state := range there {
			if state != "running" {
				return state
			}
		}
		return ""
	}
	gone := func(name string) string {
		if px := w.get(name); px != nil {
			return fmt.Sprintf("%+v", px.Status)
		}
		if there := domains(t, h); len(there) > 0 {
			return fmt.Sprint(there)
		}
		return ""
	}
	kills := 0
	for _, step := range []struct {
		name    string
		points  []int64
		prepare func(name string)
		done    func(name string) string
	}{
		{"create", []int64{2, 8, 11, 14, 17}, add, runs},
		{"start-again", []int64{1, 3}, func(string) {
			for name := range domains(t, h) {
				if _, err := h.Virsh(t.Context(), "destroy", name); err != nil {
					t.Fatal(err)
				}
			}
		}, runs},
		{"delete", []int64{2, 5, 7, 9}, w.delete, gone},
	} {
		for _, at := range step.points {
			name := fmt.Sprintf("%s-%d", step.name, at)
			if step.name != "create" {
				p := w.spawn(file, 0)
				add(name)
				w.await(p, name+" before", func() string { return runs(name) })
				p.end()
			}
			step.prepare(name)
			p := w.spawn(file, at)
			if w.await(p, name, func() string { return step.done(name) }) {
				kills++
			}
			p.end()
			next := w.spawn(file, 0)
			w.await(next, name+" after a kill", func() string { return step.done(name) })
			w.delete(name)
			w.await(next, name+" going", func() string { return gone(name) })
			next.end()
		}
	}
	t.Logf("DRILL operator.kvm.kills %d", kills)
	if kills < 6 {
		t.Errorf("%d kills: want more", kills)
	}
	if left := h.Leftovers(t, "fleetdesk-image-*", "fleetdesk-claim-*"); len(left) > 0 {
		t.Errorf("left on the host: %q", left)
	}
	if err := foreign.Untouched(t.Context()); err != nil {
		t.Error(err)
	}
}
