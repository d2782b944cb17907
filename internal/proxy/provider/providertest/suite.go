package providertest

import (
	"slices"
	"strings"
	"testing"

	"fleetdesk/internal/proxy/provider"
)

// Subtest is one entry of the suite.
type Subtest struct {
	// Clauses are the ids of docs/providers.md that it proves.
	Clauses []string
	// Title says in a few words what must hold.
	Title string
	// Needs are the fields of Harness without which it cannot run; "Checker",
	// "Watcher", "Claimer", "Cleaner" and "Closer" stand for a provider that has
	// that interface, "Secrets" for specs that have user-data or a password.
	Needs []string

	run func(e env)
}

// Name is the subtest's name: its clauses, then its title.
func (s Subtest) Name() string { return strings.Join(s.Clauses, " ") + " " + s.Title }

// Subtests returns the whole suite in the order in which it runs.
func Subtests() []Subtest {
	return slices.Concat(placeTests(), createTests(), stepTests(), getTests(),
		deleteTests(), listTests(), checkTests(), watchTests(), claimTests(), leftoverTests(), generalTests())
}

// Clauses returns the ids of all clauses that the suite proves, sorted.
func Clauses() []string {
	var ids []string
	for _, s := range Subtests() {
		ids = append(ids, s.Clauses...)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Run runs the suite. Subtests run one after another, because some break a
// host for a while.
func Run(t *testing.T, h Harness) {
	t.Helper()
	runAll(testingRunner{t}, h, nil)
}

// RunClauses runs the subtests that prove one of the clauses: for another set-up
// of a provider that passes the whole suite in one.
func RunClauses(t *testing.T, h Harness, clauses ...string) {
	t.Helper()
	if unknown := slices.DeleteFunc(slices.Clone(clauses), func(c string) bool { return slices.Contains(Clauses(), c) }); len(unknown) > 0 || len(clauses) == 0 {
		t.Fatalf("providertest: the suite does not prove %q", unknown)
	}
	runAll(testingRunner{t}, h, clauses)
}

// runner is a T that can run subtests.
type runner interface {
	T
	Run(name string, f func(T)) bool
}

type testingRunner struct{ *testing.T }

func (r testingRunner) Run(name string, f func(T)) bool {
	return r.T.Run(name, func(t *testing.T) { f(t) })
}

// runAll runs the subtests that prove one of only (nil: all of them).
func runAll(r runner, h Harness, only []string) {
	r.Helper()
	if h.Provider == nil || h.Installation == "" || h.Spec == nil || len(h.Hosts) == 0 {
		r.Fatalf("providertest: the harness lacks Provider, Installation, Spec or Hosts; all four are required")
		return
	}
	h = h.withDefaults()
	s := &suite{h: h, seen: newNotes(h)}
	s.p = s.watch(h.Provider)
	unproven := map[string]bool{}
	for _, st := range Subtests() {
		if only != nil && !slices.ContainsFunc(st.Clauses, func(c string) bool { return slices.Contains(only, c) }) {
			continue
		}
		var lacks []string
		for _, need := range st.Needs {
			if !h.offers(need) {
				lacks = append(lacks, need)
			}
		}
		if len(lacks) > 0 {
			for _, c := range st.Clauses {
				unproven[c] = true
			}
		}
		r.Run(st.Name(), func(t T) {
			t.Helper()
			if len(lacks) == 0 {
				st.run(env{T: t, suite: s})
				return
			}
			for _, c := range st.Clauses {
				if h.Absent[c] == "" {
					t.Fatalf("the harness offers no %s, so clause %s goes unproven: offer it, or give the reason in Absent",
						strings.Join(lacks, ", "), c)
				}
			}
			t.Skipf("no %s: %s", strings.Join(lacks, ", "), h.Absent[st.Clauses[0]])
		})
	}
	if only != nil {
		return
	}
	for c := range h.Absent {
		if !unproven[c] {
			r.Errorf("Absent declares clause %s, which the suite does prove here (or does not know): take it out", c)
		}
	}
}

// suite is what the subtests of one run share.
type suite struct {
	h Harness
	// p is the provider under test, watched.
	p provider.Provider
	// seen is what was noticed over all calls of the run.
	seen *notes
	// parts is the number of names that Remains gives for a running instance;
	// zero until measured.
	parts int
}
