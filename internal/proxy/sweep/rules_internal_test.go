package sweep

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/proxy/provider"
)

const (
	ours  = "kube-uid/ns"
	grace = 10 * time.Minute
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func inst(host, uid string) provider.Instance {
	return provider.Instance{
		ID: "p://" + host + "/" + uid, Host: host, State: provider.Running,
		Owner: provider.Owner{Installation: ours, Namespace: "ns", Name: "n-" + uid, UID: uid},
	}
}

func row(host string, ins ...provider.Instance) provider.HostList {
	return provider.HostList{Host: host, Instances: ins}
}

func set(uids ...string) map[string]bool {
	m := map[string]bool{}
	for _, u := range uids {
		m[u] = true
	}
	return m
}

// fleet is n owned instances on the host, which keep the fuse quiet.
func fleet(host string, n int) (ins []provider.Instance, owners map[string]bool) {
	owners = map[string]bool{}
	for i := range n {
		uid := fmt.Sprintf("own-%02d", i)
		ins = append(ins, inst(host, uid))
		owners[uid] = true
	}
	return ins, owners
}

// verdicts are the findings as "id verdict" and a mark for what will be done.
func verdicts(p plan) (out []string) {
	for _, f := range p.findings {
		s := f.Host + " " + f.ID[max(0, len(f.ID)-6):] + " " + string(f.Verdict)
		if f.act != nothing {
			s += "!"
		}
		out = append(out, s)
	}
	return out
}

// TestInstances judges one instance beside five owned ones on h1, twice, with
// the grace between.
func TestInstances(t *testing.T) {
	mute := errors.New("mute")
	for name, tc := range map[string]struct {
		reason string
		edit   func(n int, v *view, in *provider.Instance)
		after  time.Duration
		want   []string
	}{
		"orphan": {
			reason: "seen twice, its grace has passed",
			want:   []string{"h1 /p-one Due!"},
		},
		"owned": {
			reason: "its Proxy exists",
			edit:   func(_ int, v *view, _ *provider.Instance) { v.owners["p-one"] = true },
		},
		"owned at first": {
			reason: "it is an orphan since the second sweep only",
			edit:   func(n int, v *view, _ *provider.Instance) { v.owners["p-one"] = n == 0 },
			want:   []string{"h1 /p-one Waiting"},
		},
		"abandoned at first": {
			reason: "its record was struck out since: an orphan since the second sweep only",
			edit: func(n int, v *view, _ *provider.Instance) {
				if n == 0 {
					v.page.Abandoned = map[string]AbandonedInstance{"p-one": {}}
				}
			},
			want: []string{"h1 /p-one Waiting"},
		},
		"unreadable at first": {
			reason: "an orphan since the second sweep only",
			edit: func(n int, _ *view, in *provider.Instance) {
				if n == 0 {
					in.State = provider.Unknown
				}
			},
			want: []string{"h1 /p-one Waiting"},
		},
		"within its grace": {
			reason: "seen twice and too soon",
			after:  grace - time.Nanosecond,
			want:   []string{"h1 /p-one Waiting"},
		},
		"made a moment ago": {
			reason: "a grace since it was made has not passed",
			edit:   func(_ int, _ *view, in *provider.Instance) { in.Created = start.Add(time.Nanosecond) },
			want:   []string{"h1 /p-one Waiting"},
		},
		"made a grace ago": {
			reason: "a grace since it was made has just passed",
			edit:   func(_ int, _ *view, in *provider.Instance) { in.Created = start },
			want:   []string{"h1 /p-one Due!"},
		},
		"made in the future": {
			reason: "by a clock that is ahead: the time says nothing, and its first sighting counts",
			edit:   func(_ int, _ *view, in *provider.Instance) { in.Created = start.Add(365 * 24 * time.Hour) },
			want:   []string{"h1 /p-one Due!"},
		},
		"made in the future, within its grace": {
			reason: "its first sighting counts",
			after:  grace - time.Nanosecond,
			edit:   func(_ int, _ *view, in *provider.Instance) { in.Created = start.Add(365 * 24 * time.Hour) },
			want:   []string{"h1 /p-one Waiting"},
		},
		"abandoned elsewhere": {
			reason: "another provider's object has it",
			edit: func(_ int, v *view, _ *provider.Instance) {
				v.page.Elsewhere = map[string]string{"p-one": "other"}
			},
			want: []string{"h1 /p-one Abandoned"},
		},
		"owned, and abandoned elsewhere": {
			reason: "its Proxy exists: there is nothing to tell",
			edit: func(_ int, v *view, _ *provider.Instance) {
				v.page.Elsewhere, v.owners["p-one"] = map[string]string{"p-one": "other"}, true
			},
		},
		"abandoned elsewhere, and asked for there": {
			reason: "what is asked there is done there",
			edit: func(_ int, v *view, _ *provider.Instance) {
				v.page.Elsewhere, v.page.Remove = map[string]string{"p-one": "other"}, []string{"p-one"}
			},
			want: []string{"h1 /p-one Abandoned"},
		},
		"abandoned": {
			reason: "it was left to a person",
			edit: func(_ int, v *view, _ *provider.Instance) {
				v.page.Abandoned = map[string]AbandonedInstance{"p-one": {}}
			},
			want: []string{"h1 /p-one Abandoned"},
		},
		"abandoned and asked for": {
			reason: "a person named it",
			edit: func(_ int, v *view, _ *provider.Instance) {
				v.page.Abandoned = map[string]AbandonedInstance{"p-one": {}}
				v.page.Remove = []string{"p-one"}
			},
			want: []string{"h1 /p-one Due!"},
		},
		"asked for while its Proxy exists": {
			reason: "an owner wins over everything",
			edit: func(_ int, v *view, _ *provider.Instance) {
				v.owners["p-one"] = true
				v.page.Abandoned = map[string]AbandonedInstance{"p-one": {}}
				v.page.Remove = []string{"p-one"}
			},
			want: []string{"h1 /p-one Abandoned"},
		},
		"asked for and not abandoned": {
			reason: "naming a UID that is not written down shortens nothing",
			edit:   func(_ int, v *view, _ *provider.Instance) { v.page.Remove = []string{"p-one"} },
			after:  time.Minute,
			want:   []string{"h1 /p-one Waiting"},
		},
		"unknown": {
			reason: "its record cannot be read",
			edit:   func(_ int, _ *view, in *provider.Instance) { in.State = provider.Unknown },
			want:   []string{"h1 /p-one Unreadable"},
		},
		"unknown and owned": {
			reason: "its Proxy's own condition tells of it",
			edit: func(_ int, v *view, in *provider.Instance) {
				in.State, v.owners["p-one"] = provider.Unknown, true
			},
		},
		"unknown, abandoned and asked for": {
			reason: "whose it is cannot be said, so the name of a UID does not help",
			edit: func(_ int, v *view, in *provider.Instance) {
				in.State = provider.Unknown
				v.page.Abandoned = map[string]AbandonedInstance{"p-one": {}}
				v.page.Remove = []string{"p-one"}
			},
			want: []string{"h1 /p-one Unreadable"},
		},
		"no UID": {
			reason: "nobody can own it",
			edit:   func(_ int, _ *view, in *provider.Instance) { in.Owner.UID = "" },
			want:   []string{"h1 /p-one Unreadable"},
		},
		"no owner at all": {
			reason: "a torn record",
			edit: func(_ int, _ *view, in *provider.Instance) {
				in.Owner, in.State = provider.Owner{}, provider.Unknown
			},
			want: []string{"h1 /p-one Unreadable"},
		},
		"foreign": {
			reason: "another installation's is not even shown",
			edit:   func(_ int, _ *view, in *provider.Instance) { in.Owner.Installation = "other" },
		},
		"foreign and unknown": {
			reason: "another installation's is not even shown",
			edit: func(_ int, _ *view, in *provider.Instance) {
				in.Owner.Installation, in.State = "other", provider.Unknown
			},
		},
		"mute host": {
			reason: "nothing there is judged",
			edit: func(n int, v *view, _ *provider.Instance) {
				if n == 1 {
					v.hosts = append(v.hosts, provider.HostList{Host: "h1", Err: mute})
				}
			},
		},
		"barred": {
			reason: "another operator's claim",
			edit: func(_ int, v *view, _ *provider.Instance) {
				v.bars = bars{needed: true, host: map[string]string{"h1": "a claim"}}
			},
			want: []string{"h1 /p-one Held"},
		},
		"barred and asked for": {
			reason: "a claim holds back what a person named, too",
			edit: func(_ int, v *view, _ *provider.Instance) {
				v.bars.all = "a conflict"
				v.page.Abandoned = map[string]AbandonedInstance{"p-one": {}}
				v.page.Remove = []string{"p-one"}
			},
			want: []string{"h1 /p-one Held"},
		},
		"dry run": {
			reason: "due, and nothing is done",
			edit:   func(_ int, v *view, _ *provider.Instance) { v.dryRun = true },
			want:   []string{"h1 /p-one Due"},
		},
		"dry run, asked for": {
			reason: "due, and nothing is done",
			edit: func(_ int, v *view, _ *provider.Instance) {
				v.dryRun = true
				v.page.Abandoned = map[string]AbandonedInstance{"p-one": {}}
				v.page.Remove = []string{"p-one"}
			},
			want: []string{"h1 /p-one Due"},
		},
		"dry run, barred": {
			reason: "everything due is Due in a dry run",
			edit: func(_ int, v *view, _ *provider.Instance) {
				v.dryRun, v.bars.all = true, "a conflict"
			},
			want: []string{"h1 /p-one Due"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var m memory
			var p plan
			after := tc.after
			if after == 0 {
				after = grace
			}
			for n, now := range []time.Time{start, start.Add(after)} {
				own, owners := fleet("h1", 5)
				v := view{now: now, installation: ours, grace: grace, owners: owners}
				in := inst("h1", "p-one")
				if tc.edit != nil {
					tc.edit(n, &v, &in)
				}
				v.hosts = append(v.hosts, row("h1", append(own, in, in)...))
				p, m = judge(v, m)
			}
			if diff := cmp.Diff(tc.want, verdicts(p)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// TestOneSightingIsNotEnough also where there is no grace.
func TestOneSightingIsNotEnough(t *testing.T) {
	own, owners := fleet("h1", 5)
	v := view{now: start, installation: ours, owners: owners, hosts: []provider.HostList{row("h1", append(own, inst("h1", "x"))...)}}
	p, m := judge(v, memory{})
	if p.findings[0].Verdict != Waiting || p.findings[0].act != nothing {
		t.Errorf("after one look: %v", verdicts(p))
	}
	if p, _ = judge(v, m); p.findings[0].act != removeOrphan {
		t.Errorf("after two looks: %v", verdicts(p))
	}
}

// TestMuteHostKeepsItsTimes: a host that does not answer for a while does not
// start the grace anew, and one that has left the configuration does.
func TestMuteHostKeepsItsTimes(t *testing.T) {
	own, owners := fleet("h1", 9)
	at := func(minutes int, h2 ...provider.HostList) view {
		return view{
			now: start.Add(time.Duration(minutes) * time.Minute), installation: ours, grace: grace, owners: owners,
			hosts: append(h2, row("h1", own...)),
		}
	}
	there := row("h2", inst("h2", "p-one"))
	_, m := judge(at(0, there), memory{})
	_, m = judge(at(5, provider.HostList{Host: "h2", Err: errors.New("mute")}), m)
	if p, _ := judge(at(10, there), m); p.findings[0].act != removeOrphan {
		t.Errorf("after an outage: %v", verdicts(p))
	}
	_, m = judge(at(5), m)
	if p, _ := judge(at(10, there), m); p.findings[0].Verdict != Waiting {
		t.Errorf("after the host was out of the configuration: %v", verdicts(p))
	}
}

// ripe returns a view of these orphans, seen for a grace, beside so many owned
// instances, and the memory up to then.
func ripe(owned int, orphans ...string) (view, memory) {
	own, owners := fleet("h1", owned)
	v := view{now: start, installation: ours, grace: grace, owners: owners}
	for _, uid := range orphans {
		own = append(own, inst("h1", uid))
	}
	v.hosts = []provider.HostList{row("h1", own...)}
	_, m := judge(v, memory{})
	v.now = start.Add(grace)
	return v, m
}

func orphans(n int) (uids []string) {
	for i := range n {
		uids = append(uids, fmt.Sprintf("orph%02d", i))
	}
	return uids
}

func acts(p plan) (n int) {
	for _, f := range p.findings {
		if f.act != nothing {
			n++
		}
	}
	return n
}

func TestFuse(t *testing.T) {
	for name, tc := range map[string]struct {
		reason         string
		owned, orphans int
		edit           func(v *view)
		fuse           string
	}{
		"three":          {reason: "up to three go always", owned: 1, orphans: 3},
		"four of five":   {reason: "more than three, and more than a fifth", owned: 1, orphans: 4, fuse: "4 of 5 instances would go, and at most 3 may at once"},
		"a fifth":        {reason: "a fifth may go", owned: 16, orphans: 4},
		"rounded down":   {reason: "a fifth of 24 is 4", owned: 19, orphans: 5, fuse: "5 of 24 instances would go, and at most 4 may at once"},
		"a fifth of 25":  {reason: "a fifth may go", owned: 20, orphans: 5},
		"all, by number": {reason: "never all, however few", owned: 0, orphans: 1, edit: func(v *view) { v.owners["elsewhere"] = true }, fuse: "all 1 instances would go"},
		"no Proxy at all": {reason: "the API may have been restored empty", owned: 9, orphans: 1, edit: func(v *view) {
			v.owners, v.hosts = nil, []provider.HostList{row("h1", inst("h1", "orph00"), inst("h1", "young"))}
		}, fuse: "no Proxy exists at all"},
		"owners of nothing": {reason: "an entry that says false is no Proxy", owned: 0, orphans: 1, edit: func(v *view) { v.owners["gone"] = false }, fuse: "no Proxy exists at all"},
		"unreadable ones": {reason: "what cannot be read makes the share no larger", owned: 16, orphans: 4, edit: func(v *view) {
			v.hosts[0].Instances[0].State = provider.Unknown
		}, fuse: "4 of 19 instances would go, and at most 3 may at once"},
		"a mute host": {reason: "only the hosts that answered count", owned: 16, orphans: 4, edit: func(v *view) {
			v.hosts[0].Instances = v.hosts[0].Instances[1:]
			v.hosts = append(v.hosts, provider.HostList{Host: "h2", Err: errors.New("mute")})
		}, fuse: "4 of 19 instances would go, and at most 3 may at once"},
		"a clock ahead": {reason: "a time that has not come yet says nothing", owned: 1, orphans: 4, edit: func(v *view) {
			for i := range v.hosts[0].Instances {
				v.hosts[0].Instances[i].Created = v.now.Add(time.Hour)
			}
		}, fuse: "4 of 5 instances would go, and at most 3 may at once"},
		"barred ones count": {reason: "the set keeps its name when a host is barred", owned: 1, orphans: 4, edit: func(v *view) { v.bars.all = "a conflict" }, fuse: "4 of 5 instances would go, and at most 3 may at once"},
	} {
		t.Run(name, func(t *testing.T) {
			v, m := ripe(tc.owned, orphans(tc.orphans)...)
			if tc.edit != nil {
				tc.edit(&v)
			}
			p, _ := judge(v, m)
			if p.fuse != tc.fuse || (p.hash == "") != (tc.fuse == "") {
				t.Errorf("%s: fuse %q, hash %q; want %q", tc.reason, p.fuse, p.hash, tc.fuse)
			}
			want := tc.orphans
			if tc.fuse != "" {
				want = 0
			}
			if n := acts(p); n != want {
				t.Errorf("%s: %d would go, want %d: %v", tc.reason, n, want, verdicts(p))
			}
		})
	}
}

// TestFuseCountsWhatWentLately: a fleet does not go in small parts either.
func TestFuseCountsWhatWentLately(t *testing.T) {
	for name, tc := range map[string]struct {
		reason         string
		owned, orphans int
		// gone went so long ago; it is among the orphans where still is true.
		gone  int
		ago   time.Duration
		still bool
		fuse  string
	}{
		"one after three":       {reason: "three of 21 went, four may", owned: 17, orphans: 1, gone: 3, ago: grace - 1},
		"two after three":       {reason: "five of 22 are too many, at once or not", owned: 17, orphans: 2, gone: 3, ago: grace - 1, fuse: "2 instances would go after 3 that went lately, of 22, and at most 4 may within a grace period"},
		"three a grace later":   {reason: "people had time to look", owned: 17, orphans: 3, gone: 3, ago: grace},
		"three tried before":    {reason: "one whose removal takes long counts once", owned: 1, orphans: 3, gone: 3, ago: time.Minute, still: true},
		"four, three were once": {reason: "one whose removal takes long counts as well", owned: 1, orphans: 4, gone: 3, ago: time.Minute, still: true, fuse: "4 of 5 instances would go, and at most 3 may at once"},
	} {
		t.Run(name, func(t *testing.T) {
			v, m := ripe(tc.owned, orphans(tc.orphans)...)
			m.lately = map[string]time.Time{}
			for i := range tc.gone {
				id := fmt.Sprint("gone", i)
				if tc.still {
					id = inst("h1", orphans(tc.orphans)[i]).ID
				}
				m.lately[id] = v.now.Add(-tc.ago)
			}
			p, _ := judge(v, m)
			want := tc.orphans
			if tc.fuse != "" {
				want = 0
			}
			if p.fuse != tc.fuse || acts(p) != want {
				t.Errorf("%s: fuse %q, %d would go; want %q, %d", tc.reason, p.fuse, acts(p), tc.fuse, want)
			}
		})
	}
}

// TestReleaseTakenBack: without the annotation what is left of the set is held
// again, and the same hash releases it once more.
func TestReleaseTakenBack(t *testing.T) {
	v, m := ripe(2, orphans(6)...)
	p, m := judge(v, m)
	held := p.hash
	v.page.Release = held
	if p, m = judge(v, m); acts(p) != 6 {
		t.Fatalf("the set was not released: %v", verdicts(p))
	}
	v.page.Release = ""
	v.hosts[0].Instances = v.hosts[0].Instances[:len(v.hosts[0].Instances)-1]
	if p, m = judge(v, m); acts(p) != 0 || p.hash == "" {
		t.Errorf("%d would go after it was taken back: %v", acts(p), verdicts(p))
	}
	v.page.Release = held
	if p, _ = judge(v, m); acts(p) != 5 {
		t.Errorf("%d would go when it is given again: %v", acts(p), verdicts(p))
	}
}

// TestRelease lets a set pass, and nothing outside it.
func TestRelease(t *testing.T) {
	v, m := ripe(2, orphans(5)...)
	p, m := judge(v, m)
	held := p.hash
	if held == "" || acts(p) != 0 {
		t.Fatalf("nothing was held: %v", verdicts(p))
	}
	v.page.Release = "0123456789abcdef"
	if p, _ := judge(v, m); acts(p) != 0 || p.hash != held {
		t.Errorf("a hash that names nothing released %v", verdicts(p))
	}
	v.page.Release = held
	p, m = judge(v, m)
	if acts(p) != 5 || p.hash != "" {
		t.Errorf("the set was not released: %v, %q", verdicts(p), p.fuse)
	}
	// Two are gone: the rest of that set still passes.
	v.page.Release = held
	v.hosts[0].Instances = v.hosts[0].Instances[:len(v.hosts[0].Instances)-2]
	if p, m = judge(v, m); acts(p) != 3 {
		t.Errorf("what is left of the set was held: %v", verdicts(p))
	}
	// Four more orphans are outside it.
	young := v
	for _, uid := range []string{"more-1", "more-2", "more-3", "more-4"} {
		young.hosts = []provider.HostList{row("h1", append(young.hosts[0].Instances, inst("h1", uid))...)}
	}
	_, m = judge(young, m)
	young.now = young.now.Add(grace)
	p, _ = judge(young, m)
	if acts(p) != 3 || p.hash == "" || p.hash == held {
		t.Errorf("of 3 released and 4 others %d would go, hash %q", acts(p), p.hash)
	}
	for _, f := range p.findings {
		if in := slices.Contains(orphans(5), f.UID); in != (f.act == removeOrphan) {
			t.Errorf("%s: act %v", f.UID, f.act)
		}
	}
}

// TestLateRelease: one more orphan became due while the person read the report.
func TestLateRelease(t *testing.T) {
	v, m := ripe(2, orphans(5)...)
	p, m := judge(v, m)
	held := p.hash
	v.hosts[0].Instances = append(slices.Clone(v.hosts[0].Instances), inst("h1", "late"))
	_, m = judge(v, m)
	v.now, v.page.Release = v.now.Add(grace), held
	p, _ = judge(v, m)
	if acts(p) != 6 || p.hash != "" {
		// One orphan outside the set is within the fuse by itself.
		t.Errorf("%d would go: %v", acts(p), verdicts(p))
	}
}

// TestReleaseOfAll: when the rest outside the released set would empty the
// provider, that rest is held.
func TestReleaseOfAll(t *testing.T) {
	v, m := ripe(0, orphans(5)...)
	v.owners = set("elsewhere")
	p, m := judge(v, m)
	v.hosts[0].Instances = append(slices.Clone(v.hosts[0].Instances), inst("h1", "late"))
	_, m = judge(v, m)
	v.now, v.page.Release = v.now.Add(grace), p.hash
	if p, _ = judge(v, m); acts(p) != 5 || p.fuse != "all 6 instances would go" {
		t.Errorf("%d would go, fuse %q: %v", acts(p), p.fuse, verdicts(p))
	}
}

// TestHash pins the hash: a person may type one that an earlier operator told.
func TestHash(t *testing.T) {
	for _, ids := range [][]string{{"p://h/1", "p://h/2"}, {"p://h/2", "p://h/1"}, {"p://h/2", "p://h/1", "p://h/2"}} {
		if got := Hash(ids); got != "fbc0a693452e897d" {
			t.Errorf("Hash(%q) = %s", ids, got)
		}
	}
	if Hash([]string{"p://h/1"}) == Hash([]string{"p://h/2"}) {
		t.Error("two sets have one hash")
	}
}

// TestVanished judges records of abandoned instances that no list shows: what
// a second look, a grace later, makes of them.
func TestVanished(t *testing.T) {
	mute := errors.New("mute")
	rec := AbandonedInstance{ProviderID: "p://h2/gone", Host: "h2"}
	for name, tc := range map[string]struct {
		reason  string
		rec     AbandonedInstance
		edit    func(n int, v *view)
		after   time.Duration
		verdict Verdict
		act     act
	}{
		"gone":             {reason: "nobody asked, and its host's name may lead elsewhere", rec: rec, verdict: Abandoned},
		"gone for a year":  {reason: "however long", rec: rec, after: 365 * 24 * time.Hour, verdict: Abandoned},
		"owned":            {reason: "its Proxy is not gone yet", rec: rec, edit: func(_ int, v *view) { v.owners["gone"] = true }, verdict: Abandoned},
		"its host is mute": {reason: "nobody knows", rec: rec, edit: func(_ int, v *view) { v.hosts[1] = provider.HostList{Host: "h2", Err: mute} }, verdict: Abandoned},
		"another is mute":  {reason: "it may have been moved there", rec: rec, edit: func(_ int, v *view) { v.hosts[0] = provider.HostList{Host: "h1", Err: mute} }, verdict: Abandoned},
		"host left":        {reason: "its host is not listed", rec: rec, edit: func(_ int, v *view) { v.hosts = v.hosts[:1] }, verdict: Abandoned},
		"host left, asked": {reason: "nothing can be done, and it says what a person can do", rec: rec, edit: func(_ int, v *view) {
			v.hosts, v.page.Remove = v.hosts[:1], []string{"gone"}
		}, verdict: Failed},
		"no hosts":        {reason: "an empty configuration says nothing", rec: AbandonedInstance{}, edit: func(_ int, v *view) { v.hosts = nil }, verdict: Abandoned},
		"no hosts, asked": {reason: "an empty configuration says nothing", rec: AbandonedInstance{}, edit: func(_ int, v *view) { v.hosts, v.page.Remove = nil, []string{"gone"} }, verdict: Abandoned},
		"asked":           {reason: "at once", rec: rec, edit: func(_ int, v *view) { v.page.Remove = []string{"gone"} }, after: 1, verdict: Abandoned, act: strike},
		"asked, its host mute": {reason: "nobody knows", rec: rec, edit: func(_ int, v *view) {
			v.page.Remove, v.hosts[1] = []string{"gone"}, provider.HostList{Host: "h2", Err: mute}
		}, verdict: Abandoned},
		"nowhere, asked, one mute": {reason: "it may be on the mute one", rec: AbandonedInstance{}, edit: func(_ int, v *view) {
			v.page.Remove, v.hosts[1] = []string{"gone"}, provider.HostList{Host: "h2", Err: mute}
		}, verdict: Abandoned},
		"nowhere":        {reason: "nobody asked", rec: AbandonedInstance{}, verdict: Abandoned},
		"nowhere, asked": {reason: "it was never placed", rec: AbandonedInstance{}, edit: func(_ int, v *view) { v.page.Remove = []string{"gone"} }, verdict: Abandoned, act: strike},
		"another is mute, asked": {reason: "a person names it, and its own host answered", rec: rec, edit: func(_ int, v *view) {
			v.hosts[0], v.page.Remove = provider.HostList{Host: "h1", Err: mute}, []string{"gone"}
		}, verdict: Abandoned, act: strike},
		"nowhere, one nameless": {reason: "the nameless one may be it", rec: AbandonedInstance{}, edit: func(_ int, v *view) {
			v.page.Remove = []string{"gone"}
			v.hosts[1].Instances = []provider.Instance{{ID: "p://h2/torn", State: provider.Unknown}}
		}, verdict: Abandoned},
		"nameless under its id": {reason: "it is still there", rec: rec, edit: func(_ int, v *view) {
			v.page.Remove = []string{"gone"}
			v.hosts[1].Instances = []provider.Instance{{ID: rec.ProviderID, State: provider.Unknown}}
		}, verdict: Abandoned},
		"dry run": {reason: "nothing is struck", rec: rec, edit: func(_ int, v *view) { v.dryRun = true }, verdict: Abandoned},
		"dry run, asked": {reason: "nothing is struck", rec: rec, edit: func(_ int, v *view) {
			v.dryRun, v.page.Remove = true, []string{"gone"}
		}, verdict: Abandoned},
	} {
		t.Run(name, func(t *testing.T) {
			var m memory
			var p plan
			after := tc.after
			if after == 0 {
				after = grace
			}
			for n, now := range []time.Time{start, start.Add(after)} {
				own, owners := fleet("h1", 2)
				v := view{now: now, installation: ours, grace: grace, owners: owners, hosts: []provider.HostList{row("h1", own...), row("h2")}}
				v.page.Abandoned = map[string]AbandonedInstance{"gone": tc.rec}
				if tc.edit != nil {
					tc.edit(n, &v)
				}
				p, m = judge(v, m)
			}
			i := slices.IndexFunc(p.findings, func(f finding) bool { return f.UID == "gone" })
			if i < 0 {
				t.Fatalf("%s: it is not in the report: %v", tc.reason, verdicts(p))
			}
			if f := p.findings[i]; f.Verdict != tc.verdict || f.act != tc.act || !f.Left || f.Message == "" {
				t.Errorf("%s: %+v, act %d; want %s, act %d", tc.reason, f.Item, f.act, tc.verdict, tc.act)
			}
		})
	}
}

func TestLeftoversAreJudged(t *testing.T) {
	mute := errors.New("mute")
	img := provider.Leftover{ID: "img-1", What: "image"}
	for name, tc := range map[string]struct {
		reason string
		edit   func(n int, v *view)
		after  time.Duration
		want   []string
	}{
		"due":      {reason: "seen twice over a grace", want: []string{"h1 img-1 Due!"}},
		"too soon": {reason: "within its grace", after: grace - 1, want: []string{"h1 img-1 Waiting"}},
		"not seen before": {reason: "once is not enough", edit: func(n int, v *view) {
			if n == 0 {
				v.leftovers[0].Leftovers = nil
			}
		}, want: []string{"h1 img-1 Waiting"}},
		"its row failed": {reason: "the list is not whole", edit: func(_ int, v *view) { v.leftovers[0] = provider.HostLeftovers{Host: "h1", Err: mute} }},
		"a second row of it failed": {reason: "the list is not whole", edit: func(_ int, v *view) {
			v.leftovers = append([]provider.HostLeftovers{{Host: "h1", Err: mute}}, v.leftovers...)
		}},
		"instances not whole": {reason: "nothing is removed on a host that is not whole", edit: func(_ int, v *view) { v.hosts[0] = provider.HostList{Host: "h1", Err: mute} }},
		"host not listed":     {reason: "nothing is removed on a host without a list", edit: func(_ int, v *view) { v.hosts[0].Host = "h2" }},
		"barred":              {reason: "a claim", edit: func(_ int, v *view) { v.bars.needed = true }, want: []string{"h1 img-1 Held"}},
		"dry run":             {reason: "nothing is done", edit: func(_ int, v *view) { v.dryRun = true }, want: []string{"h1 img-1 Due"}},
		"no Proxy at all":     {reason: "the fuse is for instances", edit: func(_ int, v *view) { v.owners = nil; v.hosts[0].Instances = nil }, want: []string{"h1 img-1 Due!"}},
	} {
		t.Run(name, func(t *testing.T) {
			var m memory
			var p plan
			after := tc.after
			if after == 0 {
				after = grace
			}
			for n, now := range []time.Time{start, start.Add(after)} {
				own, owners := fleet("h1", 2)
				v := view{
					now: now, installation: ours, grace: grace, owners: owners, hosts: []provider.HostList{row("h1", own...)},
					leftovers: []provider.HostLeftovers{{Host: "h1", Leftovers: []provider.Leftover{img, img}}},
				}
				if tc.edit != nil {
					tc.edit(n, &v)
				}
				p, m = judge(v, m)
			}
			if diff := cmp.Diff(tc.want, verdicts(p)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// TestLeftoverTimesSurviveOutages of one row, and of the whole list.
func TestLeftoverTimesSurviveOutages(t *testing.T) {
	own, owners := fleet("h1", 2)
	v := view{
		now: start, installation: ours, grace: grace, owners: owners, hosts: []provider.HostList{row("h1", own...)},
		leftovers: []provider.HostLeftovers{{Host: "h1", Leftovers: []provider.Leftover{{ID: "img-1", What: "image"}}}},
	}
	_, m := judge(v, memory{})
	for _, gap := range []func(v *view){
		func(v *view) { v.leftovers = []provider.HostLeftovers{{Host: "h1", Err: errors.New("mute")}} },
		func(v *view) { v.leftovers, v.leftoversErr = nil, errors.New("mute") },
		func(v *view) { v.hosts = []provider.HostList{{Host: "h1", Err: errors.New("mute")}} },
	} {
		w := v
		w.now = w.now.Add(time.Minute)
		gap(&w)
		_, m = judge(w, m)
	}
	v.now = start.Add(grace)
	if p, _ := judge(v, m); acts(p) != 1 {
		t.Errorf("after outages: %v", verdicts(p))
	}
}

// TestLeftoverNamedInstance: only what is listed as an instance is one.
func TestLeftoverNamedInstance(t *testing.T) {
	v := view{
		now: start, installation: ours, hosts: []provider.HostList{row("h1")},
		leftovers: []provider.HostLeftovers{{Host: "h1", Leftovers: []provider.Leftover{{ID: "a", What: Instance}, {ID: "b"}}}},
	}
	p, _ := judge(v, memory{})
	for _, f := range p.findings {
		if f.What != "leftover" {
			t.Errorf("%s is called %q", f.ID, f.What)
		}
	}
}

// TestReleaseAfterRestart: the hash was told by an earlier process.
func TestReleaseAfterRestart(t *testing.T) {
	v, m := ripe(2, orphans(5)...)
	p, _ := judge(v, m)
	v.page.Release = p.hash
	if p, _ := judge(v, m); acts(p) != 5 {
		t.Errorf("the set was not released: %v", verdicts(p))
	}
}

// TestReleaseOverAnOutage: what was released on a host stays so while the host
// does not answer.
func TestReleaseOverAnOutage(t *testing.T) {
	v, m := ripe(2, orphans(5)...)
	p, m := judge(v, m)
	v.page.Release = p.hash
	_, m = judge(v, m)
	m.offers = nil
	mute := v
	mute.hosts = []provider.HostList{{Host: "h1", Err: errors.New("mute")}}
	_, m = judge(mute, m)
	if p, _ := judge(v, m); acts(p) != 5 {
		t.Errorf("the set is held anew: %v", verdicts(p))
	}
}

// TestPick takes what a person asked for first, and the oldest orphans next;
// what was tried in vain is behind all others.
func TestPick(t *testing.T) {
	p := plan{findings: []finding{
		{Item: Item{ID: "image"}, act: removeLeftover},
		{Item: Item{ID: "young", Since: start.Add(1)}, act: removeOrphan},
		{Item: Item{ID: "old", Since: start}, act: removeOrphan},
		{Item: Item{ID: "waits"}},
		{Item: Item{ID: "again", Since: start.Add(-2)}, act: removeOrphan, tried: start.Add(2)},
		{Item: Item{ID: "first", Since: start.Add(-1)}, act: removeOrphan, tried: start.Add(1)},
		{Item: Item{ID: "asked", Since: start.Add(2)}, act: removeAbandoned},
	}}
	instances, leftovers := p.pick()
	var got []string
	for _, f := range append(instances, leftovers...) {
		got = append(got, f.ID)
	}
	if diff := cmp.Diff([]string{"asked", "old", "young", "first", "again", "image"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestKept(t *testing.T) {
	v := view{owners: map[string]bool{"b": true, "no": false, "": true}, page: Page{Abandoned: map[string]AbandonedInstance{"a": {}, "b": {}}, Elsewhere: map[string]string{"c": "other"}}}
	if diff := cmp.Diff([]string{"a", "b", "c"}, v.kept()); diff != "" {
		t.Error(diff)
	}
	if len((view{}).kept()) != 0 || len(v.owners) != 3 {
		t.Error("kept changes what it reads")
	}
}

// TestUnlisted names each silent host once.
func TestUnlisted(t *testing.T) {
	v := view{
		now: start, installation: ours,
		hosts:     []provider.HostList{{Host: "h2", Err: errors.New("mute")}, row("h1")},
		leftovers: []provider.HostLeftovers{{Host: "h2", Err: errors.New("mute too")}, {Host: "h1", Err: errors.New("torn")}},
	}
	p, _ := judge(v, memory{})
	var got []string
	for _, u := range p.unlisted {
		got = append(got, u.Host+" "+u.Err.Error())
	}
	if diff := cmp.Diff([]string{"h1 torn", "h2 mute"}, got); diff != "" {
		t.Error(diff)
	}
	// h1 said what instances it has, and not what else.
	for what, want := range map[silence]bool{{"h1", true}: false, {"h1", false}: true, {"h2", true}: true, {"h2", false}: true} {
		if p.silent[what] != want {
			t.Errorf("%+v is silent: %v", what, !want)
		}
	}
}
