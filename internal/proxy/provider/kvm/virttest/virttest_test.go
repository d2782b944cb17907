package virttest_test

import (
	"io"
	"log/slog"
	"testing"

	"fleetdesk/internal/proxy/provider/kvm/link"
	"fleetdesk/internal/proxy/provider/kvm/virt"
	"fleetdesk/internal/proxy/provider/kvm/virttest"
)

// subject is a fake host as the suite's subject.
func subject(h *virttest.Host) virttest.Subject {
	h.SetPool(virttest.Pool{Name: "small", Type: "dir", Path: "/small", State: virt.PoolRunning, Capacity: 32 << 20})
	return virttest.Subject{
		Conn:       h.Link(),
		Dial:       func(*testing.T) link.Link { return h.Link() },
		Pool:       virttest.DefaultPool,
		Network:    virttest.DefaultNetwork,
		DomainType: "qemu",
		UEFI:       true,
		SmallPool:  "small",
		Pause: func(_ *testing.T, domain string, on bool) {
			if on {
				h.PauseDomain(domain, virt.PausedUser)
			} else {
				h.ResumeDomain(domain)
			}
		},
		Content: func(_ *testing.T, pool, volume string) []byte {
			for _, v := range h.Volumes(pool) {
				if v.Name == volume {
					b := make([]byte, v.Physical)
					copy(b, h.Content(pool, volume))
					return b
				}
			}
			return nil
		},
	}
}

func TestFakePassesTheSuite(t *testing.T) {
	t.Run("network", func(t *testing.T) { virttest.Run(t, subject(virttest.NewHost("box-1"))) })
	t.Run("bridge", func(t *testing.T) {
		s := subject(virttest.NewHost("box-1"))
		s.Network, s.Bridge = "", virttest.DefaultBridge
		virttest.Run(t, s)
	})
}

// What is put around a connection keeps all of its promises.
func TestDecoratedConnectionsPassTheSuite(t *testing.T) {
	t.Run("traced", func(t *testing.T) {
		s := subject(virttest.NewHost("box-1"))
		s.Conn = virt.Traced(s.Conn, "box-1", slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug - 4})))
		virttest.Run(t, s)
	})
	t.Run("counted", func(t *testing.T) {
		s := subject(virttest.NewHost("box-1"))
		s.Conn = virt.Counted(s.Conn, func(string) error { return nil })
		virttest.Run(t, s)
	})
}
