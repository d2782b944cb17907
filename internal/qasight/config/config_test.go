package config_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/config"
	"fleetdesk/internal/qasight/pool"
)

func parse(t *testing.T, text string) *config.File {
	t.Helper()
	f, err := config.Parse("qasight.yaml", "/srv/shop", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestParseReadsEveryField(t *testing.T) {
	want := &config.File{
		Path: "qasight.yaml", Dir: "/srv/shop", Project: "shop-tests", Server: "https://qasight.example:8443",
		Pools: []config.Pool{
			{
				Pool: pool.Pool{
					Name: "win-vms", Items: []string{"qa-win-01", "qa-win-02"}, TTL: 30 * time.Minute, Cooldown: 90 * time.Second, Check: true, Reset: true,
				},
				Hooks: config.Hooks{Check: "./vm-check.sh", Reset: "./vm-reset.sh", Timeout: 3 * time.Minute},
				Provider: &config.Provider{
					List: "./vms.sh list", Create: "./vms.sh create", Destroy: "./vms.sh destroy",
					Allow: []config.Verb{config.Create, config.Destroy}, Prefix: "qa-", MaxItems: 8, Timeout: 5 * time.Minute,
				},
				At: config.Position{Line: 4, Column: 3},
			},
			{
				Pool:  pool.Pool{Name: "db", Items: []string{"db-1", "db-2", "db-3"}, TTL: 10 * time.Minute},
				Hooks: config.Hooks{Timeout: 2 * time.Minute},
				At:    config.Position{Line: 19, Column: 3},
			},
		},
		Stages: []config.Stage{
			{Name: "ui", Command: "npx playwright test", Pool: "win-vms", Workers: 2, At: config.Position{Line: 26, Column: 3}},
			{Name: "unit", Command: "set -e\n\tmake unit\n", Pool: "db", Workers: 1, At: config.Position{Line: 27, Column: 3}},
		},
	}
	if diff := cmp.Diff(want, parse(t, whole), cmpopts.IgnoreUnexported(config.Pool{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestParseFillsInWhatIsLeftOut(t *testing.T) {
	f := parse(t, least+"stages: {s: {command: x, pool: a}}\n")
	p := f.Pools[0]
	if p.TTL != 10*time.Minute || p.Cooldown != 0 || p.Hooks.Timeout != 2*time.Minute || p.Check || p.Reset || p.Provider != nil || p.Items == nil {
		t.Errorf("the pool is %+v", p)
	}
	if f.Stages[0].Workers != 1 || f.Server != "" {
		t.Errorf("the file is %+v", f)
	}
	f = parse(t, "project: p\npools: {a: {items: [], on_reset: x, provider: {list: l}}}\n")
	p = f.Pools[0]
	if p.Check || !p.Reset || p.Provider == nil || p.Provider.Timeout != 10*time.Minute || p.Provider.Allows(config.Create) {
		t.Errorf("the pool is %+v with %+v", p, p.Provider)
	}
}

// What stands there is the name, whatever YAML would make of it.
func TestNamesAreTakenAsTheyStand(t *testing.T) {
	f := parse(t, good()["numbers as names"].text)
	want := []string{"01", "1e3", "yes", "true", "0x10", "2026-01-01", "1.5", "1_000", "0b10", "0o7"}
	if diff := cmp.Diff(want, f.Pools[0].Items); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if f := parse(t, good()["number as project"].text); f.Project != "2024" || f.Pools[0].Name != "1" {
		t.Errorf("got %+v", f)
	}
}

// Files come from other systems too: neither the mark at the beginning nor the
// ends of lines may end up in a name or a command.
func TestParseReadsFilesOfOtherSystems(t *testing.T) {
	text := "\uFEFF" + strings.ReplaceAll(whole, "\n", "\r\n")
	if diff := cmp.Diff(parse(t, whole), parse(t, text), cmp.AllowUnexported(config.Pool{})); diff != "" {
		t.Errorf("(-plain +other)\n%s", diff)
	}
}

func TestParseAcceptsGoodFiles(t *testing.T) {
	for name, tc := range good() {
		t.Run(name, func(t *testing.T) {
			f, err := config.Parse("qasight.yaml", "/srv/shop", []byte(tc.text))
			if err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			holds(t, tc.text, f)
		})
	}
}

func TestParseSaysWhatIsWrongAndWhere(t *testing.T) {
	for name, tc := range bad() {
		t.Run(name, func(t *testing.T) {
			f, err := config.Parse("qasight.yaml", "/srv/shop", []byte(tc.text))
			if err == nil {
				t.Fatalf("%s: it is accepted: %+v", tc.reason, f)
			}
			if diff := cmp.Diff("qasight.yaml:"+tc.want, err.Error()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
			if f != nil || fault.Of(err) != fault.Invalid || fault.CodeOf(err) != "config" {
				t.Errorf("got %v, class %q, code %q", f, fault.Of(err), fault.CodeOf(err))
			}
			told(t, tc.text, err)
		})
	}
}

func TestParseRefusesTooManyThings(t *testing.T) {
	var items, pools strings.Builder
	for i := range 10_001 {
		fmt.Fprintf(&items, "      - k%d\n", i)
	}
	for i := range config.MaxPools + 1 {
		fmt.Fprintf(&pools, "  p%d: {items: []}\n", i)
	}
	for name, tc := range map[string]struct{ text, want string }{
		"items": {
			"project: p\npools:\n  a:\n    items:\n" + items.String(),
			`qasight.yaml:10005:9: items of pool "a" has 10001 keys: at most 10000 are possible: make several pools of them`,
		},
		"pools": {
			"project: p\npools:\n" + pools.String(),
			"qasight.yaml:203:3: 201 pools are more than a file may have (200): split the project",
		},
	} {
		_, err := config.Parse("qasight.yaml", "/srv/shop", []byte(tc.text))
		if err == nil || err.Error() != tc.want {
			t.Errorf("%s: got %v, want %s", name, err, tc.want)
		}
		// One line less is possible.
		lines := strings.SplitAfter(tc.text, "\n")
		if _, err := config.Parse("qasight.yaml", "/srv/shop", []byte(strings.Join(lines[:len(lines)-2], ""))); err != nil {
			t.Errorf("%s: the bound itself is refused: %v", name, err)
		}
	}
}

var commented = regexp.MustCompile(`^(\s*)# (\s*[a-z_]+:( .*)?)$`)

func TestTemplate(t *testing.T) {
	plain := string(config.Template("shop"))
	f := parse(t, plain)
	if f.Project != "shop" || f.Server != "" || len(f.Pools) != 1 || len(f.Stages) != 0 || f.Pools[0].Provider != nil || f.Pools[0].Check {
		t.Errorf("more than a pool is in force: %+v", f)
	}
	// Whatever is commented out must work when a newcomer takes the mark away.
	f = parse(t, uncommented())
	p := f.Pools[0]
	if f.Server == "" || !p.Check || !p.Reset || p.Provider == nil || !p.Provider.Allows(config.Create) || !p.Provider.Allows(config.Destroy) || len(f.Stages) != 1 {
		t.Errorf("not all of it is in force: %+v", f)
	}
	for _, item := range p.Items {
		if !strings.HasPrefix(item, p.Provider.Prefix) {
			t.Errorf("%s does not begin with the template's own prefix %s", item, p.Provider.Prefix)
		}
	}
	for field := range fieldsOf(t) {
		if !regexp.MustCompile(`(?m)^[ #]*` + field + `:`).MatchString(plain) {
			t.Errorf("the template does not show %s", field)
		}
	}
	for _, must := range []string{"never creates or deletes a machine on its own", "qasight config schema > qasight.schema.json"} {
		if !strings.Contains(plain, must) {
			t.Errorf("the template does not say %q", must)
		}
	}
	for i, l := range strings.Split(plain, "\n") {
		if len(l) > 100 || strings.Contains(l, "\t") || strings.HasSuffix(l, " ") {
			t.Errorf("line %d is long, has a tab or ends in a blank: %q", i+1, l)
		}
	}
}
