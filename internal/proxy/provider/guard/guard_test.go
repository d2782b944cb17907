package guard_test

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/fake"
	"fleetdesk/internal/proxy/provider/guard"
	"fleetdesk/internal/proxy/provider/providertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const limit = 300 * time.Millisecond

var hosts = []string{"h1", "h2"}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func metrics(t *testing.T) *guard.Metrics {
	t.Helper()
	m, err := guard.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// decorators are all of them, each with a name.
func decorators(t *testing.T) map[string]func(provider.Provider) provider.Provider {
	m := metrics(t)
	return map[string]func(provider.Provider) provider.Provider{
		"deadline": func(p provider.Provider) provider.Provider {
			return guard.Deadline(p, guard.DeadlineOptions{Name: "fake", Limit: limit})
		},
		"trace": func(p provider.Provider) provider.Provider {
			log := slog.New(slog.NewJSONHandler(io.Discard, &slog.HandlerOptions{Level: guard.LevelAddress}))
			return guard.Trace(p, "fake", log)
		},
		"metrics":  func(p provider.Provider) provider.Provider { return m.Wrap(p, "fake") },
		"readonly": func(p provider.Provider) provider.Provider { return guard.ReadOnly(p, "fake") },
	}
}

// TestConformance runs the suite on each decorator that lets all calls
// through, and on all of them together as the operator stacks them.
func TestConformance(t *testing.T) {
	all := decorators(t)
	all["stack"] = func(p provider.Provider) provider.Provider {
		return all["trace"](all["metrics"](all["deadline"](p)))
	}
	for name, wrap := range all {
		if name == "readonly" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := fake.New(fake.Options{Hosts: hosts, StepLimit: limit})
			h := providertest.ForFake(p, hosts, limit)
			h.Provider = wrap(p)
			h.Reopen = func(providertest.T) provider.Provider { return wrap(p.Reopen()) }
			providertest.Run(t, h)
		})
	}
}

// TestKnowsAllInterfaces fails when the contract gets an optional interface
// that the decorators do not know.
func TestKnowsAllInterfaces(t *testing.T) {
	files, err := filepath.Glob("../*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no sources of the contract: %v", err)
	}
	var got []string
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if ts, ok := n.(*ast.TypeSpec); ok && ts.Name.IsExported() {
				if _, ok := ts.Type.(*ast.InterfaceType); ok {
					got = append(got, ts.Name.Name)
				}
			}
			return true
		})
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"Checker", "Claimer", "Cleaner", "Provider", "Unwrapper", "Watcher"}, got); diff != "" {
		t.Errorf("the contract's interfaces changed; teach guard's decorator about them, then optional_test.go, then this test:\n%s", diff)
	}
}

// TestEmbedsNothing holds the rule for those that decorate.
func TestEmbedsNothing(t *testing.T) {
	for _, name := range []string{"deadline.go", "trace.go", "metrics.go", "readonly.go"} {
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, src, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if st, ok := n.(*ast.StructType); ok {
				for _, field := range st.Fields.List {
					if len(field.Names) == 0 {
						t.Errorf("%s: a struct embeds something; a new method of the contract would slip through", name)
					}
				}
			}
			return true
		})
	}
}

func owner(uid string) provider.Owner {
	return provider.Owner{Installation: "i", Namespace: "ns", Name: "n-" + uid, UID: uid}
}

func TestReadOnly(t *testing.T) {
	p := fake.New(fake.Options{})
	in := p.Plant("fake-1", owner("u"))
	d := guard.ReadOnly(p, "fake")
	spec := provider.Spec{Owner: owner("v"), Host: "fake-1"}
	if _, err := d.Create(t.Context(), spec); fault.Of(err) != fault.Denied {
		t.Errorf("Create: %v; want Denied", err)
	}
	if _, err := d.Delete(t.Context(), provider.Ref{ID: in.ID, Owner: in.Owner}); fault.Of(err) != fault.Denied {
		t.Errorf("Delete: %v; want Denied", err)
	}
	claimer, _ := provider.As[provider.Claimer](d)
	if _, err := claimer.Claim(t.Context(), claim); fault.Of(err) != fault.Denied {
		t.Errorf("Claim: %v; want Denied", err)
	}
	cleaner, _ := provider.As[provider.Cleaner](d)
	l := p.Litter("fake-1", "disk", "disk-1", owner("w"))
	if err := cleaner.RemoveLeftover(t.Context(), "i", l); fault.Of(err) != fault.Denied {
		t.Errorf("RemoveLeftover: %v; want Denied", err)
	}
	for _, method := range []string{"Create", "Delete", "Claim", "RemoveLeftover"} {
		if n := p.Calls()[method]; n != 0 {
			t.Errorf("%d calls of %s reached the provider", n, method)
		}
	}
	if rows, err := cleaner.Leftovers(t.Context(), "i", nil); err != nil || len(rows) != 1 || len(rows[0].Leftovers) != 1 {
		t.Errorf("Leftovers = %+v, %v; want it to pass", rows, err)
	}
	if got, err := d.Get(t.Context(), provider.Ref{ID: in.ID}); err != nil || got.ID != in.ID {
		t.Errorf("Get = %+v, %v; want it to pass", got, err)
	}
	if host, err := d.Place(t.Context(), provider.Spec{Owner: owner("v")}); err != nil || host != "fake-1" {
		t.Errorf("Place = %q, %v; want it to pass", host, err)
	}
	if rows, err := d.ListByTag(t.Context(), "i"); err != nil || len(rows) != 1 || len(rows[0].Instances) != 1 {
		t.Errorf("ListByTag = %+v, %v; want it to pass", rows, err)
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := guard.NewMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	p := fake.New(fake.Options{Hosts: hosts, StagesPerCall: 5})
	d := m.Wrap(p, "home")
	spec := provider.Spec{Owner: owner("u"), Host: "h1", Port: 3128}
	_, _ = d.Create(t.Context(), spec)
	p.FailNext("Create", fault.New(fault.Quota, "full"))
	_, _ = d.Create(t.Context(), spec)
	_, _ = d.Get(t.Context(), provider.Ref{ID: "nonsense"})
	p.Break("h2", nil)
	_, _ = d.ListByTag(t.Context(), "i")
	optionals(t, d, spec.Owner, p)
	_, _ = d.Delete(t.Context(), provider.Ref{Owner: spec.Owner, Host: "h1"})
	_, _ = d.Place(t.Context(), provider.Spec{Owner: spec.Owner, Host: "h9"})
	want := map[string]float64{
		"calls_total ok Create home":                               1,
		"calls_total quota Create home":                            1,
		"calls_total invalid Get home":                             1,
		"calls_total ok ListByTag home":                            1,
		"calls_total ok Check home":                                1,
		"calls_total ok Claim home":                                1,
		"calls_total ok Leftovers home":                            1,
		"calls_total ok RemoveLeftover home":                       1,
		"changes_total home":                                       2,
		"calls_total ok Delete home":                               1,
		"calls_total invalid Place home":                           1,
		"host_list_errors_total unavailable h2 home":               1,
		"call_duration_seconds Create home (observations)":         2,
		"call_duration_seconds Get home (observations)":            1,
		"call_duration_seconds ListByTag home (observations)":      1,
		"call_duration_seconds Check home (observations)":          1,
		"call_duration_seconds Claim home (observations)":          1,
		"call_duration_seconds Leftovers home (observations)":      1,
		"call_duration_seconds RemoveLeftover home (observations)": 1,
		"call_duration_seconds Delete home (observations)":         1,
		"call_duration_seconds Place home (observations)":          1,
	}
	if diff := cmp.Diff(want, gather(t, reg)); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
	m.Forget("home")
	if got := gather(t, reg); len(got) != 0 {
		t.Errorf("after Forget: %v", got)
	}
}

// gather reads all series as "name labels" to value.
func gather(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, s := range f.GetMetric() {
			key := strings.TrimPrefix(f.GetName(), "proxy_operator_provider_")
			for _, l := range s.GetLabel() {
				key += " " + l.GetValue()
			}
			if h := s.GetHistogram(); h != nil {
				got[key+" (observations)"] = float64(h.GetSampleCount())
			} else {
				got[key] = s.GetCounter().GetValue()
			}
		}
	}
	return got
}

func TestTrace(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		level  slog.Level
		want   []string
	}{
		"info": {
			reason: "one line per call is too much for a running operator",
			level:  slog.LevelInfo,
		},
		"debug": {
			reason: "who, where and how it ended, without addresses",
			level:  slog.LevelDebug,
			want: []string{
				`level=DEBUG msg="provider call" provider=home method=Place host=h1 proxy=ns/n-u class=ok`,
				`level=DEBUG msg="provider call" provider=home method=Create instance=fake://h1/00000001 host=h1 proxy=ns/n-u state=Running class=ok`,
				`level=DEBUG msg="provider call" provider=home method=Create host=h1 proxy=ns/n-u class=quota`,
				`level=DEBUG msg="provider call" provider=home method=Get instance=fake://h1/00000001 host=h1 proxy=ns/n-u state=Running class=ok`,
				`level=DEBUG msg="provider call" provider=home method=Get instance=fake://h1/0000000f proxy=ns/n-u class=not_found`,
				`level=DEBUG msg="provider call" provider=home method=ListByTag hosts=2 failed=1 instances=1 class=ok`,
				`level=DEBUG msg="provider call" provider=home method=Check hosts=2 class=ok`,
				`level=DEBUG msg="provider call" provider=home method=Claim hosts=2 others=1 class=ok`,
				`level=DEBUG msg="provider call" provider=home method=Leftovers hosts=2 leftovers=1 class=ok`,
				`level=DEBUG msg="provider call" provider=home method=RemoveLeftover host=h1 leftover=disk-1 class=ok`,
				`level=DEBUG msg="provider change" provider=home host=h1 uid=""`,
				`level=DEBUG msg="provider change" provider=home host=h1 uid=u`,
				`level=DEBUG msg="provider call" provider=home method=Watch class=ok`,
				`level=DEBUG msg="provider call" provider=home method=Delete instance=fake://h1/00000001 host=h1 proxy=ns/n-u state=Deleting class=ok`,
			},
		},
		"addresses": {
			reason: "addresses have a level of their own",
			level:  guard.LevelAddress,
			want: []string{
				`level=DEBUG msg="provider call" provider=home method=Place host=h1 proxy=ns/n-u class=ok`,
				`level=DEBUG msg="provider call" provider=home method=Create instance=fake://h1/00000001 host=h1 proxy=ns/n-u state=Running address=198.18.0.1 port=3128 class=ok`,
				`level=DEBUG msg="provider call" provider=home method=Create host=h1 proxy=ns/n-u class=quota`,
				`level=DEBUG msg="provider call" provider=home method=Get instance=fake://h1/00000001 host=h1 proxy=ns/n-u state=Running address=198.18.0.1 port=3128 class=ok`,
				`level=DEBUG msg="provider call" provider=home method=Get instance=fake://h1/0000000f proxy=ns/n-u class=not_found`,
				`level=DEBUG msg="provider call" provider=home method=ListByTag hosts=2 failed=1 instances=1 class=ok`,
				`level=DEBUG msg="provider call" provider=home method=Check hosts=2 class=ok`,
				`level=DEBUG msg="provider call" provider=home method=Claim hosts=2 others=1 class=ok`,
				`level=DEBUG msg="provider call" provider=home method=Leftovers hosts=2 leftovers=1 class=ok`,
				`level=DEBUG msg="provider call" provider=home method=RemoveLeftover host=h1 leftover=disk-1 class=ok`,
				`level=DEBUG msg="provider change" provider=home host=h1 uid=""`,
				`level=DEBUG msg="provider change" provider=home host=h1 uid=u`,
				`level=DEBUG msg="provider call" provider=home method=Watch class=ok`,
				`level=DEBUG msg="provider call" provider=home method=Delete instance=fake://h1/00000001 host=h1 proxy=ns/n-u state=Deleting class=ok`,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{
				Level: tc.level,
				ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
					if a.Key == slog.TimeKey || a.Key == "duration" {
						return slog.Attr{}
					}
					return a
				},
			}))
			p := fake.New(fake.Options{Hosts: hosts, StagesPerCall: 5})
			d := guard.Trace(p, "home", log)
			spec := provider.Spec{
				Owner: owner("u"), Port: 3128, UserData: provider.Secret("canary-data"),
				Credentials: provider.Credentials{User: "canary-user", Password: provider.Secret("canary-password")},
			}
			ctx := context.Background()
			spec.Host, _ = d.Place(ctx, spec)
			in, _ := d.Create(ctx, spec)
			p.FailNext("Create", fault.New(fault.Quota, "canary-text"))
			_, _ = d.Create(ctx, spec)
			ref := provider.Ref{ID: in.ID, Owner: spec.Owner, Host: "h1"}
			_, _ = d.Get(ctx, ref)
			_, _ = d.Get(ctx, provider.Ref{ID: "fake://h1/0000000f", Owner: spec.Owner})
			p.Break("h2", nil)
			_, _ = d.ListByTag(ctx, "i")
			optionals(t, d, spec.Owner, p)
			_, _ = d.Delete(ctx, ref)
			var got []string
			if out.Len() > 0 {
				got = strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
			if strings.Contains(out.String(), "canary") {
				t.Error("a secret, or an error's text, is in the trace")
			}
		})
	}
}
