package fake_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/fake"
)

func owner(n int) provider.Owner {
	return provider.Owner{Installation: "i", Namespace: "ns", Name: fmt.Sprintf("p-%d", n), UID: fmt.Sprintf("uid-%d", n)}
}

func TestFailNext(t *testing.T) {
	p := fake.New(fake.Options{StagesPerCall: 5})
	first, second := fault.New(fault.Quota, "full"), fault.New(fault.Denied, "no")
	p.FailNext("Create", first)
	p.FailNext("Create", second)
	spec := provider.Spec{Owner: owner(1), Host: "fake-1"}
	for i, want := range []error{first, second, nil} {
		if _, err := p.Create(t.Context(), spec); !errors.Is(err, want) {
			t.Errorf("call %d: %v; want %v", i, err, want)
		}
		if left := p.Parts(spec.Owner); want != nil && len(left) > 0 {
			t.Errorf("call %d was made to fail and left %q", i, left)
		}
	}
	if n := p.Calls()["Create"]; n != 3 {
		t.Errorf("Create was counted %d times; want 3", n)
	}
}

func TestAddressOption(t *testing.T) {
	p := fake.New(fake.Options{StagesPerCall: 5, Address: func(o provider.Owner) (string, int) {
		return "127.0.0.1", 4000 + len(o.Name)
	}})
	in, err := p.Create(t.Context(), provider.Spec{Owner: owner(1), Host: "fake-1", Port: 3128})
	if err != nil || in.State != provider.Running || in.Address != "127.0.0.1" || in.Port != 4003 {
		t.Errorf("Create = %+v, %v; want Running at the option's address", in, err)
	}
}

func TestStagesPerCall(t *testing.T) {
	for stages, want := range map[int]int{1: 5, 2: 3, 5: 1} {
		p := fake.New(fake.Options{StagesPerCall: stages})
		spec := provider.Spec{Owner: owner(1), Host: "fake-1"}
		calls := 0
		for in := (provider.Instance{}); in.State != provider.Running && calls < 10; calls++ {
			var err error
			if in, err = p.Create(t.Context(), spec); err != nil {
				t.Fatal(err)
			}
		}
		if calls != want {
			t.Errorf("with %d stages a call, %d calls led to Running; want %d", stages, calls, want)
		}
	}
}

func TestSlowAndMuteHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fake.New(fake.Options{Hosts: []string{"h1", "h2"}})
		p.SetLatency("h1", 3*time.Second)
		start := time.Now()
		_, err := p.Get(t.Context(), provider.Ref{Owner: owner(1), Host: "h1"})
		if took := time.Since(start); fault.Of(err) != fault.NotFound || took != 3*time.Second {
			t.Errorf("Get on a slow host: %v after %v; want NotFound after 3 s", err, took)
		}
		p.SetLatency("h1", 0)

		mend := p.Mute("h1")
		start = time.Now()
		_, err = p.Get(t.Context(), provider.Ref{Owner: owner(1), Host: "h1"})
		if took := time.Since(start); fault.Of(err) != fault.Timeout || took != provider.StepLimit {
			t.Errorf("Get on a mute host: %v after %v; want Timeout after the step limit", err, took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		_, err = p.Get(ctx, provider.Ref{Owner: owner(1), Host: "h1"})
		if took := time.Since(start); fault.Of(err) != fault.Timeout || took != time.Second {
			t.Errorf("Get on a mute host with a deadline: %v after %v; want Timeout after 1 s", err, took)
		}
		time.AfterFunc(2*time.Second, mend)
		start = time.Now()
		_, err = p.Get(t.Context(), provider.Ref{Owner: owner(1), Host: "h1"})
		if took := time.Since(start); fault.Of(err) != fault.NotFound || took != 2*time.Second {
			t.Errorf("Get on a host that speaks again: %v after %v; want NotFound after 2 s", err, took)
		}
	})
}

func TestCapacity(t *testing.T) {
	p := fake.New(fake.Options{Hosts: []string{"h1", "h2"}, Capacity: 1, StagesPerCall: 5})
	for i, want := range []string{"h1", "h2", ""} {
		spec := provider.Spec{Owner: owner(i)}
		host, err := p.Place(t.Context(), spec)
		if host != want || (want == "") != (fault.Of(err) == fault.Quota) {
			t.Errorf("instance %d: Place = %q, %v; want %q", i, host, err, want)
		}
		if spec.Host = host; host == "" {
			continue
		}
		if _, err := p.Create(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAddressesAreDistinct over hosts and many machines.
func TestAddressesAreDistinct(t *testing.T) {
	p := fake.New(fake.Options{Hosts: []string{"h1", "h2", "h3"}})
	seen := map[string]string{}
	for i := range 3000 {
		in := p.Plant([]string{"h1", "h2", "h3"}[i%3], owner(i))
		if other, ok := seen[in.Address]; ok {
			t.Fatalf("%s and %s have address %s", other, in.ID, in.Address)
		}
		seen[in.Address] = in.ID
	}
	rows, err := p.ListByTag(t.Context(), "i")
	if err != nil || len(rows) != 3 || len(rows[0].Instances) != 1000 {
		t.Errorf("ListByTag: %d rows, %v; want 3 of 1000 each", len(rows), err)
	}
}

func BenchmarkList(b *testing.B) {
	p := fake.New(fake.Options{})
	for i := range 5000 {
		p.Plant("fake-1", owner(i))
	}
	for b.Loop() {
		if rows, err := p.ListByTag(b.Context(), "i"); err != nil || len(rows[0].Instances) != 5000 {
			b.Fatal(err)
		}
	}
}
