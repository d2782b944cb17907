package providertest

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

func deleteTests() []Subtest {
	return []Subtest{
		{Clauses: []string{"P-DEL-1"}, Title: "Gone means that nothing is left", Needs: []string{"Remains"}, run: deleteAll},
		{Clauses: []string{"P-DEL-2"}, Title: "again, never made and unknown ids are Gone", Needs: []string{"UnknownIDs"}, run: deleteNothing},
		{Clauses: []string{"P-DEL-3"}, Title: "an id that is malformed or names nothing: the UID decides", Needs: []string{"MalformedIDs", "UnknownIDs"}, run: deleteByOtherID},
		{Clauses: []string{"P-DEL-4"}, Title: "without an id finds by UID, with the host and without", run: deleteByUID},
		{Clauses: []string{"P-DEL-7"}, Title: "does not touch what carries another tag", Needs: []string{"Foreign"}, run: deleteForeign},
		{Clauses: []string{"P-DEL-8"}, Title: "a host that does not answer is no Gone", Needs: []string{"BreakHost"}, run: deleteBroken},
		{Clauses: []string{"P-DEL-9"}, Title: "a host that is not configured is Abandoned", run: deleteNowhere},
		{Clauses: []string{"P-DEL-10"}, Title: "with Create at the same time, the last Delete wins", run: deleteAgainstCreate},
		{Clauses: []string{"P-DEL-11"}, Title: "removes a stopped instance", Needs: []string{"Stop"}, run: deleteStopped},
		{Clauses: []string{"P-DEL-13"}, Title: "an unreadable instance is removed whole or an error", Needs: []string{"Corrupt", "Remains"}, run: deleteUnreadable},
		{Clauses: []string{"P-DEL-14"}, Title: "concurrent calls all end in Gone", run: deleteTogether},
	}
}

func deleteAll(e env) {
	_, in := e.made("")
	// Each answer is checked, not only the last: a Gone that comes too early
	// drops the finalizer of a machine that still costs.
	err := e.rounds(func() (bool, error) {
		st, err := e.remove(e.p, refOf(in))
		if err == nil && st == provider.Gone {
			if left := e.remains(in.Owner); len(left) > 0 {
				e.Errorf("Delete says Gone and the back end still holds %q", left)
			}
		}
		return err == nil && st == provider.Gone, err
	})
	if err != nil {
		e.Fatalf("driving Delete to Gone: %v", err)
	}
	e.nothing(in.Owner)
	_, err = e.get(e.p, refOf(in))
	e.wantClass("Get after Gone", err, fault.NotFound)
}

func deleteNothing(e env) {
	_, in := e.made("")
	e.gone(e.p, refOf(in))
	never := e.owner()
	refs := map[string]provider.Ref{
		"again":                    refOf(in),
		"again by UID":             {Owner: in.Owner},
		"never made":               {Owner: never},
		"never made, on a host":    {Owner: never, Host: e.h.Hosts[0]},
		"never made, stale status": {ID: in.ID, Owner: never},
	}
	for _, id := range e.h.UnknownIDs {
		refs["unknown id "+id] = provider.Ref{ID: id, Owner: never}
	}
	for what, r := range refs {
		if st, err := e.remove(e.p, r); err != nil || st != provider.Gone {
			e.Errorf("Delete %s = %q, %v; want Gone", what, st, err)
		}
	}
}

func deleteByOtherID(e env) {
	never := e.owner()
	for _, id := range e.h.MalformedIDs {
		if st, err := e.remove(e.p, provider.Ref{ID: id, Owner: never}); err != nil || st != provider.Gone {
			e.Errorf("Delete of malformed id %q, never made = %q, %v; want Gone", id, st, err)
		}
	}
	for what, id := range map[string]string{"a malformed id": e.h.MalformedIDs[0], "an unknown id": e.h.UnknownIDs[0]} {
		_, in := e.made("")
		if err := e.tryGone(e.p, provider.Ref{ID: id, Owner: in.Owner}); err != nil {
			e.Fatalf("Delete by %s: %v", what, err)
		}
		if left := e.remains(in.Owner); len(left) > 0 {
			e.Errorf("Delete by %s says Gone; the owner still has %q", what, left)
		}
		e.nothing(in.Owner)
	}
}

func deleteByUID(e env) {
	for _, host := range e.h.Hosts {
		_, in := e.made(host)
		e.gone(e.p, provider.Ref{Owner: in.Owner, Host: host})
		_, in = e.made(host)
		e.gone(e.p, provider.Ref{Owner: in.Owner})
	}
}

// foreigner is an instance that is not of the owner it is mistaken for.
type foreigner struct {
	what      string
	ref       provider.Ref
	mistaken  provider.Owner
	untouched func(T)
}

// foreigners makes things that look like o's and are not. The one with the
// same UID is mistaken for an owner of its own, for which nothing is made: a
// provider that names things by UID cannot make both.
func (e env) foreigners(o provider.Owner) []foreigner {
	e.Helper()
	var all []foreigner
	add := func(what string, mistaken, f provider.Owner) {
		f.Installation = "another-" + f.Installation
		ref, untouched := e.h.Foreign(e.T, e.h.Hosts[0], f)
		all = append(all, foreigner{what, ref, mistaken, untouched})
	}
	f := o
	f.UID = uuid()
	add("an instance of another installation with the same name", o, f)
	f.Name, f.UID = "p-twin", uuid()
	add("an instance of another installation with the same name and UID", f, f)

	// A Proxy that was deleted and made again: same name, other UID.
	f = o
	f.UID = uuid()
	const earlier = "the instance of an earlier object with the same name"
	in := e.running(e.p, e.spec(e.adopt(f), e.h.Hosts[0]))
	return append(all, foreigner{earlier, refOf(in), o, func(t T) {
		t.Helper()
		got, err := e.get(e.p, refOf(in))
		if err != nil {
			t.Errorf("%s: %v", earlier, err)
			return
		}
		e.equal(earlier, got, in)
	}})
}

// mistakes are refs by which a provider might take f for its owner's.
func (e env) mistakes(f foreigner) map[string]provider.Ref {
	return map[string]provider.Ref{
		"by UID":                       {Owner: f.mistaken},
		"by UID and host":              {Owner: f.mistaken, Host: e.h.Hosts[0]},
		"by its id, for another owner": {ID: f.ref.ID, Owner: f.mistaken},
	}
}

func deleteForeign(e env) {
	o := e.owner()
	others := e.foreigners(o)
	for _, f := range others {
		for what, r := range e.mistakes(f) {
			for range 3 {
				st, err := e.remove(e.p, r)
				if err == nil && st == provider.Gone {
					break
				}
				if err != nil {
					e.wantClass("Delete "+what+" of "+f.what, err, fault.Conflict, fault.Denied, fault.Permanent)
				}
			}
			f.untouched(e.T)
		}
	}
	in := e.running(e.p, e.spec(o, e.h.Hosts[0]))
	e.gone(e.p, refOf(in))
	for _, f := range others {
		f.untouched(e.T)
	}
}

func deleteBroken(e env) {
	for _, host := range e.h.Hosts {
		_, in := e.made(host)
		mend := e.until(e.h.BreakHost(e.T, host))
		for what, r := range map[string]provider.Ref{
			"by id":           refOf(in),
			"by UID and host": {Owner: in.Owner, Host: host},
			"by UID":          {Owner: in.Owner},
		} {
			st, err := e.remove(e.p, r)
			if err == nil {
				e.Errorf("Delete %s on broken host %s = %q without error", what, host, st)
				continue
			}
			e.wantClass("Delete "+what+" on broken host "+host, err, unreachable...)
		}
		mend()
		e.gone(e.p, refOf(in))
	}
}

func deleteNowhere(e env) {
	o := e.owner()
	abandoned := func(what string, r provider.Ref) {
		if st, err := e.remove(e.p, r); err != nil || st != provider.Abandoned {
			e.Errorf("Delete %s on a host that is not configured: state %q, error %v; want Abandoned", what, st, err)
		}
	}
	abandoned("by UID", provider.Ref{Owner: o, Host: nowhere})
	for _, id := range e.h.StrayIDs {
		abandoned("of id "+id, provider.Ref{ID: id, Owner: o})
	}
}

func deleteAgainstCreate(e env) {
	s := e.spec(e.owner(), "")
	r := provider.Ref{Owner: s.Owner, Host: s.Host}
	// A pause of random length before each call and at each step mixes them.
	mixed := func(what string, call func(ctx context.Context) error) {
		for range 3 {
			time.Sleep(rand.N(time.Millisecond))
			ctx, cancel := e.call()
			err := call(provider.WithStepHook(ctx, func(string) error {
				time.Sleep(rand.N(2 * time.Millisecond))
				return nil
			}))
			cancel()
			if err != nil && !slices.Contains(again, provider.Class(err)) {
				e.Errorf("%s: %v", what, err)
			}
		}
	}
	for range 6 {
		e.running(e.p, s)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				mixed("Create while Delete runs", func(ctx context.Context) error { _, err := e.p.Create(ctx, s); return err })
			})
			wg.Go(func() {
				mixed("Delete while Create runs", func(ctx context.Context) error { _, err := e.p.Delete(ctx, r); return err })
			})
		}
		wg.Wait()
	}
	e.gone(e.p, r)
	in := e.running(e.p, s)
	e.single(e.p, in)
	e.gone(e.p, refOf(in))
}

func deleteStopped(e env) {
	_, in := e.made("")
	e.h.Stop(e.T, in)
	e.gone(e.p, refOf(in))
}

func deleteUnreadable(e env) {
	_, in := e.made("")
	mend := e.until(e.h.Corrupt(e.T, in))
	for range 5 {
		st, err := e.remove(e.p, refOf(in))
		if err != nil || st == provider.Deleting {
			continue
		}
		if left := e.remains(in.Owner); len(left) > 0 {
			e.Errorf("Delete of an unreadable instance = %q; the back end still holds %q", st, left)
		}
		break
	}
	mend()
	e.gone(e.p, refOf(in))
}

func deleteTogether(e env) {
	_, in := e.made("")
	errs := make([]error, e.h.Many)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = e.tryGone(e.p, refOf(in)) })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			e.Errorf("caller %d: %v", i, err)
		}
	}
	e.nothing(in.Owner)
}
