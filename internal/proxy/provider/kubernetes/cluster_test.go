package kubernetes_test

import (
	"strings"
	"testing"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kubernetes"
)

const goodKubeconfig = `apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: "https://192.0.2.9:6443"}}]
users: [{name: u, user: {token: canary-secret}}]
`

// A kubeconfig from a Secret may neither run programs in the operator nor have
// it read files, and what is wrong with one is said without quoting it.
func TestParseKubeconfig(t *testing.T) {
	if cfg, err := kubernetes.ParseKubeconfig(provider.Secret(goodKubeconfig)); err != nil || cfg.Host != "https://192.0.2.9:6443" || cfg.BearerToken != "canary-secret" {
		t.Fatalf("a good one: %v", err)
	}
	for name, tc := range map[string]struct{ reason, old, new, says string }{
		"program":      {"whoever writes the Secret would run programs in the operator", "token: canary-secret", "exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/canary-secret, interactiveMode: Never}", "runs a program"},
		"auth plug-in": {"the same by its old name", "token: canary-secret", "auth-provider: {name: gcp}", "runs a program"},
		"token file":   {"the operator's own token would go to a foreign server", "token: canary-secret", "tokenFile: /var/run/secrets/canary-secret", "names files"},
		"CA file":      {"a file of the operator's machine", "server:", "certificate-authority: /etc/canary-secret, server:", "names files"},
		"key file":     {"a file of the operator's machine", "token: canary-secret", "client-certificate: /etc/a, client-key: /etc/canary-secret", "names files"},
		"no check":     {"anybody could be the server", "server:", "insecure-skip-tls-verify: true, server:", "check of the server's certificate"},
		"no context":   {"kubectl would go to localhost", "current-context: c", "current-context: d", "current-context"},
		"no cluster":   {"as above", "cluster: k,", "cluster: l,", "names no cluster"},
		"plain":        {"the token would go over the wire as it is", "https://", "http://", "begins with https://"},
		"no host":      {"nowhere to go", "https://192.0.2.9:6443", "https:///x", "begins with https://"},
		"key is none":  {"cut while copied", "token: canary-secret", "client-certificate-data: Y2FuYXJ5LXNlY3JldA==, client-key-data: Y2FuYXJ5LXNlY3JldA==", ""},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(goodKubeconfig, tc.old, tc.new, 1)
			if text == goodKubeconfig {
				t.Fatal("the case changes nothing")
			}
			_, err := kubernetes.ParseKubeconfig(provider.Secret(text))
			if tc.says == "" {
				if err == nil {
					p := withKubeconfig(t, text)
					_, err = p.Get(t.Context(), provider.Ref{Owner: ownerOf("x")})
				}
			}
			if err == nil || fault.Of(err) != fault.Permanent || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "canary") {
				t.Errorf("%s: %s: %v; want Permanent with %q and no secret", tc.reason, fault.Of(err), err, tc.says)
			}
		})
	}
}

func withKubeconfig(t *testing.T, text string) *kubernetes.Provider {
	t.Helper()
	s := &secrets{}
	s.put("k", text)
	p, err := kubernetes.New(kubernetes.Options{Name: "k", Section: kubernetes.Section{Namespace: "proxies", KubeconfigSecret: &kubernetes.KubeconfigSecret{Name: "k"}}, Secret: s.get})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// Outside a cluster, and without a way to read Secrets, the provider is built
// and says what is missing when it is used: the others go on.
func TestNoWayToACluster(t *testing.T) {
	for name, tc := range map[string]struct {
		section kubernetes.Section
		says    string
	}{
		"own cluster": {kubernetes.Section{Namespace: "proxies"}, "does not run in a cluster of its own"},
		"no Secrets":  {kubernetes.Section{Namespace: "proxies", KubeconfigSecret: &kubernetes.KubeconfigSecret{Name: "k"}}, "no way to read Secrets"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := kubernetes.New(kubernetes.Options{Name: "k", Section: tc.section})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			_, err = p.Get(t.Context(), provider.Ref{Owner: ownerOf("x")})
			if fault.Of(err) != fault.Permanent || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("Get: %s: %v; want Permanent with %q", fault.Of(err), err, tc.says)
			}
			if row := health(t, p); row.Reason != kubernetes.ReasonKubeconfig || !strings.Contains(row.Message, tc.says) {
				t.Errorf("Check = %+v", row)
			}
		})
	}
}

// Nothing is asked before it is needed, and a Secret is read once for many calls.
func TestSecretIsReadLazily(t *testing.T) {
	s := &secrets{}
	s.put("k", goodKubeconfig)
	p, err := kubernetes.New(kubernetes.Options{Name: "k", Section: kubernetes.Section{Namespace: "proxies", KubeconfigSecret: &kubernetes.KubeconfigSecret{Name: "k"}}, Secret: s.get, StepLimit: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if s.reads != 0 {
		t.Errorf("New read the Secret")
	}
	for range 5 {
		_, _ = p.Get(t.Context(), provider.Ref{Owner: ownerOf("x")})
	}
	if s.reads > 1 {
		t.Errorf("five calls read the Secret %d times", s.reads)
	}
}
