package proxyprovider_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/controller/proxyprovider"
	"fleetdesk/internal/proxy/monitor"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/sweep"
)

var moment = time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)

// checkOf reads "a=OK b=PoolLow" as a report.
func checkOf(text string) monitor.Report {
	r := monitor.Report{Checked: moment}
	for field := range strings.FieldsSeq(text) {
		host, reason, _ := strings.Cut(field, "=")
		message := ""
		if reason != "OK" {
			message = "as the test says"
		}
		r.Hosts = append(r.Hosts, monitor.Host{HostHealth: provider.HostHealth{Host: host, Reason: reason, Message: message}, Checked: moment, Since: moment})
	}
	return r
}

func item(v sweep.Verdict, n int) sweep.Item {
	return sweep.Item{
		What: sweep.Instance, Host: "box-1", ID: fmt.Sprintf("fake://box-1/%d", n), Namespace: "crawl", Name: fmt.Sprintf("p-%d", n), UID: uid(n),
		Since: moment, Verdict: v, Left: v == sweep.Abandoned, Message: "as the test says",
	}
}

func sweepOf(items ...sweep.Item) sweep.Report {
	return sweep.Report{Time: moment, Instances: 9, Items: items}
}

// state is one state of a provider, and what is shown of it.
type state struct {
	reason    string
	state     proxyprovider.State
	check     *monitor.Report
	sweep     *sweep.Report
	abandoned int
	// left: the providers file does not have it. deleted: a person did that.
	left, proxies, deleted bool

	// The columns: Configured, Reachable, Hosts, Reason, Orphans.
	columns string
	// The reasons of the three conditions.
	reasons string
	// Parts of the column Message, in order.
	says []string
}

func with[T any](v T, change func(*T)) *T { change(&v); return &v }

func states() map[string]state {
	well := checkOf("a=OK b=OK")
	swept := sweepOf()
	return map[string]state{
		"well":     {check: &well, sweep: &swept, columns: "True|True|2/2|OK|0", reasons: "OK|OK|OK"},
		"starting": {columns: "True|Unknown|-|NotCheckedYet|-", reasons: "OK|NotCheckedYet|NotSweptYet"},
		"no check": {
			reason: "a kind without a check is no trouble", check: &monitor.Report{Unsupported: true}, sweep: &swept,
			columns: "True|Unknown|-|OK|0", reasons: "OK|NoCheck|OK",
		},
		"file refused": {
			reason: "it goes on with what was in force", state: proxyprovider.State{Refused: errors.New("providers.yaml:3: not YAML")}, check: &well, sweep: &swept,
			columns: "False|True|2/2|FileRefused|0", reasons: "FileRefused|OK|OK", says: []string{"what it said before is in force", "providers.yaml:3"},
		},
		"section refused": {
			reason: "the sharper of two", state: proxyprovider.State{Err: errors.New("hosts: none"), Refused: errors.New("x")}, sweep: &swept,
			check:   &monitor.Report{Err: fault.New(fault.Unavailable, "it is disabled"), Checked: moment},
			columns: "False|False|-|SectionRefused|0", reasons: "SectionRefused|CheckFailed|OK", says: []string{"disabled until", "hosts: none"},
		},
		"check failed": {
			check: with(well, func(r *monitor.Report) { r.Err = fault.New(fault.Denied, "no") }), sweep: &swept,
			columns: "True|False|2/2|CheckFailed|0", reasons: "OK|CheckFailed|OK", says: []string{"(Denied)", "no"},
		},
		"a host in trouble": {
			reason: "its own reason is the word to show", check: new(checkOf("a=OK b=PoolLow c=Unreachable")), sweep: &swept,
			columns: "True|False|1/3|PoolLow|0", reasons: "OK|HostsInTrouble|OK", says: []string{"host b: PoolLow: as the test says", "also c (Unreachable)"},
		},
		"orphans": {
			reason: "nobody has to do anything", check: &well, sweep: new(sweepOf(item(sweep.Waiting, 1), item(sweep.Removing, 2), item(sweep.Removed, 3))),
			columns: "True|True|2/2|OK|2", reasons: "OK|OK|Orphans",
		},
		"one that cannot be removed": {
			check: &well, sweep: new(sweepOf(item(sweep.Failed, 1), item(sweep.Waiting, 2))),
			columns: "True|True|2/2|Orphans|2", reasons: "OK|OK|Orphans", says: []string{"1 things", "fake://box-1/1 on host box-1: as the test says"},
		},
		"unreadable": {
			check: &well, sweep: new(sweepOf(item(sweep.Unreadable, 1))),
			columns: "True|True|2/2|InstanceUnknown|0", reasons: "OK|OK|InstanceUnknown", says: []string{"left alone", "fake://box-1/1"},
		},
		"held": {
			reason: "the way out can be copied", check: &well,
			sweep:   with(sweepOf(item(sweep.Held, 1)), func(r *sweep.Report) { r.Hash, r.Fuse = "0123456789abcdef", "1 of 1 instances would go" }),
			columns: "True|True|2/2|SweepHeld|1", reasons: "OK|OK|SweepHeld",
			says: []string{"1 of 1 instances would go", "kubectl annotate proxyprovider NAME crawl.example.com/release-sweep=0123456789abcdef --overwrite"},
		},
		"another operator": {
			reason: "graver than the fuse", check: &well,
			sweep: with(sweepOf(item(sweep.Held, 1)), func(r *sweep.Report) {
				r.Hash, r.Conflicts = "0123456789abcdef", []sweep.Conflict{{Host: "a", Holder: "early"}, {Host: "b", Holder: "abcdefgh", Alive: true}}
			}),
			columns: "True|True|2/2|IdentityConflict|1", reasons: "OK|OK|IdentityConflict", says: []string{"abcdefgh", "host b", "end the one"},
		},
		"perhaps another operator": {
			reason: "it shows in time", check: &well,
			sweep: with(sweepOf(item(sweep.Held, 1)), func(r *sweep.Report) {
				r.Conflicts = []sweep.Conflict{{Host: "a", Holder: "abcdefgh"}}
			}),
			columns: "True|True|2/2|IdentityConflict|1", reasons: "OK|OK|IdentityConflict", says: []string{"wait until it is known"},
		},
		"held without a claim": {
			reason: "as at a host where our own claim cannot be put", check: &well, sweep: new(sweepOf(item(sweep.Held, 1))),
			columns: "True|True|2/2|SweepFailed|1", reasons: "OK|OK|SweepFailed", says: []string{"held back", "as the test says"},
		},
		"sweep failed": {
			check: &well, sweep: &sweep.Report{Time: moment, Err: errors.New("the Proxies cannot be listed")},
			columns: "True|True|2/2|SweepFailed|0", reasons: "OK|OK|SweepFailed", says: []string{"nothing was removed", "cannot be listed"},
		},
		"a host did not answer the sweep": {
			check: &well, sweep: with(sweepOf(item(sweep.Waiting, 1)), func(r *sweep.Report) { r.Unlisted = []sweep.HostError{{Host: "b", Err: errors.New("no route")}} }),
			columns: "True|True|2/2|SweepFailed|1", reasons: "OK|OK|SweepFailed", says: []string{"(b)", "nothing was removed there"},
		},
		"dry run": {
			check: &well, sweep: with(sweepOf(item(sweep.Due, 1)), func(r *sweep.Report) { r.DryRun = true }),
			columns: "True|True|2/2|DryRun|1", reasons: "OK|OK|DryRun", says: []string{"1 leftovers", "--gc-dry-run"},
		},
		"abandoned": {
			check: &well, sweep: new(sweepOf(item(sweep.Abandoned, 1))), abandoned: 1,
			columns: "True|True|2/2|Abandoned|0", reasons: "OK|OK|Abandoned",
			says: []string{"1 instances", "crawl/p-1 fake://box-1/p-1", "kubectl annotate proxyprovider NAME crawl.example.com/remove-abandoned=" + uid(1) + " --overwrite"},
		},
		"abandoned at the start": {
			check: &well, abandoned: 1,
			columns: "True|True|2/2|Abandoned|-", reasons: "OK|OK|Abandoned",
		},
		"removed, named by Proxies": {
			left: true, proxies: true,
			columns: "False|Unknown|-|Removed|-", reasons: "Removed|Removed|Removed", says: []string{"1 Proxies name it (NAME/p)", "put it back"},
		},
		"removed, with an instance": {
			left: true, abandoned: 4,
			columns: "False|Unknown|-|Removed|-", reasons: "Removed|Removed|Abandoned", says: []string{"4 instances", "crawl/p-3 fake://box-1/p-3, …", "put it back first", "--subresource=status"},
		},
		"deleted by a person": {
			reason: "why it stays comes first", check: new(checkOf("a=Error")), sweep: &swept, abandoned: 1, deleted: true,
			columns: "True|False|0/1|Abandoned|0", reasons: "OK|HostsInTrouble|Abandoned",
			says: []string{"being deleted and stays", "1 instances", "remove-abandoned=", "removes them when its grace has passed", `kubectl patch proxyprovider NAME --type=merge -p '{"metadata":{"finalizers":null}}'`},
		},
	}
}

// What kubectl shows of each state is what the server puts into its table.
func TestColumnsOfEachState(t *testing.T) {
	t.Parallel()
	for name, tc := range states() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			tc.state.Name, tc.state.Kind = r.name, "fake"
			r.has(tc.state)
			if tc.left {
				r.reconcile() // it was configured once
				r.has()
			}
			if tc.proxies {
				r.proxy("p")
			}
			if tc.check != nil {
				r.checked(r.name, *tc.check)
			}
			if tc.sweep != nil {
				r.swept(r.name, *tc.sweep)
			}
			for n := range tc.abandoned {
				r.abandon(n + 1)
			}
			if tc.deleted {
				r.delete()
			}
			r.reconcile()
			o := r.there()
			cells := r.columns()
			if cells["Name"] != r.name || cells["Kind"] != "fake" || cells["Age"] == "" {
				t.Errorf("%v", cells)
			}
			got := strings.Join([]string{cells["Configured"], cells["Reachable"], cells["Hosts"], cells["Reason"], cells["Orphans"]}, "|")
			if got != tc.columns {
				t.Errorf("%s: columns %q, want %q", tc.reason, got, tc.columns)
			}
			var reasons []string
			for _, kind := range []string{v1alpha1.ConditionConfigured, v1alpha1.ConditionReachable, v1alpha1.ConditionClean} {
				reasons = append(reasons, condition(o, kind).Reason)
			}
			if got := strings.Join(reasons, "|"); got != tc.reasons {
				t.Errorf("%s: conditions %q, want %q", tc.reason, got, tc.reasons)
			}
			message := cells["Message"]
			for _, part := range tc.says {
				part = strings.ReplaceAll(part, "NAME", r.name)
				_, rest, found := strings.Cut(message, part)
				if !found {
					t.Errorf("%s: the message is %q, want %q in it", tc.reason, cells["Message"], part)
					break
				}
				message = rest
			}
			if len(tc.says) == 0 && cells["Reason"] == "OK" && message != "-" {
				t.Errorf("all is well, and yet: %s", message)
			}
			r.reconcile()
			if again := r.there(); again.ResourceVersion != o.ResourceVersion {
				t.Errorf("nothing changed, and it was written again:\n%s", cmp.Diff(o.Status, again.Status))
			}
		})
	}
}

// columns are the cells of the row that the server makes for kubectl.
func (r *rig) columns() map[string]string {
	r.t.Helper()
	kc, err := kubernetes.NewForConfig(cluster.Config(r.t))
	if err != nil {
		r.t.Fatal(err)
	}
	raw, err := kc.CoreV1().RESTClient().Get().AbsPath("/apis/crawl.example.com/v1alpha1/proxyproviders/"+r.name).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	table := &metav1.Table{}
	if err := json.Unmarshal(raw, table); err != nil || len(table.Rows) != 1 {
		r.t.Fatalf("%v %s", err, raw)
	}
	cells := map[string]string{}
	for n, c := range table.ColumnDefinitions {
		text := "-"
		if v := table.Rows[0].Cells[n]; v != nil && v != "" {
			text = fmt.Sprint(v)
		}
		cells[c.Name] = text
	}
	return cells
}

// The page for people names every reason that the states above show, in the
// row of its condition.
func TestDocsHaveEachReason(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../../../docs/proxyproviders.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| ([A-Za-z]*) \\| (True|False|Unknown|True or False|False or Unknown) \\| `([A-Za-z]+)` \\|")
	documented := map[string]bool{}
	for _, m := range row.FindAllStringSubmatch(string(data), -1) {
		documented[m[1]+" "+m[3]] = true
	}
	shown := map[string]bool{}
	for _, s := range states() {
		reasons := strings.Split(s.reasons, "|")
		for n, kind := range []string{"Configured", "Reachable", "Clean"} {
			shown[kind+" "+reasons[n]] = true
		}
	}
	if diff := cmp.Diff(shown, documented); diff != "" {
		t.Errorf("docs/proxyproviders.md (-shown +documented):\n%s", diff)
	}
}

// The bounds hold together: two thousand hosts, the most abandoned instances,
// long and broken texts, and all of it fits into one object.
func TestTwoThousandHosts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.reconcile()
	junk := strings.Repeat("\xff\"x\n", 2000)
	check := monitor.Report{Checked: moment}
	for n := range 2000 {
		reason := provider.ReasonOK
		if n >= 1990 {
			reason = "Unreachable"
		}
		check.Hosts = append(check.Hosts, monitor.Host{
			HostHealth: provider.HostHealth{Host: fmt.Sprintf("box-%04d.%s", n, strings.Repeat("x", 100)), Reason: reason, Message: junk, Version: junk, FreeBytes: 1 << 50},
			Checked:    moment, Since: moment,
		})
	}
	report := sweepOf()
	for n := range 5000 {
		it := item(sweep.Waiting, n)
		if n >= 4980 {
			it.Verdict = sweep.Failed
		}
		it.Message, it.ID = junk, it.ID+junk
		report.Items = append(report.Items, it)
		report.Unlisted = append(report.Unlisted, sweep.HostError{Host: fmt.Sprintf("box-%d", n), Err: errors.New(junk)})
	}
	report.Err, report.Fuse = errors.New(junk), junk
	o := r.there()
	for n := range proxyprovider.MaxAbandoned {
		a := instance(n)
		a.Proxy += strings.Repeat("n", 40)
		a.ProviderID, a.Host = "fake://box-1.example.com/"+uid(n), "box-1.example.com"
		o.Status.Abandoned = append(o.Status.Abandoned, a)
	}
	if err := r.client.Status().Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	r.annotate(v1alpha1.RemoveAbandonedAnnotation, strings.Repeat(uid(1)+",", 5000))
	r.checked(r.name, check)
	r.swept(r.name, report)
	r.reconcile() // the finalizer, and the status
	o = r.there()
	st := o.Status
	if len(st.Hosts) != 500 || st.HostsOK != "1990/2000" || st.Hosts[9].Reason != "Unreachable" || st.Hosts[10].Reason != "OK" || !strings.HasPrefix(st.Hosts[10].Host, "box-0000") {
		t.Errorf("%d hosts, %s", len(st.Hosts), st.HostsOK)
	}
	if m := st.Hosts[0].Message; !utf8.ValidString(m) || strings.Contains(m, "\n") || len(m) > 256 || !strings.HasSuffix(m, "…") {
		t.Errorf("a row's message is %q", m)
	}
	if s := st.Sweep; len(s.Items) != 50 || s.Orphans != 5000 || s.Items[19].Verdict != "Failed" || s.Items[20].Verdict != "Waiting" || len(s.Unlisted) != 50 {
		t.Errorf("%d items of %d, %d unlisted", len(s.Items), s.Orphans, len(s.Unlisted))
	}
	if len(st.Abandoned) != proxyprovider.MaxAbandoned {
		t.Errorf("%d abandoned", len(st.Abandoned))
	}
	data, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes", len(data))
	if len(data) > 1450<<10 {
		t.Errorf("%d bytes are too near to what the server stores at most (1.5 MiB)", len(data))
	}
	err = r.rec.Abandon(t.Context(), r.name, instance(7777))
	if fault.Of(err) != fault.Quota || !strings.Contains(err.Error(), "kubectl annotate proxyprovider "+r.name) {
		t.Errorf("one more: %v", err)
	}
	if err := r.rec.Abandon(t.Context(), r.name, instance(1999)); err != nil {
		t.Errorf("one that is there: %v", err)
	}
	r.reconcile()
	if again := r.there(); again.ResourceVersion != o.ResourceVersion {
		t.Error("nothing changed, and it was written again")
	}
}

// Names may be so long that fewer than that fit: it is full then, and the rows
// of hosts have their place beside it.
func TestLongNamesFillItEarlier(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.reconcile()
	o := r.there()
	long := func(n int) v1alpha1.AbandonedInstance {
		a := instance(n)
		a.Proxy = strings.Repeat("n", 63) + "/" + strings.Repeat("p", 253)
		a.ProviderID = "fake://" + strings.Repeat("b", 253) + "/" + uid(n)
		a.Host = strings.Repeat("b", 253)
		return a
	}
	n := 0
	for size := 0; size < 690<<10; n++ {
		data, err := json.Marshal(long(n))
		if err != nil {
			t.Fatal(err)
		}
		size += len(data) + 1
		o.Status.Abandoned = append(o.Status.Abandoned, long(n))
	}
	if err := r.client.Status().Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	var err error
	for more := 0; err == nil; more++ {
		if more == 100 {
			t.Fatal("it takes more and more")
		}
		err = r.rec.Abandon(t.Context(), r.name, long(n+more))
	}
	if fault.Of(err) != fault.Quota || !strings.Contains(err.Error(), "have the sweep remove some") {
		t.Errorf("full: %v", err)
	}
	check := monitor.Report{Checked: moment}
	for n := range 600 {
		check.Hosts = append(check.Hosts, monitor.Host{
			HostHealth: provider.HostHealth{Host: fmt.Sprintf("%03d%s", n, strings.Repeat("b", 250)), Reason: "Error", Message: strings.Repeat("<", 2000), Version: strings.Repeat("\x01", 200)},
			Checked:    moment, Since: moment,
		})
	}
	r.checked(r.name, check)
	r.reconcile()
	if st := r.there().Status; len(st.Hosts) < 100 || len(st.Hosts) >= 500 || st.HostsOK != "0/600" {
		t.Errorf("%d rows, %s", len(st.Hosts), st.HostsOK)
	}
}

// A new check is one write, and so is a new sweep; what has not ended is none.
func TestOneWriteForEachReport(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	check, swept := checkOf("a=OK"), sweepOf()
	r.checked(r.name, check)
	r.swept(r.name, swept)
	versions := []string{}
	writes := 0 // the server hides those that change nothing
	r.rec = r.over(interceptor.NewClient(r.client, interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			writes++
			return c.SubResource(sub).Update(ctx, o, opts...)
		},
	}))
	look := func() {
		t.Helper()
		r.reconcile()
		r.reconcile()
		versions = append(versions, r.there().ResourceVersion)
	}
	look()
	check.Checked = moment.Add(time.Minute)
	check.Hosts = slices.Clone(check.Hosts)
	check.Hosts[0].Checked = check.Checked
	r.checked(r.name, check)
	look()
	swept.Time = moment.Add(time.Minute)
	r.swept(r.name, swept)
	look()
	look()
	if writes != 3 {
		t.Errorf("%d writes for three reports", writes)
	}
	if versions[0] == versions[1] || versions[1] == versions[2] || versions[2] != versions[3] {
		t.Errorf("versions %v", versions)
	}
	if h := r.there().Status.Hosts[0]; !h.LastCheck.Time.Equal(check.Checked.Truncate(time.Second)) || !h.Since.Time.Equal(moment.Truncate(time.Second)) {
		t.Errorf("%+v", h)
	}
	if out := r.reconcile(); out.RequeueAfter != 0 {
		t.Errorf("it comes back after %s, and each report wakes it", out.RequeueAfter)
	}
}
