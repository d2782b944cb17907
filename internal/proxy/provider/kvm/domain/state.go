package domain

import (
	"fmt"

	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// StateOf says what a domain's state means to the operator, and in words, for
// people. It knows every state and reason of libvirt; a number that libvirt
// invents later is Unknown, to which nothing is done.
//
// Each choice is made for what the reconciler does with the answer
// (docs/providers.md):
//
//   - Running goes with a guest whose CPUs run, and with nothing else: on it the
//     Proxy is handed out (P-CRE-9). Blocked is a guest that waits.
//   - Stopped is off for good reason or none, where starting helps: Create starts
//     it (P-CRE-6, P-GET-9). A saved domain goes on where it was.
//   - Impaired is what a start does not mend, or would destroy (P-CRE-14): an I/O
//     error, a panic, a guest that sleeps, one that a person paused (it is
//     theirs: the message says how to resume it), and one that was migrated away,
//     since starting it here would run one disk in two machines.
//   - Provisioning is what will soon be on or off by itself: one that starts, and
//     one that shuts down. The Proxy is not handed out meanwhile, and the Create
//     that the reconciler repeats finds the domain off, and starts it. Stopped
//     would let Create start one that is still on; Running or Unknown would leave
//     the Proxy in use.
//   - Unknown is in somebody else's hands for a moment (a snapshot, a dump, a
//     migration): nothing is done, and the next look tells.
func StateOf(s virt.State, r virt.Reason) (st provider.State, message string) {
	switch s {
	case virt.StateNoState:
		return provider.Unknown, "libvirt does not know the domain's state"
	case virt.StateRunning:
		if r == virt.RunningPostcopyFailed {
			return provider.Impaired, "the domain's migration failed half way and parts of its memory are on the other host: finish it with virsh migrate --postcopy-resume, or delete the Proxy"
		}
		return provider.Running, "the domain runs"
	case virt.StateBlocked:
		return provider.Running, "the domain runs and waits for a resource"
	case virt.StatePaused:
		return paused(r)
	case virt.StateShutdown:
		return provider.Provisioning, "the guest is shutting down; it is started again when it is off"
	case virt.StateShutoff:
		return shutoff(r)
	case virt.StateCrashed:
		return provider.Impaired, "the guest's kernel crashed; the domain is kept for a look (virsh dump, virsh console): virsh destroy lets it be started again"
	case virt.StatePMSuspended:
		return provider.Impaired, "the guest has put itself to sleep: virsh dompmwakeup wakes it"
	}
	return provider.Unknown, fmt.Sprintf("libvirt says state %d, reason %d, which this version does not know", s, r)
}

func paused(r virt.Reason) (provider.State, string) {
	switch r {
	case virt.PausedIOError:
		return provider.Impaired, "the domain is paused: the host could not read or write the guest's disk (often: the pool is full); make room or mend the disk, then virsh resume"
	case virt.PausedUser:
		return provider.Impaired, "the domain was paused by a person or a program on the host and is left alone: virsh resume lets it go on"
	case virt.PausedUnknown:
		return provider.Impaired, "the domain is paused and libvirt does not say why: virsh resume lets it go on"
	case virt.PausedWatchdog:
		return provider.Impaired, "the domain is paused: the guest's watchdog fired; look at it with virsh console, then virsh resume or virsh destroy"
	case virt.PausedFromSnapshot:
		return provider.Impaired, "the domain was put back to a snapshot and is paused: virsh resume lets it go on"
	case virt.PausedCrashed:
		return provider.Impaired, "the domain is paused: its guest crashed; look at it with virsh dump, then virsh destroy lets it be started again"
	case virt.PausedPostcopyFailed:
		return provider.Impaired, "the domain is paused: its migration failed half way; finish it with virsh migrate --postcopy-resume, or delete the Proxy"
	case virt.PausedAPIError:
		return provider.Impaired, "the domain is paused: libvirt could not let it go on after an operation; see libvirtd's log, then virsh resume"
	case virt.PausedStartingUp:
		return provider.Provisioning, "the domain is starting"
	case virt.PausedShuttingDown:
		return provider.Provisioning, "the guest is shutting down; it is started again when it is off"
	case virt.PausedMigration, virt.PausedPostcopy:
		return provider.Unknown, "the domain is paused for a migration that somebody began"
	case virt.PausedSave:
		return provider.Unknown, "the domain is paused while its state is saved"
	case virt.PausedDump:
		return provider.Unknown, "the domain is paused while its memory is dumped"
	case virt.PausedSnapshot:
		return provider.Unknown, "the domain is paused while a snapshot is made"
	}
	return provider.Unknown, fmt.Sprintf("the domain is paused for reason %d, which this version does not know", r)
}

func shutoff(r virt.Reason) (provider.State, string) {
	switch r {
	case virt.ShutoffMigrated:
		return provider.Impaired, "the domain was migrated to another host; started here it would run twice: undefine it here, or migrate it back"
	case virt.ShutoffCrashed:
		return provider.Stopped, "the domain is off: QEMU ended unasked (see /var/log/libvirt/qemu on the host)"
	case virt.ShutoffFailed:
		return provider.Stopped, "the domain is off: it could not be started (see /var/log/libvirt/qemu on the host)"
	case virt.ShutoffSaved:
		return provider.Stopped, "the domain is off and its state is saved; it goes on from there"
	case virt.ShutoffFromSnapshot:
		return provider.Stopped, "the domain is off since it was put back to a snapshot"
	case virt.ShutoffDaemon:
		return provider.Stopped, "the domain is off: libvirtd ended it when it was started anew"
	}
	return provider.Stopped, "the domain is off"
}
