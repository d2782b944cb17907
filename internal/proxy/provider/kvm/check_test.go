package kvm_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm"
	"fleetdesk/internal/proxy/provider/kvm/link"
	"fleetdesk/internal/proxy/provider/kvm/virt"
	"fleetdesk/internal/proxy/provider/kvm/virttest"
)

// Each reason of the table in docs/kvm-provider.md, by what leads to it; the
// other host is well all the time.
func TestCheckReasons(t *testing.T) {
	dial := func(stage string, err error) func(*virttest.Host) {
		return func(h *virttest.Host) { h.FailDials(&link.DialError{Host: "box-1", Stage: stage, Err: err}) }
	}
	seen := map[string]bool{}
	for name, tc := range map[string]struct {
		harm   func(h *virttest.Host)
		reason string
		want   string
	}{
		"well":             {func(*virttest.Host) {}, kvm.ReasonOK, "libvirt 9.0.0, type kvm, pool default with"},
		"key missing":      {dial(link.StageMaterial, fault.New(fault.Transient, "no such file")), kvm.ReasonSSHMaterial, "no such file"},
		"host off":         {dial(link.StageTCP, fault.New(fault.Unavailable, "connection refused")), kvm.ReasonUnreachable, "connection refused"},
		"host key":         {dial(link.StageSSH, fault.New(fault.Permanent, "unknown host key")), kvm.ReasonSSHFailed, "unknown host key"},
		"libvirtd off":     {dial(link.StageLibvirt, fault.New(fault.Unavailable, "open failed")), kvm.ReasonLibvirtFailed, "open failed"},
		"mute":             {func(h *virttest.Host) { h.Mute() }, kvm.ReasonTimeout, "box-1"},
		"pool missing":     {func(h *virttest.Host) { h.RemovePool("default") }, kvm.ReasonPoolMissing, "virsh pool-define-as"},
		"pool inactive":    {inactive, kvm.ReasonPoolInactive, "virsh pool-start default"},
		"pool of LVM":      {func(h *virttest.Host) { h.ChangePool("default", func(p *virttest.Pool) { p.Type = "logical" }) }, kvm.ReasonPoolUnsupported, "logical"},
		"pool full":        {func(h *virttest.Host) { h.FillPool(10 << 20) }, kvm.ReasonPoolLow, "10 MiB free"},
		"network missing":  {func(h *virttest.Host) { h.RemoveNetwork("default") }, kvm.ReasonNetworkMissing, "virsh net-define"},
		"network inactive": {func(h *virttest.Host) { h.SetNetwork("default", false) }, kvm.ReasonNetworkInactive, "virsh net-start default"},
		"no acceleration":  {func(h *virttest.Host) { h.Offer("qemu") }, kvm.ReasonNoAcceleration, "allowEmulation"},
		"no firmware":      {func(h *virttest.Host) { h.Firmware(false) }, kvm.ReasonNoFirmware, "apt-get install ovmf"},
		"daemon's error": {func(h *virttest.Host) {
			h.FailNext("ConnectGetHostname", virt.Fault(virt.CodeInternalError, "internal error: something"))
		}, kvm.ReasonError, "something"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMem(t, "box-1", "box-2")
			p := m.open(t)
			tc.harm(m.hosts["box-1"])
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			rows, err := p.Check(ctx)
			if err != nil || len(rows) != 2 {
				t.Fatalf("%+v, %v", rows, err)
			}
			slices.SortFunc(rows, func(a, b provider.HostHealth) int { return strings.Compare(a.Host, b.Host) })
			if rows[0].Reason != tc.reason || !strings.Contains(rows[0].Message, tc.want) {
				t.Errorf("%+v; want %s with %q", rows[0], tc.reason, tc.want)
			}
			if rows[1].Reason != kvm.ReasonOK || rows[1].Version != "9.0.0" || rows[1].FreeBytes == 0 {
				t.Errorf("the other host: %+v", rows[1])
			}
			if !slices.Contains(kvm.Reasons(), rows[0].Reason) {
				t.Errorf("%s is not listed", rows[0].Reason)
			}
			m.hosts["box-1"].Mend()
		})
		seen[tc.reason] = true
	}
	for _, r := range kvm.Reasons() {
		if !seen[r] {
			t.Errorf("reason %s has no case here", r)
		}
	}
}

// A check that was given up leaves the connection alone, and as long as it
// waits the next one does not wait as well.
func TestAnAbandonedCheck(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	p := m.open(t)
	s := m.spec("a", "box-1")
	up(t, p, s)
	links := h.Links()
	h.Hang("ConnectGetLibVersion")
	check := func(limit time.Duration) (provider.HostHealth, time.Duration) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		began := time.Now()
		rows, err := p.Check(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return rows[0], time.Since(began)
	}
	if row, _ := check(50 * time.Millisecond); row.Reason != kvm.ReasonTimeout {
		t.Errorf("%+v", row)
	}
	row, took := check(10 * time.Second)
	if row.Reason != kvm.ReasonTimeout || took > time.Second || !strings.Contains(row.Message, "earlier check") {
		t.Errorf("%+v after %v", row, took)
	}
	if strings.Count(row.Message, "box-1") != 1 {
		t.Errorf("the host is named more than once: %s", row.Message)
	}
	if in, err := p.Get(t.Context(), ref(s)); err != nil || in.State != provider.Running {
		t.Errorf("a check disturbs others: %+v, %v", in, err)
	}
	h.Mend()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if row, _ := check(time.Second); row.Reason == kvm.ReasonOK {
			break
		} else if time.Now().After(end) {
			t.Fatalf("%+v", row)
		}
	}
	if h.Links() != links {
		t.Errorf("%d links; there were %d", h.Links(), links)
	}
}
