package gcp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

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

// typedFor is how long a machine type that a zone had is taken to be there, and
// rowFor how long a zone's row serves while no call has its turn.
const (
	typedFor = time.Hour
	rowFor   = 15 * time.Minute
)

// verdictOf is a row that Check gave.
type verdictOf struct {
	at  time.Time
	row provider.HostHealth
}

// Check implements [provider.Checker]: it asks for the project and for each
// region once, and for each zone and, once an hour, the default machine type
// there. Other calls go before these. A zone that could not be asked at the
// configured rate keeps its last row.
func (p *Provider) Check(ctx context.Context) ([]provider.HostHealth, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(lowly(ctx), p.limit)
	defer cancel()
	var project error
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		_, project = p.api.getProject(ctx)
	}()
	zones := p.all()
	regions := map[string]func() (*compute.Region, error){}
	for _, z := range zones {
		if name := region(z.name); regions[name] == nil {
			regions[name] = sync.OnceValues(func() (*compute.Region, error) { return p.api.getRegion(ctx, name) })
		}
	}
	rows := make([]provider.HostHealth, len(zones))
	var wg sync.WaitGroup
	for i, z := range zones {
		wg.Go(func() {
			err := p.examine(ctx, z, regions[region(z.name)])
			if err == nil {
				<-asked
				err = project
			}
			rows[i] = p.row(ctx, z, err)
		})
	}
	wg.Wait()
	<-asked
	return rows, nil
}

// row is what a zone's examination says, or said the last time it could.
func (p *Provider) row(ctx context.Context, z *zone, err error) provider.HostHealth {
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if last, ok := p.rows[z.name]; ok && errors.Is(err, errBusy) && now.Sub(last.at) < rowFor {
		return last.row
	}
	row := provider.HostHealth{Host: z.name, Reason: verdict(err)}
	if err != nil {
		row.Message = p.named(ctx, z.name, err).Error()
	}
	if !errors.Is(err, errBusy) {
		p.rows[z.name] = verdictOf{now, row}
	}
	return row
}

// examine says why no instance can be made in the zone, in the order in which a
// person would mend it.
func (p *Provider) examine(ctx context.Context, z *zone, region func() (*compute.Region, error)) error {
	z.mu.Lock()
	typed := p.now().Before(z.typed)
	z.mu.Unlock()
	var here *compute.Zone
	var around *compute.Region
	errs := make([]error, 3)
	var wg sync.WaitGroup
	wg.Go(func() { here, errs[0] = p.api.getZone(ctx, z.name) })
	wg.Go(func() {
		if typed {
			return
		}
		_, errs[1] = p.api.getMachineType(ctx, z.name, p.conf.MachineType)
		if fault.Of(errs[1]) == fault.NotFound {
			errs[1] = &apiError{fault.Permanent, ReasonMachineType, fmt.Sprintf("gcp.machineType: the zone has no machine type %q", p.conf.MachineType)}
		}
	})
	wg.Go(func() { around, errs[2] = region() })
	wg.Wait()
	z.mu.Lock()
	exhausted := p.now().Before(z.refused)
	if errs[1] == nil && !typed {
		z.typed = p.now().Add(typedFor)
	}
	z.mu.Unlock()
	if errs[0] == nil && here.Status == "DOWN" {
		return &apiError{fault.Unavailable, ReasonZoneDown, "Compute Engine says that it is down"}
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
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
