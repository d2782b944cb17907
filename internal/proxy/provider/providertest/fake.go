package providertest

import (
	"slices"
	"time"

	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/fake"
)

// ForFake is the harness of the fake p: for p itself, or with another Provider
// set, for what wraps it. p's StepLimit is passed on, since p cannot be asked.
func ForFake(p *fake.Provider, hosts []string, limit time.Duration) Harness {
	return Harness{
		Provider:     p,
		Installation: "suite-installation",
		Spec: func(o provider.Owner) provider.Spec {
			return provider.Spec{
				Owner: o, Port: 3128, Protocol: provider.HTTP,
				UserData:    provider.Secret("#cloud-config\npassword: canary-7f3e-user-data\n"),
				Credentials: provider.Credentials{User: "crawler", Password: provider.Secret("canary-91bd-password")},
			}
		},
		Hosts:     hosts,
		Patience:  10 * time.Second,
		StepLimit: limit,
		Reopen:    func(T) provider.Provider { return p.Reopen() },
		Remains:   func(_ T, o provider.Owner) []string { return p.Parts(o) },
		Foreign: func(t T, host string, o provider.Owner) (provider.Ref, func(T)) {
			in := p.Plant(host, o)
			t.Cleanup(func() {
				if len(p.Parts(o)) > 0 {
					p.Vanish(in.ID)
				}
			})
			parts := len(p.Parts(o))
			return provider.Ref{ID: in.ID, Owner: o, Host: host}, func(t T) {
				t.Helper()
				if got := p.Parts(o); len(got) != parts {
					t.Errorf("%d of the foreign machine's %d parts are left: %q", len(got), parts, got)
				}
			}
		},
		Stop:      func(_ T, in provider.Instance) { p.Stop(in.ID) },
		Vanish:    func(_ T, in provider.Instance) { p.Vanish(in.ID) },
		Corrupt:   func(_ T, in provider.Instance) func() { return p.Corrupt(in.ID) },
		Impair:    func(_ T, in provider.Instance) func() { return p.Impair(in.ID) },
		BreakHost: func(_ T, host string) func() { return p.Break(host, nil) },
		MuteHost:  func(_ T, host string) func() { return p.Mute(host) },
		Fill:      func(T) func() { return p.Fill() },
		Litter: func(t T, host string, o provider.Owner) (provider.Leftover, func(T) bool) {
			l := p.Litter(host, "disk", "disk-"+o.UID, o)
			there := func(T) bool { return slices.Contains(p.Litters(), l) }
			t.Cleanup(func() {
				if there(t) {
					p.Clear(l)
				}
			})
			return l, there
		},
		Use: func(_ T, l provider.Leftover) func() { return p.Use(l.ID) },
		UnknownIDs: []string{
			"fake://" + hosts[0] + "/ffffffff",
		},
		MalformedIDs: []string{
			"fake", "fake://", "fake://" + hosts[0] + "/1", "fake://" + hosts[0] + "/0000000g",
			"kvm://" + hosts[0] + "/00000001", "fake://" + hosts[0] + "/00000001/", " fake://" + hosts[0] + "/00000001",
		},
		StrayIDs: []string{"fake://gone.example.com/00000001"},
	}
}
