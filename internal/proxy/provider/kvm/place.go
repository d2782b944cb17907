package kvm

import (
	"cmp"
	"context"
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
	// surveyLimit is how long Place waits for a host that nobody wished for,
	// and silentFor how long it does without one that did not answer: where
	// others can take the machine, a mute host must not hold it up.
	surveyLimit = 3 * time.Second
	silentFor   = 30 * time.Second
	// lowSpace is the free space of a pool below which nothing new is made
	// there, in bytes; Check warns then.
	lowSpace = 1 << 30
)

// survey is what Place knows of a host.
type survey struct {
	at time.Time
	// uids are the instances of the installation.
	installation string
	uids         map[string]bool
	available    uint64
}

// uidsOf are the UIDs of a host's instances; those whose owner cannot be read
// count by their UUID.
func uidsOf(list []seen) map[string]bool {
	out := map[string]bool{}
	for _, s := range list {
		uid := s.mark.Owner.UID
		if s.torn != nil {
			uid = s.Domain.UUID
		}
		out[uid] = true
	}
	return out
}

const (
	// reservedFor is how long a host that Place answered counts the machine
	// that is about to be made there.
	reservedFor = 2 * time.Minute
	// refusedFor is how long a host that had no room for a machine gets none.
	refusedFor = 2 * time.Minute
)

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
		s     survey
		load  int
		order uint64
		err   error
	}
	found := make([]candidate, len(hosts))
	var wg sync.WaitGroup
	for i, h := range hosts {
		wg.Go(func() {
			s, err := p.surveyed(ctx, h, spec.Owner.Installation, spec.Host != "")
			found[i] = candidate{h: h, s: s, order: order(spec.Owner.UID, h.name), err: err}
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return "", p.named(ctx, hosts[0], err)
	}
	// Choosing and reserving are one step: calls at once see each other's choice.
	p.placing.Lock()
	defer p.placing.Unlock()
	for i := range found {
		if found[i].err == nil {
			found[i].load = found[i].h.load(found[i].s, spec.Owner.UID, p.now())
			found[i].err = cmp.Or(found[i].h.wanted(found[i].s, spec.Owner.UID, p.now()), found[i].h.room(found[i].s, spec.Owner.UID, p.now()))
		}
	}
	slices.SortFunc(found, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.load, b.load), cmp.Compare(a.order, b.order))
	})
	var refused []error
	for _, c := range found {
		if c.err == nil {
			c.h.reserve(spec.Owner.UID, p.now())
			return c.h.name, nil
		}
		refused = append(refused, c.err)
	}
	return "", nowhere(refused)
}

// nowhere is the error of no host that can take an instance: the one that is
// worth trying again soonest decides the class.
func nowhere(errs []error) error {
	all := errs[0]
	for _, err := range errs[1:] {
		all = fmt.Errorf("%w; %w", all, err)
	}
	all = fmt.Errorf("no host can take an instance: %w", all)
	for _, class := range []fault.Class{fault.Timeout, fault.Unavailable, fault.Transient, fault.Quota} {
		for _, err := range errs {
			if fault.Of(err) == class {
				return fault.Wrap(class, all)
			}
		}
	}
	return all
}

func order(uid, host string) uint64 {
	f := fnv.New64a()
	_, _ = f.Write([]byte(uid + "\x00" + host))
	return f.Sum64()
}

// room returns Quota when the host should get no further instance. One that is
// there needs no room.
func (h *host) room(s survey, uid string, now time.Time) error {
	if s.uids[uid] {
		return nil
	}
	if n := h.load(s, uid, now); h.conf.MaxInstances > 0 && n >= h.conf.MaxInstances {
		return fault.Errorf(fault.Quota, "host %s has %d instances, those that are being made among them, and may have %d: delete Proxies, add a host, or raise hosts.%s.maxInstances",
			h.name, n, h.conf.MaxInstances, h.name)
	}
	if s.available < lowSpace {
		return fault.Errorf(fault.Quota, "host %s: pool %s has %s free, too little for a disk: free space there, or add a host", h.name, h.conf.Pool, mib(s.available))
	}
	return nil
}

// load counts the host's instances other than the one of that UID, with those
// that are about to be made.
func (h *host) load(s survey, uid string, now time.Time) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(s.uids)
	if s.uids[uid] {
		n--
	}
	for other, until := range h.reserved {
		switch {
		case now.After(until):
			delete(h.reserved, other)
		case other != uid && !s.uids[other]:
			n++
		}
	}
	return n
}

// reserve counts an instance that is about to be made.
func (h *host) reserve(uid string, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reserved[uid] = now.Add(reservedFor)
}

// wanted returns Quota for a while after a machine found no room on the host.
func (h *host) wanted(s survey, uid string, now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.uids[uid] || !now.Before(h.refused) {
		return nil
	}
	return fault.Errorf(fault.Quota, "host %s had no room for a machine a moment ago: free space in pool %s there, or add a host", h.name, h.conf.Pool)
}

// refuse notes that the host had no room.
func (h *host) refuse(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refused = now.Add(refusedFor)
}

// surveyed counts the host's instances and its space, or takes the last
// count. For a host that was not wished for it waits a short time only, and not
// at all when the host did not answer a moment ago.
func (p *Provider) surveyed(ctx context.Context, h *host, installation string, wished bool) (survey, error) {
	h.mu.Lock()
	last, silent, why := h.survey, h.silent, h.silence
	h.mu.Unlock()
	if last.installation == installation && p.now().Sub(last.at) < surveyAge && last.available >= lowSpace {
		return last, nil
	}
	if !wished {
		if p.now().Before(silent) {
			return survey{}, why
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, surveyLimit)
		defer cancel()
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
		s.uids = uidsOf(list)
		return err
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		if fault.Of(err) == fault.Timeout {
			h.silent, h.silence = p.now().Add(silentFor), err
		}
		return s, err
	}
	h.survey, h.silent, h.silence = s, time.Time{}, nil
	return s, nil
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
		return picture{}, fault.Errorf(fault.Invalid, "placement.image %q is none of the images of provider %q (%s), and no URL", short(public(name)), p.name, listed(p.conf.images))
	}
	src := image.Source{URL: name, Format: image.QCOW2}
	if err := src.Validate(); err != nil {
		return picture{}, fmt.Errorf("placement.image: %w", err)
	}
	return picture{name: src.String(), source: src, firmware: domain.UEFI}, nil
}

// public is what a text may show of a reference: what stands where a URL has its
// user or its query may be what gives access.
func public(reference string) string {
	reference, _, _ = strings.Cut(reference, "?")
	if _, after, ok := strings.Cut(reference, "@"); ok {
		return after
	}
	return reference
}

// mib is a size for people.
func mib(n uint64) string {
	if n >= 1<<20 || n == 0 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d bytes", n)
}
