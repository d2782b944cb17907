package gcp

import compute "google.golang.org/api/compute/v1"

// NameOf, LabelsOf, Describe and TagOf are what instances are called and carry.
var (
	NameOf   = nameOf
	LabelsOf = labelsOf
	Describe = describe
	TagOf    = tagOf
	StateOf  = stateOf
	Trusted  = trusted
	Read     = read
)

// Retries is how many calls were sent again since their rate was refused.
func (p *Provider) Retries() int64 { return p.api.retries.Load() }

// Settle is settle.
var Settle = settle

// ReadClaim reads a claim of somebody.
func ReadClaim(g *compute.InstanceGroup) error {
	_, _, err := readClaim(g)
	return err
}
