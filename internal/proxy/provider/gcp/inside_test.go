package gcp_test

import (
	"strings"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/gcp"
	"fleetdesk/internal/testkit/gcefake"
)

// Errors inside operations that pass by themselves do not stop a Proxy, and
// accuse no field of the configuration, whatever their words name.
func TestPassingErrorsInsideOperations(t *testing.T) {
	const said = "Operation rate exceeded for resource 'projects/ubuntu-os-cloud/global/images/x'. Too frequent operations from the source resource."
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	for name, tc := range map[string]struct {
		reason string
		status int
		code   string
		want   fault.Class
	}{
		"rate":            {"many machines of one image at once", 403, "RESOURCE_OPERATION_RATE_EXCEEDED", fault.Transient},
		"rate, 429":       {"as above", 429, "RESOURCE_OPERATION_RATE_EXCEEDED", fault.Transient},
		"another rate":    {"any rate", 400, "SOME_RATE_EXCEEDED", fault.Transient},
		"addresses":       {"the subnetwork is full", 400, "IP_SPACE_EXHAUSTED", fault.Quota},
		"addresses more":  {"as above", 400, "IP_SPACE_EXHAUSTED_WITH_DETAILS", fault.Quota},
		"unknown, 409":    {"somebody deletes it meanwhile", 409, "OPERATION_CANCELED_BY_USER", fault.Transient},
		"unknown, 429":    {"the status tells", 429, "SOMETHING", fault.Transient},
		"unknown, 503":    {"the status tells", 503, "SOMETHING", fault.Transient},
		"unknown, 400":    {"nobody knows that it passes", 400, "SOMETHING", fault.Permanent},
		"unknown, 404":    {"the image went", 404, "SOMETHING", fault.Permanent},
		"forbidden, 403":  {"a right is missing", 403, "PERMISSIONS_ERROR", fault.Permanent},
		"no such machine": {"the zone has none of the type now", 503, "ZONE_RESOURCE_POOL_EXHAUSTED", fault.Quota},
	} {
		w.advance(11 * time.Minute)
		w.FailInsideWith("insert", tc.status, tc.code, said)
		s := specOf("inside-"+name[:3], w.Zones()[0])
		_, err := p.Create(t.Context(), s)
		if fault.Of(err) != tc.want || !strings.Contains(err.Error(), tc.code) {
			t.Errorf("%s: %s: %s: %v; want %s", name, tc.reason, fault.Of(err), err, tc.want)
		}
		if tc.want != fault.Permanent && strings.Contains(err.Error(), "check its name") {
			t.Errorf("%s: %v: accuses the image", name, err)
		}
	}
	w.FailNext("instances.insert", 403, "resourceOperationRateExceeded", said)
	if _, err := p.Create(t.Context(), specOf("by-http", w.Zones()[0])); fault.Of(err) != fault.Transient || strings.Contains(err.Error(), "grant") {
		t.Errorf("by HTTP: %s: %v; want Transient", fault.Of(err), err)
	}
}

// An instance that somebody deletes while it is made is made again by the next
// call, and no error that stops.
func TestDeletedWhileItIsMade(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{Delay: 100 * time.Millisecond})
	p := w.open(t)
	s := specOf("snatched", w.Zones()[0])
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		await(t, "there", func() (bool, string) { return w.instanceOf(s.Owner) != nil, "nothing" })
		w.Vanish(s.Host, gcp.NameOf(s.Owner))
	}()
	await(t, "refused", func() (bool, string) {
		in, err := p.Create(t.Context(), s)
		if err != nil && fault.Of(err) != fault.Transient {
			t.Errorf("%s: %v; want Transient", fault.Of(err), err)
		}
		return err != nil, string(in.State)
	})
	<-gone
	up(t, p, s)
}
