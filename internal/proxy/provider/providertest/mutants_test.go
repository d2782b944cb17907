package providertest_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/fake"
	"fleetdesk/internal/proxy/provider/providertest"
)

// mutant is the fake with some methods replaced by broken ones.
type mutant struct {
	*fake.Provider
	place  func(ctx context.Context, s provider.Spec) (string, error)
	create func(ctx context.Context, s provider.Spec) (provider.Instance, error)
	get    func(ctx context.Context, r provider.Ref) (provider.Instance, error)
	remove func(ctx context.Context, r provider.Ref) (provider.State, error)
	list   func(ctx context.Context, installation string) ([]provider.HostList, error)
	check  func(ctx context.Context) ([]provider.HostHealth, error)
	watch  func(ctx context.Context, installation string, changed func(provider.Change)) error
	claim  func(ctx context.Context, c provider.Claim) ([]provider.HostClaims, error)
	lying  func(ctx context.Context, installation string, keep []string) ([]provider.HostLeftovers, error)
	clear  func(ctx context.Context, installation string, l provider.Leftover) error
}

func (m *mutant) Place(ctx context.Context, s provider.Spec) (string, error) { return m.place(ctx, s) }

func (m *mutant) Create(ctx context.Context, s provider.Spec) (provider.Instance, error) {
	return m.create(ctx, s)
}

func (m *mutant) Get(ctx context.Context, r provider.Ref) (provider.Instance, error) {
	return m.get(ctx, r)
}

func (m *mutant) Delete(ctx context.Context, r provider.Ref) (provider.State, error) {
	return m.remove(ctx, r)
}

func (m *mutant) ListByTag(ctx context.Context, i string) ([]provider.HostList, error) {
	return m.list(ctx, i)
}
func (m *mutant) Check(ctx context.Context) ([]provider.HostHealth, error) { return m.check(ctx) }

func (m *mutant) Watch(ctx context.Context, i string, changed func(provider.Change)) error {
	return m.watch(ctx, i, changed)
}

func (m *mutant) Claim(ctx context.Context, c provider.Claim) ([]provider.HostClaims, error) {
	return m.claim(ctx, c)
}

func (m *mutant) Leftovers(ctx context.Context, i string, keep []string) ([]provider.HostLeftovers, error) {
	return m.lying(ctx, i, keep)
}

func (m *mutant) RemoveLeftover(ctx context.Context, i string, l provider.Leftover) error {
	return m.clear(ctx, i, l)
}

const limit = 250 * time.Millisecond

var hosts = []string{"h1", "h2"}

// fresh returns an unbroken mutant and its harness.
func fresh() (*mutant, providertest.Harness) {
	p := fake.New(fake.Options{Hosts: hosts, StepLimit: limit})
	m := &mutant{
		Provider: p, place: p.Place, create: p.Create, get: p.Get,
		remove: p.Delete, list: p.ListByTag, check: p.Check,
		watch: p.Watch, claim: p.Claim, lying: p.Leftovers, clear: p.RemoveLeftover,
	}
	h := providertest.ForFake(p, hosts, limit)
	h.Provider = m
	h.Patience = 300 * time.Millisecond
	h.Slack = 50 * time.Millisecond
	return m, h
}

// listing returns a ListByTag that changes the rows of the fake's.
func listing(m *mutant, change func(rows []provider.HostList, err error) ([]provider.HostList, error)) {
	inner := m.list
	m.list = func(ctx context.Context, i string) ([]provider.HostList, error) {
		rows, err := inner(ctx, i)
		return change(rows, err)
	}
}

// bent is a provider that breaks the contract in one way.
type bent struct {
	// clause is the one whose subtest must notice.
	clause string
	// reason says what the defect would do.
	reason string
	bend   func(m *mutant, h *providertest.Harness)
}

func mutants() map[string]bent {
	all := map[string]bent{}
	for _, some := range []map[string]bent{breakCreate, breakLooks, breakRest, breakWatch, breakClaims, breakLeftovers} {
		maps.Copy(all, some)
	}
	return all
}

// orphans makes the mutant leave a part behind whenever Create ends so.
func orphans(m *mutant, h *providertest.Harness, when func(error) bool) {
	var mu sync.Mutex
	left := map[string][]string{}
	inner, remains := m.create, h.Remains
	m.create = func(ctx context.Context, s provider.Spec) (provider.Instance, error) {
		in, err := inner(ctx, s)
		if when(err) && strings.Contains(err.Error(), "step") {
			mu.Lock()
			defer mu.Unlock()
			left[s.Owner.UID] = append(left[s.Owner.UID], "volume")
		}
		return in, err
	}
	h.Remains = func(t providertest.T, o provider.Owner) []string {
		mu.Lock()
		defer mu.Unlock()
		return append(remains(t, o), left[o.UID]...)
	}
}

// regret makes Get answer class wrong where right is due.
func regret(m *mutant, right, wrong fault.Class) {
	inner := m.get
	m.get = func(ctx context.Context, r provider.Ref) (provider.Instance, error) {
		in, err := inner(ctx, r)
		if provider.Class(err) == right {
			err = fault.Wrap(wrong, err)
		}
		return in, err
	}
}

// TestMutantsAreCaught proves that the suite can fail: each broken provider is
// caught by the subtest of the clause that it breaks.
func TestMutantsAreCaught(t *testing.T) {
	for name, mu := range mutants() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, h := fresh()
			mu.bend(m, &h)
			results := providertest.Record(h, mu.clause)
			if len(results) == 0 {
				t.Fatalf("no subtest proves %s", mu.clause)
			}
			if !slices.ContainsFunc(results, func(r providertest.Result) bool {
				return r.Failed && slices.Contains(r.Clauses, mu.clause)
			}) {
				t.Errorf("%s did not notice; reason it must: %s\n%+v", mu.clause, mu.reason, results)
			}
			for _, r := range results {
				t.Logf("%s: %q", r.Name(), r.Messages)
			}
		})
	}
}

// TestEveryClauseCatchesSomething asks for a mutant of each clause.
func TestEveryClauseCatchesSomething(t *testing.T) {
	caught := map[string]bool{}
	for _, mu := range mutants() {
		caught[mu.clause] = true
	}
	for _, c := range providertest.Clauses() {
		if !caught[c] {
			t.Errorf("no mutant breaks %s, so its subtest may be one that cannot fail", c)
		}
	}
}

// TestUnbentMutantPasses shows that the mutants fail for what is bent in them.
func TestUnbentMutantPasses(t *testing.T) {
	_, h := fresh()
	h.Patience, h.Slack = 10*time.Second, 2*time.Second
	for _, r := range providertest.Record(h) {
		if r.Failed || r.Skipped {
			t.Errorf("%s: failed %v, skipped %v: %q", r.Name(), r.Failed, r.Skipped, r.Messages)
		}
	}
}

func TestAbsent(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		bend   func(h *providertest.Harness)
		fails  []string
	}{
		"undeclared": {
			reason: "what a back end does not offer must be said",
			bend:   func(h *providertest.Harness) { h.Fill = nil },
			fails:  []string{"P-PLC-4"},
		},
		"declared": {
			reason: "said with a reason it is skipped",
			bend: func(h *providertest.Harness) {
				h.Fill = nil
				h.Absent = map[string]string{"P-PLC-4": "there is always room"}
			},
		},
		"stale": {
			reason: "a clause that is proven must not stay declared",
			bend: func(h *providertest.Harness) {
				h.Absent = map[string]string{"P-PLC-4": "there was always room once"}
			},
			fails: []string{""},
		},
		"incomplete": {
			reason: "without hosts nothing can be said",
			bend:   func(h *providertest.Harness) { h.Hosts = nil },
			fails:  []string{""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, h := fresh()
			h.Patience, h.Slack = 10*time.Second, 2*time.Second
			tc.bend(&h)
			var fails []string
			for _, r := range providertest.Record(h) {
				if r.Failed {
					fails = append(fails, strings.Join(r.Clauses, " "))
				}
			}
			if !slices.Equal(fails, tc.fails) {
				t.Errorf("%s: failed %q; want %q", tc.reason, fails, tc.fails)
			}
		})
	}
}
