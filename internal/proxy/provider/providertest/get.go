package providertest

import (
	"slices"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

func getTests() []Subtest {
	return []Subtest{
		{Clauses: []string{"P-GET-1"}, Title: "reads by id what Create made", run: getByID},
		{Clauses: []string{"P-GET-2"}, Title: "without an id finds by UID, with the host and without", run: getByUID},
		{Clauses: []string{"P-GET-3"}, Title: "NotFound for what was never made", Needs: []string{"UnknownIDs"}, run: getUnknown},
		{Clauses: []string{"P-GET-4"}, Title: "NotFound for what vanished", Needs: []string{"Vanish"}, run: getVanished},
		{Clauses: []string{"P-GET-5"}, Title: "a malformed id is Invalid or Permanent", Needs: []string{"MalformedIDs"}, run: getMalformed},
		{Clauses: []string{"P-GET-6"}, Title: "a host that is not configured is Permanent", run: getNowhere},
		{Clauses: []string{"P-GET-7"}, Title: "a broken host is never NotFound", Needs: []string{"BreakHost"}, run: getBroken},
		{Clauses: []string{"P-GET-8"}, Title: "an unreadable instance is never NotFound nor Running", Needs: []string{"Corrupt"}, run: getUnreadable},
		{Clauses: []string{"P-GET-9"}, Title: "shows a stopped instance as Stopped and does not start it", Needs: []string{"Stop"}, run: getStopped},
		{Clauses: []string{"P-GET-10"}, Title: "never shows another's instance as the caller's", Needs: []string{"Foreign"}, run: getForeign},
		{Clauses: []string{"P-GET-11"}, Title: "the time of creation is sane and stays", run: getCreated},
	}
}

// equal fails unless got shows the same instance as want.
func (e env) equal(what string, got, want provider.Instance) {
	e.Helper()
	got.Message, want.Message = "", ""
	if !got.Created.Equal(want.Created) {
		e.Errorf("%s: created %v; want %v", what, got.Created, want.Created)
	}
	got.Created, want.Created = time.Time{}, time.Time{}
	if got != want {
		e.Errorf("%s = %+v; want %+v", what, got, want)
	}
}

func getByID(e env) {
	_, in := e.made("")
	for what, r := range map[string]provider.Ref{
		"Get by id, owner and host": refOf(in),
		"Get by id and owner":       {ID: in.ID, Owner: in.Owner},
	} {
		got, err := e.get(e.p, r)
		if err != nil {
			e.Errorf("%s: %v", what, err)
			continue
		}
		e.equal(what, got, in)
	}
}

func getByUID(e env) {
	for _, host := range e.h.Hosts {
		_, in := e.made(host)
		for what, r := range map[string]provider.Ref{
			"Get by UID and host": {Owner: in.Owner, Host: in.Host},
			"Get by UID":          {Owner: in.Owner},
		} {
			got, err := e.get(e.p, r)
			if err != nil {
				e.Errorf("%s: %v", what, err)
				continue
			}
			e.equal(what, got, in)
		}
	}
}

func getUnknown(e env) {
	o := e.owner()
	for _, id := range e.h.UnknownIDs {
		_, err := e.get(e.p, provider.Ref{ID: id, Owner: o})
		e.wantClass("Get of unknown id "+id, err, fault.NotFound)
	}
	_, err := e.get(e.p, provider.Ref{Owner: o})
	e.wantClass("Get of a UID never made", err, fault.NotFound)
	_, err = e.get(e.p, provider.Ref{Owner: o, Host: e.h.Hosts[0]})
	e.wantClass("Get of a UID never made, on a host", err, fault.NotFound)
}

func getVanished(e env) {
	_, in := e.made("")
	e.h.Vanish(e.T, in)
	_, err := e.get(e.p, refOf(in))
	e.wantClass("Get of a vanished instance", err, fault.NotFound)
	e.nothing(in.Owner)
}

func getMalformed(e env) {
	o := e.owner()
	for _, id := range e.h.MalformedIDs {
		_, err := e.get(e.p, provider.Ref{ID: id, Owner: o})
		e.wantClass("Get of malformed id "+id, err, fault.Invalid, fault.Permanent)
	}
}

func getNowhere(e env) {
	o := e.owner()
	_, err := e.get(e.p, provider.Ref{Owner: o, Host: nowhere})
	e.wantClass("Get on a host that is not configured", err, fault.Permanent)
	for _, id := range e.h.StrayIDs {
		_, err := e.get(e.p, provider.Ref{ID: id, Owner: o})
		e.wantClass("Get of id "+id+" on a host that is not configured", err, fault.Permanent)
	}
}

func getBroken(e env) {
	for _, host := range e.h.Hosts {
		_, in := e.made(host)
		mend := e.until(e.h.BreakHost(e.T, host))
		for what, r := range map[string]provider.Ref{
			"by id":           refOf(in),
			"by UID and host": {Owner: in.Owner, Host: host},
			"by UID":          {Owner: in.Owner},
		} {
			_, err := e.get(e.p, r)
			e.wantClass("Get "+what+" on broken host "+host, err, unreachable...)
		}
		mend()
		got, err := e.get(e.p, refOf(in))
		if err != nil {
			e.Errorf("Get once host %s answers again: %v", host, err)
		} else {
			e.equal("Get once the host answers again", got, in)
		}
	}
}

func getUnreadable(e env) {
	_, in := e.made("")
	mend := e.until(e.h.Corrupt(e.T, in))
	for what, r := range map[string]provider.Ref{
		"by id":           refOf(in),
		"by UID and host": {Owner: in.Owner, Host: in.Host},
	} {
		got, err := e.get(e.p, r)
		if err != nil && provider.Class(err) == fault.NotFound {
			e.Errorf("Get %s of an unreadable instance says NotFound, and the reconciler would rebuild: %v", what, err)
		}
		if err == nil && got.State != provider.Unknown {
			e.Errorf("Get %s of an unreadable instance = %+v; want Unknown or an error", what, got)
		}
	}
	mend()
	if got, err := e.get(e.p, refOf(in)); err != nil {
		e.Errorf("Get once it can be read again: %v", err)
	} else {
		e.equal("Get once it can be read again", got, in)
	}
}

func getStopped(e env) {
	_, in := e.made("")
	e.h.Stop(e.T, in)
	for range 2 {
		got, err := e.get(e.p, refOf(in))
		if err != nil || got.State != provider.Stopped || got.ID != in.ID || got.Owner != in.Owner {
			e.Fatalf("Get of a stopped instance = %+v, %v; want Stopped, id %q", got, err, in.ID)
		}
		if l := e.listed(e.p, in.Owner); len(l) != 1 || l[0].State != provider.Stopped {
			e.Fatalf("a stopped instance is listed as %+v; want Stopped", l)
		}
	}
}

func getForeign(e env) {
	for _, f := range e.foreigners(e.owner()) {
		for what, r := range e.mistakes(f) {
			got, err := e.get(e.p, r)
			if err == nil && got.Owner == f.mistaken {
				e.Errorf("Get %s shows %s as the caller's own: %+v", what, f.what, got)
			}
		}
		f.untouched(e.T)
	}
}

func getCreated(e env) {
	start := time.Now()
	s, in := e.made("")
	if in.Created.IsZero() {
		e.Logf("this provider does not tell when an instance was made")
	} else if in.Created.Before(start.Add(-time.Minute)) || in.Created.After(time.Now().Add(time.Minute)) {
		e.Errorf("made between %v and now; Created says %v", start, in.Created)
	}
	again, err := e.create(e.p, s)
	if err != nil {
		e.Fatalf("Create again: %v", err)
	}
	listed := e.listed(e.p, s.Owner)
	for _, other := range slices.Concat([]provider.Instance{again}, listed) {
		if !other.Created.Equal(in.Created) {
			e.Errorf("Created was %v and is %v", in.Created, other.Created)
		}
	}
}
