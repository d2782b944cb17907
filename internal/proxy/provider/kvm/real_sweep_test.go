//go:build integration

package kvm_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm"
	"fleetdesk/internal/proxy/provider/kvm/domain"
)

// An image that is configured no more goes from a real pool, and one that a
// running machine stands on stays. So does a disk whose domain a person
// undefined, until its owner is gone.
func TestRealLeftovers(t *testing.T) {
	f, n := quickFleet(t, 1)
	end := f.beside(t)
	h := f.hosts[0]
	a, b := specOf(newOwner("uses"), h.Name()), specOf(newOwner("leaves"), h.Name())
	n.know(t, a.Owner)
	n.know(t, b.Owner)
	up := func(p *kvm.Provider, s provider.Spec) {
		t.Helper()
		if _, err := running(patient(t), p, s, nil); err != nil {
			t.Fatal(err)
		}
	}
	look := func(p *kvm.Provider, keep ...string) (out []string) {
		t.Helper()
		began := time.Now()
		rows, err := p.Leftovers(patient(t), installation, keep)
		if err != nil || rows[0].Err != nil {
			t.Fatalf("%+v, %v", rows, err)
		}
		t.Logf("leftovers in %s: %+v", time.Since(began).Round(time.Millisecond), rows[0].Leftovers)
		for _, l := range rows[0].Leftovers {
			if l.Bytes == 0 {
				t.Errorf("%s takes no bytes", l.ID)
			}
			out = append(out, l.What+" "+l.ID)
		}
		return out
	}
	clear := func(p *kvm.Provider, id string) error {
		t.Helper()
		began := time.Now()
		defer func() { t.Logf("removal of %s in %s", id, time.Since(began).Round(time.Millisecond)) }()
		return p.RemoveLeftover(patient(t), installation, provider.Leftover{Host: h.Name(), ID: id})
	}
	first := f.open(t)
	up(first, a)
	used := f.images(t, h)
	change := func(query string) {
		im := f.section.Images["blank"]
		im.URL += query
		f.section.Images = map[string]kvm.Image{"blank": im}
	}
	change("?next")
	second := f.open(t)
	up(second, b)
	var next string
	for _, name := range f.images(t, h) {
		if !slices.Contains(used, name) && !strings.Contains(name, ".verified-") {
			next = name
		}
	}
	names := domain.NamesOf(b.Owner)
	if _, err := h.Virsh(t.Context(), "destroy", names.Domain); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Virsh(t.Context(), "undefine", names.Domain); err != nil {
		t.Fatal(err)
	}
	change("last")
	third := f.open(t)
	// A disk without a domain may be of a machine elsewhere: it keeps the images.
	if got := look(third, b.Owner.UID); len(got) != 0 {
		t.Errorf("leftovers are %q; want none", got)
	}
	if err := clear(third, next); fault.Of(err) != fault.Conflict {
		t.Errorf("removing an image beside a disk without a domain: %v; want Conflict", err)
	}
	if got, want := look(third), []string{"seed " + names.Seed, "disk " + names.Overlay}; !slices.Equal(got, want) {
		t.Errorf("leftovers are %q; want %q", got, want)
	}
	for _, id := range []string{names.Overlay, names.Seed} {
		if err := clear(third, id); err != nil {
			t.Errorf("removing %s: %v", id, err)
		}
	}
	if got, want := look(third), []string{"image " + next}; !slices.Equal(got, want) {
		t.Errorf("leftovers are %q; want %q", got, want)
	}
	for range 2 { // gone is success
		if err := clear(third, next); err != nil {
			t.Errorf("removing %s: %v", next, err)
		}
	}
	for _, name := range used {
		if strings.Contains(name, ".verified-") {
			continue
		}
		if err := clear(third, name); fault.Of(err) != fault.Conflict {
			t.Errorf("removing the image of a running machine: %v; want Conflict", err)
		}
	}
	if got := look(third); len(got) != 0 {
		t.Errorf("still there: %q", got)
	}
	if got := f.images(t, h); !slices.Equal(got, used) {
		t.Errorf("the images are %q; want %q", got, used)
	}
	// The second one remembers the image that is gone: it is uploaded again.
	up(second, b)
	up(first, a)
	for _, s := range []provider.Spec{a, b} {
		if err := gone(patient(t), third, provider.Ref{Owner: s.Owner, Host: h.Name()}); err != nil {
			t.Error(err)
		}
	}
	if got := look(third); len(got) != 2 {
		t.Errorf("once no machine is there: %q", got)
	}
	end()
}

// Two processes with one identity see each other's claims on a real host, by
// connections of their own.
func TestRealClaims(t *testing.T) {
	f, _ := quickFleet(t, 1)
	p, q := f.open(t), f.open(t)
	claim := func(p *kvm.Provider, c provider.Claim) []provider.OtherClaim {
		t.Helper()
		began := time.Now()
		rows, err := p.Claim(patient(t), c)
		if err != nil || rows[0].Err != nil {
			t.Fatalf("%+v, %v", rows, err)
		}
		t.Logf("claimed in %s: others %+v", time.Since(began).Round(time.Millisecond), rows[0].Others)
		return rows[0].Others
	}
	if got := claim(p, claimOf(holderA, 1)); len(got) != 0 {
		t.Errorf("the first sees %+v", got)
	}
	for beat := uint64(1); beat < 4; beat++ {
		if got := claim(q, claimOf(holderB, beat)); len(got) != 1 || got[0] != (provider.OtherClaim{Holder: holderA, Beat: beat, Period: 3 * time.Minute}) {
			t.Errorf("the second sees %+v", got)
		}
		if got := claim(p, claimOf(holderA, beat+1)); len(got) != 1 || got[0].Holder != holderB || got[0].Beat != beat {
			t.Errorf("the first sees %+v", got)
		}
	}
	if got := claim(p, claimOf(holderA, 9, holderB)); len(got) != 0 {
		t.Errorf("the dead one is still there: %+v", got)
	}
	vols, err := f.hosts[0].Volumes(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	vols = slices.DeleteFunc(vols, func(v string) bool { return !strings.HasPrefix(v, "fleetdesk-claim-") })
	if len(vols) != 1 || !strings.HasSuffix(vols[0], "-"+holderA+"-180000-9") {
		t.Errorf("the claims are %q", vols)
	}
	f.clean(t)
}
