package local_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/local"
)

func claimOf(holder string, beat uint64) provider.Claim {
	return provider.Claim{Installation: installation, Holder: holder, Beat: beat, Period: 3 * time.Minute}
}

// others claims and returns what the row shows.
func others(t *testing.T, p *local.Provider, c provider.Claim) []provider.OtherClaim {
	t.Helper()
	rows, err := p.Claim(t.Context(), c)
	if err != nil || len(rows) != 1 || rows[0].Host != local.Host || rows[0].Err != nil {
		t.Fatalf("Claim = %+v, %v; want one whole row", rows, err)
	}
	return rows[0].Others
}

func want(t *testing.T, what string, got []provider.OtherClaim, claims ...provider.Claim) {
	t.Helper()
	var all []provider.OtherClaim
	for _, c := range claims {
		all = append(all, provider.OtherClaim{Holder: c.Holder, Beat: c.Beat, Period: c.Period})
	}
	if diff := cmp.Diff(all, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// Two operators on one state directory notice each other, whatever the
// providers are called, and the claims are readable to their user alone.
func TestTwoOperatorsOnOneStateDirectoryNoticeEachOther(t *testing.T) {
	dir := t.TempDir()
	p := reopen(t, dir)
	q, err := local.New(local.Options{Name: "another", StateDir: dir, Command: command(t)})
	if err != nil {
		t.Fatal(err)
	}
	a, b := claimOf("operatora", 1), claimOf("operatorb", 1)
	want(t, "the first is alone", others(t, p, a))
	want(t, "the second sees the first", others(t, q, b), a)
	a.Beat++
	want(t, "the first sees the second", others(t, p, a), b)
	want(t, "the second sees the first's beat change", others(t, q, b), a)
	files, err := os.ReadDir(filepath.Join(dir, ".claims"))
	if err != nil || len(files) != 2 {
		t.Fatalf(".claims has %v, %v; want two files", files, err)
	}
	for _, f := range files {
		if fi, err := f.Info(); err != nil || fi.Mode() != 0o600 {
			t.Errorf("%s: %v, %v; want a file of mode 0600", f.Name(), fi.Mode(), err)
		}
	}
}

// An operator on a copy of the state directory sees the original's claim,
// which never changes there, so that it counts as dead in time; and whatever
// the copy's operator then does, the original's processes are not touched,
// since nobody holds their locks in the copy.
func TestTheOperatorOfACopyTouchesNoProcessOfTheOriginal(t *testing.T) {
	dir, copied := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	p := open(t, dir)
	spec := specOf(fresh("copy"))
	in := create(t, p, spec)
	a, b := claimOf("original1", 7), claimOf("acopyofit", 1)
	others(t, p, a)
	if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	q := open(t, copied)
	for range 2 {
		then := a
		want(t, "in the copy", others(t, q, b), then)
		b.Beat++
		renewed := claimOf(a.Holder, a.Beat+b.Beat)
		want(t, "the original sees nobody", others(t, p, renewed))
	}
	b.Dead = []string{a.Holder}
	want(t, "once it is called dead", others(t, q, b))
	want(t, "the original is where it was", others(t, p, claimOf("onelooker", 1)), claimOf(a.Holder, a.Beat+3))

	if n, err := q.Halt(t.Context(), installation); n != 0 || err != nil {
		t.Errorf("Halt over the copy ended %d processes, %v; want none", n, err)
	}
	gone(t, q, spec.Owner)
	if got, err := p.Get(t.Context(), provider.Ref{ID: in.ID, Owner: spec.Owner}); err != nil || got.State != provider.Running || got.Address != in.Address {
		t.Errorf("the original after the copy's Delete: %+v, %v; want Running", got, err)
	}
}

// A claim that cannot be read may be a living operator's: the row says so, and
// is whole again when that one renews it.
func TestDamagedClaim(t *testing.T) {
	for name, tc := range map[string]struct{ reason, text string }{
		"empty":        {"a full disk leaves one", ""},
		"torn":         {"so does a power cut", `{"format":1,"holder":"operat`},
		"other holder": {"a file copied under another name", `{"format":1,"holder":"operatorz","beat":1,"periodMS":1000}`},
		"later format": {"a newer version's file is not guessed at", `{"format":2,"holder":"operatora","beat":1,"periodMS":1000}`},
		"no period":    {"it would be dead at once", `{"format":1,"holder":"operatora","beat":1}`},
		"below zero":   {"it would be dead before it is seen", `{"format":1,"holder":"operatora","beat":1,"periodMS":-1}`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			p := reopen(t, dir)
			a, b := claimOf("operatora", 1), claimOf("operatorb", 1)
			others(t, p, a)
			path := filepath.Join(dir, ".claims", local.TagOf(installation)+"~operatora")
			write(t, filepath.Dir(path), filepath.Base(path), tc.text)
			rows, err := p.Claim(t.Context(), b)
			if err != nil || len(rows) != 1 || fault.Of(rows[0].Err) != fault.Transient || !strings.Contains(rows[0].Err.Error(), path) || rows[0].Others != nil {
				t.Errorf("%s: Claim = %+v, %v; want a row that is Transient and names the file", tc.reason, rows, err)
			}
			want(t, "who is damaged claims by itself", others(t, p, a), b)
			want(t, "and is seen again", others(t, p, b), a)
		})
	}
}

// A claim that nobody renews holds up sweeps for a few of its periods: more than
// a day is believed of none.
func TestALongPeriodIsBelievedForADay(t *testing.T) {
	for text, period := range map[string]time.Duration{
		"86400000": 24 * time.Hour, "86400001": 24 * time.Hour, "9223372036854775807": 24 * time.Hour, "1000": time.Second,
	} {
		dir := t.TempDir()
		p := reopen(t, dir)
		a, b := claimOf("operatora", 1), claimOf("operatorb", 1)
		others(t, p, a)
		write(t, filepath.Join(dir, ".claims"), local.TagOf(installation)+"~operatora", `{"format":1,"holder":"operatora","beat":1,"periodMS":`+text+`}`)
		a.Period = period
		want(t, text+" ms", others(t, p, b), a)
	}
}

// A holder that is in its own Dead takes its claim back: nobody waits for it to
// be dead. It may do so twice, names other dead beside, and begins anew after it.
func TestAnOperatorTakesItsClaimBack(t *testing.T) {
	dir := t.TempDir()
	p, q := reopen(t, dir), reopen(t, dir)
	a, b, c := claimOf("operatora", 1), claimOf("operatorb", 1), claimOf("operatorc", 1)
	for _, one := range []provider.Claim{a, b, c} {
		others(t, p, one)
	}
	back := claimOf("operatora", 2)
	back.Dead = []string{"operatora", "operatorc"}
	for range 2 {
		rows, err := p.Claim(provider.WithStepHook(t.Context(), func(step string) error {
			if step == "local: claim" {
				t.Error("a claim is made")
			}
			return nil
		}), back)
		if err != nil || rows[0].Err != nil {
			t.Fatalf("Claim = %+v, %v", rows, err)
		}
		want(t, "taken back", rows[0].Others, b)
		want(t, "another sees nobody", others(t, q, b))
	}
	a.Beat = 3
	want(t, "begun anew", others(t, p, a), b)
	want(t, "another sees it", others(t, q, b), a)
}

// What else may lie there is no claim; half a claim, of a writer that died, is
// removed by the next one.
func TestStrangeFilesAmongClaims(t *testing.T) {
	dir := t.TempDir()
	p := reopen(t, dir)
	want(t, "alone", others(t, p, claimOf("operatora", 1)))
	tag := local.TagOf(installation)
	names := []string{"notes.txt", tag, tag + "~", tag + "~short", tag + "~UPPERCASE", tag + "~operator~b", "~operatorb"}
	for _, n := range append(names, tag+"~operatorb.new", "fedcba9876543210~operatorc.new") {
		write(t, filepath.Join(dir, ".claims"), n, "{")
	}
	want(t, "beside strange files", others(t, p, claimOf("operatora", 2)))
	left, err := filepath.Glob(filepath.Join(dir, ".claims", "*"))
	if err != nil || len(left) != len(names)+1 {
		t.Errorf("left are %q, %v; want the strange ones and the claim, without half ones", left, err)
	}
}

// What cannot be written as it stands is refused before anything is.
func TestBadClaims(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		c      provider.Claim
	}{
		"no installation": {"it would be everybody's", provider.Claim{Holder: "operatora", Period: time.Second}},
		"short holder":    {"two would have one name", provider.Claim{Installation: "i", Holder: "short", Period: time.Second}},
		"long holder":     {"names of files end", provider.Claim{Installation: "i", Holder: strings.Repeat("a", 33), Period: time.Second}},
		"a path":          {"it is a file's name", provider.Claim{Installation: "i", Holder: "../../etc/passwd", Period: time.Second}},
		"no period":       {"it would be dead at once", provider.Claim{Installation: "i", Holder: "operatora"}},
		"microseconds":    {"they would be lost", provider.Claim{Installation: "i", Holder: "operatora", Period: time.Second + time.Microsecond}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			_, err := reopen(t, dir).Claim(t.Context(), tc.c)
			if fault.Of(err) != fault.Invalid {
				t.Errorf("%s: Claim: %v; want Invalid", tc.reason, err)
			}
			empty(t, dir)
		})
	}
	// A dead one of such a name has no claim, and is no way out of the folder.
	dir := t.TempDir()
	p := reopen(t, dir)
	write(t, dir, "passwd", "x")
	c := claimOf("operatora", 1)
	c.Dead = []string{"/../../passwd", ""}
	others(t, p, c)
	if _, err := os.Stat(filepath.Join(dir, "passwd")); err != nil {
		t.Error(err)
	}
	want(t, "its own claim", others(t, p, claimOf("operatorb", 1)), c)
}

// Operators that claim at the same time do not take each other's half written
// files for those of the dead.
func TestClaimsAtTheSameTime(t *testing.T) {
	p := reopen(t, t.TempDir())
	var wg sync.WaitGroup
	for _, holder := range []string{"operatora", "operatorb", "operatorc", "operatord"} {
		wg.Go(func() {
			for beat := range uint64(50) {
				rows, err := p.Claim(t.Context(), claimOf(holder, beat))
				if err != nil || rows[0].Err != nil {
					t.Errorf("beat %d of %s: %v, %v", beat, holder, err, rows)
					return
				}
			}
		})
	}
	wg.Wait()
}
