package providertest

import (
	"context"
	"slices"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

func listTests() []Subtest {
	return []Subtest{
		{Clauses: []string{"P-LST-1"}, Title: "shows each of ours once, on its host, as Get does", run: listOurs},
		{Clauses: []string{"P-LST-2"}, Title: "shows no other installation's", Needs: []string{"Foreign"}, run: listOthers},
		{Clauses: []string{"P-LST-3"}, Title: "a broken host has an error and no instances; the others are whole", Needs: []string{"BreakHost"}, run: listBroken},
		{Clauses: []string{"P-LST-4"}, Title: "an unreadable instance is Unknown, never left out", Needs: []string{"Corrupt"}, run: listUnreadable},
		{Clauses: []string{"P-LST-5"}, Title: "a mute host has an error by the deadline; the others are whole", Needs: []string{"MuteHost"}, run: listMute},
		{Clauses: []string{"P-LST-6"}, Title: "has a row for each host also where nothing is", run: listEmpty},
	}
}

// spread makes one instance on each host.
func (e env) spread() map[string]provider.Instance {
	e.Helper()
	ins := map[string]provider.Instance{}
	for _, host := range e.h.Hosts {
		_, ins[host] = e.made(host)
	}
	return ins
}

// shows fails unless the host's row is whole and has in.
func (e env) shows(row provider.HostList, in provider.Instance) {
	e.Helper()
	if row.Err != nil {
		e.Errorf("host %s: %v", in.Host, row.Err)
		return
	}
	n := 0
	for _, got := range row.Instances {
		if got.ID == in.ID {
			n++
			e.equal("the list's row", got, in)
		}
	}
	if n != 1 {
		e.Errorf("host %s shows instance %s %d times; want once", in.Host, in.ID, n)
	}
}

func listOurs(e env) {
	for host, in := range e.spread() {
		got, err := e.get(e.p, refOf(in))
		if err != nil {
			e.Fatalf("Get: %v", err)
		}
		e.shows(provider.HostList{Host: host, Instances: e.whole(e.p)[host]}, got)
		if l := e.listed(e.p, in.Owner); len(l) != 1 {
			e.Errorf("listed %d times over all hosts: %+v", len(l), l)
		}
	}
	for host, ins := range e.whole(e.p) {
		for _, in := range ins {
			if in.Host != host {
				e.Errorf("host %s lists an instance of host %s: %s", host, in.Host, in.ID)
			}
			if in.State != provider.Unknown && in.Owner.Installation != e.h.Installation {
				e.Errorf("the list for %q shows an instance of %q: %s", e.h.Installation, in.Owner.Installation, in.ID)
			}
		}
	}
}

func listOthers(e env) {
	o := e.owner()
	others := e.foreigners(o)
	in := e.running(e.p, e.spec(o, e.h.Hosts[0]))
	for host, ins := range e.whole(e.p) {
		for _, got := range ins {
			for _, f := range others[:2] {
				if got.ID == f.ref.ID {
					e.Errorf("host %s lists %s: %+v", host, f.what, got)
				}
			}
		}
	}
	if got := e.listed(e.p, o); len(got) != 1 || got[0].ID != in.ID {
		e.Errorf("beside another installation's, ours is listed as %+v", got)
	}
}

func listBroken(e env) {
	ins := e.spread()
	for _, host := range e.h.Hosts {
		mend := e.until(e.h.BreakHost(e.T, host))
		rows, err := e.list(e.p)
		if err != nil {
			e.Fatalf("ListByTag with broken host %s: %v; one host's outage belongs in its row", host, err)
		}
		for h, row := range e.rows(rows) {
			if h == host {
				e.wantClass("row of broken host "+h, row.Err, unreachable...)
			} else {
				e.shows(row, ins[h])
			}
		}
		mend()
		for h, in := range ins {
			e.shows(provider.HostList{Host: h, Instances: e.whole(e.p)[h]}, in)
		}
	}
}

func listUnreadable(e env) {
	ins := e.spread()
	_, in := e.made("")
	mend := e.until(e.h.Corrupt(e.T, in))
	rows, err := e.list(e.p)
	if err != nil {
		e.Fatalf("ListByTag: %v", err)
	}
	for h, row := range e.rows(rows) {
		if h == in.Host {
			i := slices.IndexFunc(row.Instances, func(got provider.Instance) bool { return got.ID == in.ID })
			if row.Err == nil && (i < 0 || row.Instances[i].State != provider.Unknown) {
				e.Errorf("host %s has an unreadable instance %s; the list shows %+v; want it as Unknown", h, in.ID, row.Instances)
			}
			if row.Err != nil {
				continue
			}
		}
		e.shows(row, ins[h])
	}
	mend()
	e.shows(provider.HostList{Host: in.Host, Instances: e.whole(e.p)[in.Host]}, in)
}

func listMute(e env) {
	ins := e.spread()
	host := e.h.Hosts[0]
	mend := e.until(e.h.MuteHost(e.T, host))
	ctx, cancel := context.WithTimeout(context.Background(), shortDeadline)
	defer cancel()
	rows, err := e.p.ListByTag(ctx, e.h.Installation)
	if err != nil {
		e.Fatalf("ListByTag with mute host %s: %v; one host's silence belongs in its row", host, err)
	}
	for h, row := range e.rows(rows) {
		if h == host {
			e.wantClass("row of mute host "+h, row.Err, fault.Timeout, fault.Unavailable, fault.Transient)
		} else {
			e.shows(row, ins[h])
		}
	}
	mend()
	e.shows(provider.HostList{Host: host, Instances: e.whole(e.p)[host]}, ins[host])
}

func listEmpty(e env) {
	ctx, cancel := e.call()
	defer cancel()
	rows, err := e.p.ListByTag(ctx, "nobody-"+uuid())
	if err != nil {
		e.Fatalf("ListByTag of an installation that made nothing: %v", err)
	}
	for h, row := range e.rows(rows) {
		for _, in := range row.Instances {
			if in.State != provider.Unknown {
				e.Errorf("host %s lists %s for an installation that made nothing", h, in.ID)
			}
		}
		if row.Err != nil {
			e.Errorf("host %s: %v", h, row.Err)
		}
	}
}
