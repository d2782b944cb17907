//go:build integration && linux

package libvirthost_test

import (
	"context"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/testkit/libvirthost"
)

// answers reports whether the host's sshd says its version within the limit.
func answers(ctx context.Context, h *libvirthost.Host, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", h.Addr())
	if err != nil {
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(limit))
	b := make([]byte, 4)
	_, err = io.ReadFull(c, b)
	return err == nil && string(b) == "SSH-"
}

func TestFaults(t *testing.T) {
	h := libvirthost.Start(t, libvirthost.HostOptions{N: 1, HideKVM: true})
	ctx := within(t, 2*time.Minute)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	foreign, err := h.PlantForeign(ctx, "theirs", `<x:owner xmlns:x='https://example.com/x'>somebody</x:owner>`)
	must(err)
	must(foreign.Untouched(ctx))

	t.Run("kvm is hidden", func(t *testing.T) {
		out, err := h.Virsh(ctx, "capabilities")
		must(err)
		if strings.Contains(out, "<domain type='kvm'") || !strings.Contains(out, "<domain type='qemu'") {
			t.Errorf("the host offers\n%s", out)
		}
	})
	t.Run("libvirtd is killed and started", func(t *testing.T) {
		must(h.KillLibvirtd(ctx))
		if out, err := h.Virsh(ctx, "list"); err == nil {
			t.Errorf("a killed libvirtd lists %q", out)
		}
		must(h.StartLibvirtd(ctx))
		must(foreign.Untouched(ctx))
	})
	t.Run("libvirtd is frozen", func(t *testing.T) {
		must(h.FreezeLibvirtd(ctx))
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		if out, err := h.Virsh(short, "list"); err == nil {
			t.Errorf("a frozen libvirtd lists %q", out)
		}
		must(h.ThawLibvirtd(ctx))
		_, err := h.Virsh(ctx, "list")
		must(err)
	})
	t.Run("the cable is cut", func(t *testing.T) {
		if !answers(ctx, h, 5*time.Second) {
			t.Fatal("sshd does not answer")
		}
		must(h.Cut(ctx))
		if answers(ctx, h, 300*time.Millisecond) {
			t.Error("sshd answers through a cut cable")
		}
		must(h.Mend(ctx))
		if !answers(ctx, h, 10*time.Second) {
			t.Error("sshd does not answer through a mended cable")
		}
	})
	t.Run("the cable is slow", func(t *testing.T) {
		const size = 1 << 20
		took := func(command, input, want string) time.Duration {
			start := time.Now()
			out, err := sshWith(ctx, t, h, libvirthost.User, command, input)
			must(err)
			if out != want {
				t.Fatalf("%d bytes arrived, want %d", len(out), len(want))
			}
			return time.Since(start)
		}
		text := strings.Repeat("x", size)
		there := func() time.Duration { return took("wc -c", text, "1048576\n") }
		back := func() time.Duration { return took("head -c 1048576 /dev/zero | tr '\\0' x", "", text) }
		must(h.Slow(ctx, 500_000))
		slow := []time.Duration{there(), back()}
		must(h.Slow(ctx, 0))
		fast := []time.Duration{there(), back()}
		t.Logf("1 MiB there and back in %s, and in %s at full speed", slow, fast)
		if slices.Min(slow) < 1500*time.Millisecond || slices.Max(fast) > 1500*time.Millisecond {
			t.Errorf("1 MiB took %s at 500 kB/s and %s at full speed", slow, fast)
		}
	})
	t.Run("a pool stops", func(t *testing.T) {
		must(h.StopPool(ctx, "default"))
		out, err := h.Virsh(ctx, "pool-list", "--all")
		must(err)
		if !strings.Contains(out, "inactive") {
			t.Errorf("pools: %q", out)
		}
		must(h.StartPool(ctx, "default"))
	})
	t.Run("a pool is full", func(t *testing.T) {
		must(h.SmallPool(ctx, "small", 1<<20))
		_, err := h.Virsh(ctx, "vol-create-as", "small", "big", "4M", "--allocation", "4M", "--format", "raw")
		if err == nil || !strings.Contains(err.Error(), "No space left") {
			t.Errorf("a volume of 4 MiB in 1 MiB: %v", err)
		}
		_, err = h.Virsh(ctx, "vol-create-as", "small", "little", "64K", "--format", "raw")
		must(err)
		got, err := h.Volumes(ctx, "small")
		must(err)
		if diff := cmp.Diff([]string{"little"}, got); diff != "" {
			t.Errorf("volumes (-want +got):\n%s", diff)
		}
	})
	t.Run("a pool on LVM", func(t *testing.T) {
		must(h.LogicalPool(ctx, "lvm"))
		out, err := h.Virsh(ctx, "pool-dumpxml", "lvm")
		must(err)
		if !strings.Contains(out, "<pool type='logical'>") {
			t.Errorf("the pool is\n%s", out)
		}
	})
	if diff := cmp.Diff([]string{"volume small/little"}, h.Leftovers(t)); diff != "" {
		t.Errorf("leftovers (-want +got):\n%s", diff)
	}
	if left := h.Leftovers(t, "lit*"); len(left) > 0 {
		t.Errorf("leftovers but lit*: %v", left)
	}
	t.Run("what is touched is seen", func(t *testing.T) {
		file := h.Path("/var/lib/libvirt/images/" + foreign.Volume)
		whole, err := os.ReadFile(file)
		must(err)
		must(os.WriteFile(file, append([]byte("x"), whole[1:]...), 0o600))
		if err := foreign.Untouched(ctx); err == nil || !strings.Contains(err.Error(), "content") {
			t.Errorf("a changed volume: %v", err)
		}
		must(os.WriteFile(file, whole, 0o600))
		must(foreign.Untouched(ctx))
		_, err = h.Virsh(ctx, "desc", foreign.Domain, "--config", "touched")
		must(err)
		if err := foreign.Untouched(ctx); err == nil || !strings.Contains(err.Error(), "touched") {
			t.Errorf("a changed definition: %v", err)
		}
		_, err = h.Virsh(ctx, "desc", foreign.Domain, "--config", "")
		must(err)
		must(foreign.Untouched(ctx))
		_, err = h.Virsh(ctx, "resume", foreign.Domain)
		must(err)
		if err := foreign.Untouched(ctx); err == nil {
			t.Error("a resumed domain is untouched")
		}
		_, err = h.Virsh(ctx, "destroy", foreign.Domain)
		must(err)
		if err := foreign.Untouched(ctx); err == nil {
			t.Error("a destroyed domain is untouched")
		}
		_, err = h.Virsh(ctx, "undefine", foreign.Domain)
		must(err)
		if err := foreign.Untouched(ctx); err == nil {
			t.Error("a removed domain is untouched")
		}
	})
}

func TestNetwork(t *testing.T) {
	h := libvirthost.Start(t, libvirthost.HostOptions{N: 2, Network: true})
	ctx := within(t, time.Minute)
	out, err := h.Virsh(ctx, "net-list")
	if err != nil || !strings.Contains(out, "default") || !strings.Contains(out, "active") {
		t.Fatalf("networks: %q, %v", out, err)
	}
	// The route: sshd does not listen there, the host refuses.
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", "10.98.2.1:53")
	if err != nil {
		t.Fatalf("the network's DNS server at 10.98.2.1: %v", err)
	}
	c.Close()
}

func TestHostAgain(t *testing.T) {
	ctx := within(t, time.Minute)
	for range 3 {
		h, err := libvirthost.New(ctx, libvirthost.HostOptions{N: 7})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := libvirthost.New(ctx, libvirthost.HostOptions{N: 7}); err == nil {
			t.Error("two hosts have the same N")
		}
		if !answers(ctx, h, 5*time.Second) {
			t.Error("sshd does not answer")
		}
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		if err := h.Close(); err != nil {
			t.Errorf("closed again: %v", err)
		}
	}
	// What libvirt found out about QEMU on one host (it takes seconds) is told to
	// the next of the same kind.
	notes := func(h *libvirthost.Host) int {
		all, _ := os.ReadDir(h.Path("/var/cache/libvirt/qemu/capabilities"))
		return len(all)
	}
	for i, o := range []libvirthost.HostOptions{{N: 7, HideKVM: true}, {N: 7, HideKVM: true}, {N: 7}} {
		h, err := libvirthost.New(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		if i == 1 && notes(h) == 0 {
			t.Errorf("host %d has %d notes about QEMU", i, notes(h))
		}
		if _, err := h.Virsh(ctx, "domcapabilities", "--virttype", "qemu"); err != nil {
			t.Error(err)
		}
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
