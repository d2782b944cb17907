//go:build integration

package kvm_test

import (
	"testing"
	"time"

	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm/domain"
)

// What a person does to running machines with virsh is told by UID, within a
// second; when libvirtd is started anew the host is told of, and events come
// again.
func TestRealEventsAreTold(t *testing.T) {
	f, guests := quickFleet(t, 1)
	h := f.hosts[0]
	maker := f.open(t) // another one watches: what it does itself is no news to it
	p := f.open(t)
	ctx := patient(t)
	s := specOf(newOwner("events"), h.Name())
	guests.know(t, s.Owner)
	in, err := running(ctx, maker, s, nil)
	if err != nil {
		t.Fatal(err)
	}
	name, uid := domain.NamesOf(s.Owner).Domain, s.Owner.UID
	w := watching(t, p)
	w.until(t, h.Name(), "")

	does := func(what string, args ...string) {
		t.Helper()
		w.rest()
		began := time.Now()
		if _, err := h.Virsh(ctx, args...); err != nil {
			t.Fatal(err)
		}
		ran := time.Since(began)
		w.until(t, h.Name(), uid)
		t.Logf("%s: told %v after virsh began, which took %v", what, time.Since(began).Round(time.Millisecond), ran.Round(time.Millisecond))
	}
	does("suspend", "suspend", name)
	does("resume", "resume", name)
	does("destroy", "destroy", name)
	does("start by somebody else", "start", name)

	if err := h.KillLibvirtd(ctx); err != nil {
		t.Fatal(err)
	}
	w.take()
	began := time.Now()
	if err := h.StartLibvirtd(ctx); err != nil {
		t.Fatal(err)
	}
	w.until(t, h.Name(), "")
	t.Logf("libvirtd started anew: told %v after", time.Since(began).Round(time.Millisecond))
	does("destroy after it", "destroy", name)
	does("undefine", "undefine", name, "--nvram", "--snapshots-metadata")
	if err := gone(ctx, p, provider.Ref{ID: in.ID, Owner: s.Owner}); err != nil {
		t.Error(err)
	}
	f.clean(t)
}

// rest drops what is told until it has been quiet for a while: an end is several
// events.
func (w *told) rest() {
	for {
		select {
		case <-w.more:
		case <-time.After(300 * time.Millisecond):
			w.take()
			return
		}
	}
}
