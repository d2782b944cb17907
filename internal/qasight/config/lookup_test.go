package config_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/config"
	"fleetdesk/internal/qasight/pool"
)

func TestPoolAndStageAreFoundByName(t *testing.T) {
	f := parse(t, whole)
	p, err := f.Pool("db")
	if err != nil || p != &f.Pools[1] {
		t.Errorf("got %v, %v", p, err)
	}
	s, err := f.Stage("unit")
	if err != nil || s != &f.Stages[1] {
		t.Errorf("got %v, %v", s, err)
	}
	for name, tc := range map[string]struct {
		reason, code, want string
		look               func() error
	}{
		"alike": {
			"a typo", "unknown_pool", `qasight.yaml has no pool "win-vm": did you mean win-vms? there are win-vms and db`,
			func() error { _, err := f.Pool("win-vm"); return err },
		},
		"case": {
			"names have case, people do not", "unknown_pool", `qasight.yaml has no pool "DB": did you mean db? there are win-vms and db`,
			func() error { _, err := f.Pool("DB"); return err },
		},
		"nothing alike": {
			"all are named", "unknown_pool", `qasight.yaml has no pool "printers": there are win-vms and db`,
			func() error { _, err := f.Pool("printers"); return err },
		},
		"odd": {
			"a terminal must not obey it", "unknown_pool", `qasight.yaml has no pool "\x1b[2J": there are win-vms and db`,
			func() error { _, err := f.Pool("\x1b[2J"); return err },
		},
		"stage": {
			"a typo", "unknown_stage", `qasight.yaml has no stage "unti": did you mean unit? there are ui and unit`,
			func() error { _, err := f.Stage("unti"); return err },
		},
		"no stages": {
			"there may be none", "unknown_stage", `qasight.yaml has no stage "ui": there are none`,
			func() error { _, err := parse(t, least).Stage("ui"); return err },
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := tc.look()
			if err == nil || err.Error() != tc.want || fault.Of(err) != fault.Invalid || fault.CodeOf(err) != tc.code {
				t.Errorf("%s: got %v (%s, %s), want %s", tc.reason, err, fault.Of(err), fault.CodeOf(err), tc.want)
			}
		})
	}
}

func TestUnknownPoolNamesOnlySomeOfMany(t *testing.T) {
	f := &config.File{Path: "q.yaml"}
	for i := range 20 {
		f.Pools = append(f.Pools, config.Pool{Pool: pool.Pool{Name: fmt.Sprintf("pool-%02d", i)}})
	}
	_, err := f.Pool("zebra")
	want := `q.yaml has no pool "zebra": there are pool-00, pool-01, pool-02, pool-03, pool-04, pool-05, pool-06, pool-07 and 12 more`
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestListsAndItemAt(t *testing.T) {
	f := parse(t, `project: p
pools:
  a: {items: [x, "y"]}
  b: {items: []}
  c:
    items:
    - z   # é
    - y
`)
	for key, want := range map[string][]string{"x": {"a"}, "y": {"a", "c"}, "z": {"c"}, "w": nil, "": nil} {
		if diff := cmp.Diff(want, f.Lists(key)); diff != "" {
			t.Errorf("pools that list %q (-want +got):\n%s", key, diff)
		}
	}
	for _, tc := range []struct {
		pool int
		key  string
		want config.Position
	}{
		{0, "x", config.Position{Line: 3, Column: 15}},
		{0, "y", config.Position{Line: 3, Column: 18}},
		{2, "z", config.Position{Line: 7, Column: 7}},
		{2, "y", config.Position{Line: 8, Column: 7}},
		{1, "x", config.Position{}},
	} {
		if got := f.Pools[tc.pool].ItemAt(tc.key); got != tc.want {
			t.Errorf("%s of pool %d stands at %s, want %s", tc.key, tc.pool, got, tc.want)
		}
	}
	if got := (config.Position{Line: 3, Column: 15}).String(); got != "3:15" {
		t.Errorf("a position reads %s", got)
	}
	// Not every file is read from one.
	made := &config.File{Pools: []config.Pool{{Pool: pool.Pool{Name: "m", Items: []string{"x"}}}}}
	if diff := cmp.Diff([]string{"m"}, made.Lists("x")); diff != "" || made.Lists("y") != nil {
		t.Errorf("a pool that was made lists otherwise: %s", diff)
	}
}

func TestOverlappingPrefix(t *testing.T) {
	f := parse(t, `project: p
pools:
  bare: {items: []}
  sight: {items: [], provider: {list: l}}
  qa: {items: [], provider: {list: l, name_prefix: qa-}}
  qa-win: {items: [], provider: {list: l, name_prefix: qa-win-}}
  qb: {items: [], provider: {list: l, name_prefix: qb-}}
  same: {items: [], provider: {list: l, name_prefix: s}}
  same2: {items: [], provider: {list: l, name_prefix: s}}
`)
	for name, want := range map[string]string{
		"bare": "", "sight": "", "qa": "qa-win", "qa-win": "qa", "qb": "", "same": "same2", "same2": "same",
	} {
		p, err := f.Pool(name)
		if err != nil {
			t.Fatal(err)
		}
		other, ok := f.OverlappingPrefix(p)
		if ok != (want != "") || ok && other.Name != want || !ok && other != nil {
			t.Errorf("%s overlaps with %v (%t), want %q", name, other, ok, want)
		}
	}
}
