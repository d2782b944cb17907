package brokertest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/client"
	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/broker"
)

func (r *run) begin(b broker.Broker, keys ...string) *broker.Change {
	r.Helper()
	ch, err := b.Begin(r.ctx, "win", client.ChangeRequest{Verb: "remove", Keys: keys, Holder: "ann@desk-3", TTL: 60})
	r.must("Begin", err)
	return ch
}

func changeBars(r *run) {
	r.publish(of("win", "a", "b"))
	ch := r.begin(r.ann(), "a", "new")
	got := r.view("win").Change
	if got == nil || got.Account != "ann" || got.Verb != "remove" || got.Holder != "ann@desk-3" || !slices.Equal(got.Keys, []string{"a", "new"}) {
		r.Errorf("the change is shown as %+v", got)
	}
	r.state("win", "a", client.StateBarred)
	if bars := r.key("win", "a").Bars; len(bars) != 1 || bars[0].By != "ann" || bars[0].Action != "" || bars[0].SecondsLeft <= 50 {
		r.Errorf("its bars are %+v", bars)
	}
	l := r.take(r.bob(), "win", client.TakeOptions{})
	if l.Key() != "b" {
		r.Errorf("a barred key was handed out: %s", l.Key())
	}
	r.noneFree(r.bob(), "win", client.TakeOptions{})
	r.must("Renew", ch.Renew(r.ctx))
	r.must("End", ch.End(r.ctx))
	if got := r.view("win").Change; got != nil {
		r.Errorf("after its end the pool is changed by %+v", got)
	}
	r.state("win", "a", client.StateFree)
	r.must("End, again", ch.End(r.ctx))
	r.fault("Renew after the end", ch.Renew(r.ctx), fault.NotFound, "change")
	r.take(r.bob(), "win", client.TakeOptions{})
}

func changeRefused(r *run) {
	r.publish(of("win", "a", "b"))
	r.publish(of("mac", "a"))
	request := func(keys ...string) client.ChangeRequest { return client.ChangeRequest{Verb: "add", Keys: keys} }
	_, err := r.ann().Begin(r.ctx, "none", request())
	r.fault("an unknown pool", err, fault.NotFound, "pool")
	_, err = r.ann().Begin(r.ctx, "win", request("a b"))
	r.fault("no name", err, fault.Invalid, "name")
	if _, err = r.ann().Begin(r.ctx, "win", request(many(6)...)); fault.Of(err) != fault.Invalid {
		r.Errorf("six keys: %v", err)
	}
	l := r.take(r.bob(), "win", client.TakeOptions{})
	_, err = r.ann().Begin(r.ctx, "win", request(l.Key()))
	r.fault("a held key", err, fault.Conflict, "held")
	r.release(l, client.ReleaseRequest{})
	ch := r.begin(r.ann(), "a")
	_, err = r.bob().Begin(r.ctx, "win", request())
	r.fault("a second change of the pool", err, fault.Conflict, "change")
	_, err = r.bob().Begin(r.ctx, "mac", request("a"))
	r.fault("a change of another pool with its key", err, fault.Conflict, "change")
	r.must("End", ch.End(r.ctx))
	r.must("the next change", r.begin(r.bob(), "a").End(r.ctx))
}

func logAppend(r *run) {
	e := r.began("win", "a")
	kept := r.add(r.ann(), e)
	want := e
	want.User, want.Seq, want.Time = "ann", kept.Seq, kept.Time
	if diff := cmp.Diff(want, kept); diff != "" || kept.Seq < 1 || time.Since(kept.Time).Abs() > time.Minute {
		r.Errorf("an entry of %d at %v (-want +got):\n%s", kept.Seq, kept.Time, diff)
	}
	if again := r.add(r.ann(), e); !cmp.Equal(kept, again) {
		r.Errorf("again it is %+v, not %+v", again, kept)
	}
	end := r.add(r.ann(), finished(e, false))
	if end.Seq <= kept.Seq || end.OK == nil || *end.OK || end.Detail != "done\n" || end.User != "ann" {
		r.Errorf("its end is %+v", end)
	}
	if again := r.add(r.ann(), finished(e, false)); !cmp.Equal(end, again) {
		r.Errorf("its end, again, is %+v, not %+v", again, end)
	}
	got, err := r.bob().Entries(r.ctx, broker.Match{}, 10)
	r.must("Entries", err)
	if diff := cmp.Diff([]action.Entry{end, kept}, got); diff != "" {
		r.Errorf("the log (-want +got):\n%s", diff)
	}
}

func logRefused(r *run) {
	e := r.began("win", "a")
	unknown := r.began("win", "a")
	kept := r.add(r.ann(), e)
	other := e
	other.Command = "./vms.sh create twice"
	differs := finished(e, true)
	differs.Key = "b"
	for name, tc := range map[string]struct {
		b     broker.Broker
		entry action.Entry
		class fault.Class
		code  string
	}{
		"exists":  {r.ann(), other, fault.Conflict, action.CodeExists},
		"differs": {r.ann(), differs, fault.Conflict, action.CodeDiffers},
		"another": {r.bob(), finished(e, true), fault.Conflict, action.CodeDiffers},
		"unknown": {r.ann(), finished(unknown, true), fault.NotFound, action.CodeAction},
		"invalid": {r.ann(), action.Entry{}, fault.Invalid, "name"},
	} {
		_, err := tc.b.Append(r.ctx, tc.entry)
		r.fault(name, err, tc.class, tc.code)
	}
	r.add(r.ann(), finished(e, true))
	_, err := r.ann().Append(r.ctx, finished(e, false))
	r.fault("another end", err, fault.Conflict, action.CodeEnded)
	got, err := r.ann().Entries(r.ctx, broker.Match{Action: kept.Action}, 10)
	if err != nil || len(got) != 2 || got[0].OK == nil || !*got[0].OK {
		r.Errorf("the log is %+v, %v", got, err)
	}
}

func logEntries(r *run) {
	got, err := r.ann().Entries(r.ctx, broker.Match{}, 10)
	if err != nil || len(got) > 0 {
		r.Fatalf("an empty log: %+v, %v", got, err)
	}
	var all []action.Entry // the newest first
	for i := range 60 {
		e := r.began([]string{"win", "mac"}[i%2], fmt.Sprint("k", i%3))
		all = append([]action.Entry{r.add(r.ann(), e)}, all...)
		if i != 7 {
			all = append([]action.Entry{r.add(r.ann(), finished(e, i%5 > 0))}, all...)
		}
	}
	keep := func(f func(action.Entry) bool) (some []action.Entry) {
		for _, e := range all {
			if f(e) {
				some = append(some, e)
			}
		}
		return some
	}
	for name, tc := range map[string]struct {
		match broker.Match
		limit int
		want  []action.Entry
	}{
		"all":       {broker.Match{}, 10_000, all},
		"exactly":   {broker.Match{}, len(all), all},
		"two pages": {broker.Match{}, 110, all[:110]},
		"one page":  {broker.Match{}, 100, all[:100]},
		"one":       {broker.Match{}, 1, all[:1]},
		"none":      {broker.Match{}, 0, nil},
		"pool":      {broker.Match{Pool: "win"}, 1000, keep(func(e action.Entry) bool { return e.Pool == "win" })},
		"key":       {broker.Match{Pool: "mac", Key: "k1"}, 1000, keep(func(e action.Entry) bool { return e.Pool == "mac" && e.Key == "k1" })},
		"action":    {broker.Match{Action: all[0].Action}, 1000, all[:2]},
		"nothing":   {broker.Match{Pool: "lin"}, 1000, nil},
	} {
		got, err := r.bob().Entries(r.ctx, tc.match, tc.limit)
		r.must(name, err)
		if diff := cmp.Diff(tc.want, append([]action.Entry(nil), got...)); diff != "" {
			r.Errorf("%s: %d entries, want %d (-want +got):\n%.2000s", name, len(got), len(tc.want), diff)
		}
	}
	got, err = r.bob().Entries(r.ctx, broker.Match{}, 1000)
	r.must("Entries", err)
	counts := map[action.State]int{}
	for _, a := range action.Fold(got) {
		counts[a.State]++
	}
	if want := map[action.State]int{action.StateUnfinished: 1, action.StateFailed: 12, action.StateOK: 47}; !cmp.Equal(counts, want) {
		r.Errorf("the log folds into %v, want %v", counts, want)
	}
}

func logOpen(r *run) {
	var win, mac []action.Entry
	for i := range 118 {
		e := r.began("win", fmt.Sprint("k", i))
		kept := r.add(r.ann(), e)
		if i%9 == 0 {
			r.add(r.ann(), finished(e, true))
			continue
		}
		win = append(win, kept)
	}
	mac = append(mac, r.add(r.bob(), r.began("mac", "m")))
	open := func(what, pool string, want []action.Entry) {
		r.Helper()
		got, err := r.root().Open(r.ctx, pool)
		r.must(what, err)
		if diff := cmp.Diff(want, append([]action.Entry(nil), got...)); diff != "" {
			r.Errorf("%s: %d entries, want %d (-want +got):\n%.2000s", what, len(got), len(want), diff)
		}
	}
	open("all", "", append(slices.Clone(win), mac...))
	open("one pool's", "win", win)
	open("another's", "mac", mac)
	open("nobody's", "lin", nil)
	looked := win[0]
	looked.Phase, looked.Command, looked.Detail = action.PhaseResolved, "", "it is there"
	r.add(r.bob(), looked)
	open("after a look", "win", win[1:])
}

func logBars(r *run) {
	r.publish(of("win", "a"))
	ch := r.begin(r.ann(), "a")
	e := r.began("win", "a")
	e.Verb = action.VerbDestroy
	r.add(r.ann(), e)
	r.must("End", ch.End(r.ctx))
	r.state("win", "a", client.StateBarred)
	if bars := r.key("win", "a").Bars; len(bars) != 1 || bars[0].Action != e.Action || bars[0].By != "ann" {
		r.Errorf("its bars are %+v", bars)
	}
	r.noneFree(r.bob(), "win", client.TakeOptions{})
	looked := e
	looked.Phase, looked.Command, looked.Detail = action.PhaseResolved, "", strings.Repeat("it is there\n", 3)
	r.add(r.bob(), looked)
	r.state("win", "a", client.StateFree)
	r.take(r.bob(), "win", client.TakeOptions{})
}
