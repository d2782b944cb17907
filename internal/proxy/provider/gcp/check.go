package gcp

import (
	"context"
	"fmt"
	"sync"

	compute "google.golang.org/api/compute/v1"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// Reasons of the rows that Check returns; docs/gcp-provider.md has the table.
const (
	// ReasonOK: instances can be made.
	ReasonOK = provider.ReasonOK
	// ReasonCredentials: there are none, they cannot be used, or are refused.
	ReasonCredentials = "Credentials"
	// ReasonAPIDisabled: the project has not enabled the Compute Engine API.
	ReasonAPIDisabled = "APIDisabled"
	// ReasonForbidden: a permission is missing.
	ReasonForbidden = "Forbidden"
	// ReasonNotFound: there is no such project or zone.
	ReasonNotFound = "NotFound"
	// ReasonMachineType: the zone has no machine type of that name.
	ReasonMachineType = "MachineType"
	// ReasonZoneDown: Compute Engine says that the zone is down.
	ReasonZoneDown = "ZoneDown"
	// ReasonQuota: a quota of the region is used up.
	ReasonQuota = "Quota"
	// ReasonExhausted: the zone had no machine a moment ago.
	ReasonExhausted = "Exhausted"
	// ReasonRate: too many calls for the project's rate.
	ReasonRate = "RateLimited"
	// ReasonTimeout: no answer in time.
	ReasonTimeout = "Timeout"
	// ReasonUnreachable: the API cannot be reached, or answers that it cannot.
	ReasonUnreachable = "Unreachable"
	// ReasonError: any other error.
	ReasonError = "Error"
)

// Reasons returns all reasons of Check.
func Reasons() []string {
	return []string{
		ReasonOK, ReasonCredentials, ReasonAPIDisabled, ReasonForbidden, ReasonNotFound, ReasonMachineType, ReasonZoneDown,
		ReasonQuota, ReasonExhausted, ReasonRate, ReasonTimeout, ReasonUnreachable, ReasonError,
	}
}

// Check implements [provider.Checker]: it asks for the project once, and for
// each zone, its region and the default machine type there, all at once.
func (p *Provider) Check(ctx context.Context) ([]provider.HostHealth, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	var project error
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		_, project = p.api.getProject(ctx)
	}()
	zones := p.all()
	rows := make([]provider.HostHealth, len(zones))
	var wg sync.WaitGroup
	for i, z := range zones {
		wg.Go(func() {
			err := p.examine(ctx, z)
			if err == nil {
				<-asked
				err = project
			}
			rows[i] = provider.HostHealth{Host: z.name, Reason: verdict(err)}
			if err != nil {
				rows[i].Message = p.named(ctx, z.name, err).Error()
			}
		})
	}
	wg.Wait()
	<-asked
	return rows, nil
}

// examine says why no instance can be made in the zone, in the order in which a
// person would mend it.
func (p *Provider) examine(ctx context.Context, z *zone) error {
	var here *compute.Zone
	var around *compute.Region
	errs := make([]error, 3)
	var wg sync.WaitGroup
	wg.Go(func() { here, errs[0] = p.api.getZone(ctx, z.name) })
	wg.Go(func() {
		_, errs[1] = p.api.getMachineType(ctx, z.name, p.conf.MachineType)
		if fault.Of(errs[1]) == fault.NotFound {
			errs[1] = &apiError{fault.Permanent, ReasonMachineType, fmt.Sprintf("gcp.machineType: the zone has no machine type %q", p.conf.MachineType)}
		}
	})
	wg.Go(func() { around, errs[2] = p.api.getRegion(ctx, region(z.name)) })
	wg.Wait()
	if errs[0] == nil && here.Status == "DOWN" {
		return &apiError{fault.Unavailable, ReasonZoneDown, "Compute Engine says that it is down"}
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	z.mu.Lock()
	exhausted := p.now().Before(z.refused)
	z.mu.Unlock()
	if exhausted {
		return &apiError{fault.Quota, ReasonExhausted, "it had no machine to give a moment ago"}
	}
	return p.room(around)
}

// verdict is the reason of an error.
func verdict(err error) string {
	if err == nil {
		return ReasonOK
	}
	switch code := codeOf(err); code {
	case ReasonMachineType, ReasonZoneDown, ReasonExhausted:
		return code
	case reasonDisabled:
		return ReasonAPIDisabled
	case "forbidden":
		return ReasonForbidden
	}
	switch c := fault.Of(err); {
	case isUnusable(err):
		return ReasonCredentials
	case c == fault.NotFound:
		return ReasonNotFound
	case c == fault.Quota:
		return ReasonQuota
	case c == fault.Timeout:
		return ReasonTimeout
	case c == fault.Unavailable:
		return ReasonUnreachable
	case c == fault.Transient:
		return ReasonRate
	}
	return ReasonError
}
