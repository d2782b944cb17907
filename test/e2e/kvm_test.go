//go:build integration

package e2e_test

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleetdesk/internal/testkit/gcefake"
	"fleetdesk/internal/testkit/kubelet"
	"fleetdesk/internal/testkit/libvirthost"
)

// gceProxy is the first argument of a process that is an instance of the fake
// Compute Engine.
const gceProxy = "gce-proxy"

func TestMain(m *testing.M) {
	kubelet.Child(os.Args) // does not return in a Pod's process
	if len(os.Args) > 1 && os.Args[1] == gceProxy {
		os.Exit(gcefake.Proxy(os.Args[2:], os.Stdin))
	}
	os.Exit(libvirthost.Main(m, libvirthost.Options{}))
}

// The whole way on a real libvirt host: from kubectl apply to a page fetched
// through squid in a virtual machine, the machine stopped behind the operator's
// back and started again, the operator killed and started anew, and nothing
// left after kubectl delete.
func TestRealKVMFromApplyToAPageThroughSquid(t *testing.T) {
	h := libvirthost.Start(t, libvirthost.HostOptions{N: 1})
	foreign, err := h.PlantForeign(t.Context(), "somebodys", "")
	if err != nil {
		t.Fatal(err)
	}
	page := libvirthost.Serve(t, http.HandlerFunc(libvirthost.Hello))
	config := h.ProvidersFile(t)
	data := filepath.Join(t.TempDir(), "data")
	args := []string{"--providers-config", config, "--origin-bind-address", libvirthost.Gateway + ":0", "-v"}
	p := start(t, data, args...)

	began := time.Now()
	stage := func(what string) { t.Logf("%6.1fs %s", time.Since(began).Seconds(), what) }
	p.kubectl(`
apiVersion: crawl.example.com/v1alpha1
kind: Proxy
metadata: {name: one}
spec:
  provider: kvm-home
  resources: {cpus: 1, memory: 512Mi}
  healthCheck: {interval: 1s, timeout: 900ms, failureThreshold: 2}
  cloudInit:
    inline: |
`+indent(libvirthost.SquidUserData, 6), "apply", "-f", "-")
	stage("applied")
	seen := ""
	until(t, "an address", func() string {
		out := p.kubectl("", "get", "proxy", "one", "-o", `jsonpath={.status.address}|{.status.conditions[?(@.type=="Provisioned")].message}`)
		address, message, _ := strings.Cut(out, "|")
		if label, _, _ := strings.Cut(message, " since "); label != seen && message != "" {
			seen = label
			stage(message)
		}
		if address == "" {
			return out
		}
		stage("address " + address)
		return ""
	})
	api := p.api(t)
	px := ready(t, api, "one")
	stage("Ready, exit IP " + px.ExitIP)
	got := fetch(t, px, nil, page.URL)
	stage("fetched: " + got)
	if !strings.Contains(got, "hello "+px.Address) || !strings.Contains(got, "squid") || !strings.Contains(got, "from-user-data") || px.ExitIP != px.Address {
		t.Errorf("the page says %q; the proxy's address is %s, its exit IP %s", got, px.Address, px.ExitIP)
	}
	// As Debian configures it, squid tells every site of itself and of its client.
	if px.Leaks == nil || !slices.Equal(*px.Leaks, []string{"Via", "X-Forwarded-For"}) {
		t.Errorf("squid leaks %v", px.Leaks)
	}

	// Stopped on the host: started again, as the same instance.
	id := p.kubectl("", "get", "proxy", "one", "-o", "jsonpath={.status.providerID}")
	domains, err := h.Domains(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ours := ""
	for _, d := range domains {
		if strings.HasPrefix(d, "fd-") {
			ours = d
		}
	}
	began = time.Now()
	if _, err := h.Virsh(t.Context(), "destroy", ours); err != nil {
		t.Fatal(err)
	}
	until(t, "the proxy seen as stopped", func() string {
		if out := p.kubectl("", "get", "proxy", "one", "-o", "jsonpath={.status.phase}"); out == "Ready" {
			return out
		}
		return ""
	})
	stage("seen as stopped")

	// The operator dies meanwhile; the next one goes on.
	p.signal(syscall.SIGKILL)
	p.end()
	p = start(t, data, args...)
	api = p.api(t)
	px = ready(t, api, "one")
	stage("Ready again")
	if again := p.kubectl("", "get", "proxy", "one", "-o", "jsonpath={.status.providerID}"); again != id {
		t.Errorf("it was %s and is %s", id, again)
	}
	fetch(t, px, nil, page.URL)

	began = time.Now()
	p.kubectl("", "delete", "proxy", "one", "--timeout=60s")
	stage("deleted")
	// An operator's claim stays while it lives, and that of a killed one until
	// the next one is sure of it.
	if left := h.Leftovers(t, "fleetdesk-image-*", "fleetdesk-claim-*"); len(left) > 0 {
		t.Errorf("left on the host: %q", left)
	}
	if err := foreign.Untouched(t.Context()); err != nil {
		t.Error(err)
	}
}

func indent(text string, n int) string {
	pad := strings.Repeat(" ", n)
	return pad + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n"+pad) + "\n"
}
