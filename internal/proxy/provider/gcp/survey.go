package gcp

import (
	"context"
	"time"

	compute "google.golang.org/api/compute/v1"

	"fleetdesk/internal/core/fault"
)

const (
	// firstZones is how many zones Place asks at first.
	firstZones = 3
	// surveyAge is how long what Place learned of a zone serves: many Proxies
	// that are made at once cost it one call. refusedAge is how long a refusal
	// does that may end sooner. Any other error, and any error for those who wish
	// for that zone alone, serves only those who waited for the same answer.
	surveyAge  = 30 * time.Second
	refusedAge = 10 * time.Second
	// regionAge is how long a region's quotas serve its zones.
	regionAge = 10 * time.Second
	// countAge is how long a count of instances does, where they are bounded.
	countAge = 5 * time.Second
	// surveyLimit is how long Place waits for a zone that nobody wished for, from
	// when it was asked.
	surveyLimit = 3 * time.Second
)

// survey is what Place knows of a zone.
type survey struct {
	at    time.Time
	until time.Time
	err   error
	// names are the installation's instances, where they are bounded.
	installation string
	names        map[string]bool
}

// surroundings is what is known of a region.
type surroundings struct {
	until  time.Time
	region *compute.Region
	err    error
}

// surveyed returns why the zone can take no instance: it does not answer, is
// down, or its region has no quota left.
func (p *Provider) surveyed(ctx context.Context, z *zone, installation string, wished bool) error {
	begun := p.now()
	known := func() (error, bool) {
		z.mu.Lock()
		defer z.mu.Unlock()
		now, v := p.now(), z.survey
		if v.err != nil {
			return v.err, v.at.After(begun) || !wished && now.Before(v.until)
		}
		counted := p.conf.MaxInstances == 0 || v.installation == installation && now.Sub(v.at) < countAge
		return nil, counted && now.Before(v.until)
	}
	if err, ok := known(); ok {
		return err
	}
	// One asks, and the others take over what it heard.
	unlock, err := p.working.lock(ctx, "survey of "+z.name)
	if err != nil {
		return fault.Errorf(fault.Transient, "another Proxy asks the zone, and it takes long: %w", ctx.Err())
	}
	defer unlock()
	if err, ok := known(); ok {
		return err
	}
	asking := ctx
	if !wished {
		asking = within(ctx, min(surveyLimit, p.limit/2))
	}
	err = p.look(asking, z)
	var names map[string]bool
	if err == nil && p.conf.MaxInstances > 0 {
		names, err = p.count(asking, z, installation)
	}
	if ctx.Err() != nil {
		return err // its time was over, and says nothing of the zone
	}
	var age time.Duration
	switch fault.Of(err) {
	case "", fault.Timeout:
		age = surveyAge
	case fault.Quota, fault.Unavailable:
		age = refusedAge
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	now := p.now()
	z.survey = survey{now, now.Add(age), err, installation, names}
	return err
}

func (p *Provider) look(ctx context.Context, z *zone) error {
	var around *compute.Region
	var errRegion error
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		around, errRegion = p.around(ctx, region(z.name))
	}()
	here, err := p.api.getZone(ctx, z.name)
	<-asked
	switch {
	case fault.Of(err) == fault.NotFound:
		return fault.Errorf(fault.Permanent, "project %s has no such zone, or there is no such project: %w: check gcp.project and gcp.zones", p.conf.Project, err)
	case err != nil:
		return err
	case here.Status == "DOWN":
		return fault.Errorf(fault.Unavailable, "Compute Engine says that it is down")
	case errRegion == nil:
		return p.room(around)
	}
	// Without a look at the quota the attempt tells.
	return nil
}

// around returns a region, asked once for all of its zones.
func (p *Provider) around(ctx context.Context, name string) (*compute.Region, error) {
	unlock, err := p.working.lock(ctx, "region "+name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	p.mu.Lock()
	was, ok := p.regions[name]
	p.mu.Unlock()
	if ok && p.now().Before(was.until) {
		return was.region, was.err
	}
	r, err := p.api.getRegion(ctx, name)
	if ctx.Err() == nil {
		p.mu.Lock()
		p.regions[name] = surroundings{p.now().Add(regionAge), r, err}
		p.mu.Unlock()
	}
	return r, err
}

// room returns Quota when the region has none left for one more machine of any
// kind. Quotas of CPUs differ by machine type and by how it is bought: of those
// the attempt tells.
func (p *Provider) room(r *compute.Region) error {
	for _, q := range r.Quotas {
		counts := q.Metric == "INSTANCES" || q.Metric == "IN_USE_ADDRESSES" && p.conf.Address == "external"
		if counts && q.Usage >= q.Limit {
			return fault.Errorf(fault.Quota, "quota %s of region %s is used up (%.0f of %.0f): delete machines, or ask for a higher quota", q.Metric, r.Name, q.Usage, q.Limit)
		}
	}
	return nil
}
