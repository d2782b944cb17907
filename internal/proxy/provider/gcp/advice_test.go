package gcp_test

import (
	"net"
	"strings"
	"testing"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/gcp"
	"fleetdesk/internal/testkit/gcefake"
)

// What is refused for another reason than a missing permission does not send
// people to look for one.
func TestRefusalsSendPeopleTheRightWay(t *testing.T) {
	for name, tc := range map[string]struct {
		status       int
		reason, text string
		want         string
	}{
		"no billing":       {403, "accountDisabled", "This API method requires billing to be enabled.", "billing account"},
		"billing, unnamed": {403, "forbidden", "This API method requires billing to be enabled on project #crawl-fleet", "billing account"},
		"a policy":         {403, "forbidden", "Constraint constraints/compute.vmExternalIpAccess violated for project 1", "policy of the organisation"},
		"a policy, by 412": {412, "conditionNotMet", "Constraint constraints/compute.trustedImageProjects violated for project 1. Use of images from project ubuntu-os-cloud is prohibited.", "policy of the organisation"},
	} {
		w := newWorld(t, false, gcefake.Options{})
		p := w.open(t)
		w.FailNext("instances.insert", tc.status, tc.reason, tc.text)
		_, err := p.Create(t.Context(), specOf("a", w.Zones()[0]))
		if fault.Of(err) != fault.Permanent || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "grant") || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: %s: %v; want Permanent with %q", name, fault.Of(err), err, tc.want)
		}
	}
	w := newWorld(t, false, gcefake.Options{})
	p := w.open(t)
	w.FailNext("zones.get", 403, "accountDisabled", "This API method requires billing to be enabled.")
	if rows, _ := p.Check(t.Context()); !strings.Contains(rows[0].Message+rows[1].Message+rows[2].Message, "billing account") {
		t.Errorf("Check: %+v", rows)
	}
}

// Application default credentials whose metadata server does not answer are a
// matter of credentials, and not of the API's address.
func TestAMetadataServerThatIsAway(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close() // nobody is there now
	t.Setenv("GCE_METADATA_HOST", address)
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", "")
	t.Setenv("HOME", t.TempDir())
	w := newWorld(t, false, gcefake.Options{})
	w.section.Credentials = gcp.Credentials{}
	p := w.open(t)
	rows, _ := p.Check(t.Context())
	if rows[0].Reason != gcp.ReasonCredentials || !strings.Contains(rows[0].Message, "application default credentials") {
		t.Errorf("%+v; want %s", rows[0], gcp.ReasonCredentials)
	}
}
