package providertest

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

func claimTests() []Subtest {
	claimer := []string{"Claimer"}
	return []Subtest{
		{Clauses: []string{"P-CLM-1"}, Title: "a claim takes the place of its holder's last one, on each host", Needs: claimer, run: claimReplaces},
		{Clauses: []string{"P-CLM-2"}, Title: "shows all others of the installation with beat and period, never its own", Needs: claimer, run: claimShows},
		{Clauses: []string{"P-CLM-3"}, Title: "another installation's are neither shown nor touched", Needs: claimer, run: claimForeign},
		{Clauses: []string{"P-CLM-4"}, Title: "takes those of the dead away, and nobody else's", Needs: claimer, run: claimDead},
		{Clauses: []string{"P-CLM-5"}, Title: "a broken host's row is an error; the others are whole", Needs: []string{"Claimer", "BreakHost"}, run: claimBroken},
		{Clauses: []string{"P-CLM-6"}, Title: "a mute host's row is an error by the deadline; the others are whole", Needs: []string{"Claimer", "MuteHost"}, run: claimMute},
		{Clauses: []string{"P-CLM-7"}, Title: "a new operator sees what the old one claimed", Needs: []string{"Claimer", "Reopen"}, run: claimReopened},
		{Clauses: []string{"P-CLM-8"}, Title: "interrupted at every step, its holder is never without a claim", Needs: claimer, run: claimInterrupted},
		{Clauses: []string{"P-CLM-9"}, Title: "those that begin at once see each other at the second look", Needs: claimer, run: claimTogether},
	}
}

// lastHolder has the one claim on each host that the suite leaves behind.
const lastHolder = "conformancesuite"

// holder returns the name of an operator that nobody else has. Its claims for
// the installations of the suite are taken away at the end of the subtest.
func (e env) holder() string {
	e.Helper()
	name := strings.ToLower(rand.Text())[:20]
	e.Cleanup(func() {
		for _, i := range []string{e.h.Installation, e.otherInstallation()} {
			c := e.claimOf(lastHolder, 1)
			c.Installation, c.Dead = i, []string{name}
			if _, err := e.claim(e.h.Provider, c); err != nil {
				e.Errorf("clean-up: taking the claim of %s away: %v", name, err)
			}
		}
	})
	return name
}

func (e env) otherInstallation() string { return "another-" + e.h.Installation }

func (e env) claimOf(holder string, beat uint64, dead ...string) provider.Claim {
	return provider.Claim{
		Installation: e.h.Installation, Holder: holder, Beat: beat,
		Period: 180*time.Second + time.Millisecond, Dead: dead,
	}
}

// claim calls Claim of p, which may be a provider of Reopen.
func (e env) claim(p provider.Provider, c provider.Claim) ([]provider.HostClaims, error) {
	e.Helper()
	ctx, cancel := e.call()
	defer cancel()
	return e.claimWith(ctx, p, c)
}

func (e env) claimWith(ctx context.Context, p provider.Provider, c provider.Claim) ([]provider.HostClaims, error) {
	e.Helper()
	claimer, ok := provider.As[provider.Claimer](p)
	if !ok {
		e.Fatalf("the provider has no Claim any more")
	}
	defer e.seen.time("Claim", time.Now())
	rows, err := claimer.Claim(ctx, c)
	e.seen.err("Claim", err)
	for _, r := range rows {
		e.seen.err("Claim", r.Err)
	}
	return rows, err
}

// claimRows fails unless there is exactly one row for each host.
func (e env) claimRows(rows []provider.HostClaims, err error) map[string]provider.HostClaims {
	e.Helper()
	if err != nil {
		e.Fatalf("Claim: %v; one host's outage belongs in its row", err)
	}
	hosts := map[string]provider.HostClaims{}
	for _, r := range rows {
		if r.Err != nil && len(r.Others) > 0 {
			e.Errorf("Claim: host %q has an error and %d others", r.Host, len(r.Others))
		}
		if !slices.IsSortedFunc(r.Others, func(a, b provider.OtherClaim) int { return strings.Compare(a.Holder, b.Holder) }) {
			e.Errorf("Claim: the others of host %q are not sorted by holder: %+v", r.Host, r.Others)
		}
		hosts[r.Host] = r
	}
	e.oneRowEach("Claim", slices.Collect(func(yield func(string) bool) {
		for _, r := range rows {
			if !yield(r.Host) {
				return
			}
		}
	}))
	return hosts
}

// oneRowEach fails unless each host of the harness is named once, and no other.
func (e env) oneRowEach(method string, got []string) {
	e.Helper()
	want := slices.Sorted(slices.Values(e.h.Hosts))
	if got = slices.Sorted(slices.Values(got)); !slices.Equal(got, want) {
		e.Errorf("%s: rows for %q; hosts are %q", method, got, want)
	}
}

// claims has the holder claim every host, and ends the subtest unless that worked.
func (e env) claims(p provider.Provider, c provider.Claim) map[string]provider.HostClaims {
	e.Helper()
	rows, err := e.claim(p, c)
	hosts := e.claimRows(rows, err)
	for _, r := range hosts {
		if r.Err != nil {
			e.Fatalf("Claim: host %s: %v", r.Host, r.Err)
		}
	}
	return hosts
}

// sees fails unless the row shows the claims, one for each holder, and none of
// the absent holders.
func (e env) sees(what string, row provider.HostClaims, want []provider.Claim, absent ...string) {
	e.Helper()
	if row.Err != nil {
		e.Errorf("%s: host %s: %v", what, row.Host, row.Err)
		return
	}
	for _, w := range want {
		var got []provider.OtherClaim
		for _, o := range row.Others {
			if o.Holder == w.Holder {
				got = append(got, o)
			}
		}
		if len(got) != 1 || got[0] != (provider.OtherClaim{Holder: w.Holder, Beat: w.Beat, Period: w.Period}) {
			e.Errorf("%s: host %s shows %+v of holder %s; want its beat %d and period %v, once", what, row.Host, got, w.Holder, w.Beat, w.Period)
		}
	}
	for _, o := range row.Others {
		if slices.Contains(absent, o.Holder) {
			e.Errorf("%s: host %s shows %+v; want none of that holder", what, row.Host, o)
		}
	}
}

func claimReplaces(e env) {
	a, b := e.holder(), e.holder()
	// The period changes as well: it is part of the claim.
	for beat := uint64(9); beat < 12; beat++ {
		c := e.claimOf(a, beat)
		c.Period += time.Duration(beat) * time.Millisecond
		e.claims(e.h.Provider, c)
		for _, row := range e.claims(e.h.Provider, e.claimOf(b, beat)) {
			e.sees("after renewal", row, []provider.Claim{c})
		}
	}
}

func claimShows(e env) {
	var want []provider.Claim
	for i := range 3 {
		c := e.claimOf(e.holder(), uint64(i)+1<<40)
		c.Period = time.Duration(i+1) * 1500 * time.Millisecond
		want = append(want, c)
		e.claims(e.h.Provider, c)
	}
	for i, c := range want {
		for _, row := range e.claims(e.h.Provider, c) {
			e.sees("among three", row, slices.Delete(slices.Clone(want), i, i+1), c.Holder)
		}
	}
}

func claimForeign(e env) {
	a, b, c := e.holder(), e.holder(), e.holder()
	mine, theirs := e.claimOf(a, 5), e.claimOf(b, 7)
	theirs.Installation = e.otherInstallation()
	e.claims(e.h.Provider, theirs)
	mine.Dead = []string{b}
	for _, row := range e.claims(e.h.Provider, mine) {
		e.sees("beside another installation's", row, nil, b)
	}
	look := e.claimOf(c, 1)
	look.Installation = e.otherInstallation()
	for _, row := range e.claims(e.h.Provider, look) {
		e.sees("the other installation's own look", row, []provider.Claim{theirs}, a)
	}
}

func claimDead(e env) {
	a, b, c := e.holder(), e.holder(), e.holder()
	alive := e.claimOf(b, 2)
	e.claims(e.h.Provider, e.claimOf(a, 1))
	e.claims(e.h.Provider, alive)
	never := strings.ToLower(rand.Text())[:20]
	for range 2 { // who is gone already is no error
		for _, row := range e.claims(e.h.Provider, e.claimOf(c, 3, a, never)) {
			e.sees("with the dead named", row, []provider.Claim{alive}, a)
		}
	}
}

func claimBroken(e env) {
	a, b := e.holder(), e.holder()
	first := e.claimOf(a, 1)
	e.claims(e.h.Provider, first)
	for _, out := range e.h.Hosts {
		mend := e.until(e.h.BreakHost(e.T, out))
		rows, err := e.claim(e.h.Provider, e.claimOf(b, 1))
		for host, row := range e.claimRows(rows, err) {
			if host == out {
				e.wantClass("row of broken host "+host, row.Err, unreachable...)
			} else {
				e.sees("while "+out+" is broken", row, []provider.Claim{first})
			}
		}
		mend()
	}
	for _, row := range e.claims(e.h.Provider, e.claimOf(b, 2)) {
		e.sees("once all are back", row, []provider.Claim{first})
	}
}

func claimMute(e env) {
	a, b := e.holder(), e.holder()
	first := e.claimOf(a, 1)
	e.claims(e.h.Provider, first)
	out := e.h.Hosts[0]
	mend := e.until(e.h.MuteHost(e.T, out))
	ctx, cancel := context.WithTimeout(context.Background(), shortDeadline)
	defer cancel()
	rows, err := e.claimWith(ctx, e.h.Provider, e.claimOf(b, 1))
	for host, row := range e.claimRows(rows, err) {
		if host == out {
			e.wantClass("row of mute host "+host, row.Err, unreachable...)
		} else {
			e.sees("while "+out+" is mute", row, []provider.Claim{first})
		}
	}
	mend()
}

func claimReopened(e env) {
	a, b := e.holder(), e.holder()
	first, second := e.claimOf(a, 1<<33), e.claimOf(b, 1)
	e.claims(e.h.Provider, first)
	for _, row := range e.claims(e.h.Reopen(e.T), second) {
		e.sees("a new operator", row, []provider.Claim{first})
	}
	for _, row := range e.claims(e.h.Provider, e.claimOf(a, 1<<33+1)) {
		e.sees("the old one beside it", row, []provider.Claim{second})
	}
}

// claimInterrupted ends Claim at each step. Whoever looks then must see the
// holder with the old beat or the new one; and its next Claim works.
func claimInterrupted(e env) {
	a, b, dead := e.holder(), e.holder(), e.holder()
	e.claims(e.h.Provider, e.claimOf(a, 1))
	beat := uint64(1)
	e.eachStep(fail, func(w *wire) (string, bool) {
		e.claims(e.h.Provider, e.claimOf(dead, 1))
		ctx, cancel := e.call()
		defer cancel()
		ctx, disarm := w.arm(ctx)
		defer disarm()
		beat++
		rows, err := e.claimWith(ctx, e.h.Provider, e.claimOf(a, beat, dead))
		if step, fired := w.hit(); fired && err == nil && !slices.ContainsFunc(rows, func(r provider.HostClaims) bool { return r.Err != nil }) {
			e.Errorf("Claim went on though it was ended at step %q: the row must say so", step)
		}
		for host, row := range e.claims(e.h.Provider, e.claimOf(b, beat)) {
			i := slices.IndexFunc(row.Others, func(o provider.OtherClaim) bool { return o.Holder == a })
			if i < 0 {
				e.Errorf("host %s shows no claim of a holder that had one: %+v", host, row.Others)
			} else if got := row.Others[i].Beat; got != beat && got != beat-1 {
				e.Errorf("host %s shows beat %d; it was %d and is to be %d", host, got, beat-1, beat)
			}
		}
		beat++
		again := e.claimOf(a, beat, dead)
		e.claims(e.h.Provider, again)
		for _, row := range e.claims(e.h.Provider, e.claimOf(b, beat)) {
			e.sees("claimed again", row, []provider.Claim{again}, dead)
		}
		return w.hit()
	})
}

// claimTogether has several operators begin at once: whoever has claimed twice
// has been seen by, and has seen, all that had claimed once by then.
func claimTogether(e env) {
	n := max(2, min(e.h.Many, 4))
	holders := make([]string, n)
	for i := range holders {
		holders[i] = e.holder()
	}
	// A limit on the calls of a host (P-GEN-12) is no failure here.
	all := func(beat uint64) []map[string]provider.HostClaims {
		seen := make([]map[string]provider.HostClaims, n)
		var wg sync.WaitGroup
		for i, h := range holders {
			wg.Go(func() {
				err := e.rounds(func() (bool, error) {
					ctx, cancel := e.call()
					defer cancel()
					claimer, _ := provider.As[provider.Claimer](e.h.Provider)
					rows, err := claimer.Claim(ctx, e.claimOf(h, beat))
					if err != nil {
						return !slices.Contains(again, provider.Class(err)), err
					}
					seen[i] = map[string]provider.HostClaims{}
					for _, r := range rows {
						if r.Err != nil {
							return provider.Class(r.Err) != fault.Transient, r.Err
						}
						seen[i][r.Host] = r
					}
					return true, nil
				})
				if err != nil {
					e.Errorf("Claim of %d at once: %v", n, err)
				}
			})
		}
		wg.Wait()
		return seen
	}
	all(1)
	for i, rows := range all(2) {
		for _, host := range e.h.Hosts {
			for k, h := range holders {
				if k != i && !slices.ContainsFunc(rows[host].Others, func(o provider.OtherClaim) bool { return o.Holder == h && o.Beat >= 1 }) {
					e.Errorf("host %s: the second look of operator %d does not show operator %d: %+v", host, i, k, rows[host].Others)
				}
			}
		}
	}
}
