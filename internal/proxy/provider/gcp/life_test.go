package gcp_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	compute "google.golang.org/api/compute/v1"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/gcp"
	"fleetdesk/internal/testkit/gcefake"
)

// Real traffic goes through an instance, and leaves by its address.
func TestTraffic(t *testing.T) {
	w := newWorld(t, true, gcefake.Options{})
	p := w.open(t)
	seen := func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		_, _ = io.WriteString(w, host)
	}
	plain, secure := httptest.NewServer(http.HandlerFunc(seen)), httptest.NewTLSServer(http.HandlerFunc(seen))
	defer plain.Close()
	defer secure.Close()
	exits := map[string]bool{}
	for i, zone := range w.Zones() {
		s := specOf(fmt.Sprint("traffic-", i), zone)
		in := up(t, p, s)
		tr := &http.Transport{
			Proxy:           http.ProxyURL(&url.URL{Scheme: "http", Host: net.JoinHostPort(in.Address, fmt.Sprint(in.Port))}),
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		}
		for _, origin := range []string{plain.URL, secure.URL} {
			resp, err := (&http.Client{Transport: tr, Timeout: 20 * time.Second}).Get(origin)
			if err != nil {
				t.Fatal(err)
			}
			exit, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if string(exit) != in.Address {
				t.Errorf("%s saw %s; the instance is %s", origin, exit, in.Address)
			}
		}
		tr.CloseIdleConnections()
		if exits[in.Address] {
			t.Errorf("two instances leave by %s", in.Address)
		}
		exits[in.Address] = true
		down(t, p, refOf(s))
	}
}

// Each status of Compute Engine has one meaning, in Get and in the list.
func TestStatuses(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	zone := w.Zones()[0]
	s := specOf("statuses", zone)
	up(t, p, s)
	for status, want := range map[string]provider.State{
		"PENDING": provider.Provisioning, "PROVISIONING": provider.Provisioning, "STAGING": provider.Provisioning,
		"PENDING_STOP": provider.Stopped, "STOPPING": provider.Stopped, "DEPROVISIONING": provider.Stopped,
		"STOPPED": provider.Stopped, "TERMINATED": provider.Stopped,
		"SUSPENDING": provider.Stopped, "SUSPENDED": provider.Stopped,
		"REPAIRING": provider.Impaired, "SOMETHING_NEW": provider.Unknown, "RUNNING": provider.Running,
	} {
		if err := w.SetStatus(zone, gcp.NameOf(s.Owner), status); err != nil {
			t.Fatal(err)
		}
		in, err := p.Get(t.Context(), refOf(s))
		if err != nil || in.State != want || in.Message == "" && want != provider.Running {
			t.Errorf("%s: Get = %+v, %v; want %s, and why", status, in, err, want)
		}
		rows, err := p.ListByTag(t.Context(), tag)
		if err != nil || len(rows[0].Instances) != 1 || rows[0].Instances[0].State != want {
			t.Errorf("%s: listed as %+v, %v; want %s", status, rows, err, want)
		}
	}
	_ = w.SetStatus(zone, gcp.NameOf(s.Owner), "TERMINATED")
	down(t, p, refOf(s))
}

// What is on its way to being off is not started before it has arrived, which
// Compute Engine would refuse; then it is.
func TestCreateWaitsForTheStop(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	zone := w.Zones()[0]
	s := specOf("stops", zone)
	in := up(t, p, s)
	for on, off := range map[string]string{"STOPPING": "TERMINATED", "PENDING_STOP": "TERMINATED", "SUSPENDING": "SUSPENDED"} {
		method := "instances.start"
		if off == "SUSPENDED" {
			method = "instances.resume"
		}
		before := w.Calls()[method]
		_ = w.SetStatus(zone, gcp.NameOf(s.Owner), on)
		for range 3 {
			if got, err := p.Create(t.Context(), s); err != nil || got.State != provider.Stopped {
				t.Errorf("%s: Create = %+v, %v; want Stopped", on, got, err)
			}
		}
		if n := w.Calls()[method] - before; n != 0 {
			t.Errorf("%s: %s was called %d times before it was off", on, method, n)
		}
		_ = w.SetStatus(zone, gcp.NameOf(s.Owner), off)
		if again := up(t, p, s); again.ID != in.ID {
			t.Errorf("%s: started as %s; it was %s", off, again.ID, in.ID)
		}
		if n := w.Calls()[method] - before; n != 1 {
			t.Errorf("%s: %s was called %d times; want once", off, method, n)
		}
	}
}

// A Spot machine that was taken back is the same one when it is started again.
func TestSpotIsTakenBackAndStarted(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	w.section.Spot = true
	p := w.open(t)
	zone := w.Zones()[0]
	s := specOf("spot", zone)
	in := up(t, p, s)
	vm := w.instanceOf(s.Owner)
	if sc := vm.Scheduling; sc == nil || sc.ProvisioningModel != "SPOT" || sc.InstanceTerminationAction != "STOP" || sc.AutomaticRestart == nil || *sc.AutomaticRestart {
		t.Errorf("asked for as %+v; want SPOT, which stops and does not start by itself", sc)
	}
	if err := w.Preempt(zone, gcp.NameOf(s.Owner)); err != nil {
		t.Fatal(err)
	}
	got, err := p.Get(t.Context(), refOf(s))
	if err != nil || got.State != provider.Stopped || !strings.Contains(got.Message, "Spot") {
		t.Errorf("taken back: %+v, %v; want Stopped and a word of Spot", got, err)
	}
	// While the zone has none it stays where it is, and says so.
	mend := w.Exhaust(zone)
	_, err = p.Create(t.Context(), s)
	if fault.Of(err) != fault.Quota || !strings.Contains(err.Error(), zone) {
		t.Errorf("starting in an exhausted zone: %s: %v; want Quota", fault.Of(err), err)
	}
	if got, err := p.Get(t.Context(), refOf(s)); err != nil || got.State != provider.Stopped {
		t.Errorf("then: %+v, %v; want Stopped", got, err)
	}
	mend()
	again := up(t, p, s)
	if again.ID != in.ID || w.instanceOf(s.Owner).Id != vm.Id {
		t.Errorf("started as %s (%d); it was %s (%d)", again.ID, w.instanceOf(s.Owner).Id, in.ID, vm.Id)
	}
}

// An instance that is going already is waited for: no second delete is sent,
// also by an operator that did not begin it.
func TestDeleteWaitsWhileItIsStopping(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	s := specOf("going", w.Zones()[0])
	up(t, p, s)
	thaw := w.Freeze()
	for range 2 {
		if st, err := p.Delete(t.Context(), refOf(s)); err != nil || st != provider.Deleting {
			t.Errorf("Delete = %s, %v; want Deleting", st, err)
		}
	}
	q := w.open(t) // the operator died meanwhile
	waits := w.Calls()["zoneOperations.wait"]
	if st, err := q.Delete(t.Context(), refOf(s)); err != nil || st != provider.Deleting {
		t.Errorf("another operator's Delete = %s, %v; want Deleting", st, err)
	}
	if w.Calls()["zoneOperations.wait"] == waits {
		t.Error("the other operator does not wait for the deletion that is under way")
	}
	if in, err := q.Create(t.Context(), s); err != nil || in.State == provider.Running || in.State == provider.Provisioning {
		t.Errorf("Create of what is going = %+v, %v", in, err)
	}
	thaw()
	down(t, q, refOf(s))
	if n := w.Calls()["instances.delete"]; n != 1 {
		t.Errorf("delete was called %d times; want once", n)
	}
	if w.instanceOf(s.Owner) != nil || len(w.Disks(s.Host)) != 0 {
		t.Errorf("left: %+v, %+v", w.Instances(s.Host), w.Disks(s.Host))
	}
}

// STOPPING without anybody's operation (the guest powers off) is waited for as
// well, and removed then.
func TestDeleteOfWhatStopsByItself(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	s := specOf("off", w.Zones()[0])
	up(t, p, s)
	_ = w.SetStatus(s.Host, gcp.NameOf(s.Owner), "STOPPING")
	for range 3 {
		if st, err := p.Delete(t.Context(), refOf(s)); err != nil || st != provider.Deleting {
			t.Errorf("Delete = %s, %v; want Deleting", st, err)
		}
	}
	if n := w.Calls()["instances.delete"]; n != 0 {
		t.Errorf("delete was called %d times on what is stopping", n)
	}
	_ = w.SetStatus(s.Host, gcp.NameOf(s.Owner), "TERMINATED")
	down(t, p, refOf(s))
}

// An insert that was begun and is not to be seen yet is neither NotFound nor
// Gone, for an operator that knows nothing of it.
func TestAnInsertUnderWayIsNoNothing(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	s := specOf("soon", w.Zones()[0])
	thaw := w.Freeze()
	if in, err := p.Create(t.Context(), s); err != nil || in.State != provider.Provisioning {
		t.Fatalf("Create = %+v, %v; want Provisioning", in, err)
	}
	q := w.open(t)
	if in, err := q.Get(t.Context(), refOf(s)); err != nil || in.State != provider.Provisioning || in.Owner != s.Owner {
		t.Errorf("Get = %+v, %v; want Provisioning", in, err)
	}
	if in, err := q.Create(t.Context(), s); err != nil || in.State != provider.Provisioning {
		t.Errorf("Create = %+v, %v; want Provisioning", in, err)
	}
	for range 2 {
		if st, err := q.Delete(t.Context(), refOf(s)); err != nil || st != provider.Deleting {
			t.Errorf("Delete = %s, %v; want Deleting", st, err)
		}
	}
	thaw()
	down(t, q, refOf(s))
	if vm := w.instanceOf(s.Owner); vm != nil {
		t.Errorf("left behind: %s", vm.Name)
	}
}

// An answer that is lost is no reason for a second machine, and an operation
// that takes longer than a call is joined by the next one.
func TestLostAnswersAndLongOperations(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	s := specOf("lost", w.Zones()[0])
	w.LoseAnswers("instances.insert", 1)
	if _, err := p.Create(t.Context(), s); fault.Of(err) != fault.Unavailable {
		t.Errorf("a lost answer: %s: %v; want Unavailable", fault.Of(err), err)
	}
	up(t, p, s)
	if n := len(w.Instances(s.Host)); n != 1 {
		t.Errorf("%d instances; want one", n)
	}
	w.LoseAnswers("instances.delete", 1)
	if _, err := p.Delete(t.Context(), refOf(s)); fault.Of(err) != fault.Unavailable {
		t.Errorf("a lost answer: %s: %v; want Unavailable", fault.Of(err), err)
	}
	down(t, p, refOf(s))

	s = specOf("long", w.Zones()[0])
	before := w.Calls()["instances.insert"]
	thaw := w.Freeze()
	for range 2 {
		if in, err := p.Create(t.Context(), s); err != nil || in.State != provider.Provisioning {
			t.Errorf("Create of what takes long = %+v, %v; want Provisioning", in, err)
		}
	}
	thaw()
	up(t, p, s)
	if n := w.Calls()["instances.insert"] - before; n != 1 {
		t.Errorf("insert was called %d times for what takes long", n)
	}
}

// An operation that has ended in the answer that began it is not waited for, and
// says as well how it ended.
func TestOperationsThatEndAtOnce(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	defer w.Instant()()
	s := specOf("instant", w.Zones()[0])
	w.FailInside("insert", "CONDITION_NOT_MET", "Constraint constraints/compute.vmExternalIpAccess violated")
	if _, err := p.Create(t.Context(), s); fault.Of(err) != fault.Permanent || !strings.Contains(err.Error(), "vmExternalIpAccess") {
		t.Errorf("%s: %v; want Permanent and the API's words", fault.Of(err), err)
	}
	if in, err := p.Create(t.Context(), s); err != nil || in.State != provider.Running {
		t.Errorf("Create = %+v, %v; want Running", in, err)
	}
	_ = w.Preempt(s.Host, gcp.NameOf(s.Owner))
	w.FailInside("start", "INTERNAL_ERROR", "Internal error. Please try again.")
	if _, err := p.Create(t.Context(), s); fault.Of(err) != fault.Transient {
		t.Errorf("a start that failed: %s: %v; want Transient", fault.Of(err), err)
	}
	if in, err := p.Create(t.Context(), s); err != nil || in.State != provider.Running {
		t.Errorf("Create = %+v, %v; want Running", in, err)
	}
	w.FailInside("delete", "INTERNAL_ERROR", "Internal error. Please try again.")
	if st, err := p.Delete(t.Context(), refOf(s)); fault.Of(err) != fault.Transient {
		t.Errorf("a delete that failed = %s: %v; want Transient", st, err)
	}
	_ = w.SetStatus(s.Host, gcp.NameOf(s.Owner), "RUNNING")
	if st, err := p.Delete(t.Context(), refOf(s)); err != nil || st != provider.Gone {
		t.Errorf("Delete = %s, %v; want Gone", st, err)
	}
	w.LeaveDisk(s.Host, gcp.NameOf(s.Owner), gcp.LabelsOf(s.Owner))
	if in, err := p.Create(t.Context(), s); err != nil || in.State != provider.Running {
		t.Errorf("Create beside a disk that stayed = %+v, %v; want Running", in, err)
	}
	if n := w.Calls()["zoneOperations.wait"]; n != 0 {
		t.Errorf("%d waits for operations that had ended", n)
	}
}

// An operation that failed after the call that began it had gone is told by the
// next call.
func TestAFailureInsideALongOperation(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	s := specOf("fails", w.Zones()[0])
	thaw := w.Freeze()
	w.FailInside("insert", "CONDITION_NOT_MET", "Constraint constraints/compute.vmExternalIpAccess violated")
	in, err := p.Create(t.Context(), s)
	if err != nil || in.State != provider.Provisioning {
		t.Fatalf("Create = %+v, %v; want Provisioning", in, err)
	}
	thaw()
	await(t, "an error", func() (bool, string) {
		in, err = p.Create(t.Context(), s)
		return err != nil, in.Message
	})
	if fault.Of(err) != fault.Permanent || !strings.Contains(err.Error(), "vmExternalIpAccess") || !strings.Contains(err.Error(), s.Host) {
		t.Errorf("%s: %v; want Permanent, with the API's words and the zone", fault.Of(err), err)
	}
}

// A disk that stayed when its instance was deleted without it is cleared away by
// the next Create, and by Delete; somebody else's is not.
func TestADiskThatStayed(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	zone := w.Zones()[0]
	s := specOf("stayed", zone)
	name := gcp.NameOf(s.Owner)
	w.LeaveDisk(zone, name, gcp.LabelsOf(s.Owner))
	up(t, p, s)
	w.Vanish(zone, name)
	w.LeaveDisk(zone, name, gcp.LabelsOf(s.Owner))
	down(t, p, refOf(s))
	if d := w.Disks(zone); len(d) != 0 {
		t.Errorf("Gone was said, and %d disks are left", len(d))
	}
	w.LeaveDisk(zone, name, map[string]string{"owner": "somebody"})
	down(t, p, refOf(s))
	if d := w.Disks(zone); len(d) != 1 {
		t.Errorf("somebody's disk was removed")
	}
	if _, err := p.Create(t.Context(), s); fault.Of(err) != fault.Permanent || !strings.Contains(err.Error(), "disk") {
		t.Errorf("with somebody's disk in the way: %s: %v; want Permanent", fault.Of(err), err)
	}
}

// That it is gone already is success, whoever says so: the call, or the operation
// inside.
func TestDeleteOfWhatIsGone(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	for name, inside := range map[string]bool{"by the call": false, "inside": true} {
		s := specOf("gone", w.Zones()[0])
		up(t, p, s)
		if inside {
			w.FailInside("delete", "RESOURCE_NOT_FOUND", "The resource was not found")
		}
		begun := w.Calls()["instances.delete"]
		ctx := provider.WithStepHook(t.Context(), func(string) error {
			if !inside {
				w.Vanish(s.Host, gcp.NameOf(s.Owner)) // somebody was quicker
			}
			return nil
		})
		st, err := p.Delete(ctx, refOf(s))
		for range 1000 {
			if err != nil || st == provider.Gone || inside {
				break
			}
			st, err = p.Delete(t.Context(), refOf(s))
		}
		if err != nil {
			t.Errorf("%s: Delete = %s, %v", name, st, err)
		}
		if n := w.Calls()["instances.delete"] - begun; n != 1 {
			t.Errorf("%s: delete was called %d times; want once", name, n)
		}
		w.Vanish(s.Host, gcp.NameOf(s.Owner))
		down(t, p, refOf(s))
	}
}

// With internal addresses nothing is asked for outside, and the address is the
// machine's own.
func TestInternalAddresses(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	w.section.Address = "internal"
	p := w.open(t)
	in := up(t, p, specOf("inside", w.Zones()[0]))
	vm := w.instanceOf(in.Owner)
	if nic := vm.NetworkInterfaces[0]; len(nic.AccessConfigs) != 0 || in.Address != nic.NetworkIP {
		t.Errorf("address %s of an instance with %+v", in.Address, nic)
	}
	// One that was made so keeps its address when the section changes.
	w.section.Address = "external"
	got, err := w.open(t).Get(t.Context(), provider.Ref{ID: in.ID, Owner: in.Owner})
	if err != nil || got.Address != in.Address || got.State != provider.Running {
		t.Errorf("with the section changed: %+v, %v; want %s", got, err, in.Address)
	}
	// And one with both is reached by the one that the section asks for.
	out := up(t, w.open(t), specOf("outside", w.Zones()[0]))
	w.section.Address = "internal"
	got, err = w.open(t).Get(t.Context(), provider.Ref{ID: out.ID, Owner: out.Owner})
	if err != nil || got.Address != w.instanceOf(out.Owner).NetworkInterfaces[0].NetworkIP || got.Address == out.Address {
		t.Errorf("with the section changed back: %+v, %v", got, err)
	}
	// While it has none it does not count as running.
	w.Change(out.Host, gcp.NameOf(out.Owner), func(vm *compute.Instance) { vm.NetworkInterfaces[0].AccessConfigs[0].NatIP = "" })
	if got, err := p.Get(t.Context(), provider.Ref{ID: out.ID, Owner: out.Owner}); err != nil || got.State != provider.Running {
		t.Errorf("by its internal address: %+v, %v", got, err)
	}
	w.section.Address = "external"
	if got, err := w.open(t).Get(t.Context(), provider.Ref{ID: out.ID, Owner: out.Owner}); err != nil || got.State != provider.Provisioning || got.Message == "" {
		t.Errorf("without an address: %+v, %v; want Provisioning, and why", got, err)
	}
}

// What an instance is made of.
func TestWhatIsAskedFor(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	w.section.Labels, w.section.Tags = map[string]string{"team": "crawl"}, []string{"fleetdesk-proxy"}
	w.section.Disk = gcp.Disk{Type: "pd-standard", SizeGiB: 12}
	p := w.open(t)
	s := specOf("plain", w.Zones()[0])
	up(t, p, s)
	vm := w.instanceOf(s.Owner)
	switch {
	case vm.Labels["team"] != "crawl" || vm.Labels["fleetdesk"] != gcp.TagOf(tag):
		t.Errorf("labels %v", vm.Labels)
	case vm.Tags == nil || len(vm.Tags.Items) != 1:
		t.Errorf("tags %+v", vm.Tags)
	case len(vm.ServiceAccounts) != 0:
		t.Errorf("acts as %+v; want nobody", vm.ServiceAccounts)
	case !vm.Disks[0].AutoDelete || vm.Disks[0].InitializeParams.DiskSizeGb != 12:
		t.Errorf("disk %+v", vm.Disks[0])
	case !strings.HasSuffix(vm.MachineType, "/e2-micro"):
		t.Errorf("machine type %s", vm.MachineType)
	case strings.Contains(fmt.Sprintf("%v %v", vm.Labels, vm.Description), "canary"):
		t.Errorf("a secret is in labels or description")
	}
	w.section.ServiceAccount = gcp.ServiceAccount{Email: "proxy@crawl-fleet.iam.gserviceaccount.com", Scopes: []string{"https://www.googleapis.com/auth/logging.write"}}
	q := w.open(t)
	for r, want := range map[provider.Resources]string{
		{MilliCPUs: 500}: "e2-small", {MemoryBytes: 2 << 30}: "e2-small", {MemoryBytes: 2<<30 + 1}: "e2-medium",
		{MilliCPUs: 2000, MemoryBytes: 1 << 30}: "e2-standard-2", {DiskBytes: 20<<30 + 1}: "e2-micro",
	} {
		s := specOf(fmt.Sprint("size-", r.MilliCPUs, "-", r.MemoryBytes), w.Zones()[0])
		s.Resources = r
		up(t, q, s)
		vm := w.instanceOf(s.Owner)
		if !strings.HasSuffix(vm.MachineType, "/"+want) || len(vm.ServiceAccounts) != 1 {
			t.Errorf("%+v led to %s (%+v); want %s", r, vm.MachineType, vm.ServiceAccounts, want)
		}
		if size := vm.Disks[0].InitializeParams.DiskSizeGb; r.DiskBytes > 0 && size != 21 {
			t.Errorf("disk of %d GiB; want 21", size)
		}
	}
	s.Resources = provider.Resources{MilliCPUs: 1 << 20}
	if _, err := q.Create(t.Context(), s); fault.Of(err) != fault.Invalid || !strings.Contains(err.Error(), "gcp.machineTypes") {
		t.Errorf("a machine that there is not: %s: %v", fault.Of(err), err)
	}
}
