package link

import (
	"fmt"

	"fleetdesk/internal/core/fault"
)

// Stages of a dial, in their order: what a [DialError] says was under way.
const (
	// StageMaterial: reading the SSH key and known_hosts.
	StageMaterial = "SSH material"
	// StageTCP: connecting to the host's SSH port.
	StageTCP = "TCP"
	// StageSSH: the SSH handshake, the host's key and the user's log-in.
	StageSSH = "SSH handshake"
	// StageLibvirt: opening the daemon's socket and its first RPCs.
	StageLibvirt = "libvirt connect"
)

// DialError is a failed dial with the stage that it had reached. It keeps the
// message and unwraps to the cause, so the class is the cause's own.
type DialError struct {
	// Host is the host's name in the configuration.
	Host string
	// Stage is one of the constants of this package.
	Stage string
	// Err is why; it has a class.
	Err error
}

// Error names the host and the stage before the cause's own text.
func (e *DialError) Error() string { return fmt.Sprintf("host %q: %s: %v", e.Host, e.Stage, e.Err) }

// Unwrap returns the cause.
func (e *DialError) Unwrap() error { return e.Err }

// ErrProbeBusy is what [Pool.Probe] answers at once while an earlier probe of
// the host, whose caller gave up, still waits for the daemon.
var ErrProbeBusy = fault.New(fault.Timeout, "an earlier check of this host still waits for libvirt's answer")
