//go:build linux

package libvirthost

import (
	"context"
	"fmt"
)

// KillLibvirtd ends libvirtd by SIGKILL. Guests go on.
func (h *Host) KillLibvirtd(ctx context.Context) error {
	_, err := h.Run(ctx, "sh", "-c", "kill -9 $(cat /run/libvirtd.pid)")
	return err
}

// StartLibvirtd starts libvirtd after KillLibvirtd, and returns when it
// answers.
func (h *Host) StartLibvirtd(ctx context.Context) error {
	if _, err := h.Run(ctx, "libvirtd", "-d", "-p", "/run/libvirtd.pid"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return poll(ctx, func() error {
		_, err := h.Virsh(ctx, "pool-info", "default")
		return err
	})
}

// FreezeLibvirtd stops libvirtd where it is: its socket takes connections and
// never answers. ThawLibvirtd lets it go on.
func (h *Host) FreezeLibvirtd(ctx context.Context) error {
	_, err := h.Run(ctx, "sh", "-c", "kill -STOP $(cat /run/libvirtd.pid)")
	return err
}

// ThawLibvirtd ends what FreezeLibvirtd did.
func (h *Host) ThawLibvirtd(ctx context.Context) error {
	_, err := h.Run(ctx, "sh", "-c", "kill -CONT $(cat /run/libvirtd.pid)")
	return err
}

// Cut pulls the host's cable: nothing arrives, and nobody is told.
func (h *Host) Cut(ctx context.Context) error {
	_, err := run(ctx, nil, "ip", "link", "set", h.cable(), "down")
	return err
}

// Mend plugs it in again.
func (h *Host) Mend(ctx context.Context) error {
	_, err := run(ctx, nil, "ip", "link", "set", h.cable(), "up")
	return err
}

// Slow lets at most that many bytes a second through the cable, in each
// direction; 0 for as many as it takes.
func (h *Host) Slow(ctx context.Context, bytesPerSecond int) error {
	if bytesPerSecond == 0 {
		_, err := run(ctx, nil, "tc", "qdisc", "del", "dev", h.cable(), "root")
		if err == nil {
			_, err = h.Run(ctx, "tc", "qdisc", "del", "dev", "up0", "root")
		}
		return err
	}
	// A queue of 50 ms and a bucket that holds one full packet of a veth (64 KiB)
	// at least.
	args := []string{
		"root", "tbf", "rate", fmt.Sprintf("%dbps", bytesPerSecond),
		"burst", fmt.Sprintf("%db", max(70000, bytesPerSecond/100)), "latency", "50ms",
	}
	_, err := run(ctx, nil, "tc", append([]string{"qdisc", "replace", "dev", h.cable()}, args...)...)
	if err == nil {
		_, err = h.Run(ctx, "tc", append([]string{"qdisc", "replace", "dev", "up0"}, args...)...)
	}
	return err
}

// StopPool makes a pool inactive; StartPool ends that.
func (h *Host) StopPool(ctx context.Context, pool string) error {
	_, err := h.Virsh(ctx, "pool-destroy", pool)
	return err
}

// StartPool makes a pool active.
func (h *Host) StartPool(ctx context.Context, pool string) error {
	_, err := h.Virsh(ctx, "pool-start", pool)
	return err
}

// SmallPool makes an active pool of kind dir that holds at most that many
// bytes.
func (h *Host) SmallPool(ctx context.Context, name string, bytes int64) error {
	dir := "/var/lib/libvirt/" + name
	for _, args := range [][]string{
		{"mkdir", dir},
		{"mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%d", bytes), name, dir},
		{"virsh", "-q", "pool-define-as", name, "dir", "--target", dir},
		{"virsh", "-q", "pool-start", name},
	} {
		if _, err := h.Run(ctx, args[0], args[1:]...); err != nil {
			return err
		}
	}
	return nil
}

// LogicalPool defines a pool on LVM, which cannot be started here.
func (h *Host) LogicalPool(ctx context.Context, name string) error {
	_, err := h.Virsh(ctx, "pool-define-as", name, "logical", "--source-name", "vg-"+name, "--target", "/dev/vg-"+name)
	return err
}
