package kvm_test

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// What two operators of one installation do at the same host: a leader that was
// frozen, and the one after it.

// A leader that found no room gives its definition up. When the one after it
// has made the machine of it meanwhile, it is a machine's own, and stays.
func TestAMadeDomainIsNotGivenUp(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	h.FillPool(2 << 30)
	m.answer(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(3<<30))
		_, _ = w.Write(m.image)
	})
	old, p := m.open(t, func(o *kvm.Options) { o.StepLimit = time.Minute }), m.open(t)
	s := m.spec("a", "box-1")
	// An upload that failed looks for its half volume last.
	var failed, made atomic.Bool
	h.OnCall(func(rpc string) error {
		if rpc == "virStorageVolLookupByName" {
			failed.Store(true)
		}
		return nil
	})
	// The last that a Create asks before it hears of that failure.
	h.OnDone(func(rpc string) error {
		if rpc == "virStoragePoolListAllVolumes" && failed.Load() && made.CompareAndSwap(false, true) {
			h.FillPool(100 << 30) // there is room now, and the new leader makes it
			m.answer(nil)
			if _, err := tryUp(t.Context(), p, s); err != nil {
				t.Error(err)
			}
		}
		return nil
	})
	var err error
	for end := time.Now().Add(10 * time.Second); !made.Load(); time.Sleep(time.Millisecond) {
		if _, err = old.Create(t.Context(), s); time.Now().After(end) {
			t.Fatalf("the upload does not fail: %v", err)
		}
		if err != nil && !made.Load() {
			failed.Store(false) // it listed before the failure and heard of it: the next one begins anew
		}
	}
	if fault.Of(err) != fault.Quota {
		t.Errorf("the old leader: %s: %v; want Quota", fault.Of(err), err)
	}
	if d := h.Domains(); len(d) != 1 || !d[0].Persistent || d[0].State != virt.StateRunning {
		t.Errorf("the machine is now %+v", d)
	}
}

// While an upload waits for its turn, another operator's brings the same image:
// its source is not asked again.
func TestAnImageThatCameMeanwhileIsNotFetched(t *testing.T) {
	m := newMem(t, "box-1")
	m.section.DefaultImage = "debian-13"
	for _, name := range []string{"slow", "last"} {
		other := m.section.Images["debian-13"]
		other.URL += "?" + name
		m.section.Images[name] = other
	}
	gate, begun := make(chan struct{}), make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	defer open()
	var asked atomic.Int32
	m.answer(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.RawQuery {
		case "slow":
			close(begun)
			<-gate
		case "":
			asked.Add(1)
		}
		_, _ = w.Write(m.image)
	})
	of := func(image string) provider.Spec {
		s := m.spec(image, "box-1")
		s.Image = image
		return s
	}
	p, q := m.open(t), m.open(t)
	for _, image := range []string{"slow", "debian-13"} {
		if in, err := p.Create(t.Context(), of(image)); err != nil || in.State != provider.Provisioning {
			t.Fatalf("%s: %+v, %v", image, in, err)
		}
		<-begun // the one that holds up the other
	}
	up(t, q, m.spec("elsewhere", "box-1"))
	open()
	// They have their turns in this order.
	for _, image := range []string{"slow", "debian-13", "last"} {
		up(t, p, of(image))
	}
	if asked.Load() != 1 {
		t.Errorf("the image was asked for %d times", asked.Load())
	}
}
