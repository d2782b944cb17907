//go:build integration

package e2e_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"fleetdesk/client"
	"fleetdesk/internal/testkit/gcefake"
	"fleetdesk/internal/testkit/kube"
	"fleetdesk/internal/testkit/kubelet"
	"fleetdesk/internal/testkit/libvirthost"
)

// secret puts a file into a Secret of the operator's namespace.
func (p *program) secret(name, key string, text []byte) {
	p.t.Helper()
	file := filepath.Join(p.t.TempDir(), key)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		p.t.Fatal(err)
	}
	p.kubectl("", "-n", "fleetdesk-system", "create", "secret", "generic", name, "--from-file="+key+"="+file)
}

// One operator has a proxy of each provider that we ship: a process, a virtual
// machine of a real libvirt host, a Pod of a whole API server elsewhere, and an
// instance of the fake Compute Engine. Traffic goes through each of them, a lease
// of each kind is handed out, and the operator is killed and started again while
// all four work on. When one provider's far side goes away, the others are kept.
func TestRealOneProxyOfEachProvider(t *testing.T) {
	h := libvirthost.Start(t, libvirthost.HostOptions{N: 1})
	away := kube.Start(t, kube.Options{})
	pods := away.Namespace(t)
	nodes := kubelet.Start(t, kubelet.Options{Config: away.Config(t), Namespace: pods})
	cloud, err := gcefake.New(gcefake.Options{Command: []string{os.Args[0], gceProxy}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cloud.Close)
	zone := cloud.Zones()[0]
	page := libvirthost.Serve(t, http.HandlerFunc(libvirthost.Hello))

	config := h.ProvidersFile(t)
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	text = fmt.Appendf(text, `
- {name: local, kind: local}
- name: pods
  kind: kubernetes
  kubernetes: {cluster: away, namespace: %s, kubeconfigSecret: {name: away-kubeconfig}}
- name: cloud
  kind: gcp
  gcp:
    project: %s
    zones: [%s]
    endpoint: %s
    images: {debian-12: projects/debian-cloud/global/images/family/debian-12}
    defaultImage: debian-12
    credentials: {secretRef: {name: gcp-key}}
`, pods, cloud.Project(), zone, cloud.Endpoint())
	if err := os.WriteFile(config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(t.TempDir(), "data")
	args := []string{"--providers-config", config, "--origin-bind-address", libvirthost.Gateway + ":0", "-v"}
	p := start(t, data, args...)
	began := time.Now()
	stage := func(what string) { t.Logf("%6.1fs %s", time.Since(began).Seconds(), what) }

	names := []string{"home", "guest", "pod", "vm"}
	manifests := ""
	for name, spec := range map[string]string{
		"home":  "provider: local",
		"guest": "provider: kvm-home\n  resources: {cpus: 1, memory: 512Mi}\n  cloudInit:\n    inline: |\n" + indent(libvirthost.SquidUserData, 6),
		"pod":   "provider: pods",
		"vm":    "provider: cloud\n  port: 43128\n  cloudInit: {inline: \"#cloud-config\\n\"}",
	} {
		manifests += fmt.Sprintf("---\napiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {name: %s, labels: {kind: %s}}\nspec:\n  healthCheck: {interval: 1s, timeout: 900ms, failureThreshold: 2}\n  %s\n", name, name, spec)
	}
	p.kubectl(manifests, "apply", "-f", "-")
	// Credentials may come later than what needs them.
	p.secret("gcp-key", "key.json", cloud.Key())
	user := away.User(t, "fleetdesk", "system:masters")
	raw := clientcmdapi.NewConfig()
	raw.CurrentContext = "away"
	raw.Contexts["away"] = &clientcmdapi.Context{Cluster: "away", AuthInfo: "operator"}
	raw.Clusters["away"] = &clientcmdapi.Cluster{Server: user.Host, CertificateAuthorityData: user.CAData}
	raw.AuthInfos["operator"] = &clientcmdapi.AuthInfo{ClientCertificateData: user.CertData, ClientKeyData: user.KeyData}
	kubeconfig, err := clientcmd.Write(*raw)
	if err != nil {
		t.Fatal(err)
	}
	p.secret("away-kubeconfig", "kubeconfig", kubeconfig)

	works := func(api *client.Client, name string) client.Proxy {
		t.Helper()
		px := ready(t, api, name)
		// Those on loopback reach the page, which guests reach too, by this machine's
		// own address there.
		if got := fetch(t, px, nil, page.URL); px.ExitIP == "" || !strings.Contains(got, "hello "+px.ExitIP+" ") {
			t.Errorf("through %s the page says %q; its address is %s, its exit IP %s", name, got, px.Address, px.ExitIP)
		}
		return px
	}
	api := p.api(t)
	ids := map[string]string{}
	id := func(name string) string {
		return p.kubectl("", "get", "proxy", name, "-o", "jsonpath={.status.providerID}")
	}
	for _, name := range []string{"home", "pod", "vm", "guest"} { // the quick ones first
		px := works(api, name)
		ids[name] = id(name)
		stage(fmt.Sprintf("%s works at %s: %s", name, px.Address, ids[name]))
	}
	for _, name := range names {
		l, err := api.Take(t.Context(), "default.default", client.TakeOptions{Holder: "e2e", Wish: client.Wish{Selector: "kind=" + name}, TTL: time.Minute})
		if err != nil {
			t.Fatalf("a lease of %s: %v", name, err)
		}
		if err := fetchBy(t, l, page.URL); err != nil {
			t.Errorf("by the lease of %s: %v", name, err)
		}
		if _, err := l.Release(t.Context(), client.ReleaseRequest{}); err != nil {
			t.Error(err)
		}
	}
	for line := range strings.Lines(p.kubectl("", "get", "proxyproviders,proxies", "-A", "-o", "wide")) {
		t.Log(strings.TrimRight(line, "\n"))
	}

	// The operator dies; what it made goes on, and the next one takes it over.
	p.signal(syscall.SIGKILL)
	p.end()
	p = start(t, data, args...)
	api = p.api(t)
	for _, name := range names {
		works(api, name)
		if again := id(name); again != ids[name] {
			t.Errorf("%s was %s and is %s", name, ids[name], again)
		}
	}
	stage("all work under the next operator")

	// One zone does not answer: its proxy still proxies, and the others' are repaired.
	mend := cloud.MuteZone(zone)
	pod := ids["pod"][strings.LastIndex(ids["pod"], "/")+1:]
	nodes.Evict(t, pod)
	until(t, "the Pod being made again while a zone is mute", func() string {
		if n := len(nodes.Processes(pod)); n != 1 {
			return fmt.Sprintf("%d processes", n)
		}
		return ""
	})
	for _, name := range names {
		works(api, name)
	}
	mend()
	stage("one provider's silence stopped nobody")

	p.kubectl("", append([]string{"delete", "proxy", "--timeout=60s"}, names...)...)
	stage("deleted")
	if left := h.Leftovers(t, "fleetdesk-image-*", "fleetdesk-claim-*"); len(left) > 0 {
		t.Errorf("left on the libvirt host: %q", left)
	}
	if left := cloud.Instances(zone); len(left) > 0 {
		t.Errorf("%d instances are left", len(left))
	}
	if left := cloud.Disks(zone); len(left) > 0 {
		t.Errorf("%d disks are left", len(left))
	}
	if left := nodes.Processes(pod); len(left) > 0 {
		t.Errorf("%d processes of Pods are left", len(left))
	}
	if pids := processes(t, data); len(pids) > 0 {
		t.Errorf("local proxies %d are left", pids)
	}
}
