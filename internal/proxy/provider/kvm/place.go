package kvm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/proxy/provider/kvm/image"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

const (
	// surveyAge is how long a survey of a host serves Place: a thousand
	// Proxies that are made at once cost a call a host every few seconds.
	surveyAge = 5 * time.Second
	// lowSpace is the free space of a pool below which nothing new is made
	// there, in bytes; Check warns then.
	lowSpace = 1 << 30
)

// survey is what Place knows of a host.
type survey struct {
	at time.Time
	// instances counts those of the installation, with those placed since.
	installation string
	instances    int
	available    uint64
}

// Place implements [provider.Provider]: the wished host, or of those that
// answer and have room the one with the fewest instances. Equal ones are told
// apart by the UID, so that the same Proxy gets the same answer.
func (p *Provider) Place(ctx context.Context, spec provider.Spec) (string, error) {
	if _, err := p.validate(spec); err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	hosts := p.all()
	if spec.Host != "" {
		h, ok := p.hosts[spec.Host]
		if !ok {
			return "", fault.Errorf(fault.Invalid, "placement.host %q is none of provider %q, which has %s", short(spec.Host), p.name, listed(p.hosts))
		}
		hosts = []*host{h}
	}
	type candidate struct {
		h     *host
		load  int
		order uint64
		err   error
	}
	found := make([]candidate, len(hosts))
	var wg sync.WaitGroup
	for i, h := range hosts {
		wg.Go(func() {
			s, err := p.surveyed(ctx, h, spec.Owner.Installation)
			if err == nil {
				err = h.room(s)
			}
			found[i] = candidate{h, s.instances, order(spec.Owner.UID, h.name), err}
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return "", p.named(ctx, hosts[0], err)
	}
	slices.SortFunc(found, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.load, b.load), cmp.Compare(a.order, b.order))
	})
	var refused []error
	for _, c := range found {
		if c.err == nil {
			c.h.placed()
			return c.h.name, nil
		}
		refused = append(refused, c.err)
	}
	return "", nowhere(refused)
}

// nowhere is the error of no host that can take an instance: the one that is
// worth trying again soonest decides the class.
func nowhere(errs []error) error {
	for _, class := range []fault.Class{fault.Timeout, fault.Unavailable, fault.Transient, fault.Quota} {
		for _, err := range errs {
			if fault.Of(err) == class {
				return fault.Errorf(class, "no host can take an instance: %w", errors.Join(errs...))
			}
		}
	}
	return fmt.Errorf("no host can take an instance: %w", errors.Join(errs...))
}

func order(uid, host string) uint64 {
	f := fnv.New64a()
	_, _ = f.Write([]byte(uid + "\x00" + host))
	return f.Sum64()
}

// room returns Quota when the host should get no further instance.
func (h *host) room(s survey) error {
	if h.conf.MaxInstances > 0 && s.instances >= h.conf.MaxInstances {
		return fault.Errorf(fault.Quota, "host %s has %d instances and may have %d: delete Proxies, add a host, or raise hosts.%s.maxInstances",
			h.name, s.instances, h.conf.MaxInstances, h.name)
	}
	if s.available < lowSpace {
		return fault.Errorf(fault.Quota, "host %s: pool %s has %s free, too little for a disk: free space there, or add a host", h.name, h.conf.Pool, mib(s.available))
	}
	return nil
}

// surveyed counts the host's instances and its space, or takes the last
// count.
func (p *Provider) surveyed(ctx context.Context, h *host, installation string) (survey, error) {
	h.mu.Lock()
	last := h.survey
	h.mu.Unlock()
	if last.installation == installation && p.now().Sub(last.at) < surveyAge && h.room(last) == nil {
		return last, nil
	}
	s := survey{at: p.now(), installation: installation}
	err := p.on(ctx, h, func(ctx context.Context, c virt.Conn) error {
		h.fresh(p.links.Generation(h.name))
		pool, err := h.pool(ctx, c)
		if err != nil {
			return err
		}
		s.available = pool.info.Available
		list, err := p.scan(ctx, c, h, installation)
		s.instances = len(list)
		return err
	})
	if err != nil {
		return s, err
	}
	h.mu.Lock()
	h.survey = s
	h.mu.Unlock()
	return s, nil
}

// placed counts an instance that is about to be made.
func (h *host) placed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.survey.instances++
}

// plan is a spec that was checked: what Create works from.
type plan struct {
	spec    provider.Spec
	names   domain.Names
	uuid    string
	mac     string
	picture picture
	vcpus   int
	memory  int64
	disk    int64
	port    int
}

const (
	defaultPort   = 3128
	defaultVCPUs  = 1
	defaultMemory = 1 << 30
	// minMemory is what firmware and a kernel need before anything runs.
	minMemory = 128 << 20
	maxMemory = 16 << 40
	maxVCPUs  = 512
	maxDisk   = 64 << 40
	// maxUserData is what a seed holds, in bytes; Kubernetes objects hold less.
	maxUserData = 8 << 20
)

// validate says what of a spec cannot be done, naming the Proxy's fields.
func (p *Provider) validate(spec provider.Spec) (plan, error) {
	pl := plan{spec: spec, vcpus: defaultVCPUs, memory: defaultMemory, port: spec.Port}
	if err := validOwner(spec.Owner); err != nil {
		return pl, err
	}
	switch {
	case spec.Zone != "":
		return pl, fault.Errorf(fault.Invalid, "placement.zone %q: a kvm provider has hosts and no zones; use placement.host", short(spec.Zone))
	case len(spec.NodeSelector) > 0:
		return pl, fault.New(fault.Invalid, "placement.nodeSelector: a kvm provider has hosts and no nodes; use placement.host")
	case spec.Port < 0 || spec.Port > 65535:
		return pl, fault.Errorf(fault.Invalid, "port %d is not in 1 to 65535", spec.Port)
	case len(spec.UserData) > maxUserData:
		return pl, fault.Errorf(fault.Invalid, "cloudInit has %d bytes and a seed holds %d: have the machine fetch the rest", len(spec.UserData), maxUserData)
	}
	if pl.port == 0 {
		pl.port = defaultPort
	}
	r := spec.Resources
	if r.MilliCPUs > 0 {
		pl.vcpus = int((r.MilliCPUs + 999) / 1000)
	}
	if r.MemoryBytes > 0 {
		pl.memory = r.MemoryBytes
	}
	pl.disk = r.DiskBytes
	switch {
	case r.MilliCPUs < 0 || pl.vcpus > maxVCPUs:
		return pl, fault.Errorf(fault.Invalid, "resources.cpus: a machine has 1 to %d", maxVCPUs)
	case pl.memory < minMemory:
		return pl, fault.Errorf(fault.Invalid, "resources.memory: %s is less than a virtual machine needs to start: ask for at least %s", mib(uint64(max(pl.memory, 0))), mib(minMemory))
	case pl.memory > maxMemory:
		return pl, fault.Errorf(fault.Invalid, "resources.memory: %s is more than a machine can have", mib(uint64(pl.memory)))
	case pl.disk < 0 || pl.disk > maxDisk:
		return pl, fault.Errorf(fault.Invalid, "resources.disk: %d bytes are not in 0 to %d", pl.disk, int64(maxDisk))
	}
	var err error
	if pl.picture, err = p.pictureOf(spec.Image); err != nil {
		return pl, err
	}
	pl.names, pl.uuid, pl.mac = domain.NamesOf(spec.Owner), domain.UUIDOf(spec.Owner), domain.MACOf(spec.Owner)
	return pl, nil
}

// pictureOf is the image that placement.image means.
func (p *Provider) pictureOf(name string) (picture, error) {
	if name == "" {
		name = p.conf.defaultImage
	}
	if name == "" {
		return picture{}, fault.Errorf(fault.Invalid, "placement.image is empty and provider %q has no defaultImage: name one of its images (%s) or give a URL", p.name, listed(p.conf.images))
	}
	if pic, ok := p.conf.images[name]; ok {
		return pic, nil
	}
	if !strings.Contains(name, "://") {
		return picture{}, fault.Errorf(fault.Invalid, "placement.image %q is none of the images of provider %q (%s), and no URL", short(name), p.name, listed(p.conf.images))
	}
	src := image.Source{URL: name, Format: image.QCOW2}
	if err := src.Validate(); err != nil {
		return picture{}, fmt.Errorf("placement.image: %w", err)
	}
	return picture{name: src.String(), source: src, firmware: domain.UEFI}, nil
}

// mib is a size for people.
func mib(n uint64) string {
	if n >= 1<<20 || n == 0 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d bytes", n)
}
