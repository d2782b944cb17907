package proxy_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/controller/proxy"
	"fleetdesk/internal/proxy/provider"
)

var update = flag.Bool("update", false, "write the tables of docs/deletion.md anew")

// state is one combination of what a deletion may meet.
type state struct {
	// get is the class of Get's error, "" when it finds the instance.
	get string
	// del is the class of Delete's error, or the state that it returns.
	del string
	// provider is "" when it is there and works, "broken" or "absent".
	provider string
	// listing is the class of why the last listing has not the host; "" when it
	// has.
	listing string
	// annotation is skip-cleanup's value, "-" when there is none.
	annotation string
	// secrets are there, those of authSecretRef and of cloudInit.
	secrets bool
}

const (
	// long is Deleting when it has lasted longer than Options.Patience.
	long = "Deleting, 5 min on"
	// stays is Abandoned when it has lasted longer than Options.Reprieve.
	stays = "Abandoned, a minute on"
)

func deletes() []string {
	return append([]string{string(provider.Gone), string(provider.Deleting), long, string(provider.Abandoned), stays}, classes()...)
}

func gets() []string { return append([]string{""}, classes()...) }

var annotations = []string{"-", "yes", "true"}

// states are all combinations, but for what cannot matter: a provider that
// cannot be asked answers nothing, and what Get says beside a listing without
// the host is in the part where the listing has it.
func states() (all []state) {
	for _, annotation := range annotations {
		for _, secrets := range []bool{true, false} {
			for _, del := range deletes() {
				for _, get := range gets() {
					all = append(all, state{get: get, del: del, annotation: annotation, secrets: secrets})
				}
			}
			for _, p := range []string{"broken", "absent"} {
				for _, listing := range []string{"", string(fault.Timeout), string(fault.Permanent)} {
					all = append(all, state{provider: p, listing: listing, del: string(provider.Gone), annotation: annotation, secrets: secrets})
				}
			}
		}
		for _, listing := range classes() {
			for _, del := range deletes() {
				all = append(all, state{listing: listing, del: del, annotation: annotation, secrets: true})
			}
		}
	}
	return all
}

// deletions runs states, each with a Proxy and a provider of its own.
type deletions struct {
	*bench
	// impatient finds that everything has taken long.
	impatient *proxy.Reconciler
	// with has the Secrets that the Proxies name, without does not.
	with, without string
}

func newDeletions(t *testing.T) *deletions {
	d := &deletions{bench: newBench(t), with: cluster.Namespace(t), without: cluster.Namespace(t)}
	o := d.options
	o.Patience, o.Reprieve = time.Nanosecond, -1
	d.impatient = proxy.New(o)
	for _, name := range []string{"auth", "cloud"} {
		if err := d.client.Create(t.Context(), secret(d.with, name, map[string]string{"username": "u", "password": "p", "data": "#cloud-config"})); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// place builds the state and returns its Proxy and its provider's answers.
func (d *deletions) place(name string, s state) (*v1alpha1.Proxy, *answers) {
	a := &answers{get: failures("get")[s.get], del: failures("delete")[s.del]}
	if a.del == nil {
		state, _, _ := strings.Cut(s.del, ",")
		a.state = provider.State(state)
	}
	d.providers.mu.Lock()
	switch s.provider {
	case "":
		d.providers.of[name] = a
	case "broken":
		d.providers.errs[name] = fault.New(fault.Unavailable, "its section fails")
	}
	d.providers.mu.Unlock()
	d.listings.mu.Lock()
	d.listings.down[name] = failures("listing")[s.listing]
	d.listings.mu.Unlock()
	ns := d.without
	if s.secrets {
		ns = d.with
	}
	return d.doomed(ns, name, func(px *v1alpha1.Proxy) {
		px.Spec.AuthSecretRef = &v1alpha1.LocalSecretRef{Name: "auth"}
		px.Spec.CloudInit = &v1alpha1.CloudInit{SecretRef: &v1alpha1.KeyRef{Name: "cloud", Key: "data"}}
		if s.annotation != "-" {
			px.Annotations = map[string]string{v1alpha1.SkipCleanupAnnotation: s.annotation}
		}
	}), a
}

// run returns what becomes of a state: released, abandoned, or waits with the
// condition's reason. What waits is then brought to its end by what its message
// says.
func (d *deletions) run(name string, s state) string {
	px, a := d.place(name, s)
	complain := func(format string, args ...any) {
		d.t.Errorf("%+v: %s", s, fmt.Sprintf(format, args...))
	}
	at := *d.bench
	if s.del == long || s.del == stays {
		at.reconciler = d.impatient
	}
	comesBack := func(res reconcile.Result, err error) {
		if err != nil || res.RequeueAfter <= 0 || res.RequeueAfter > 30*time.Minute {
			complain("it comes back after %s, %v", res.RequeueAfter, err)
		}
	}
	began := time.Now()
	res, err := at.reconcile(px)
	if err != nil {
		complain("%v", err)
	}
	now := at.read(px)
	if now == nil {
		return d.end(px, a, s, complain)
	}
	ready := condition(now, v1alpha1.ConditionReady)
	gets, dels := a.calls()
	comesBack(res, err)
	// However soon it is woken, it says the same, comes back within a bounded
	// time, and does not repeat what failed.
	comesBack(at.reconcile(px))
	again := at.read(px)
	if again == nil || again.ResourceVersion != now.ResourceVersion {
		complain("the same news was written again")
	}
	paused := time.Since(began) < res.RequeueAfter // on a busy machine the pause may be over by now
	if g, n := a.calls(); paused && ready.Reason != v1alpha1.ReasonTerminating && ready.Reason != v1alpha1.ReasonDeletionPending && (g != gets || n != dels) {
		complain("what failed was repeated at once")
	}
	if _, n := a.calls(); n != 0 && (passes(s.get) || passes(s.listing)) {
		complain("Delete was called although the instance could not be looked at and may answer soon")
	}
	switch {
	case now.Status.Phase != v1alpha1.PhaseTerminating, ready.Status != metav1.ConditionFalse, !slices.Contains(v1alpha1.Reasons(), ready.Reason):
		complain("phase %s, Ready %+v", now.Status.Phase, ready)
	case !s.tells(ready):
		complain("the condition has not the cause that belongs to its reason: %s: %s", ready.Reason, ready.Message)
	}
	d.leave(at, px, a, s, ready.Message, complain)
	return "waits: " + ready.Reason
}

// rule is what shall become of a Proxy in this state, whatever the documents
// show.
func (s state) rule() string {
	waits := func(class string) string { return "waits: " + fault.Class(class).Meaning().Reason }
	switch {
	case s.annotation == "true":
		return "abandoned"
	case s.provider == "absent":
		return "waits: ProviderNotFound"
	case s.provider == "broken":
		return "waits: ProviderBroken"
	case passes(s.listing):
		return waits(s.listing)
	case passes(s.get):
		return waits(s.get)
	case s.del == string(provider.Gone):
		return "released"
	case s.del == string(provider.Abandoned):
		return "waits: DeletionPending"
	case s.del == stays:
		return "abandoned"
	case s.del == string(provider.Deleting):
		return "waits: Terminating"
	case s.del == long:
		return "waits: DeletionPending"
	case s.get == string(fault.NotFound) && !passes(s.del):
		return "released"
	}
	return waits(s.del)
}

// passes tells which failures may pass by themselves.
func passes(class string) bool {
	switch fault.Class(class) {
	case fault.Transient, fault.Timeout, fault.Unavailable, fault.Quota, fault.Conflict, "unclassed":
		return true
	}
	return false
}

// tells reports whether the condition's message has the cause that its reason
// stands for, what to do, and, when the annotation does nothing, that.
func (s state) tells(ready metav1.Condition) bool {
	causes := map[string]string{}
	for place, class := range map[string]string{"get": s.get, "delete": s.del, "listing": s.listing} {
		if err := failures(place)[class]; err != nil {
			causes[err.Error()] = fault.Of(err).Meaning().Reason
		}
	}
	causes["its section fails"] = v1alpha1.ReasonProviderBroken
	causes["has no provider"] = v1alpha1.ReasonProviderNotFound
	causes["has been deleting the instance for more than"] = v1alpha1.ReasonDeletionPending
	causes[`host "h1" is not in the configuration`] = v1alpha1.ReasonDeletionPending
	causes["the instance is being deleted"] = v1alpha1.ReasonTerminating
	told := false
	for cause, reason := range causes {
		told = told || reason == ready.Reason && strings.Contains(ready.Message, cause)
	}
	remedy := strings.Contains(ready.Message, v1alpha1.SkipCleanupAnnotation+"=true") || ready.Reason == v1alpha1.ReasonTerminating
	ignored := strings.Contains(ready.Message, `"yes" is ignored`) == (s.annotation == "yes")
	return told && remedy && ignored
}

// leave takes the way out of what waits: the line in its message, or patience
// when nothing is wrong.
func (d *deletions) leave(at bench, px *v1alpha1.Proxy, a *answers, s state, message string, complain func(string, ...any)) {
	_, before := a.calls()
	if s.del == string(provider.Deleting) && !strings.Contains(message, "run:") {
		a.mu.Lock()
		a.state = provider.Gone
		a.mu.Unlock()
	} else {
		if err := annotateAs(&at, px, message); err != nil {
			complain("the way out cannot be taken: %v", err)
			return
		}
		s.annotation = "true"
	}
	if _, err := at.reconcile(px); err != nil {
		complain("on the way out: %v", err)
	}
	if at.read(px) != nil {
		complain("the way out leads nowhere: %s", message)
		return
	}
	d.end(px, a, s, complain)
	if _, after := a.calls(); s.annotation == "true" && after != before {
		complain("Delete was called although the instance was to stay")
	}
}

// end judges a Proxy that is gone.
func (d *deletions) end(px *v1alpha1.Proxy, a *answers, s state, complain func(string, ...any)) string {
	record, written := d.ledger.get(px)
	_, deleted := a.calls()
	events := d.heard.about(px.Name, "Abandoned")
	if !written {
		if len(events) != 0 || len(d.heard.about(px.Name, "Deleted")) != 1 {
			complain("released with the events %v", d.heard.of[px.Name])
		}
		if deleted == 0 || (s.get != string(fault.NotFound) && s.del != string(provider.Gone) && s.del != string(provider.Deleting)) {
			complain("it was let go although its instance may be there, and nobody wrote that down")
		}
		return "released"
	}
	if s.annotation != "true" && (s.del != stays || deleted == 0) {
		complain("it was abandoned although nobody asked for it")
	}
	if record.ProviderID != px.Status.ProviderID || record.Host != "h1" || record.Proxy != px.Namespace+"/"+px.Name || record.Reason == "" || record.Time.IsZero() {
		complain("it was written down as %+v", record)
	}
	if len(events) != 1 || !strings.Contains(events[0], px.Status.ProviderID) {
		complain("the events of its abandonment are %v", events)
	}
	return "abandoned"
}

// Every state of a deletion ends released, or waits with a condition that names
// the cause and the way out, and comes back; only a person abandons. The tables
// of docs/deletion.md are what this test finds.
func TestNoDeletionIsStuckInSilence(t *testing.T) {
	t.Parallel()
	d := newDeletions(t)
	all := states()
	cells := make(map[state]string, len(all))
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(16)
	for i, s := range all {
		group.Go(func() error {
			cell := d.run(fmt.Sprintf("p%04d", i), s)
			mu.Lock()
			defer mu.Unlock()
			cells[s] = cell
			return nil
		})
	}
	_ = group.Wait() // none fails
	if len(d.ledger.late) != 0 {
		t.Errorf("written down after the Proxy could go: %v", d.ledger.late)
	}
	for s, cell := range cells {
		if want := s.rule(); cell != want {
			t.Errorf("%+v: %s, want %s", s, cell, want)
		}
	}
	t.Logf("%d states\n%s", len(all), asked(cells))
	golden(t, filepath.Join("..", "..", "..", "..", "docs", "deletion.md"), map[string]string{
		"before": before(cells), "asked": asked(cells),
	})
}

// asked is the table of what becomes of a Proxy when its provider is asked.
func asked(cells map[state]string) string {
	var b strings.Builder
	b.WriteString("| Get \\ Delete | " + strings.Join(deletes(), " | ") + " |\n|" + strings.Repeat(" --- |", len(deletes())+1) + "\n")
	for _, get := range gets() {
		b.WriteString("| " + orFound(get))
		for _, del := range deletes() {
			b.WriteString(" | " + cells[state{get: get, del: del, annotation: "-", secrets: true}])
		}
		b.WriteString(" |\n")
	}
	return b.String()
}

func orFound(get string) string {
	if get == "" {
		return "finds it"
	}
	return get
}

// before is the table of what is decided before the provider is asked.
func before(cells map[state]string) string {
	var b strings.Builder
	b.WriteString("| what holds | no annotation, or another value | \"true\" |\n| --- | --- | --- |\n")
	row := func(what string, s state, plain string) {
		s.secrets, s.annotation = true, "true"
		fmt.Fprintf(&b, "| %s | %s | %s |\n", what, plain, cells[s])
	}
	gone := string(provider.Gone)
	for _, p := range [][2]string{{"absent", "the providers file has no such provider"}, {"broken", "the provider's section does not work"}} {
		row(p[1], state{provider: p[0], del: gone}, cells[state{provider: p[0], del: gone, annotation: "-", secrets: true}])
	}
	outcomes, of := []string{}, map[string][]string{}
	for _, class := range classes() {
		cell := withListing(cells, class)
		if of[cell] == nil {
			outcomes = append(outcomes, cell)
		}
		of[cell] = append(of[cell], class)
	}
	for _, cell := range outcomes {
		row("the host did not answer the last listing: "+strings.Join(of[cell], ", "), state{listing: of[cell][0], del: gone}, cell)
	}
	row("none of these", state{del: gone}, "the provider is asked")
	return b.String()
}

// withListing is what becomes of a Proxy whose host is not in the last listing
// for that class of reason: one thing, or what the other table says.
func withListing(cells map[state]string, class string) string {
	found := map[string]bool{}
	asked := true
	for _, del := range deletes() {
		cell := cells[state{listing: class, del: del, annotation: "-", secrets: true}]
		found[cell] = true
		asked = asked && cell == cells[state{del: del, annotation: "-", secrets: true}]
	}
	switch {
	case asked:
		return "the provider is asked"
	case len(found) == 1:
		return slices.Collect(maps.Keys(found))[0]
	}
	return "differs"
}

// golden compares the parts of a document between "<!-- begin NAME -->" and
// "<!-- end NAME -->" with what they should be.
func golden(t *testing.T, path string, parts map[string]string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for name, want := range parts {
		head, rest, ok := strings.Cut(text, "<!-- begin "+name+" -->\n")
		got, tail, ok2 := strings.Cut(rest, "<!-- end "+name+" -->\n")
		if !ok || !ok2 {
			t.Fatalf("%s has no part %q", path, name)
		}
		if *update {
			text = head + "<!-- begin " + name + " -->\n" + want + "<!-- end " + name + " -->\n" + tail
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s, part %s (-update writes it anew):\n%s", path, name, diff)
		}
	}
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
