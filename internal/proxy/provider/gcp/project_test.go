package gcp_test

import (
	"testing"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/gcp"
	"fleetdesk/internal/testkit/gcefake"
)

// A project that is not to be seen any more, moments after its zones were seen,
// is Permanent for everybody: on NotFound and Gone the machines that run there
// would be let go of, or made again.
func TestAProjectThatVanishesIsNotFoundForNobody(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	s := specOf("there", w.Zones()[0])
	in := up(t, p, s)
	if _, err := p.Get(t.Context(), provider.Ref{Owner: ownerOf("never"), Host: s.Host}); fault.Of(err) != fault.NotFound {
		t.Fatalf("what was never made: %s: %v; want NotFound", fault.Of(err), err)
	}
	mend := w.HideProject()
	for name, call := range map[string]func() error{
		"Get by id": func() error {
			_, err := p.Get(t.Context(), provider.Ref{ID: in.ID, Owner: s.Owner, Host: s.Host})
			return err
		},
		"Get by owner": func() error { _, err := p.Get(t.Context(), refOf(s)); return err },
		"Get anywhere": func() error { _, err := p.Get(t.Context(), provider.Ref{Owner: s.Owner}); return err },
		"Delete": func() error {
			st, err := p.Delete(t.Context(), refOf(s))
			if st != "" {
				t.Errorf("Delete = %s", st)
			}
			return err
		},
		"Create":    func() error { _, err := p.Create(t.Context(), s); return err },
		"ListByTag": func() error { rows, err := p.ListByTag(t.Context(), tag); return first(err, rows[0].Err) },
		"Leftovers": func() error { rows, err := p.Leftovers(t.Context(), tag, nil); return first(err, rows[0].Err) },
		"RemoveLeftover": func() error {
			return p.RemoveLeftover(t.Context(), tag, provider.Leftover{Host: s.Host, ID: gcp.NameOf(s.Owner) + "~7"})
		},
	} {
		if err := call(); fault.Of(err) != fault.Permanent {
			t.Errorf("%s: %s: %v; want Permanent", name, fault.Of(err), err)
		}
	}
	mend()
	if got, err := p.Get(t.Context(), refOf(s)); err != nil || got.ID != in.ID {
		t.Errorf("when it is seen again: %+v, %v", got, err)
	}
}
