package domain_test

import (
	"strings"
	"testing"

	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

func TestStateOf(t *testing.T) {
	const (
		running, stopped, impaired = provider.Running, provider.Stopped, provider.Impaired
		provisioning, unknown      = provider.Provisioning, provider.Unknown
	)
	for name, tc := range map[string]struct {
		reason string
		state  virt.State
		// want by reason: all that libvirt has for the state.
		want []provider.State
		// beyond is for a number that libvirt may invent.
		beyond provider.State
	}{
		"none": {"it says that it cannot tell", virt.StateNoState, []provider.State{unknown}, unknown},
		"running": {
			"its CPUs run, however that began; after half a migration its memory is elsewhere", virt.StateRunning,
			[]provider.State{running, running, running, running, running, running, running, running, running, running, running, impaired},
			running,
		},
		"blocked": {"it waits for a device", virt.StateBlocked, []provider.State{running}, running},
		"paused": {
			"who paused it for good needs a person; what libvirt does for a moment passes", virt.StatePaused,
			[]provider.State{
				impaired /* unknown */, impaired /* user */, unknown /* migration */, unknown /* save */, unknown, /* dump */
				impaired /* I/O error */, impaired /* watchdog */, impaired /* from snapshot */, provisioning, /* shutting down */
				unknown /* snapshot */, impaired /* crashed */, provisioning /* starting */, unknown /* post-copy */, impaired, impaired, /* failed */
			},
			unknown,
		},
		"shutdown": {"a proxy that goes down is handed to nobody, and is not started while it is still on", virt.StateShutdown, []provider.State{provisioning, provisioning}, provisioning},
		"shutoff": {
			"it is started, unless it runs elsewhere", virt.StateShutoff,
			[]provider.State{stopped, stopped, stopped, stopped, impaired /* migrated */, stopped, stopped, stopped, stopped},
			stopped,
		},
		"crashed":     {"kept for a look", virt.StateCrashed, []provider.State{impaired, impaired}, impaired},
		"pmsuspended": {"a start is refused: it is on", virt.StatePMSuspended, []provider.State{impaired}, impaired},
		"new":         {"a state that libvirt invents", 8, []provider.State{unknown}, unknown},
		"negative":    {"nonsense", -1, []provider.State{unknown}, unknown},
	} {
		t.Run(name, func(t *testing.T) {
			for r, want := range append(tc.want, tc.beyond, tc.beyond) {
				got, message := domain.StateOf(tc.state, virt.Reason(r))
				if got != want {
					t.Errorf("%s: state %d, reason %d is %s, want %s", tc.reason, tc.state, r, got, want)
				}
				if len(message) < 10 || strings.ContainsAny(message, "\n\t") {
					t.Errorf("state %d, reason %d: the message is %q", tc.state, r, message)
				}
			}
			for _, r := range []virt.Reason{-1, 1 << 30} {
				if got, _ := domain.StateOf(tc.state, r); got != tc.beyond {
					t.Errorf("%s: state %d, reason %d is %s, want %s", tc.reason, tc.state, r, got, tc.beyond)
				}
			}
		})
	}
}

// kubevirt 14589: paused on an I/O error and shown as running.
func TestPausedOnAnIOError(t *testing.T) {
	got, message := domain.StateOf(virt.StatePaused, virt.PausedIOError)
	if got != provider.Impaired || !strings.Contains(message, "could not read or write the guest's disk") ||
		!strings.Contains(message, "pool is full") || !strings.Contains(message, "virsh resume") {
		t.Errorf("StateOf = %s, %q", got, message)
	}
}

// Only a domain whose CPUs run is ever Running: on that the Proxy is handed out.
func TestNothingElseIsRunning(t *testing.T) {
	for s := range virt.State(12) {
		for r := range virt.Reason(32) {
			got, message := domain.StateOf(s, r)
			if got == provider.Running && s != virt.StateRunning && s != virt.StateBlocked {
				t.Errorf("state %d, reason %d is Running", s, r)
			}
			if got == provider.Stopped && s != virt.StateShutoff {
				t.Errorf("state %d, reason %d is Stopped: Create would start one that is on", s, r)
			}
			if got == provider.Impaired && !strings.Contains(message, "virsh") && !strings.Contains(message, "undefine") {
				t.Errorf("state %d, reason %d: people are told nothing to do: %q", s, r, message)
			}
			if got == provider.Gone || got == provider.Abandoned || got == provider.Deleting {
				t.Errorf("state %d, reason %d is %s", s, r, got)
			}
		}
	}
}
