package local_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/local"
)

// lying returns the leftovers of the row, which must be whole.
func lying(t *testing.T, p *local.Provider, keep ...string) []provider.Leftover {
	t.Helper()
	rows, err := p.Leftovers(t.Context(), installation, keep)
	if err != nil || len(rows) != 1 || rows[0].Err != nil {
		t.Fatalf("Leftovers = %+v, %v; want one whole row", rows, err)
	}
	return rows[0].Leftovers
}

func clear(t *testing.T, p *local.Provider, l provider.Leftover) {
	t.Helper()
	if err := p.RemoveLeftover(t.Context(), installation, l); err != nil {
		t.Errorf("RemoveLeftover of %s: %v", l.ID, err)
	}
}

// An operator that is killed -9 at any step of Create or Delete, for a Proxy
// that nobody asks for any more, leaves what the sweep sees: an instance, or
// leftovers, and nothing beside the two.
func TestWhatAKilledOperatorLeavesIsSeenByTheSweep(t *testing.T) {
	for _, call := range []string{"create", "delete"} {
		for step := range 20 {
			dir := t.TempDir()
			p := open(t, dir)
			spec := specOf(fresh("killed"))
			if call == "delete" {
				if _, err := p.Create(t.Context(), spec); err != nil {
					t.Fatal(err)
				}
			}
			killed := operator(t, call, dir, spec.Owner.UID, step)
			what := fmt.Sprintf("%s, killed at step %d (%v)", call, step, killed)
			if kept := lying(t, p, spec.Owner.UID); len(kept) > 0 {
				t.Errorf("%s: %+v, though the UID is to be kept", what, kept)
			}
			// In either order: leftovers go, and orphans do.
			for range 2 {
				for _, l := range lying(t, p) {
					clear(t, p, l)
				}
				rows, err := p.ListByTag(t.Context(), installation)
				if err != nil || rows[0].Err != nil {
					t.Fatalf("%s: ListByTag = %+v, %v", what, rows, err)
				}
				for _, in := range rows[0].Instances {
					gone(t, p, in.Owner)
				}
			}
			// The lock of the choice of an address is everybody's: the next Create
			// takes and removes it.
			_ = os.Remove(filepath.Join(dir, ".alloc"))
			empty(t, dir)
			if ops, err := os.ReadDir(filepath.Join(dir, ".ops")); err != nil || len(ops) > 0 {
				t.Errorf("%s: left in .ops: %v, %v", what, ops, err)
			}
			if t.Failed() {
				t.Fatal(what)
			}
			if !killed {
				break
			}
		}
	}
}

// What is in somebody's hands is no leftover, and removing it is Conflict.
func TestLeftoversInUse(t *testing.T) {
	name := folder(ownerOf("used"))
	for what, tc := range map[string]struct {
		reason string
		id     string
		lock   string
	}{
		"being made":    {"a Create is at work", ".making~" + name + "~RUN", ".ops/" + name},
		"being removed": {"a Delete is at work", ".gone~" + name + "~RUN", ".ops/" + name},
		"lived in":      {"a process lives in a folder that a person renamed", ".gone~" + name + "~RUN", ".gone~" + name + "~RUN/lock"},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			p := reopen(t, dir)
			if err := os.Mkdir(filepath.Join(dir, tc.id), 0o700); err != nil {
				t.Fatal(err)
			}
			l := provider.Leftover{Host: local.Host, ID: tc.id, What: local.WhatFolder}
			release, err := local.Acquire(t.Context(), filepath.Join(dir, tc.lock))
			if err != nil {
				t.Fatal(err)
			}
			if got := lying(t, p); len(got) > 0 {
				t.Errorf("%s, and it is called a leftover: %+v", tc.reason, got)
			}
			if err := p.RemoveLeftover(t.Context(), installation, l); fault.Of(err) != fault.Conflict {
				t.Errorf("RemoveLeftover: %v; want Conflict: %s", err, tc.reason)
			}
			release()
			if got := lying(t, p); len(got) != 1 || got[0].ID != tc.id || got[0].What != local.WhatFolder {
				t.Errorf("afterwards: %+v; want %s", got, tc.id)
			}
			clear(t, p, l)
			empty(t, dir)
		})
	}
}

// The file of a lock that nobody holds goes, by the time at which it was made:
// one that came later is another.
func TestStaleLockFile(t *testing.T) {
	dir := t.TempDir()
	p := reopen(t, dir)
	name := folder(ownerOf("stale"))
	path := filepath.Join(dir, ".ops", name)
	write(t, filepath.Dir(path), name, "")
	got := lying(t, p)
	if len(got) != 1 || got[0].What != local.WhatLock || !strings.HasPrefix(got[0].ID, "lock~"+name+"~") {
		t.Fatalf("Leftovers = %+v; want the lock file", got)
	}
	later := time.Now().Add(time.Second)
	if err := os.Chtimes(path, later, later); err != nil {
		t.Fatal(err)
	}
	clear(t, p, got[0]) // that one is gone
	if _, err := os.Stat(path); err != nil {
		t.Errorf("a lock file that was made later was removed: %v", err)
	}
	now := lying(t, p)
	if len(now) != 1 || now[0].ID == got[0].ID {
		t.Fatalf("Leftovers = %+v; want the new one, by another id than %s", now, got[0].ID)
	}
	release, err := local.Acquire(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.RemoveLeftover(t.Context(), installation, now[0]); fault.Of(err) != fault.Conflict {
		t.Errorf("RemoveLeftover of a held lock's file: %v; want Conflict", err)
	}
	if got := lying(t, p); len(got) > 0 {
		t.Errorf("a held lock's file is called a leftover: %+v", got)
	}
	release()
	clear(t, p, now[0])
}

// What stands beside an instance goes with its Delete, and other files are a
// person's.
func TestNoLeftovers(t *testing.T) {
	dir := t.TempDir()
	p := open(t, dir)
	spec := specOf(fresh("whole"))
	create(t, p, spec)
	name := folder(spec.Owner)
	other := "u~" + local.TagOf("another")
	for _, d := range []string{
		".gone~" + name + "~RUN", ".gone~" + other + "~RUN", ".making~" + other + "~RUN",
		".gone~x", ".gone~~~", ".gone~u~nottag~RUN", ".gone~" + name, "gone~" + name + "~RUN", ".trash",
	} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write(t, dir, ".gone~"+folder(ownerOf("afile"))+"~RUN", "a file, not a folder")
	write(t, filepath.Join(dir, ".ops"), other, "")
	write(t, filepath.Join(dir, ".ops"), "notes.txt", "")
	if got := lying(t, p); len(got) > 0 {
		t.Errorf("Leftovers = %+v; want none", got)
	}
}

// A state directory that is not there says nothing about what is in it.
func TestLeftoversOfAnUnmountedStateDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	p := reopen(t, dir)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	rows, err := p.Leftovers(t.Context(), installation, nil)
	if err != nil || len(rows) != 1 || fault.Of(rows[0].Err) != fault.Unavailable {
		t.Errorf("Leftovers = %+v, %v; want a row that is Unavailable", rows, err)
	}
	id := ".gone~" + folder(ownerOf("u")) + "~RUN"
	if err := p.RemoveLeftover(t.Context(), installation, provider.Leftover{Host: local.Host, ID: id}); fault.Of(err) != fault.Unavailable {
		t.Errorf("RemoveLeftover: %v; want Unavailable, not success", err)
	}
	if claims, err := p.Claim(t.Context(), claimOf("operatora", 1)); err != nil || fault.Of(claims[0].Err) != fault.Unavailable {
		t.Errorf("Claim = %+v, %v; want a row that is Unavailable", claims, err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the state directory was made anew")
	}
}

// What is no id is Invalid before anything is looked at: it becomes a path.
func TestMalformedLeftoverIDs(t *testing.T) {
	p := reopen(t, t.TempDir())
	name, tag := folder(ownerOf("u")), local.TagOf(installation)
	for id, reason := range map[string]string{
		"":                                       "nothing",
		name:                                     "an instance's folder",
		".ops":                                   "the provider's own",
		".gone~" + name:                          "no run",
		".gone~" + name + "~":                    "an empty run",
		".gone~" + name + "~/../../keep":         "a way out, by the run",
		".gone~" + name + "~..":                  "a run that is a way up",
		".gone~../keep~" + tag + "~RUN":          "a way out, by the UID",
		".making~u~../../keep~RUN":               "a way out, by the tag",
		"lock~../keep~" + tag + "~1":             "a way out of .ops",
		"lock~" + name + "~01":                   "two ids of one thing",
		"lock~" + name + "~RUN":                  "no time",
		"lock~" + name + "~99999999999999999999": "beyond time",
		"gone~" + name + "~RUN":                  "no prefix of ours",
	} {
		err := p.RemoveLeftover(t.Context(), installation, provider.Leftover{Host: local.Host, ID: id})
		if fault.Of(err) != fault.Invalid {
			t.Errorf("%q (%s): %v; want Invalid", id, reason, err)
		}
	}
}

// FuzzLeftoverID: whatever the id, nothing outside of what the provider left is
// removed.
func FuzzLeftoverID(f *testing.F) {
	name := folder(ownerOf("u"))
	for _, s := range []string{"", ".gone~" + name + "~RUN", ".making~" + name + "~..", "lock~" + name + "~1", "lock~" + name + "~01", ".gone~../x~" + local.TagOf(installation) + "~R", "keep", ".gone~" + name + "~/../../keep"} {
		f.Add(s)
	}
	dir := f.TempDir()
	p, err := local.New(local.Options{Name: "home", StateDir: filepath.Join(dir, "state"), Command: []string{"/bin/true"}})
	if err != nil {
		f.Fatal(err)
	}
	kept := []string{"keep", "state/keep", "state/.ops/keep", "state/" + name + "/keep"}
	for _, k := range kept {
		if err := os.MkdirAll(filepath.Join(dir, k), 0o700); err != nil {
			f.Fatal(err)
		}
	}
	f.Fuzz(func(t *testing.T, id string) {
		err := p.RemoveLeftover(t.Context(), installation, provider.Leftover{Host: local.Host, ID: id})
		if err != nil && !slices.Contains([]fault.Class{fault.Invalid, fault.Denied, fault.Conflict}, fault.Of(err)) {
			t.Errorf("%q: %s: %v", id, fault.Of(err), err)
		}
		for _, k := range kept {
			if _, err := os.Stat(filepath.Join(dir, k)); err != nil {
				t.Fatalf("%q removed %s", id, k)
			}
		}
	})
}
