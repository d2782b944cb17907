package gcefake_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	compute "google.golang.org/api/compute/v1"

	"fleetdesk/internal/testkit/gcefake"
)

// What goes wrong on demand goes wrong as asked, and ends with mend.
func TestKnobs(t *testing.T) {
	r := newRig(t, gcefake.Options{})
	r.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	zones := func() error { _, err := r.Service.Zones.Get(r.project, zone).Do(); return err }
	insert := func(change func(*compute.Instance)) error {
		in := machine("new")
		change(in)
		_, err := r.Service.Instances.Insert(r.project, zone, in).Do()
		return err
	}
	as := func(*compute.Instance) {}
	r.LeaveDisk(zone, "new", nil)
	for name, tc := range map[string]struct {
		set    func() func()
		call   func() error
		status int
		reason string
	}{
		"hidden project": {r.HideProject, zones, 404, "notFound"},
		"redirect":       {func() func() { return r.Redirect("http://192.0.2.1/") }, zones, 307, ""},
		"disk":           {r.RefuseDisks, func() error { return insert(as) }, 409, "alreadyExists"},
		"CPUs":           {func() func() { return r.Quota("europe-west1", "CPUS", 1) }, func() error { return insert(as) }, 403, "quotaExceeded"},
		"CPUs of Spot": {func() func() { return r.Quota("europe-west1", "PREEMPTIBLE_CPUS", 1) }, func() error {
			return insert(func(in *compute.Instance) { in.Scheduling = &compute.Scheduling{ProvisioningModel: "SPOT"} })
		}, 403, "quotaExceeded"},
		"addresses": {func() func() { return r.Quota("europe-west1", "IN_USE_ADDRESSES", 0) }, func() error {
			return insert(func(in *compute.Instance) {
				in.NetworkInterfaces[0].AccessConfigs = []*compute.AccessConfig{{Type: "ONE_TO_ONE_NAT"}}
			})
		}, 403, "quotaExceeded"},
	} {
		mend := tc.set()
		if status, reason := codeOf(tc.call()); status != tc.status || reason != tc.reason {
			t.Errorf("%s: %d %s; want %d %s", name, status, reason, tc.status, tc.reason)
		}
		mend()
		if err := zones(); err != nil {
			t.Errorf("%s, mended: %v", name, err)
		}
	}
	r.RemoveDisk(zone, "new")
	for code, status := range map[string]int64{"RESOURCE_OPERATION_RATE_EXCEEDED": 403, "RESOURCE_NOT_FOUND": 404, "SOMETHING": 400} {
		r.FailInside("insert", code, "no")
		if op := r.insert(t, machine("new")); op.Error == nil || op.Error.Errors[0].Code != code || op.HttpErrorStatusCode != status {
			t.Errorf("%s: %+v; want it inside, with %d", code, op, status)
		}
	}
	r.FailInsideWith("insert", 429, "SOMETHING", "no")
	if op := r.insert(t, machine("new")); op.HttpErrorStatusCode != 429 {
		t.Errorf("%+v; want status 429", op)
	}
}

// A hasty wait answers before the operation ends, and an insert whose instance
// is removed meanwhile fails inside.
func TestHastyWaitsAndRemovals(t *testing.T) {
	r := newRig(t, gcefake.Options{Delay: 200 * time.Millisecond})
	mend := r.HastyWaits()
	op, err := r.Service.Instances.Insert(r.project, zone, machine("a")).Do()
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); len(r.Server.Instances(zone)) == 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		if got, err := r.ZoneOperations.Wait(r.project, zone, op.Name).Do(); err != nil || got.Status == "DONE" {
			t.Fatalf("%+v, %v; want one that is under way", got, err)
		}
	}
	r.Vanish(zone, "a")
	mend()
	got, err := r.ZoneOperations.Wait(r.project, zone, op.Name).Do()
	if err != nil || got.Error == nil || got.HttpErrorStatusCode != 409 {
		t.Errorf("removed meanwhile: %+v, %v; want 409 inside", got, err)
	}
}

// A token endpoint that is away gives no token; one that is back does.
func TestBreakTokens(t *testing.T) {
	r := newRig(t, gcefake.Options{})
	for name, a := range map[string]gcefake.Answer{
		"broken off": {}, "refused": {Status: 403, Type: "text/html", Body: "<html>no</html>"}, "a page": {Status: 200, Type: "text/html", Body: "<html>"},
	} {
		mend := r.BreakTokens(a)
		if _, err := r.Service.Zones.Get(r.project, zone).Do(); err == nil || !strings.Contains(err.Error(), "oauth2: cannot fetch token") {
			t.Errorf("%s: %v; want no token", name, err)
		}
		mend()
	}
	if _, err := r.Service.Zones.Get(r.project, zone).Do(); err != nil {
		t.Error(err)
	}
}
