//go:build integration && linux

package libvirthost_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fleetdesk/internal/testkit/libvirthost"
)

// waitAgent waits until the domain's agent answers.
func waitAgent(ctx context.Context, t *testing.T, h *libvirthost.Host, name string) {
	t.Helper()
	for {
		_, err := h.Agent(ctx, name, "guest-ping", nil)
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("%s: the agent of %s does not answer: %v", h.Name(), name, err)
		}
		pause(ctx, 200*time.Millisecond)
	}
}

func TestDebianGuests(t *testing.T) {
	images := libvirthost.Images(t)
	hosts := libvirthost.StartAll(t,
		libvirthost.HostOptions{N: 1, Images: map[string]string{"debian.qcow2": images.Debian}},
		libvirthost.HostOptions{N: 2, Images: map[string]string{"debian.qcow2": images.DebianBare}})
	var fetched atomic.Int64
	site := libvirthost.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ".deb") {
			fetched.Add(1)
		}
		http.FileServer(http.Dir(images.Repository)).ServeHTTP(w, r)
	})).URL

	// What each guest is given, beside its squid.conf: a jinja template, a MIME
	// archive's parts and so on are the provider's tests.
	const install = "#!/bin/sh\nset -e\ncommand -v qemu-ga && exit 0\nexport DEBIAN_FRONTEND=noninteractive\n" +
		"apt-get update\napt-get install -y --no-install-recommends qemu-guest-agent\nsystemctl start qemu-guest-agent\n"
	user := "## template: jinja\n#cloud-config\nhostname: named\napt:\n  sources:\n    tests: {source: 'deb [trusted=yes] " + site + "/ ./'}\n" +
		"bootcmd: ['echo boot >> /var/tmp/marks']\nruncmd: ['echo run {{ v1.instance_id }} >> /var/tmp/marks']\n" +
		"write_files:\n- {path: /var/tmp/file, content: written}\n"

	for i, name := range []string{"with the agent", "without it"} {
		h := hosts[i]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := within(t, 5*time.Minute)
			start := time.Now()
			guest(ctx, t, h, "deb", "debian.qcow2", map[string]string{
				"meta-data": "instance-id: one\nlocal-hostname: deb\n", "user-data": user, "vendor-data": install,
			})
			waitAgent(ctx, t, h, "deb")
			agent := time.Since(start)
			ip := address(ctx, t, h, "deb")
			through(ctx, t, ip+":3128", site+"/Release")
			t.Logf("agent after %s, squid after %s", agent, time.Since(start))
			var marks string
			for {
				var err error
				if marks, err = h.Exec(ctx, "deb", "cat /var/tmp/marks /var/tmp/file && hostname && test -e /var/lib/cloud/instance/boot-finished"); err == nil {
					break
				}
				if ctx.Err() != nil {
					t.Fatal(err)
				}
				pause(ctx, time.Second)
			}
			t.Logf("cloud-init finished after %s", time.Since(start))
			if want := "boot\nrun one\nwrittennamed\n"; marks != want {
				t.Errorf("marks %q, want %q", marks, want)
			}
			if _, err := h.Exec(ctx, "deb", "exit 3"); err == nil || !strings.Contains(err.Error(), "exit code 3") {
				t.Errorf("a failing command in the guest: %v", err)
			}
			start = time.Now()
			if _, err := h.Virsh(ctx, "shutdown", "deb", "--mode=agent"); err != nil {
				t.Error(err)
			}
			for {
				state, err := h.Virsh(ctx, "domstate", "deb")
				if err != nil || ctx.Err() != nil {
					t.Fatal(fmt.Errorf("it does not shut down: %w, %w", err, ctx.Err()))
				}
				if strings.TrimSpace(state) == "shut off" {
					break
				}
				pause(ctx, 200*time.Millisecond)
			}
			t.Logf("shut down after %s", time.Since(start))
		})
	}
	t.Cleanup(func() {
		if fetched.Load() == 0 && !t.Failed() {
			t.Error("nobody fetched a package: the image without the agent has it")
		}
	})
}
