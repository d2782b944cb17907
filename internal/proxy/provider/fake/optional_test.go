package fake_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/fake"
)

// told are the changes that a Watch told, by the time that all is at rest.
type told struct{ changes []provider.Change }

// take returns what was told since the last take.
func (c *told) take() []provider.Change {
	synctest.Wait()
	all := c.changes
	c.changes = nil
	return all
}

func watch(t *testing.T, p *fake.Provider) *told {
	t.Helper()
	c := &told{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- p.Watch(ctx, "i", func(ch provider.Change) { c.changes = append(c.changes, ch) })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Watch = %v", err)
		}
	})
	return c
}

// Each knob is told to those that watch its installation, and what a Provider
// does itself to those of the others alone.
func TestKnobsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fake.New(fake.Options{Hosts: []string{"h1", "h2"}, StagesPerCall: 5})
		q := p.Reopen()
		mine, theirs := watch(t, p), watch(t, q)
		one := provider.Change{Host: "h1", UID: "uid-1"}
		all := func(host string) provider.Change { return provider.Change{Host: host} }
		var in provider.Instance
		var mend func()
		for _, step := range []struct {
			what         string
			do           func()
			mine, theirs []provider.Change
		}{
			{"they begin", func() {}, []provider.Change{all("h1"), all("h2")}, []provider.Change{all("h1"), all("h2")}},
			{"Plant", func() { in = p.Plant("h1", owner(1)) }, []provider.Change{one}, []provider.Change{one}},
			{"another's", func() { o := owner(2); o.Installation = "k"; p.Plant("h1", o) }, nil, nil},
			{"Stop", func() { p.Stop(in.ID) }, []provider.Change{one}, []provider.Change{one}},
			{"Create by p", func() { _, _ = p.Create(t.Context(), provider.Spec{Owner: owner(1), Host: "h1"}) }, nil, []provider.Change{one}},
			{"Impair", func() { mend = q.Impair(in.ID) }, []provider.Change{one}, []provider.Change{one}},
			{"mended", func() { mend() }, []provider.Change{one}, []provider.Change{one}},
			{"Corrupt", func() { mend = p.Corrupt(in.ID) }, []provider.Change{one}, []provider.Change{one}},
			{"mended again", func() { mend() }, []provider.Change{one}, []provider.Change{one}},
			{"Break", func() { mend = p.Break("h1", nil); p.Stop(in.ID) }, nil, nil},
			{"it comes back", func() { mend() }, []provider.Change{all("h1")}, []provider.Change{all("h1")}},
			{"Mute and CutEvents", func() { mend = p.Mute("h1"); cut := p.CutEvents("h1"); mend(); mend = cut; p.Stop(in.ID) }, nil, nil},
			{"it is heard", func() { mend(); mend() }, []provider.Change{all("h1")}, []provider.Change{all("h1")}},
			{"Delete by q", func() {
				for st := provider.Deleting; st == provider.Deleting; {
					st, _ = q.Delete(t.Context(), provider.Ref{ID: in.ID, Owner: owner(1)})
				}
			}, []provider.Change{one}, nil},
			{"Vanish", func() { p.Vanish(p.Plant("h2", owner(3)).ID) }, []provider.Change{{Host: "h2", UID: "uid-3"}}, []provider.Change{{Host: "h2", UID: "uid-3"}}},
		} {
			step.do()
			for who, pair := range map[string][2][]provider.Change{"p": {step.mine, mine.take()}, "q": {step.theirs, theirs.take()}} {
				if diff := cmp.Diff(pair[0], compact(pair[1])); diff != "" {
					t.Errorf("%s: %s hears (-want +got):\n%s", step.what, who, diff)
				}
			}
		}
	})
}

// compact takes out what was told again.
func compact(all []provider.Change) []provider.Change {
	var some []provider.Change
	for _, c := range all {
		if !slices.Contains(some, c) {
			some = append(some, c)
		}
	}
	return some
}

// A reader that does not come along is told of the host as a whole.
func TestSlowReaderIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fake.New(fake.Options{})
		hold := make(chan struct{})
		var got []provider.Change
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- p.Watch(ctx, "i", func(c provider.Change) { <-hold; got = append(got, c) })
		}()
		synctest.Wait()
		for i := range 3000 {
			p.Plant("fake-1", owner(i))
		}
		close(hold)
		synctest.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n := len(got); n > 1100 || !slices.Contains(got[1:], provider.Change{Host: "fake-1"}) {
			t.Errorf("%d changes were told, without one for all", n)
		}
	})
}

func TestCloseEndsWatches(t *testing.T) {
	p := fake.New(fake.Options{})
	done := make(chan error)
	go func() { done <- p.Watch(context.Background(), "i", func(provider.Change) {}) }()
	for range 2 {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := <-done; err != nil {
		t.Errorf("Watch = %v", err)
	}
	if err := p.Watch(context.Background(), "i", func(provider.Change) {}); err != nil {
		t.Errorf("Watch of a closed one = %v", err)
	}
	p.FailNext("Watch", fault.New(fault.Quota, "none left"))
	if err := p.Watch(t.Context(), "i", func(provider.Change) {}); fault.Of(err) != fault.Quota {
		t.Errorf("Watch = %v; want FailNext's", err)
	}
}

// A holder that is in its own Dead only takes its claims back.
func TestAClaimIsTakenBack(t *testing.T) {
	p := fake.New(fake.Options{Hosts: []string{"h1", "h2"}})
	mine := provider.Claim{Installation: "i", Holder: "operatora", Beat: 1, Period: time.Second}
	p.PlantClaim("h1", provider.Claim{Installation: "i", Holder: "operatorb", Beat: 3, Period: time.Second})
	if _, err := p.Claim(t.Context(), mine); err != nil {
		t.Fatal(err)
	}
	mine.Beat, mine.Dead = 2, []string{mine.Holder}
	for range 2 {
		rows, err := p.Claim(provider.WithStepHook(t.Context(), func(step string) error {
			if step == "claim" {
				t.Error("a claim is made")
			}
			return nil
		}), mine)
		if err != nil || len(rows[0].Others) != 1 || len(rows[1].Others) != 0 {
			t.Errorf("Claim = %+v, %v; want the other's on h1", rows, err)
		}
		if a, b := p.Claims("h1", "i"), p.Claims("h2", "i"); len(a) != 1 || len(b) != 0 {
			t.Errorf("left: %+v and %+v; want the other's alone", a, b)
		}
	}
}

// A planted claim is one of another operator until it is removed.
func TestPlantClaim(t *testing.T) {
	p := fake.New(fake.Options{Hosts: []string{"h1", "h2"}})
	other := provider.Claim{Installation: "i", Holder: "operatorb", Beat: 3, Period: time.Second}
	remove := p.PlantClaim("h2", other)
	mine := provider.Claim{Installation: "i", Holder: "operatora", Beat: 1, Period: time.Second}
	want := []provider.HostClaims{{Host: "h1"}, {Host: "h2", Others: []provider.OtherClaim{{Holder: "operatorb", Beat: 3, Period: time.Second}}}}
	rows, err := p.Claim(t.Context(), mine)
	if diff := cmp.Diff(want, rows); diff != "" || err != nil {
		t.Errorf("Claim: %v (-want +got):\n%s", err, diff)
	}
	if got := p.Claims("h2", "i"); len(got) != 2 {
		t.Errorf("Claims = %+v; want both", got)
	}
	remove()
	if rows, err = p.Reopen().Claim(t.Context(), mine); err != nil || len(rows[1].Others) != 0 {
		t.Errorf("once it is removed: %+v, %v", rows, err)
	}
	for i, bad := range []provider.Claim{
		{Holder: "operatora", Period: time.Second},
		{Installation: "i", Holder: "UPPERCASE", Period: time.Second},
		{Installation: "i", Holder: "short", Period: time.Second},
		{Installation: "i", Holder: "operatora"},
		{Installation: "i", Holder: "operatora", Period: time.Second + 1},
	} {
		if _, err := p.Claim(t.Context(), bad); fault.Of(err) != fault.Invalid {
			t.Errorf("bad claim %d: %v; want Invalid", i, err)
		}
	}
}

// What Litter puts there for a UID is none while that UID has a machine.
func TestLitter(t *testing.T) {
	p := fake.New(fake.Options{})
	l := p.Litter("fake-1", "disk", "disk-1", owner(1))
	p.Litter("fake-1", "image", "image-1", provider.Owner{Installation: "i"})
	shown := func() (ids []string) {
		rows, err := p.Leftovers(t.Context(), "i", nil)
		if err != nil || rows[0].Err != nil {
			t.Fatal(rows, err)
		}
		for _, l := range rows[0].Leftovers {
			ids = append(ids, l.What+" "+l.ID)
		}
		return ids
	}
	check := func(what string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, shown()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	check("at first", "disk disk-1", "image image-1")
	in := p.Plant("fake-1", owner(1))
	check("beside its machine", "image image-1")
	if err := p.RemoveLeftover(t.Context(), "i", l); fault.Of(err) != fault.Conflict {
		t.Errorf("RemoveLeftover of a machine's: %v; want Conflict", err)
	}
	p.Vanish(in.ID)
	mend := p.Use("image-1")
	check("with the image in use", "disk disk-1")
	mend()
	// Somebody begins to use it between the look and the removal.
	ctx := provider.WithStepHook(t.Context(), func(string) error { mend = p.Use("disk-1"); return nil })
	if err := p.RemoveLeftover(ctx, "i", l); fault.Of(err) != fault.Conflict {
		t.Errorf("RemoveLeftover of what is used just now: %v; want Conflict", err)
	}
	mend()
	p.Clear(l)
	check("once it is cleared away", "image image-1")
	if got := fmt.Sprint(len(p.Litters())); got != "1" {
		t.Errorf("Litters = %v", p.Litters())
	}
}
