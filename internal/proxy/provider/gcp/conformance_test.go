package gcp_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	compute "google.golang.org/api/compute/v1"

	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/gcp"
	"fleetdesk/internal/proxy/provider/guard"
	"fleetdesk/internal/proxy/provider/providertest"
	"fleetdesk/internal/testkit/gcefake"
)

// The suite over a project whose instances are processes, with pages of three.
func TestConformance(t *testing.T) {
	w := newWorld(t, true, gcefake.Options{PageSize: 3, Delay: time.Millisecond})
	w.limit = 2 * time.Second
	b := &backEnd{w}
	providertest.Run(t, b.harness(w.open(t)))
}

// Decorated as the operator does it, nothing of the contract is lost.
func TestConformanceDecorated(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{Delay: time.Millisecond})
	w.limit = 2 * time.Second
	b := &backEnd{w}
	providertest.Run(t, b.harness(guard.Deadline(w.open(t), guard.DeadlineOptions{Name: "cloud"})))
}

// absent are the clauses of Watch, which the provider does not have.
func absent() map[string]string {
	const silent = "Compute Engine tells of no changes but through other services (Pub/Sub, audit logs), which an installation would have to set up: the provider has no Watch"
	out := map[string]string{}
	for i := 1; i <= 8; i++ {
		out[fmt.Sprintf("P-WAT-%d", i)] = silent
	}
	return out
}

type backEnd struct{ *world }

func (b *backEnd) harness(p provider.Provider) providertest.Harness {
	zones := b.Zones()
	return providertest.Harness{
		Provider: p, Installation: tag, Hosts: zones, StepLimit: 2 * time.Second, Absent: absent(),
		Spec: func(o provider.Owner) provider.Spec {
			return provider.Spec{
				Owner: o, Port: port, Protocol: provider.HTTP, UserData: provider.Secret(userData),
				Credentials: provider.Credentials{User: "crawler", Password: provider.Secret("canary-91bd-password")},
			}
		},
		Reopen:  func(t providertest.T) provider.Provider { return b.open(t) },
		Remains: func(_ providertest.T, o provider.Owner) []string { return b.remains(o) },
		Foreign: b.foreign,
		Stop: func(t providertest.T, in provider.Instance) {
			if err := b.Preempt(in.Host, gcp.NameOf(in.Owner)); err != nil {
				t.Fatalf("%v", err)
			}
		},
		Vanish: func(_ providertest.T, in provider.Instance) { b.Vanish(in.Host, gcp.NameOf(in.Owner)) },
		// A person takes the labels off in the console, and writes a description.
		Corrupt: func(_ providertest.T, in provider.Instance) func() {
			return b.Change(in.Host, gcp.NameOf(in.Owner), func(vm *compute.Instance) { vm.Labels, vm.Description = nil, "do not touch" })
		},
		Impair: func(t providertest.T, in provider.Instance) func() {
			name := gcp.NameOf(in.Owner)
			if err := b.SetStatus(in.Host, name, "REPAIRING"); err != nil {
				t.Fatalf("%v", err)
			}
			return func() { _ = b.SetStatus(in.Host, name, "RUNNING") }
		},
		BreakHost: func(_ providertest.T, host string) func() { return b.BreakZone(host) },
		MuteHost:  func(_ providertest.T, host string) func() { return b.MuteZone(host) },
		Fill: func(providertest.T) func() {
			undo := []func(){b.Quota("europe-west1", "INSTANCES", 0), b.Quota("us-east1", "INSTANCES", 0)}
			b.advance(time.Minute) // what was learned for Place is old now
			return func() {
				for _, f := range undo {
					f()
				}
				b.advance(time.Minute)
			}
		},
		Litter: func(t providertest.T, host string, o provider.Owner) (provider.Leftover, func(providertest.T) bool) {
			name := gcp.NameOf(o)
			number := b.LeaveDisk(host, name, gcp.LabelsOf(o))
			t.Cleanup(func() { b.RemoveDisk(host, name) })
			return provider.Leftover{Host: host, ID: fmt.Sprintf("%s~%d", name, number), What: "disk"}, func(providertest.T) bool {
				for _, d := range b.Disks(host) {
					if d.Name == name {
						return true
					}
				}
				return false
			}
		},
		Use: func(_ providertest.T, l provider.Leftover) func() {
			name, _, _ := strings.Cut(l.ID, "~")
			return b.UseDisk(l.Host, name)
		},
		UnknownIDs: []string{
			"gcp://cloud/crawl-fleet/" + zones[0] + "/fd-0123456789ab-0123456789abcdef0123456789abcdef",
			"gcp://cloud/crawl-fleet/" + zones[1] + "/fd-" + gcp.TagOf(tag) + "-0123456789abcdef0123456789abcdef",
		},
		MalformedIDs: []string{
			"gcp://cloud", "gcp://cloud/crawl-fleet/" + zones[0], "gcp://cloud/crawl-fleet/" + zones[0] + "/x",
			"gcp://cloud/crawl-fleet/" + zones[0] + "/fd-0123456789AB-0123456789abcdef0123456789abcdef",
			"gcp://cloud/crawl-fleet/" + zones[0] + "/fd-0123456789ab-0123456789abcdef0123456789abcdef/", "kvm://home/x/y", "x",
		},
		StrayIDs: []string{
			"gcp://cloud/crawl-fleet/asia-east1-a/fd-0123456789ab-0123456789abcdef0123456789abcdef",
			"gcp://cloud/other-project/" + zones[0] + "/fd-0123456789ab-0123456789abcdef0123456789abcdef",
		},
	}
}

// remains names what the project has of the owner.
func (b *backEnd) remains(o provider.Owner) []string {
	var out []string
	for _, z := range b.Zones() {
		for _, in := range b.Instances(z) {
			if strings.Contains(in.Name, gcp.NameOf(o)) {
				out = append(out, z+"/instance "+in.Name)
			}
		}
		for _, d := range b.Disks(z) {
			if strings.Contains(d.Name, gcp.NameOf(o)) {
				out = append(out, z+"/disk "+d.Name)
			}
		}
	}
	return out
}

// foreign plants an instance of another owner, as the provider would make it.
func (b *backEnd) foreign(t providertest.T, host string, o provider.Owner) (provider.Ref, func(providertest.T)) {
	t.Helper()
	name := gcp.NameOf(o)
	err := b.Plant(host, compute.Instance{
		Name: name, Labels: gcp.LabelsOf(o), Description: gcp.Describe(o, port),
		NetworkInterfaces: []*compute.NetworkInterface{{AccessConfigs: []*compute.AccessConfig{{Type: "ONE_TO_ONE_NAT"}}}},
	})
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { b.Vanish(host, name) })
	was := b.look(host, name)
	return provider.Ref{ID: "gcp://cloud/crawl-fleet/" + host + "/" + name, Owner: o, Host: host}, func(t providertest.T) {
		t.Helper()
		if is := b.look(host, name); is != was {
			t.Errorf("the foreign instance was\n%s\nand is\n%s", was, is)
		}
	}
}

func (b *backEnd) look(host, name string) string {
	out := ""
	for _, in := range b.Instances(host) {
		if in.Name == name {
			out += fmt.Sprintf("%d %s %v %s\n", in.Id, in.Status, in.Labels, in.Description)
		}
	}
	for _, d := range b.Disks(host) {
		if d.Name == name {
			out += fmt.Sprintf("disk %d %v\n", d.Id, d.Users)
		}
	}
	return out
}
