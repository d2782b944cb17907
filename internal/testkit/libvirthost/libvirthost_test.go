//go:build integration && linux

package libvirthost_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kdomanski/iso9660"

	"fleetdesk/internal/testkit/libvirthost"
)

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestThreeHosts(t *testing.T) {
	start := time.Now()
	hosts := libvirthost.StartAll(t,
		libvirthost.HostOptions{N: 1}, libvirthost.HostOptions{N: 2}, libvirthost.HostOptions{N: 3, Name: "third"})
	t.Logf("three hosts up after %s", time.Since(start))
	ctx := within(t, time.Minute)
	for _, h := range hosts {
		for _, user := range []string{libvirthost.User, libvirthost.PlainUser} {
			out, err := ssh(ctx, t, h, user, "hostname")
			if user == libvirthost.PlainUser {
				// It gets in, and then its shell refuses.
				if err == nil || !strings.Contains(out, "not available") {
					t.Errorf("%s as %s: %q, %v", h.Name(), user, out, err)
				}
				continue
			}
			if err != nil || strings.TrimSpace(out) != h.Name() {
				t.Errorf("%s as %s: %q, %v", h.Name(), user, out, err)
			}
		}
		if out, err := ssh(ctx, t, h, libvirthost.User, "virsh -q pool-list --all"); err != nil || !strings.Contains(out, "default") {
			t.Errorf("%s: pools %q, %v", h.Name(), out, err)
		}
		if left := h.Leftovers(t); len(left) > 0 {
			t.Errorf("%s: a fresh host has %v", h.Name(), left)
		}
		logs := h.Logs()
		for _, want := range []string{"libvirtd.log\n", "libvirt version", "sshd.log\n", "Accepted publickey for nobody"} {
			if !strings.Contains(logs, want) {
				t.Errorf("%s: the logs lack %q:\n%s", h.Name(), want, logs)
			}
		}
	}
	if hosts[0].KnownHosts() == hosts[1].KnownHosts() {
		t.Error("two hosts have the same keys")
	}
}

// ssh runs a command on the host by OpenSSH's own client, from the test
// process's place in the LAN.
func ssh(ctx context.Context, t *testing.T, h *libvirthost.Host, user, command string) (string, error) {
	t.Helper()
	return sshWith(ctx, t, h, user, command, "")
}

func sshWith(ctx context.Context, t *testing.T, h *libvirthost.Host, user, command, input string) (string, error) {
	t.Helper()
	known := filepath.Join(t.TempDir(), "known_hosts")
	if err := os.WriteFile(known, []byte(h.KnownHosts()), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, "ssh", "-i", h.KeyFile(), "-o", "BatchMode=yes", "-o", "UserKnownHostsFile="+known,
		"-o", "StrictHostKeyChecking=yes", "-F", "none", user+"@"+h.IP(), command)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// guest defines and starts a domain from an image with a seed.
func guest(ctx context.Context, t *testing.T, h *libvirthost.Host, name, image string, seed map[string]string) {
	t.Helper()
	iso, err := iso9660.NewWriter()
	if err != nil {
		t.Fatal(err)
	}
	defer iso.Cleanup()
	for file, text := range seed {
		if err := iso.AddFile(strings.NewReader(text), file); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Create(h.Path("/var/lib/libvirt/images/" + name + "-seed.iso"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := iso.WriteTo(f, "cidata"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Run(ctx, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", image, "/var/lib/libvirt/images/"+name+".qcow2"); err != nil {
		t.Fatal(err)
	}
	xml := fmt.Sprintf(`<domain type='qemu'><name>%[1]s</name><memory unit='MiB'>512</memory><vcpu>1</vcpu>
<os firmware='efi'><type arch='x86_64' machine='q35'>hvm</type><firmware><feature enabled='no' name='secure-boot'/></firmware></os>
<features><acpi/></features><cpu mode='custom' match='exact'><model>qemu64</model></cpu>
<devices>
<disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='/var/lib/libvirt/images/%[1]s.qcow2'/><target dev='vda' bus='virtio'/></disk>
<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='/var/lib/libvirt/images/%[1]s-seed.iso'/><target dev='vdb' bus='virtio'/><readonly/></disk>
<interface type='bridge'><source bridge='br0'/><model type='virtio'/></interface>
<serial type='file'><source path='/var/log/libvirt/qemu/%[1]s-console.log'/></serial>
<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
<rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>
</devices></domain>`, name)
	if err := os.WriteFile(h.Path("/run/"+name+".xml"), []byte(xml), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"define", "/run/" + name + ".xml"}, {"start", name}} {
		if _, err := h.Virsh(ctx, args...); err != nil {
			t.Fatal(err)
		}
	}
}

// address asks the agent for the guest's address until it has one.
func address(ctx context.Context, t *testing.T, h *libvirthost.Host, name string) string {
	t.Helper()
	var last error
	for ctx.Err() == nil {
		var all []struct {
			Addresses []struct {
				Address string `json:"ip-address"`
			} `json:"ip-addresses"`
		}
		ret, err := h.Agent(ctx, name, "guest-network-get-interfaces", nil)
		if err == nil {
			err = json.Unmarshal(ret, &all)
		}
		last = err
		for _, i := range all {
			for _, a := range i.Addresses {
				if strings.HasPrefix(a.Address, "10.99.0.") {
					return a.Address
				}
			}
		}
		pause(ctx, 200*time.Millisecond)
	}
	t.Fatalf("%s: the agent of %s tells no address: %v", h.Name(), name, last)
	return ""
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// through fetches a URL through a proxy until it answers.
func through(ctx context.Context, t *testing.T, proxy, target string) string {
	t.Helper()
	c := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: proxy}), DisableKeepAlives: true,
	}}
	for {
		body, err := fetch(ctx, &c, target)
		if err == nil {
			return body
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		pause(ctx, 200*time.Millisecond)
	}
}

func fetch(ctx context.Context, c *http.Client, target string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return "", err
	}
	resp, err := c.Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return string(b), err
}

const squidConf = "http_port 3199\nacl everybody src all\nhttp_access allow everybody\ncache deny all\nvia on\n" +
	"visible_hostname configured\npid_filename none\npinger_enable off\nnetdb_filename none\naccess_log none\n"

func TestTinyGuests(t *testing.T) {
	images := libvirthost.Images(t)
	o := libvirthost.HostOptions{N: 1, Images: map[string]string{"tiny.qcow2": images.Tiny}}
	var all []libvirthost.HostOptions
	for n := range 3 {
		o.N = n + 1
		all = append(all, o)
	}
	hosts := libvirthost.StartAll(t, all...)
	site := libvirthost.Serve(t, http.HandlerFunc(libvirthost.Hello)).URL
	conf, err := json.Marshal(squidConf)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range hosts {
		t.Run(h.Name(), func(t *testing.T) {
			t.Parallel()
			ctx := within(t, 3*time.Minute)
			user := "#cloud-config\nwrite_files:\n- path: /etc/squid/squid.conf\n  content: " + string(conf) + "\n"
			start := time.Now()
			guest(ctx, t, h, "small", "tiny.qcow2", map[string]string{
				"meta-data": "instance-id: a\nlocal-hostname: tiny-" + h.Name() + "\n", "user-data": user,
			})
			defined := time.Since(start)
			ip := address(ctx, t, h, "small")
			agent := time.Since(start)
			body := through(ctx, t, ip+":3199", site)
			t.Logf("defined and started after %s, agent after %s, squid after %s", defined, agent, time.Since(start))
			if !strings.Contains(body, "hello "+ip+" via 1.1 configured") {
				t.Errorf("the answer is %q; it should have come through the squid of %s", body, ip)
			}
			got, err := fetch(ctx, http.DefaultClient, "http://"+ip+":8099/seed/user-data")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(user, got); diff != "" {
				t.Errorf("user-data (-want +got):\n%s", diff)
			}
			want := []string{"domain small", "guest small", "nvram small_VARS.fd", "volume default/small-seed.iso", "volume default/small.qcow2"}
			if diff := cmp.Diff(want, h.Leftovers(t)); diff != "" {
				t.Errorf("leftovers (-want +got):\n%s", diff)
			}
		})
	}
}
