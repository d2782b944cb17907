package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/deskkeys"
)

// endpoints is endpoints.json (0600), for programs: it is there while the
// process is ready, and only grows.
type endpoints struct {
	// PID is the process.
	PID int `json:"pid"`
	// Kubeconfig is a file, KubernetesURL the server that it names.
	Kubeconfig    string `json:"kubeconfig"`
	KubernetesURL string `json:"kubernetesURL"`
	// APIURL is the base of the client API, TokenFile the file of the first
	// admin token for it.
	APIURL    string `json:"apiURL"`
	TokenFile string `json:"tokenFile"`
	// OriginURL is the page that says where a request came from; absent
	// without an origin.
	OriginURL string `json:"originURL,omitempty"`
	// APIReadySeconds is how long the Kubernetes API took to be ready.
	APIReadySeconds float64 `json:"apiReadySeconds"`
}

// announce writes endpoints.json and says where everything is.
func (s *standalone) announce(cfg *rest.Config, at Endpoints) error {
	b, err := json.MarshalIndent(endpoints{
		PID: os.Getpid(), Kubeconfig: s.data.path(kubeconfigFile), KubernetesURL: cfg.Host,
		APIURL: at.API, TokenFile: at.AdminTokenFile, OriginURL: at.Origin,
		APIReadySeconds: s.apiReady.Seconds(),
	}, "", "  ")
	if err != nil {
		return err
	}
	if err := s.data.write(endpointsFile, append(b, '\n')); err != nil {
		return err
	}
	s.say("ready")
	out := s.streams.Out
	fmt.Fprintf(out, "\nKubernetes API  %s   kubeconfig %s\n", cfg.Host, s.data.path(kubeconfigFile))
	fmt.Fprintf(out, "Client API      %s\n", at.API)
	fmt.Fprintf(out, "Admin token     %s\n", s.tokenText(at))
	return nil
}

// tokenText shows a new token once, and only to a terminal: what goes to a
// pipe ends up in a log.
func (s *standalone) tokenText(at Endpoints) string {
	if at.NewAdminToken && s.streams.OutIsTerminal {
		if b, err := os.ReadFile(at.AdminTokenFile); err == nil {
			return strings.TrimSpace(string(b)) + "   (shown once; kept in " + at.AdminTokenFile + ")"
		}
	}
	if missing(at.AdminTokenFile) {
		return "lost: " + at.AdminTokenFile + " is gone; make another one with " +
			"proxy-operator-standalone " + adminTokenCommand + " --data-dir " + quote(s.o.DataDir)
	}
	return "in " + at.AdminTokenFile
}

// startGuide makes the demo's Proxies if asked, and prints three commands to
// try. It runs beside, and the returned func ends it.
func (s *standalone) startGuide(ctx context.Context, cfg *rest.Config, at Endpoints) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := s.guide(ctx, cfg, at)
		if err != nil && ctx.Err() == nil {
			s.say("%v", err)
		}
	}()
	return func() { cancel(); <-done }
}

func (s *standalone) guide(ctx context.Context, cfg *rest.Config, at Endpoints) error {
	sc, err := scheme()
	if err != nil {
		return err
	}
	kube, err := client.New(cfg, client.Options{Scheme: sc})
	if err != nil {
		return fault.Errorf(fault.Unavailable, "the Kubernetes API cannot be used: %w", err)
	}
	var failed error
	if s.o.Demo {
		failed = runDemo(ctx, kube, s.say)
	}
	ready, err := oneReady(ctx, kube)
	if err != nil {
		return errors.Join(failed, err)
	}
	s.printCommands(at, ready)
	return failed
}

// printCommands prints what to type next; ready is a Proxy, or nil.
func (s *standalone) printCommands(at Endpoints, ready *v1alpha1.Proxy) {
	kubectl := "KUBECONFIG=" + quote(s.data.path(kubeconfigFile)) + " " + quote(s.o.Kubectl)
	out := s.streams.Out
	fmt.Fprintf(out, "\nTry in another terminal:\n\n")
	if ready == nil {
		fmt.Fprintf(out, "  echo '%s' | %s apply -f -\n", demoManifest(demoNames()[0]), kubectl)
	}
	fmt.Fprintf(out, "  %s get proxies -A\n", kubectl)
	bearer := "-H \"Authorization: Bearer $(cat " + quote(at.AdminTokenFile) + ")\""
	fmt.Fprintf(out, "  curl %s %s/api/v1/proxies\n", bearer, at.API)
	if ready != nil {
		// The header Lease-Secret of the answer gives it back.
		fmt.Fprintf(out, "  curl -i %s -H 'Content-Type: application/json' -d '{\"pool\":%q}' %s/api/v1/leases\n",
			bearer, deskkeys.PoolName(ready.Namespace, v1alpha1.DefaultPool), at.API)
	}
	if ready != nil && at.Origin != "" {
		fmt.Fprintf(out, "  curl -x %s %s/ip\n", proxyURL(ready), at.Origin)
	}
	stay := "Local proxies go on running and the next start takes them over; --stop-proxies ends them."
	if s.o.StopProxies {
		stay = "That ends local proxies too; the next start starts them again."
	}
	fmt.Fprintf(out, "\nStop with Ctrl-C. %s\n", stay)
}

func proxyURL(px *v1alpha1.Proxy) string {
	return string(px.Spec.Protocol) + "://" + net.JoinHostPort(px.Status.Address, strconv.Itoa(int(px.Status.Port)))
}

// oneReady returns a Proxy that works and wants no password, or nil.
func oneReady(ctx context.Context, kube client.Reader) (*v1alpha1.Proxy, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var list v1alpha1.ProxyList
	if err := kube.List(ctx, &list, client.Limit(500)); err != nil {
		return nil, fault.Errorf(fault.Unavailable, "Proxies cannot be listed: %w", err)
	}
	for i := range list.Items {
		if px := &list.Items[i]; px.Status.Phase == v1alpha1.PhaseReady && px.Spec.AuthSecretRef == nil {
			return px, nil
		}
	}
	return nil, nil
}

// findKubectl returns a kubectl that the printed commands can name: by its
// name when it is on the PATH, by its path when it lies beside our binary.
func findKubectl(environ []string, executable string) string {
	for _, dir := range filepath.SplitList(lookup(environ, "PATH")) {
		if filepath.IsAbs(dir) && runnable(filepath.Join(dir, "kubectl")) {
			return "kubectl"
		}
	}
	for _, place := range []string{"k8s/kubectl", "kubectl"} {
		if path := filepath.Join(filepath.Dir(executable), place); runnable(path) {
			return path
		}
	}
	return "kubectl"
}

func runnable(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode().IsRegular() && fi.Mode().Perm()&0o111 != 0
}

// quote makes one word for a shell.
func quote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+:,@%", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
