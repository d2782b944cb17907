package builtin_test

import (
	"io"
	"log/slog"
	"strings"
	"testing"

	"fleetdesk/config/samples"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/config"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/builtin"
)

func build(t *testing.T, text string) (provider.Provider, error) {
	t.Helper()
	f, err := config.Parse("providers.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p, err := builtin.Build(f.Providers[0], builtin.Deps{StateDir: t.TempDir(), LocalCommand: []string{"/bin/true"}, Log: slog.New(slog.DiscardHandler)})
	if c, ok := p.(io.Closer); ok && p != nil {
		t.Cleanup(func() { _ = c.Close() })
	}
	return p, err
}

// The samples are the files that people copy: each builds, with what it names
// on no disk here, since SSH's files may come later.
func TestSamplesBuild(t *testing.T) {
	for _, name := range []string{"providers.yaml", "providers_gcp.yaml", "providers_kvm.yaml", "providers_kubernetes.yaml"} {
		text, err := samples.Files.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		p, err := build(t, string(text))
		if err != nil || p == nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, ok := p.(provider.Checker); !ok {
			t.Errorf("%s: the provider has no Check", name)
		}
	}
}

// What is wrong in a section names the file, the line and the field.
func TestBadSections(t *testing.T) {
	const head = `providers:
- name: home
  kind: kvm
  kvm:
    ssh: {user: libvirt, keyFile: /etc/kvm/key, knownHostsFile: /etc/kvm/known_hosts}
    hosts:
      box-1:
        address: 192.0.2.5
`
	for name, tc := range map[string]struct{ reason, text, want string }{
		"port twice":      {"which of them?", head + "        port: 22\n        port: 2222\n", `provider "home": providers.yaml:10:`},
		"host twice":      {"which of them?", head + "      box-1: {address: 192.0.2.6}\n", `provider "home": providers.yaml:9:`},
		"port":            {"no such port", head + "        port: 70000\n", `providers.yaml:9: provider "home": kvm.hosts.box-1.port: 70000 is not in 1 to 65535`},
		"port is text":    {"of another type", head + "        port: ssh\n", `provider "home": providers.yaml:9:`},
		"unknown field":   {"a typo", head + "        addr: 192.0.2.6\n", `provider "home": providers.yaml:9: unknown field "addr"`},
		"checksum":        {"cut while copied", head + "    images:\n      a: {url: https://images.example.com/a.qcow2, sha256: abc}\n", `providers.yaml:10: provider "home": kvm.images.a: `},
		"no hosts":        {"nowhere to go", strings.Replace(head, "    hosts:\n      box-1:\n        address: 192.0.2.5\n", "", 1), `providers.yaml:2: provider "home": kvm.hosts: there are none`},
		"no such kind":    {"a typo", strings.Replace(head, "kind: kvm\n  kvm:", "kind: kwm\n  kwm:", 1), `unknown kind "kwm": known are [gcp kubernetes kvm local]`},
		"other section":   {"of another kind", strings.Replace(head, "kind: kvm", "kind: local", 1), `unknown field "kvm"`},
		"local, relative": {"relative to what?", "providers:\n- name: home\n  kind: local\n  local: {stateDir: x}\n", `stateDir "x" must be an absolute path`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := build(t, tc.text)
			if err == nil || fault.Of(err) != fault.Invalid || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %s: %v; want Invalid with %q", tc.reason, fault.Of(err), err, tc.want)
			}
		})
	}
}
