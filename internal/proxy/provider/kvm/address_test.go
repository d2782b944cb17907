package kvm_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/proxy/provider/kvm/virt"
	"fleetdesk/internal/proxy/provider/kvm/virttest"
)

// nobody is a host on which no source knows anything, as on a bridge before the
// agent is up.
func nobody(_ virttest.Guest, source virt.AddressSource) ([]virt.Interface, error) {
	if source == virt.FromAgent {
		return nil, virt.Fault(virt.CodeAgentUnresponsive, "Guest agent is not responding: QEMU guest agent is not connected")
	}
	return nil, nil
}

// byAgent lets the agent alone tell addresses of interfaces by their MAC; "" is
// the guest's own.
func byAgent(addresses map[string][]string) virttest.Addresser {
	return func(g virttest.Guest, source virt.AddressSource) ([]virt.Interface, error) {
		if source != virt.FromAgent {
			return nil, nil
		}
		var out []virt.Interface
		for mac, ips := range addresses {
			i := virt.Interface{Name: "eth" + mac, MAC: mac}
			if mac == "" {
				i.MAC = g.NICs[0].MAC
			}
			for _, ip := range ips {
				i.Addresses = append(i.Addresses, virt.Address{IP: ip, Prefix: 24})
			}
			out = append(out, i)
		}
		return out, nil
	}
}

// terraform-provider-libvirt 1050: an agent that is not connected is no
// failure; the machine is on its way, and what it waits for is said.
func TestAnAgentThatIsNotConnectedIsStillProvisioning(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	h.Addresses(nobody)
	p := m.open(t)
	s := m.spec("a", "box-1")
	var in provider.Instance
	for end := time.Now().Add(10 * time.Second); !strings.Contains(in.Message, "has no address yet"); {
		var err error
		if in, err = p.Create(t.Context(), s); err != nil || in.State != provider.Provisioning || time.Now().After(end) {
			t.Fatalf("%+v, %v", in, err)
		}
	}
	was := in.Message
	m.advance(90 * time.Second)
	in, err := p.Get(t.Context(), ref(s))
	want := " UTC and has no address yet; lease: none; ARP: none; guest agent: Guest agent is not responding: QEMU guest agent is not connected"
	if err != nil || in.State != provider.Provisioning || in.Message != was || !strings.HasSuffix(in.Message, want) || in.Address != "" {
		t.Errorf("%+v, %v; want the message %q", in, err, want)
	}
	rows, err := p.ListByTag(t.Context(), tag)
	if err != nil || rows[0].Instances[0].State != provider.Provisioning {
		t.Errorf("%+v, %v", rows, err)
	}
	h.Addresses(byAgent(map[string][]string{"": {"192.0.2.20"}}))
	if in := up(t, p, s); in.Address != "192.0.2.20" {
		t.Errorf("%+v", in)
	}
}

// Which address is a guest's.
func TestWhichAddress(t *testing.T) {
	for name, tc := range map[string]struct {
		reason    string
		addresses map[string][]string
		after     time.Duration
		want      string
	}{
		"one":                {"what there is", map[string][]string{"": {"192.0.2.20"}}, 0, "192.0.2.20"},
		"private":            {"05-settled 12: RFC 1918 counts as routable", map[string][]string{"": {"10.1.2.3"}}, 0, "10.1.2.3"},
		"docker":             {"open-vm-tools 100: only the domain's own MAC", map[string][]string{"02:42:ac:11:00:01": {"172.17.0.1"}, "": {"192.0.2.20"}}, 0, "192.0.2.20"},
		"only docker":        {"no address is better than a wrong one", map[string][]string{"02:42:ac:11:00:01": {"172.17.0.1"}}, time.Hour, ""},
		"link-local":         {"kubevirt 12697, 12698", map[string][]string{"": {"169.254.7.7", "fe80::1", "192.0.2.20"}}, 0, "192.0.2.20"},
		"only link-local":    {"nobody reaches it", map[string][]string{"": {"169.254.7.7", "fe80::1"}}, time.Hour, ""},
		"IPv6 first, early":  {"IPv4 may still come", map[string][]string{"": {"2001:db8::20"}}, 0, ""},
		"IPv6 only":          {"terraform-provider-libvirt 246: a rule for it", map[string][]string{"": {"2001:db8::20"}}, time.Minute, "2001:db8::20"},
		"IPv6 and IPv4":      {"IPv4 comes first", map[string][]string{"": {"2001:db8::20", "192.0.2.20"}}, time.Minute, "192.0.2.20"},
		"nothing but a name": {"an interface without addresses", map[string][]string{"": nil}, time.Hour, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMem(t, "box-1")
			m.hosts["box-1"].Addresses(byAgent(tc.addresses))
			p := m.open(t)
			s := m.spec("a", "box-1")
			var in provider.Instance
			for end := time.Now().Add(10 * time.Second); in.State != provider.Running && !strings.Contains(in.Message, "no address"); {
				var err error
				if in, err = p.Create(t.Context(), s); err != nil || time.Now().After(end) {
					t.Fatalf("%+v, %v", in, err)
				}
			}
			m.advance(tc.after)
			in, err := p.Get(t.Context(), ref(s))
			if err != nil || in.Address != tc.want || (tc.want != "") != (in.State == provider.Running) {
				t.Errorf("%s: %+v, %v; want %q", tc.reason, in, err, tc.want)
			}
		})
	}
}

// kubevirt 12697: the last good address stays while the agent is silent, also
// for an operator that starts anew; after a start of the domain it is asked for
// again.
func TestTheLastGoodAddressStays(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	h.Addresses(byAgent(map[string][]string{"": {"192.0.2.20"}}))
	p := m.open(t)
	s := m.spec("a", "box-1")
	up(t, p, s)
	h.Addresses(nobody)
	look := func(what string, p provider.Provider) {
		t.Helper()
		in, err := p.Get(t.Context(), ref(s))
		if err != nil || in.State != provider.Running || in.Address != "192.0.2.20" {
			t.Errorf("%s: %+v, %v", what, in, err)
		}
		rows, err := p.ListByTag(t.Context(), tag)
		if err != nil || rows[0].Instances[0] != in {
			t.Errorf("%s: listed as %+v, %v", what, rows, err)
		}
	}
	look("the same operator", p)
	look("a new operator", m.open(t))
	h.DropLinks()
	look("after the connection was lost", p)

	if err := h.RestartDomain(domain.NamesOf(s.Owner).Domain); err != nil {
		t.Fatal(err)
	}
	if in, err := p.Get(t.Context(), ref(s)); err != nil || in.State != provider.Provisioning {
		t.Errorf("started anew it is %+v, %v: the address may be another machine's by now", in, err)
	}
	h.Addresses(byAgent(map[string][]string{"": {"192.0.2.21"}}))
	if in := up(t, p, s); in.Address != "192.0.2.21" {
		t.Errorf("%+v", in)
	}
}

// A host costs one call a listing, however many machines it has, and a few for
// addresses; those come round in time.
func TestAListingCostsOneCallAHost(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	p := m.open(t)
	const n = 40
	var wg sync.WaitGroup
	gate := make(chan struct{}, 4)
	for i := range n {
		wg.Go(func() {
			gate <- struct{}{}
			defer func() { <-gate }()
			if _, err := tryUp(t.Context(), p, m.spec(fmt.Sprint("p", i), "box-1")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	list := func() (calls int) {
		t.Helper()
		h.ResetCalls()
		rows, err := p.ListByTag(t.Context(), tag)
		if err != nil || len(rows[0].Instances) != n {
			t.Fatalf("%d instances, %v", len(rows[0].Instances), err)
		}
		for _, c := range h.Calls() {
			calls += c
		}
		return calls
	}
	list() // the first reads metadata
	if c := list(); c != 1 {
		t.Errorf("a listing in the steady state took %d calls: %v; want 1", c, h.Calls())
	}
	m.advance(2 * time.Minute)
	if c := list(); c > 1+4*3 {
		t.Errorf("a listing later took %d calls: %v", c, h.Calls())
	}
	// The address of one changes; within as many listings as it takes to come
	// round it is seen.
	h.Addresses(byAgent(map[string][]string{"": {"192.0.2.99"}}))
	for i := 0; ; i++ {
		rows, err := p.ListByTag(t.Context(), tag)
		if err != nil {
			t.Fatal(err)
		}
		changed := 0
		for _, in := range rows[0].Instances {
			if in.Address == "192.0.2.99" {
				changed++
			}
		}
		if changed == n-4 {
			break // the four of the listing before were just read
		}
		if i > n {
			t.Fatalf("after %d listings %d of %d new addresses are seen", i, changed, n)
		}
	}
	// Another operator reads each machine's metadata once, and no address.
	q := m.open(t)
	h.ResetCalls()
	if _, err := q.ListByTag(t.Context(), tag); err != nil {
		t.Fatal(err)
	}
	if c := h.Calls(); c["virDomainGetMetadata"] != n || c["virDomainInterfaceAddresses"] != 0 {
		t.Errorf("a new operator's first listing: %v", c)
	}
}
