package kvm_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm/virt"
	"fleetdesk/internal/proxy/provider/kvm/virttest"
)

// What becomes of volumes when the configuration names another pool of a host.

// twoPools is a host with a pool "fast" beside the pool "default" of its
// section.
func twoPools(t *testing.T) (*mem, *virttest.Host) {
	t.Helper()
	m := newMem(t, "box-1")
	m.hosts["box-1"].SetPool(virttest.Pool{Name: "fast", Type: "dir", Path: "/srv/fast", State: virt.PoolRunning, Capacity: 100 << 30})
	return m, m.hosts["box-1"]
}

// usePool names another pool in the configuration of box-1, for what is opened
// from now on.
func (m *mem) usePool(name string) {
	c := m.section.Hosts["box-1"]
	c.Pool = name
	m.section.Hosts["box-1"] = c
}

// cutAt repeats Create until it comes to that step, and cuts it off there.
func cutAt(t *testing.T, p provider.Provider, s provider.Spec, at string) {
	t.Helper()
	cut := errors.New("cut off")
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		_, err := p.Create(provider.WithStepHook(t.Context(), func(step string) error {
			if step == at {
				return cut
			}
			return nil
		}), s)
		if errors.Is(err, cut) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("it does not come to %q: %v", at, err)
		}
	}
}

// noVolumes asserts that no pool has a volume of a machine.
func noVolumes(t *testing.T, h *virttest.Host) {
	t.Helper()
	for _, pool := range []string{"default", "fast"} {
		for _, v := range h.Volumes(pool) {
			if strings.HasPrefix(v.Name, "fd-") {
				t.Errorf("left in %s: %s", pool, v.Name)
			}
		}
	}
}

// cluster-api-provider-libvirt 60: volumes left behind. The configuration names
// another pool since an instance was made: its volumes are removed from where
// they are.
func TestThePoolOfAHostChanges(t *testing.T) {
	m, h := twoPools(t)
	p := m.open(t)
	a, b := m.spec("a", "box-1"), m.spec("b", "box-1")
	up(t, p, a)
	cutAt(t, p, b, "kvm: seed") // its disk is there
	m.usePool("fast")
	q := m.open(t)
	up(t, q, b)
	up(t, q, a)
	down(t, q, ref(a))
	down(t, q, ref(b))
	noVolumes(t, h)
}

// Another pool, cut off, and the first pool again: nothing is left in between.
func TestThePoolOfAHostChangesTwice(t *testing.T) {
	m, h := twoPools(t)
	s := m.spec("a", "box-1")
	for _, pool := range []string{"default", "fast"} {
		m.usePool(pool)
		cutAt(t, m.open(t), s, "kvm: seed")
	}
	m.usePool("default")
	down(t, m.open(t), ref(s))
	noVolumes(t, h)
}

// Somebody copied the old pool's images into the new one. The machine that was
// begun stands on an image of the same name, and its disks are in the new pool
// all the same: that is where they are looked for later.
func TestThePoolOfAHostIsCopied(t *testing.T) {
	m, h := twoPools(t)
	s := m.spec("a", "box-1")
	cutAt(t, m.open(t), s, "kvm: seed")
	for _, v := range h.Volumes("default") {
		if strings.HasPrefix(v.Name, "fleetdesk-image-") {
			h.PlantVolume("fast", v.Name, v.Format, h.Content("default", v.Name))
		}
	}
	m.usePool("fast")
	up(t, m.open(t), s)
	if n := m.requests(); n != 1 {
		t.Errorf("the image was asked for %d times: the copy was not used", n)
	}
	m.usePool("default")
	down(t, m.open(t), ref(s))
	noVolumes(t, h)
}

// exordos_core 66: of what goes wrong in two pools the first is said, which is
// about the machine's own disk.
func TestTheFirstErrorOfTwoPools(t *testing.T) {
	m, h := twoPools(t)
	s := m.spec("a", "box-1")
	up(t, m.open(t), s)
	m.usePool("fast")
	h.ChangePool("fast", func(p *virttest.Pool) { p.State = virt.PoolInactive })
	h.FailNext("StorageVolDelete", virt.Fault(virt.CodeSystemError, "cannot unlink: Input/output error"))
	q := m.open(t)
	if st, err := q.Delete(t.Context(), ref(s)); err == nil || !strings.Contains(err.Error(), "Input/output error") {
		t.Errorf("Delete = %s, %v", st, err)
	}
	h.ChangePool("fast", func(p *virttest.Pool) { p.State = virt.PoolRunning })
	down(t, q, ref(s))
	noVolumes(t, h)
}
