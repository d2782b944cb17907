package providertest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

func leftoverTests() []Subtest {
	needs := func(more ...string) []string { return append([]string{"Cleaner"}, more...) }
	return []Subtest{
		{Clauses: []string{"P-CLN-1"}, Title: "shows what nothing uses, on its host, with an id", Needs: needs("Litter"), run: leftoverShown},
		{Clauses: []string{"P-CLN-2"}, Title: "nothing of an instance, whatever it is doing", Needs: needs("Remains"), run: leftoverNoInstance},
		{Clauses: []string{"P-CLN-3"}, Title: "nothing of what is to be kept, also half made and half removed", Needs: needs("Litter"), run: leftoverKept},
		{Clauses: []string{"P-CLN-4"}, Title: "another installation's is not shown and not touched", Needs: needs("Litter"), run: leftoverForeign},
		{Clauses: []string{"P-CLN-5"}, Title: "removes one, and one alone; already gone is success", Needs: needs("Litter"), run: leftoverRemoved},
		{Clauses: []string{"P-CLN-6"}, Title: "used meanwhile is Conflict, and it stays", Needs: needs("Litter", "Use"), run: leftoverUsed},
		{Clauses: []string{"P-CLN-7"}, Title: "a broken host's row is an error; the others are whole", Needs: needs("BreakHost", "Litter"), run: leftoverBroken},
		{Clauses: []string{"P-CLN-8"}, Title: "a mute host's row is an error by the deadline; the others are whole", Needs: needs("MuteHost", "Litter"), run: leftoverMute},
		{Clauses: []string{"P-CLN-9"}, Title: "what is no id of a leftover removes nothing", Needs: needs(), run: leftoverMalformed},
		{Clauses: []string{"P-CLN-10"}, Title: "a removal that failed at any step is finished by repeating", Needs: needs("Litter"), run: leftoverInterrupted},
		{Clauses: []string{"P-CLN-11"}, Title: "nothing of an instance that cannot be read", Needs: needs("Corrupt", "Remains"), run: leftoverUnreadable},
	}
}

func (e env) cleaner() provider.Cleaner {
	c, _ := provider.As[provider.Cleaner](e.h.Provider)
	return c
}

// leftovers calls Leftovers of the provider under test; Needs has "Cleaner".
func (e env) leftovers(ctx context.Context, keep ...string) ([]provider.HostLeftovers, error) {
	e.Helper()
	defer e.seen.time("Leftovers", time.Now())
	rows, err := e.cleaner().Leftovers(ctx, e.h.Installation, keep)
	e.seen.err("Leftovers", err)
	for _, r := range rows {
		e.seen.err("Leftovers", r.Err)
	}
	return rows, err
}

// clear calls RemoveLeftover of the provider under test.
func (e env) clear(ctx context.Context, l provider.Leftover) error {
	defer e.seen.time("RemoveLeftover", time.Now())
	err := e.cleaner().RemoveLeftover(ctx, e.h.Installation, l)
	e.seen.err("RemoveLeftover", err)
	return err
}

func (e env) cleared(l provider.Leftover) error {
	ctx, cancel := e.call()
	defer cancel()
	return e.clear(ctx, l)
}

// leftoverRows fails unless there is exactly one row for each host.
func (e env) leftoverRows(rows []provider.HostLeftovers, err error) map[string]provider.HostLeftovers {
	e.Helper()
	if err != nil {
		e.Fatalf("Leftovers: %v; one host's outage belongs in its row", err)
	}
	hosts := map[string]provider.HostLeftovers{}
	var names []string
	for _, r := range rows {
		if r.Err != nil && len(r.Leftovers) > 0 {
			e.Errorf("Leftovers: host %q has an error and %d leftovers", r.Host, len(r.Leftovers))
		}
		seen := map[string]bool{}
		for _, l := range r.Leftovers {
			if l.Host != r.Host || l.ID == "" || l.What == "" || l.Bytes < 0 || seen[l.ID] {
				e.Errorf("Leftovers: in the row of host %q: %+v: want that host, an id of its own, and what it is", r.Host, l)
			}
			seen[l.ID] = true
		}
		hosts[r.Host] = r
		names = append(names, r.Host)
	}
	e.oneRowEach("Leftovers", names)
	return hosts
}

// lying returns the leftovers of all hosts as host/id, and ends the subtest
// unless each row is whole.
func (e env) lying(keep ...string) []string {
	e.Helper()
	ctx, cancel := e.call()
	defer cancel()
	rows, err := e.leftovers(ctx, keep...)
	var all []string
	for _, r := range e.leftoverRows(rows, err) {
		if r.Err != nil {
			e.Fatalf("Leftovers: host %s: %v", r.Host, r.Err)
		}
		for _, l := range r.Leftovers {
			all = append(all, key(l))
		}
	}
	slices.Sort(all)
	return all
}

func key(l provider.Leftover) string { return l.Host + "/" + l.ID }

// none fails for each leftover in got that was not there before.
func (e env) none(what string, before, got []string) {
	e.Helper()
	for _, k := range got {
		if !slices.Contains(before, k) {
			e.Errorf("%s, %s is called a leftover", what, k)
		}
	}
}

// littered leaves a thing of a new owner on the host.
func (e env) littered(host string) (provider.Owner, provider.Leftover, func(T) bool) {
	e.Helper()
	o := e.owner()
	l, there := e.h.Litter(e.T, host, o)
	if l.Host != host || l.ID == "" || !there(e.T) {
		e.Fatalf("the harness's Litter left nothing on %s: %+v", host, l)
	}
	return o, l, there
}

func leftoverShown(e env) {
	want := map[string]provider.Leftover{}
	for _, host := range e.h.Hosts {
		_, want[host], _ = e.littered(host)
	}
	ctx, cancel := e.call()
	defer cancel()
	rows, err := e.leftovers(ctx)
	for host, row := range e.leftoverRows(rows, err) {
		e.showsLeftover(row, want[host])
	}
}

func (e env) showsLeftover(row provider.HostLeftovers, want provider.Leftover) {
	e.Helper()
	if row.Err != nil {
		e.Errorf("Leftovers: host %s: %v", row.Host, row.Err)
		return
	}
	if !slices.ContainsFunc(row.Leftovers, func(l provider.Leftover) bool { return l.ID == want.ID }) {
		e.Errorf("Leftovers: host %s does not show %s, which nothing uses: %+v", row.Host, want.ID, row.Leftovers)
	}
}

// leftoverNoInstance asks without naming any UID to keep: what an instance
// consists of is told by the instance.
func leftoverNoInstance(e env) {
	before := e.lying()
	for _, host := range e.h.Hosts {
		s, in := e.made(host)
		e.none("while an instance runs", before, e.lying())
		if e.h.Stop != nil {
			e.h.Stop(e.T, in)
			e.none("while an instance is stopped", before, e.lying())
		}
		e.running(e.p, s)
		e.single(e.p, in)
		e.gone(e.p, refOf(in))
		e.none("after an instance went", before, e.lying())
	}
}

func leftoverKept(e env) {
	for _, host := range e.h.Hosts {
		o, l, _ := e.littered(host)
		if slices.Contains(e.lying(o.UID), key(l)) {
			e.Errorf("%s belongs to %s, which is to be kept, and is called a leftover", key(l), o.UID)
		}
		if !slices.Contains(e.lying(uuid()), key(l)) {
			e.Errorf("%s is not shown while another UID is to be kept", key(l))
		}
	}
	before := e.lying()
	e.eachStep(fail, func(w *wire) (string, bool) {
		s := e.spec(e.owner(), "")
		e.createUntil(e.p, s, w)
		e.none("half made and to be kept", before, e.lying(s.Owner.UID))
		in := e.running(e.p, s)
		// The same step of the removal, as far as it has one.
		d := &wire{at: w.at, kind: fail}
		e.deleteUntil(e.p, refOf(in), d)
		e.none("half removed and to be kept", before, e.lying(s.Owner.UID))
		e.gone(e.p, refOf(in))
		return w.hit()
	})
}

func leftoverForeign(e env) {
	for _, host := range e.h.Hosts {
		o := provider.Owner{Installation: e.otherInstallation(), Namespace: "suite", Name: "foreign", UID: uuid()}
		l, there := e.h.Litter(e.T, host, o)
		if slices.Contains(e.lying(), key(l)) {
			e.Errorf("%s is another installation's and is called a leftover", key(l))
		}
		if err := e.cleared(l); err != nil {
			e.wantClass("RemoveLeftover of another installation's", err, fault.Conflict, fault.Denied, fault.Permanent, fault.Invalid)
		}
		if !there(e.T) {
			e.Errorf("%s was another installation's and is gone", key(l))
		}
	}
}

func leftoverRemoved(e env) {
	for _, host := range e.h.Hosts {
		_, l, there := e.littered(host)
		_, other, stays := e.littered(host)
		for _, what := range []string{"RemoveLeftover", "RemoveLeftover once more"} {
			if err := e.cleared(l); err != nil {
				e.Errorf("%s: %v", what, err)
			}
			if there(e.T) {
				e.Errorf("after %s, %s is still there", what, key(l))
			}
		}
		got := e.lying()
		if slices.Contains(got, key(l)) {
			e.Errorf("%s was removed and is still shown", key(l))
		}
		if !stays(e.T) || !slices.Contains(got, key(other)) {
			e.Errorf("%s went with it, or is shown no more", key(other))
		}
		if err := e.cleared(other); err != nil {
			e.Errorf("RemoveLeftover of the other: %v", err)
		}
	}
}

func leftoverUsed(e env) {
	for _, host := range e.h.Hosts {
		_, l, there := e.littered(host)
		mend := e.until(e.h.Use(e.T, l))
		if slices.Contains(e.lying(), key(l)) {
			e.Errorf("%s is used and is called a leftover", key(l))
		}
		e.wantClass("RemoveLeftover of what is used", e.cleared(l), fault.Conflict)
		if !there(e.T) {
			e.Errorf("%s was used and is gone", key(l))
		}
		mend()
		if err := e.cleared(l); err != nil || there(e.T) {
			e.Errorf("RemoveLeftover once it is used no more: %v; it is there: %v", err, there(e.T))
		}
	}
}

func leftoverBroken(e env) {
	lies := map[string]provider.Leftover{}
	for _, host := range e.h.Hosts {
		_, lies[host], _ = e.littered(host)
	}
	for _, out := range e.h.Hosts {
		mend := e.until(e.h.BreakHost(e.T, out))
		ctx, cancel := e.call()
		rows, err := e.leftovers(ctx)
		cancel()
		for host, row := range e.leftoverRows(rows, err) {
			if host == out {
				e.wantClass("row of broken host "+host, row.Err, unreachable...)
			} else {
				e.showsLeftover(row, lies[host])
			}
		}
		e.wantClass("RemoveLeftover on broken host "+out, e.cleared(lies[out]), unreachable...)
		mend()
	}
	got := e.lying()
	for _, l := range lies {
		if !slices.Contains(got, key(l)) {
			e.Errorf("%s is shown no more once all hosts are back", key(l))
		}
	}
}

func leftoverMute(e env) {
	lies := map[string]provider.Leftover{}
	for _, host := range e.h.Hosts {
		_, lies[host], _ = e.littered(host)
	}
	out := e.h.Hosts[0]
	mend := e.until(e.h.MuteHost(e.T, out))
	ctx, cancel := context.WithTimeout(context.Background(), shortDeadline)
	defer cancel()
	rows, err := e.leftovers(ctx)
	for host, row := range e.leftoverRows(rows, err) {
		if host == out {
			e.wantClass("row of mute host "+host, row.Err, unreachable...)
		} else {
			e.showsLeftover(row, lies[host])
		}
	}
	ctx, cancel = context.WithTimeout(context.Background(), shortDeadline)
	defer cancel()
	e.wantClass("RemoveLeftover on mute host "+out, e.clear(ctx, lies[out]), unreachable...)
	mend()
}

func leftoverMalformed(e env) {
	s, in := e.made("")
	for _, id := range []string{"", ".", "..", "../" + s.Owner.UID, "/etc/passwd", "a/b", in.ID, "no such\nthing"} {
		e.wantClass(fmt.Sprintf("RemoveLeftover of %q", id), e.cleared(provider.Leftover{Host: in.Host, ID: id, What: "file"}), fault.Invalid, fault.Permanent)
	}
	e.wantClass("RemoveLeftover on a host that is not configured",
		e.cleared(provider.Leftover{Host: nowhere, ID: "x", What: "file"}), fault.Invalid, fault.Permanent)
	// This one may be well formed: it names no leftover.
	_ = e.cleared(provider.Leftover{Host: in.Host, ID: s.Owner.UID, What: "file"})
	e.single(e.p, in)
	if got, err := e.get(e.p, refOf(in)); err != nil || got.State != provider.Running {
		e.Errorf("the instance afterwards: %+v, %v", got, err)
	}
}

func leftoverInterrupted(e env) {
	host := e.h.Hosts[0]
	for _, kind := range []interruption{fail, quit} {
		e.eachStep(kind, func(w *wire) (string, bool) {
			_, l, there := e.littered(host)
			ctx, cancel := e.call()
			defer cancel()
			ctx, disarm := w.arm(ctx)
			defer disarm()
			err := e.clear(ctx, l)
			if step, fired := w.hit(); fired && err == nil {
				e.Errorf("RemoveLeftover went on though it was ended at step %q: it must return that error", step)
			}
			if err := e.cleared(l); err != nil || there(e.T) {
				e.Errorf("RemoveLeftover once more: %v; it is there: %v", err, there(e.T))
			}
			return w.hit()
		})
	}
}

// leftoverUnreadable asks without naming the UID to keep, and for a removal of
// whatever the host says lies there: the instance must be whole afterwards.
func leftoverUnreadable(e env) {
	before := e.lying()
	s, in := e.made("")
	mend := e.until(e.h.Corrupt(e.T, in))
	ctx, cancel := e.call()
	defer cancel()
	rows, err := e.leftovers(ctx)
	for host, row := range e.leftoverRows(rows, err) {
		if row.Err != nil {
			if host != in.Host {
				e.Errorf("Leftovers: host %s: %v", host, row.Err)
			}
			continue
		}
		for _, l := range row.Leftovers {
			e.none("while an instance cannot be read", before, []string{key(l)})
		}
	}
	mend()
	e.single(e.p, in)
	e.gone(e.p, provider.Ref{Owner: s.Owner})
}
