package kvm

// Relearn makes the provider read everything anew, as it does over a new
// connection: what a test changed in a domain's metadata is noticed then.
func (p *Provider) Relearn() {
	for _, h := range p.hosts {
		h.mu.Lock()
		h.reset()
		h.survey = survey{}
		h.mu.Unlock()
	}
}
