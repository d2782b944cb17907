package fleet_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/proxy/config"
	"fleetdesk/internal/proxy/operator"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/fake"
	"fleetdesk/internal/proxy/provider/gcp"
	"fleetdesk/internal/testkit/gcefake"
)

// A whole operator over the fake Compute Engine: a zone that is out of machines
// is left for the next one, a Spot machine that was taken back is started again,
// a key that is revoked takes no proxy away that works, and in the end nothing is
// left, not even a claim.
func TestOperatorOnComputeEngine(t *testing.T) {
	s, err := gcefake.New(gcefake.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	w := newWorld(t, cluster, fake.New(fake.Options{}))
	key := s.Key()
	section := gcp.Section{
		Project: s.Project(), Zones: []string{"us-east1-b", "europe-west1-b"}, Spot: true, Endpoint: s.Endpoint(), RequestsPerSecond: 500,
		Images:      map[string]string{"debian-12": "projects/debian-cloud/global/images/family/debian-12"},
		Credentials: gcp.Credentials{SecretRef: gcp.SecretRef{Name: "gcp-key"}},
	}
	o := w.start(nil, func(o *operator.Options, _ *rest.Config) {
		o.ProvidersConfig = filepath.Join(w.dir, "cloud.yaml")
		if err := os.WriteFile(o.ProvidersConfig, []byte("providers:\n- {name: cloud, kind: gcp}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		o.Build = func(e config.Entry, _ func() (provider.Provider, error)) (provider.Provider, error) {
			return gcp.New(gcp.Options{Name: e.Name, Section: section, Secret: func(context.Context, provider.SecretRef) (provider.Secret, error) {
				w.mu.Lock()
				defer w.mu.Unlock()
				return key, nil
			}})
		}
	})
	machines := func() (all []string) {
		for _, zone := range s.Zones() {
			for _, vm := range s.Instances(zone) {
				all = append(all, fmt.Sprint(zone, " ", vm.Name, " ", vm.Status))
			}
			for _, d := range s.Disks(zone) {
				all = append(all, fmt.Sprint(zone, " disk ", d.Name))
			}
		}
		return all
	}
	ready := func(name, zone string) func() string {
		return func() string {
			px := w.get(name)
			if px.Status.Phase != v1alpha1.PhaseReady || px.Status.Host != zone || len(s.Instances(zone)) != 1 || s.Instances(zone)[0].Status != "RUNNING" {
				return fmt.Sprintf("%+v, machines %q", px.Status, machines())
			}
			return ""
		}
	}

	mend := s.Exhaust("us-east1-b")
	w.create("a", func(px *v1alpha1.Proxy) { px.Spec.Provider, px.Spec.Port = "cloud", 43128 })
	w.until(o, "that the zone is exhausted", func() string {
		c := apimeta.FindStatusCondition(w.get("a").Status.Conditions, v1alpha1.ConditionProvisioned)
		if c == nil || c.Reason != v1alpha1.ReasonQuota || !strings.Contains(c.Message, "us-east1-b") {
			return fmt.Sprintf("%+v", c)
		}
		return ""
	})
	// The pause after Quota is half a minute and more; a change of the spec ends it.
	px := w.get("a")
	px.Spec.HealthCheck.Interval = "2s"
	if err := w.client.Update(t.Context(), px); err != nil {
		t.Fatal(err)
	}
	w.until(o, "Ready in the next zone", ready("a", "europe-west1-b"))
	mend()
	at := w.get("a").Status
	if exit := exitBy(t, at.Address, int(at.Port)); exit != at.Address {
		t.Errorf("by the proxy at %s traffic leaves as %s", at.Address, exit)
	}

	if err := s.Preempt("europe-west1-b", s.Instances("europe-west1-b")[0].Name); err != nil {
		t.Fatal(err)
	}
	w.until(o, "Ready again", ready("a", "europe-west1-b"))
	if n := s.Calls()["instances.start"]; n != 1 {
		t.Errorf("it was started %d times; want once", n)
	}

	s.RevokeKey()
	w.until(o, "the provider saying that its key was revoked", func() string {
		var list v1alpha1.ProxyProviderList
		if err := w.client.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
		for _, p := range list.Items {
			for _, h := range p.Status.Hosts {
				if p.Name == "cloud" && h.Reason == gcp.ReasonCredentials && strings.Contains(h.Message, "revoked") {
					return ""
				}
			}
		}
		return fmt.Sprintf("%+v", list.Items)
	})
	if px := w.get("a"); px.Status.Phase != v1alpha1.PhaseReady {
		t.Errorf("a proxy that works is %s since the operator's key was revoked", px.Status.Phase)
	}
	w.mu.Lock()
	key = s.Key()
	w.mu.Unlock()

	w.delete("a")
	w.until(o, "that it is gone", func() string {
		if px := w.get("a"); px != nil {
			return fmt.Sprintf("%+v", px.Status)
		}
		return strings.Join(machines(), ", ")
	})
	if len(s.Groups("us-east1-b")) != 1 {
		t.Errorf("the operator claims %+v; want one group", s.Groups("us-east1-b"))
	}
	o.stop()
	for _, zone := range section.Zones {
		if left := s.Groups(zone); len(left) != 0 {
			t.Errorf("it ended and left the claims %+v", left)
		}
	}
}

// exitBy is the address that an origin sees of a request through a proxy.
func exitBy(t *testing.T, address string, port int) string {
	t.Helper()
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		_, _ = io.WriteString(w, host)
	}))
	defer origin.Close()
	tr := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: net.JoinHostPort(address, fmt.Sprint(port))})}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr, Timeout: 30 * time.Second}).Get(origin.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	exit, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(exit)
}
