package monitor

import (
	"time"

	"fleetdesk/internal/proxy/provider"
)

// Report is what the last check of a provider said.
type Report struct {
	// Checked is when it ended.
	Checked time.Time
	// Err says why the provider could not be asked at all; Hosts are then those
	// of the check before.
	Err error
	// Unsupported: this kind of provider has no check.
	Unsupported bool
	// Hosts are sorted by name.
	Hosts []Host
}

// Host is one host's row.
type Host struct {
	provider.HostHealth
	// Checked is when this was found out, Since when Reason became what it is.
	Checked, Since time.Time
}
