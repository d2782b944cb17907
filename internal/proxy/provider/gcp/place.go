package gcp

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	compute "google.golang.org/api/compute/v1"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

const (
	// reservedFor is how long an instance that is about to be made counts.
	reservedFor = 2 * time.Minute
	// exhaustedFor is how long a zone that had no machine gets none, and fullFor
	// how long a region whose quota was used up.
	exhaustedFor = 10 * time.Minute
	fullFor      = 2 * time.Minute
)

// Place implements [provider.Provider]: the wished zone, or the first of the
// section's order (or of the Proxy's own, with spread) that answers, whose
// region has quota left, and that was not out of machines a moment ago.
//
// That a zone is out of machines is only told by an attempt: Create answers
// Quota then and leaves nothing, and the operator asks Place again.
func (p *Provider) Place(ctx context.Context, spec provider.Spec) (string, error) {
	if _, err := p.validate(spec); err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if spec.Host != "" && spec.Zone != "" && spec.Host != spec.Zone {
		return "", fault.Errorf(fault.Invalid, "placement.zone %q and placement.host %q: for a gcp provider both are the zone; leave one out", short(spec.Zone), short(spec.Host))
	}
	wish := cmp.Or(spec.Host, spec.Zone)
	zones := p.all()
	if wish != "" {
		z, ok := p.zones[wish]
		if !ok {
			field := "placement.zone"
			if spec.Host != "" {
				field = "placement.host"
			}
			return "", fault.Errorf(fault.Invalid, "%s %q is none of the zones of provider %q, which has %s", field, short(wish), p.name, some(p.conf.Zones))
		}
		zones = []*zone{z}
	} else if p.conf.Spread {
		slices.SortFunc(zones, func(a, b *zone) int { return cmp.Compare(order(spec.Owner.UID, a.name), order(spec.Owner.UID, b.name)) })
	}
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	// The zones are asked in order, a few at a time, so that many zones are not
	// all asked for each Proxy; where none will do the next ones are more.
	var refused []error
	for size := firstZones; len(zones) > 0 && (ctx.Err() == nil || len(refused) == 0); size *= 2 {
		batch := zones[:min(size, len(zones))]
		zones = zones[len(batch):]
		errs := make([]error, len(batch))
		var wg sync.WaitGroup
		for i, z := range batch {
			wg.Go(func() {
				errs[i] = cmp.Or(p.wanted(z), p.named(ctx, z.name, p.surveyed(ctx, z, spec.Owner.Installation, wish != "")))
			})
		}
		wg.Wait()
		if z := p.choose(batch, errs, nameOf(spec.Owner)); z != nil {
			return z.name, nil
		}
		refused = append(refused, errs...)
	}
	return "", nowhere(refused)
}

// choose reserves in the first of the zones that nothing speaks against, nil for
// none.
func (p *Provider) choose(zones []*zone, refused []error, name string) *zone {
	p.placing.Lock()
	defer p.placing.Unlock()
	for i, z := range zones {
		refused[i] = cmp.Or(refused[i], p.bounded(z, name))
		if refused[i] == nil {
			z.reserve(name, p.now())
			return z
		}
	}
	return nil
}

// bounded returns Quota when the zone has as many instances as it may, those
// that are about to be made among them. One that is there needs no room.
func (p *Provider) bounded(z *zone, name string) error {
	if p.conf.MaxInstances == 0 {
		return nil
	}
	n := z.load(name, p.now())
	if n < p.conf.MaxInstances {
		return nil
	}
	return fault.Errorf(fault.Quota, "zone %s has %d instances, those that are being made among them, and may have %d: delete Proxies, add a zone, or raise gcp.maxInstances", z.name, n, p.conf.MaxInstances)
}

// load counts the zone's instances other than the named one.
func (z *zone) load(name string, now time.Time) int {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.survey.names[name] {
		return 0
	}
	n := len(z.survey.names)
	for other, until := range z.reserved {
		switch {
		case now.After(until):
			delete(z.reserved, other)
		case other != name && !z.survey.names[other]:
			n++
		}
	}
	return n
}

func (z *zone) reserve(name string, now time.Time) {
	z.mu.Lock()
	defer z.mu.Unlock()
	for other, until := range z.reserved {
		if now.After(until) {
			delete(z.reserved, other)
		}
	}
	z.reserved[name] = now.Add(reservedFor)
}

// release forgets that the named instance is about to be made.
func (z *zone) release(name string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	delete(z.reserved, name)
}

// admit says whether the zone takes one more, by a count of now, and reserves
// its place: others that are admitted before it shows count it.
func (p *Provider) admit(ctx context.Context, z *zone, pl plan) error {
	if p.conf.MaxInstances == 0 {
		return nil
	}
	names, err := p.count(ctx, z, pl.spec.Owner.Installation)
	if err != nil {
		return err
	}
	z.mu.Lock()
	z.survey.names, z.survey.installation = names, pl.spec.Owner.Installation
	z.mu.Unlock()
	p.placing.Lock()
	defer p.placing.Unlock()
	if err := p.bounded(z, pl.name); err != nil {
		return err
	}
	z.reserve(pl.name, p.now())
	return nil
}

// count are the names of the installation's instances in the zone.
func (p *Provider) count(ctx context.Context, z *zone, installation string) (map[string]bool, error) {
	vms, err := p.api.listInstances(ctx, z.name, "name eq "+namePrefix+tagOf(installation)+"-.*")
	if err != nil {
		return nil, p.listFault(err)
	}
	names := map[string]bool{}
	for _, vm := range vms {
		names[vm.Name] = true
	}
	return names, nil
}

// nowhere is the error of no zone that can take an instance: the one that is
// worth trying again soonest decides the class.
func nowhere(errs []error) error {
	all := errs[0]
	for _, err := range errs[1:] {
		all = fmt.Errorf("%w; %w", all, err)
	}
	all = fmt.Errorf("no zone can take an instance: %w", all)
	for _, class := range []fault.Class{fault.Timeout, fault.Unavailable, fault.Transient, fault.Quota} {
		for _, err := range errs {
			if fault.Of(err) == class {
				return fault.Wrap(class, all)
			}
		}
	}
	return all
}

func order(uid, zone string) uint64 {
	f := fnv.New64a()
	_, _ = f.Write([]byte(uid + "\x00" + zone))
	return f.Sum64()
}

// wanted returns Quota for a while after the zone had no machine, or its region
// no quota.
func (p *Provider) wanted(z *zone) error {
	z.mu.Lock()
	refused := z.refused
	z.mu.Unlock()
	if p.now().Before(refused) {
		return fault.Errorf(fault.Quota, "zone %s had no machine to give a moment ago: wait, or add other zones to gcp.zones", z.name)
	}
	p.mu.Lock()
	full := p.full[region(z.name)]
	p.mu.Unlock()
	if p.now().Before(full) {
		return fault.Errorf(fault.Quota, "zone %s: a quota of region %s was used up a moment ago: delete machines, or ask for a higher quota", z.name, region(z.name))
	}
	return nil
}

// refuse notes what Create met, and says what follows.
func (p *Provider) refuse(z *zone, err error) error {
	switch {
	case isExhausted(err):
		z.mu.Lock()
		z.refused = p.now().Add(exhaustedFor)
		z.mu.Unlock()
		return fault.Errorf(fault.Quota, "it has no machine to give now: %w: other zones of gcp.zones are tried, unless the Proxy names this one", err)
	case fault.Of(err) == fault.Quota:
		p.mu.Lock()
		p.full[region(z.name)] = p.now().Add(fullFor)
		p.mu.Unlock()
		if codeOf(err) == reasonQuota {
			return fmt.Errorf("%w, or add a zone of another region", err)
		}
		return fault.Errorf(fault.Quota, "a quota of region %s is used up: %w: delete machines, ask for a higher quota, or add a zone of another region", region(z.name), err)
	}
	return err
}

// plan is a spec that was checked: what Create works from.
type plan struct {
	spec    provider.Spec
	name    string
	machine string
	image   string
	// imageField is where the image was named.
	imageField string
	diskGiB    int64
	port       int
	items      []*compute.MetadataItems
}

const (
	defaultPort = 3128
	gib         = 1 << 30
	mib         = 1 << 20
	// maxUserData is what one metadata item holds, in bytes.
	maxUserData = 256 << 10
)

// validate says what of a spec cannot be done, naming the Proxy's fields.
func (p *Provider) validate(spec provider.Spec) (plan, error) {
	pl := plan{spec: spec, port: cmp.Or(spec.Port, defaultPort), diskGiB: p.conf.Disk.SizeGiB}
	if err := validOwner(spec.Owner); err != nil {
		return pl, err
	}
	pl.name = nameOf(spec.Owner)
	r := spec.Resources
	switch {
	case len(spec.NodeSelector) > 0:
		return pl, fault.New(fault.Invalid, "placement.nodeSelector: a gcp provider has zones and no nodes; use placement.zone")
	case pl.port < 1 || pl.port > 65535:
		return pl, fault.Errorf(fault.Invalid, "port %d is not in 1 to 65535", spec.Port)
	case len(describe(spec.Owner, pl.port)) > maxDescription:
		return pl, fault.Errorf(fault.Invalid, "the owner's names need more than the %d characters of a description", maxDescription)
	case r.DiskBytes < 0 || r.DiskBytes > maxDiskGiB*gib:
		return pl, fault.Errorf(fault.Invalid, "resources.disk: %d bytes are not in 0 to %d GiB", r.DiskBytes, maxDiskGiB)
	}
	if r.DiskBytes > 0 {
		pl.diskGiB = (r.DiskBytes + gib - 1) / gib
	}
	var err error
	if pl.machine, err = p.machineOf(r); err != nil {
		return pl, err
	}
	if pl.image, pl.imageField, err = p.imageOf(spec.Image); err != nil {
		return pl, err
	}
	pl.items, err = items(spec.UserData)
	return pl, err
}

// machineOf is the first machine type that is large enough.
func (p *Provider) machineOf(r provider.Resources) (string, error) {
	if r.MilliCPUs < 0 || r.MemoryBytes < 0 {
		return "", fault.New(fault.Invalid, "resources: cpus and memory are not below zero")
	}
	if r.MilliCPUs == 0 && r.MemoryBytes == 0 {
		return p.conf.MachineType, nil
	}
	for _, t := range p.conf.MachineTypes {
		if t.MilliCPUs >= r.MilliCPUs && t.MemoryMiB*mib >= r.MemoryBytes {
			return t.Name, nil
		}
	}
	return "", fault.Errorf(fault.Invalid, "resources: no machine type has %dm cpus and %d MiB of memory: ask for less, or add a larger one to gcp.machineTypes", r.MilliCPUs, r.MemoryBytes/mib)
}

// imageOf is the image that placement.image means, and the field that names it.
func (p *Provider) imageOf(name string) (ref, field string, err error) {
	if name == "" {
		if p.conf.DefaultImage == "" {
			return "", "", fault.Errorf(fault.Invalid, "placement.image is empty and provider %q has no defaultImage: name one of its images (%s), or give a reference", p.name, listed(p.conf.Images))
		}
		name = p.conf.DefaultImage
	}
	if ref, ok := p.conf.Images[name]; ok {
		return ref, "gcp.images." + name, nil
	}
	if ref, ok := imageOf(name); ok {
		return ref, "placement.image", nil
	}
	return "", "", fault.Errorf(fault.Invalid, "placement.image %q is none of the images of provider %q (%s), and no projects/PROJECT/global/images/family/NAME", short(name), p.name, listed(p.conf.Images))
}

// items are the metadata that carry user-data byte for byte. JSON holds text
// alone, so that anything else goes in base64, which cloud-init is told.
func items(data provider.Secret) ([]*compute.MetadataItems, error) {
	if len(data) == 0 {
		return nil, nil
	}
	text := string(data)
	out := []*compute.MetadataItems{{Key: "user-data", Value: &text}}
	if !utf8.Valid(data) || strings.ContainsRune(text, 0) {
		encoding := "base64"
		text = base64.StdEncoding.EncodeToString(data)
		out = append(out, &compute.MetadataItems{Key: "user-data-encoding", Value: &encoding})
	}
	if len(text) > maxUserData {
		return nil, fault.Errorf(fault.Invalid, "cloudInit has %d bytes, which are %d as metadata, and Compute Engine takes %d: have the machine fetch the rest", len(data), len(text), maxUserData)
	}
	return out, nil
}
