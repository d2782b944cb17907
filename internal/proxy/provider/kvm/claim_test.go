package kvm_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm"
	"fleetdesk/internal/proxy/provider/kvm/image"
	"fleetdesk/internal/proxy/provider/kvm/virt"
	"fleetdesk/internal/proxy/provider/kvm/virttest"
)

func claimOf(holder string, beat uint64, dead ...string) provider.Claim {
	return provider.Claim{Installation: tag, Holder: holder, Beat: beat, Period: 3 * time.Minute, Dead: dead}
}

// claims makes a claim on all hosts, and fails unless that works everywhere.
func claims(t *testing.T, p provider.Claimer, c provider.Claim) []provider.HostClaims {
	t.Helper()
	rows, err := p.Claim(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if r.Err != nil {
			t.Fatalf("host %s: %v", r.Host, r.Err)
		}
	}
	return rows
}

// names are those of a pool's volumes that begin so.
func (m *mem) volumes(host, pool, prefix string) (out []string) {
	for _, v := range m.hosts[host].Volumes(pool) {
		if strings.HasPrefix(v.Name, prefix) {
			out = append(out, v.Name)
		}
	}
	return out
}

const (
	holderA = "aaaaaaaaaaaa"
	holderB = "bbbbbbbbbbbb"
)

func providerNamed(name string) func(*kvm.Options) {
	return func(o *kvm.Options) { o.Name = name }
}

// Two providers of one operator on one box have a claim each, and are no others
// to each other. Another operator sees one holder, whose beat grows with either:
// also when the one with the higher beat has left the configuration.
func TestClaimsOfTwoProvidersOnOneBox(t *testing.T) {
	m := newMem(t, "box-1")
	p, q := m.open(t), m.open(t, providerNamed("home-nat"))
	claims(t, q, claimOf(holderA, 900))
	for beat := uint64(1); beat < 4; beat++ {
		for _, one := range []provider.Claimer{p, q} {
			if rows := claims(t, one, claimOf(holderA, beat)); len(rows[0].Others) != 0 {
				t.Errorf("an operator sees itself: %+v", rows[0].Others)
			}
		}
	}
	// The one of beat 900 is of a later call than beat 3, as far as q can tell.
	if got := m.volumes("box-1", "default", "fleetdesk-claim-"); len(got) != 3 {
		t.Errorf("the claims are %q; want one of home, and two of home-nat", got)
	}
	var last uint64
	for beat := uint64(10); beat < 13; beat++ {
		claims(t, p, claimOf(holderA, beat))
		rows := claims(t, m.open(t), claimOf(holderB, beat))
		if o := rows[0].Others; len(o) != 1 || o[0].Holder != holderA || o[0].Beat <= last || o[0].Period != 3*time.Minute {
			t.Fatalf("another operator sees %+v after beat %d", o, last)
		}
		last = rows[0].Others[0].Beat
	}
	// Dead is dead in all its providers.
	claims(t, m.open(t), claimOf(holderB, 20, holderA))
	if got := m.volumes("box-1", "default", "fleetdesk-claim-"); len(got) != 1 || !strings.Contains(got[0], holderB) {
		t.Errorf("the claims are %q; want that of %s alone", got, holderB)
	}
}

// The claim of a later call is not taken away by one that was held up.
func TestALateClaimTakesNothingAway(t *testing.T) {
	m := newMem(t, "box-1")
	p := m.open(t)
	claims(t, p, claimOf(holderA, 8))
	claims(t, p, claimOf(holderA, 7))
	if got := m.volumes("box-1", "default", "fleetdesk-claim-"); !slices.ContainsFunc(got, func(s string) bool { return strings.HasSuffix(s, "-8") }) {
		t.Errorf("the claims are %q", got)
	}
	claims(t, p, claimOf(holderA, 9))
	if got := m.volumes("box-1", "default", "fleetdesk-claim-"); len(got) != 1 || !strings.HasSuffix(got[0], "-9") {
		t.Errorf("the claims are %q", got)
	}
}

// Of an operator that was cut off between its new claim and its last one, the new
// one counts. Two that take away what a dead one left do not disturb each other.
func TestClaimsOfOneThatWasCutOff(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	for _, beat := range []uint64{10, 9, 2} { // 10 comes before 9 by name
		h.PlantVolume("default", image.ClaimName(tag, image.Claim{Place: image.Place(tag, "home", "box-1"), Holder: holderB, Period: time.Second, Beat: beat}), "raw", nil)
	}
	p := m.open(t)
	if o := claims(t, p, claimOf(holderA, 1))[0].Others; len(o) != 1 || o[0].Beat != 10 {
		t.Errorf("others: %+v; want beat 10", o)
	}
	c := h.Link()
	t.Cleanup(func() { _ = c.Close() })
	h.OnCall(func(rpc string) error {
		if rpc == "virStorageVolDelete" {
			h.OnCall(nil)
			for _, name := range m.volumes("box-1", "default", "fleetdesk-claim-") {
				if strings.Contains(name, holderB) {
					_ = c.StorageVolDelete(context.Background(), virt.Volume{Pool: "default", Name: name})
				}
			}
		}
		return nil
	})
	if o := claims(t, p, claimOf(holderA, 2, holderB))[0].Others; len(o) != 0 {
		t.Errorf("others: %+v", o)
	}
}

// Hosts whose pools are one folder keep each a claim of their own in it.
func TestClaimsInASharedFolder(t *testing.T) {
	m := newMem(t, "box-1", "box-2")
	p := m.open(t)
	claims(t, p, claimOf(holderA, 1))
	theirs := m.volumes("box-2", "default", "fleetdesk-claim-")[0]
	m.hosts["box-1"].PlantVolume("default", theirs, "raw", nil)
	for _, r := range claims(t, p, claimOf(holderA, 2)) {
		if len(r.Others) != 0 {
			t.Errorf("%s: an operator sees itself: %+v", r.Host, r.Others)
		}
	}
	if got := m.volumes("box-1", "default", "fleetdesk-claim-"); !slices.Contains(got, theirs) {
		t.Errorf("the claims in the folder are %q; %s is gone", got, theirs)
	}
}

// What only looks like a claim is neither read nor removed.
func TestWhatIsNoClaimStays(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	good := image.ClaimName(tag, image.Claim{Place: "0123456789", Holder: holderB, Period: time.Second, Beat: 1})
	other := image.ClaimName("another/fleetdesk", image.Claim{Place: "0123456789", Holder: holderB, Period: time.Second, Beat: 1})
	not := []string{good + ".bak", "copy-" + good, good + "0-1", other, "fleetdesk-claim-", "fleetdesk-claim-notes.txt", "web.qcow2"}
	for _, name := range not {
		h.PlantVolume("default", name, "raw", []byte(name))
	}
	for beat := range uint64(2) {
		if rows := claims(t, m.open(t), claimOf(holderA, beat, holderB)); len(rows[0].Others) != 0 {
			t.Errorf("others: %+v", rows[0].Others)
		}
	}
	for _, name := range not {
		if string(h.Content("default", name)) != name {
			t.Errorf("%s was touched", name)
		}
	}
}

// Whatever call fails, done or undone, the holder has a claim at each moment, and
// the next renewal leaves one alone.
func TestAClaimCutOffAtEachCall(t *testing.T) {
	for _, done := range []bool{false, true} {
		for k := 1; ; k++ {
			if k > 20 {
				t.Fatal("there is no end of calls")
			}
			m := newMem(t, "box-1")
			h := m.hosts["box-1"]
			p := m.open(t)
			claims(t, p, claimOf(holderA, 1))
			claims(t, m.open(t), claimOf(holderB, 1))
			n := 0
			hook := func(rpc string) error {
				if !slices.ContainsFunc(m.volumes("box-1", "default", "fleetdesk-claim-"), func(s string) bool { return strings.Contains(s, holderA) }) {
					t.Errorf("at call %d, %s: no claim is there", n, rpc)
				}
				if n++; n == k {
					return fault.New(fault.Unavailable, "the connection was lost")
				}
				return nil
			}
			if done {
				h.OnDone(hook)
			} else {
				h.OnCall(hook)
			}
			rows, err := p.Claim(t.Context(), claimOf(holderA, 2, holderB))
			h.OnCall(nil)
			h.OnDone(nil)
			if err != nil {
				t.Fatal(err)
			}
			if n < k {
				break
			}
			// A list that was lost, or a removal: nothing can be said.
			if rows[0].Err == nil && n == k {
				t.Errorf("call %d was lost (done: %t), and the row is %+v", k, done, rows[0])
			}
			claims(t, p, claimOf(holderA, 3, holderB))
			if got := m.volumes("box-1", "default", "fleetdesk-claim-"); len(got) != 1 || !strings.HasSuffix(got[0], "-3") {
				t.Errorf("call %d was lost (done: %t), and the claims are %q", k, done, got)
			}
		}
	}
}

// A pool that cannot be used, or where no claim stays, is the row's error: there
// is no claim then, and the caller removes nothing there.
func TestAPoolWithoutRoomForAClaim(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		harm   func(h *virttest.Host)
		class  fault.Class
		want   string
	}{
		"missing":  {"nothing can be made", func(h *virttest.Host) { h.RemovePool("default") }, fault.Permanent, `no storage pool "default"`},
		"inactive": {"it may run again", inactive, fault.Transient, "virsh pool-start default"},
		"full": {"somebody has to make room", func(h *virttest.Host) {
			h.FailNext("StorageVolCreateXML", virt.Fault(virt.CodeSystemError, "cannot create path: No space left on device"))
		}, fault.Quota, "free space in pool default there"},
		"cleared by somebody": {"a claim that nobody sees is none", func(h *virttest.Host) {
			h.OnCall(func(rpc string) error {
				if rpc == "virStoragePoolListAllVolumes" {
					c := h.Link()
					defer func() { _ = c.Close() }()
					for _, v := range h.Volumes("default") {
						_ = c.StorageVolDelete(context.Background(), virt.Volume{Pool: "default", Name: v.Name})
					}
				}
				return nil
			})
		}, fault.Transient, "leave volumes of that name alone"},
	} {
		for _, before := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, claimed before: %t", name, before), func(t *testing.T) {
				m := newMem(t, "box-1", "box-2")
				p := m.open(t)
				if before {
					claims(t, p, claimOf(holderA, 1))
				}
				tc.harm(m.hosts["box-1"])
				rows, err := p.Claim(t.Context(), claimOf(holderA, 2))
				if err != nil || rows[1].Err != nil {
					t.Fatalf("%+v, %v", rows, err)
				}
				if got := rows[0].Err; fault.Of(got) != tc.class || !strings.Contains(got.Error(), tc.want) || !strings.Contains(got.Error(), "box-1") {
					t.Errorf("%s: %s: %v; want %s with %q", tc.reason, fault.Of(got), got, tc.class, tc.want)
				}
			})
		}
	}
}

// A pool that was undefined and made anew has another UUID.
func TestAClaimInAPoolMadeAnew(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	p := m.open(t)
	claims(t, p, claimOf(holderA, 1))
	h.RemovePool("default")
	h.SetPool(virttest.Pool{Name: "default", Type: "dir", Path: "/srv/images", State: virt.PoolRunning, Capacity: 100 << 30})
	claims(t, p, claimOf(holderA, 2))
	if got := m.volumes("box-1", "default", "fleetdesk-claim-"); len(got) != 1 {
		t.Errorf("the claims are %q", got)
	}
}

// A renewal costs three calls a host: each minute, on each of a thousand hosts.
func TestWhatAClaimCosts(t *testing.T) {
	m := newMem(t, "box-1")
	p := m.open(t)
	claims(t, p, claimOf(holderA, 1))
	m.hosts["box-1"].ResetCalls()
	claims(t, p, claimOf(holderA, 2))
	n := 0
	for _, k := range m.hosts["box-1"].Calls() {
		n += k
	}
	if n != 3 {
		t.Errorf("a renewal costs %v", m.hosts["box-1"].Calls())
	}
}

func TestInvalidClaims(t *testing.T) {
	m := newMem(t, "box-1")
	p := m.open(t)
	for reason, change := range map[string]func(c *provider.Claim){
		"no installation":      func(c *provider.Claim) { c.Installation = "" },
		"a short holder":       func(c *provider.Claim) { c.Holder = "abcdefg" },
		"a long holder":        func(c *provider.Claim) { c.Holder = strings.Repeat("a", 33) },
		"a holder with a dash": func(c *provider.Claim) { c.Holder = "abcd-efgh" },
		"no period":            func(c *provider.Claim) { c.Period = 0 },
		"parts of a ms":        func(c *provider.Claim) { c.Period += time.Microsecond },
		"a strange dead":       func(c *provider.Claim) { c.Dead = []string{"../x"} },
	} {
		c := claimOf(holderA, 1)
		change(&c)
		if rows, err := p.Claim(t.Context(), c); fault.Of(err) != fault.Invalid {
			t.Errorf("%s: %+v, %v; want Invalid", reason, rows, err)
		}
	}
	if got := m.volumes("box-1", "default", ""); len(got) != 0 {
		t.Errorf("made: %q", got)
	}
}

// A holder that is in its own Dead takes its claims back, and makes none: nobody
// waits for it to be dead. What its other providers claimed stays, and what a
// later call did; other dead go beside. A pool that is full is no hindrance.
func TestAnOperatorTakesItsClaimsBack(t *testing.T) {
	const dead = "cccccccccccc"
	m := newMem(t, "box-1", "box-2")
	p, beside := m.open(t), m.open(t, providerNamed("home-nat"))
	claims(t, beside, claimOf(holderA, 1))
	kept := m.volumes("box-1", "default", "fleetdesk-claim-")
	claims(t, p, claimOf(dead, 1))
	claims(t, p, claimOf(holderA, 1))
	for _, h := range m.hosts {
		h.OnCall(func(rpc string) error {
			if rpc == "virStorageVolCreateXML" {
				t.Error("a claim is made")
			}
			return nil
		})
	}
	for range 2 {
		for _, r := range claims(t, p, claimOf(holderA, 2, holderA, dead)) {
			if len(r.Others) != 0 {
				t.Errorf("%s: others: %+v", r.Host, r.Others)
			}
		}
	}
	if got := m.volumes("box-1", "default", "fleetdesk-claim-"); !slices.Equal(got, kept) {
		t.Errorf("the claims are %q; want %q of the other provider", got, kept)
	}
	for _, h := range m.hosts {
		h.OnCall(nil)
	}
	claims(t, beside, claimOf(holderA, 1, holderA)) // at the beat that it has
	if got := m.volumes("box-1", "default", "fleetdesk-claim-"); len(got) != 0 {
		t.Errorf("when all took theirs back: %q", got)
	}
	claims(t, p, claimOf(holderA, 9))
	claims(t, p, claimOf(holderA, 8, holderA))
	if got := m.volumes("box-1", "default", "fleetdesk-claim-"); len(got) != 1 || !strings.HasSuffix(got[0], "-9") {
		t.Errorf("of a later call: %q", got)
	}
	m.hosts["box-1"].RemovePool("default")
	if rows, err := p.Claim(t.Context(), claimOf(holderA, 10, holderA)); err != nil || rows[0].Err == nil || rows[1].Err != nil {
		t.Errorf("without a pool: %+v, %v; want that row an error", rows, err)
	}
}

// A claim that nobody renews holds up sweeps for a few of its periods: more than
// a day is believed of none.
func TestALongPeriodIsBelievedForADay(t *testing.T) {
	for period, want := range map[time.Duration]time.Duration{time.Second: time.Second, 24 * time.Hour: 24 * time.Hour, 72 * time.Hour: 24 * time.Hour} {
		m := newMem(t, "box-1")
		p := m.open(t)
		c := claimOf(holderB, 1)
		c.Period = period
		claims(t, p, c)
		if o := claims(t, p, claimOf(holderA, 1))[0].Others; len(o) != 1 || o[0].Period != want {
			t.Errorf("of %s: %+v; want %s", period, o, want)
		}
	}
}
