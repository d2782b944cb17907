package providertest

import (
	"slices"

	"fleetdesk/internal/core/fault"
)

// nowhere is a host name that no configuration has.
const nowhere = "no-such-host.example.com"

func placeTests() []Subtest {
	return []Subtest{
		{Clauses: []string{"P-PLC-1"}, Title: "answers a host of the provider, the wished one when there is a wish", run: placeAnswers},
		{Clauses: []string{"P-PLC-2"}, Title: "an unknown host is Invalid", run: placeUnknown},
		{Clauses: []string{"P-PLC-3"}, Title: "changes nothing", Needs: []string{"Remains"}, run: placeChangesNothing},
		{Clauses: []string{"P-PLC-4"}, Title: "no room anywhere is Quota", Needs: []string{"Fill"}, run: placeFull},
	}
}

func placeAnswers(e env) {
	o := e.owner()
	for _, wish := range append([]string{""}, e.h.Hosts...) {
		s := e.h.Spec(o)
		s.Host = wish
		host, err := e.place(e.p, s)
		if err != nil {
			e.Errorf("Place(host %q): %v", wish, err)
		} else if !slices.Contains(e.h.Hosts, host) || wish != "" && host != wish {
			e.Errorf("Place(host %q) = %q; hosts are %q", wish, host, e.h.Hosts)
		}
	}
}

func placeUnknown(e env) {
	s := e.h.Spec(e.owner())
	s.Host = nowhere
	_, err := e.place(e.p, s)
	e.wantClass("Place on an unknown host", err, fault.Invalid)
}

func placeChangesNothing(e env) {
	o := e.owner()
	for range 3 {
		e.spec(o, "")
	}
	e.nothing(o)
}

func placeFull(e env) {
	s := e.h.Spec(e.owner())
	mend := e.until(e.h.Fill(e.T))
	_, err := e.place(e.p, s)
	e.wantClass("Place with every host full", err, fault.Quota)
	mend()
	if _, err := e.place(e.p, s); err != nil {
		e.Errorf("Place once there is room again: %v", err)
	}
}
