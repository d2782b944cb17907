package kvm

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/proxy/provider/kvm/image"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// What leftovers are called.
const (
	whatImage  = "image"
	whatUpload = "unfinished upload"
	whatDisk   = "disk"
	whatSeed   = "seed"
)

// maxSized bounds the volumes of one host whose sizes are asked for.
const maxSized = 64

// Leftovers implements [provider.Cleaner]. It looks into the pool that the
// configuration names, for two kinds of volumes, each known by its name:
//
//   - images that this provider of the installation uploaded, with their
//     markers, when no domain's mark names them and no configured image is
//     theirs; halves of them, when no upload of this process runs;
//   - disks and seeds of the installation without a domain of their name.
//
// What a host that left the configuration runs is nobody's to ask for, so its
// traces in a pool that it shared count: see [Provider.doubtImages] and
// [Provider.doubtParts]. What they name is left out.
//
// A clone's mark counts, and those of other installations: nothing goes that one
// of them stands on, also when the letters in its name that tell an installation
// are ours as well. The pool is listed before the domains, and a domain is defined
// before its volumes are made: what is in the list had its domain then. A domain
// of ours whose mark cannot be read makes the row an error, since nobody knows
// what it stands on; so does another host that does not answer when it has the
// same folder as its pool.
//
// A host costs three calls, one for each domain that was not seen before, and one
// for the size of each leftover.
func (p *Provider) Leftovers(ctx context.Context, installation string, keep []string) ([]provider.HostLeftovers, error) {
	if installation == "" {
		return nil, fault.New(fault.Invalid, "the installation whose leftovers are wanted is empty")
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	kept := map[string]bool{}
	for _, uid := range keep {
		kept[domain.Tag(installation, uid)] = true
	}
	hosts := p.all()
	stocks, errs := make([]stock, len(hosts)), make([]error, len(hosts))
	each(hosts, func(i int, h *host) {
		errs[i] = p.always(ctx, h, func(ctx context.Context, c virt.Conn) (err error) {
			stocks[i], err = p.stock(ctx, c, h, installation, false)
			if err == nil {
				// Now, since a host that does not answer uses up the time that there is.
				err = stocks[i].measure(ctx, c, p.leftovers(h, installation, stocks[i], stocks[i].used, kept))
			}
			return err
		})
	})
	used := newUses()
	for i := range hosts {
		used.add(stocks[i].used)
	}
	silent := slices.IndexFunc(errs, func(err error) bool { return err != nil })
	p.noteShared(hosts, stocks, installation)
	rows := make([]provider.HostLeftovers, len(hosts))
	for i, h := range hosts {
		rows[i].Host = h.name
		switch {
		case errs[i] != nil:
			rows[i].Err = errs[i]
		case silent >= 0 && stocks[i].shared:
			rows[i].Err = sharedError(h, hosts[silent], errs[silent])
		default:
			rows[i].Leftovers = p.certain(h, installation, stocks[i], used, p.leftovers(h, installation, stocks[i], used, kept))
		}
	}
	return rows, nil
}

// certain leaves out what may be in use where nobody is asked.
func (p *Provider) certain(h *host, installation string, s stock, used uses, list []provider.Leftover) []provider.Leftover {
	images, parts := p.doubtImages(installation, s, used), p.doubtParts(h, installation, s)
	return slices.DeleteFunc(list, func(l provider.Leftover) bool {
		if l.What == whatImage || l.What == whatUpload {
			return images != ""
		}
		return parts != ""
	})
}

// doubtImages says why an image of the pool may have a machine on it that no
// configured host tells of, "" when none can: a disk or seed of the installation
// without a domain may be of a host that left the configuration, and the machine
// stands on any image of the pool.
func (p *Provider) doubtImages(installation string, s stock, used uses) string {
	for _, v := range s.volumes {
		if part, ours := domain.PartOf(v.Name, installation); ours && !used.domains[part.Domain] {
			return fmt.Sprintf("%s beside it has no domain on any configured host, and a machine elsewhere may stand on both: put that host back, or remove that volume when there is none", v.Name)
		}
	}
	return ""
}

// doubtParts says why a disk or seed of a shared pool may be of a machine that no
// configured host tells of, "" when it cannot: a claim tells of each place that
// has the pool, and that place is another provider's or left the configuration.
// Before this host has claimed the pool nothing is known of others.
func (p *Provider) doubtParts(h *host, installation string, s stock) string {
	if !s.shared {
		return ""
	}
	places := map[string]bool{}
	for _, one := range p.all() {
		places[image.Place(installation, p.name, one.name)] = true
	}
	claimed := false
	for _, v := range s.volumes {
		c, ok := image.ParseClaim(v.Name)
		switch {
		case !ok || !c.Of(installation):
		case !places[c.Place]:
			return fmt.Sprintf("pool %s is shared, and the claim %s there is of another provider or of a host that left the configuration", h.conf.Pool, v.Name)
		case c.Place == image.Place(installation, p.name, h.name):
			claimed = true
		}
	}
	if !claimed {
		return fmt.Sprintf("pool %s is shared, and has no claim of this host yet, so that nobody knows who else uses it", h.conf.Pool)
	}
	return ""
}

// each runs f for all hosts at once.
func each(hosts []*host, f func(i int, h *host)) {
	var wg sync.WaitGroup
	for i, h := range hosts {
		wg.Go(func() { f(i, h) })
	}
	wg.Wait()
}

func sharedError(h, other *host, err error) error {
	return fault.Wrap(fault.Of(err), fmt.Errorf("host %s: pool %s is a folder that other hosts share, and what %s uses of it cannot be told: %w", h.name, h.conf.Pool, other.name, err))
}

// stock is what a host's pool has, and what its domains use.
type stock struct {
	pool    virt.Pool
	volumes []virt.Volume
	used    uses
	// shared says that other hosts may use volumes of the pool.
	shared bool
	// sizes are the bytes that volumes take, as far as they were asked for.
	sizes map[string]int64
}

// uses are the things that domains stand on: names of images' volumes, and of
// domains, after which disks and seeds are called.
type uses struct{ images, domains map[string]bool }

func newUses() uses { return uses{map[string]bool{}, map[string]bool{}} }

func (u uses) add(o uses) {
	maps.Copy(u.images, o.images)
	maps.Copy(u.domains, o.domains)
}

// stock lists the pool and then what the domains use. With again, each mark is
// read from the host.
func (p *Provider) stock(ctx context.Context, c virt.Conn, h *host, installation string, again bool) (stock, error) {
	h.fresh(p.links.Generation(h.name))
	found, err := h.pool(ctx, c)
	if err != nil {
		return stock{}, err
	}
	s := stock{pool: found.Pool, shared: h.isShared()}
	if o := h.known(); o == nil || o.poolKind == "netfs" {
		s.shared = true
	}
	if s.volumes, err = c.StoragePoolListAllVolumes(ctx, found.Pool); err != nil {
		return stock{}, err
	}
	s.used, err = p.uses(ctx, c, h, installation, again)
	return s, err
}

// uses reads what a host's domains stand on.
func (p *Provider) uses(ctx context.Context, c virt.Conn, h *host, installation string, again bool) (uses, error) {
	out := newUses()
	all, err := c.ConnectGetAllDomainStats(ctx)
	if err != nil {
		return out, err
	}
	marked, err := p.among(ctx, c, h, installation, all, again)
	if err != nil {
		return out, err
	}
	for _, d := range all {
		out.domains[d.Domain.Name] = true
	}
	for _, s := range marked {
		if s.torn != nil {
			return out, fault.Errorf(fault.Transient, "nothing is a leftover while it cannot be read what a machine stands on: %w", s.torn)
		}
		out.images[s.mark.Image] = true
		// Somebody may have renamed it: its disks have the name that it was made by.
		out.domains[domain.NamesOf(s.mark.Owner).Domain] = true
	}
	return out, nil
}

// noteShared finds hosts whose pools are one folder: a volume of this provider
// that only one of them made shows in the lists of both.
func (p *Provider) noteShared(hosts []*host, stocks []stock, installation string) {
	of := map[string]int{}
	places := map[string]int{}
	for i, h := range hosts {
		places[image.Place(installation, p.name, h.name)] = i
	}
	share := func(i, j int) {
		for _, k := range []int{i, j} {
			stocks[k].shared = true
			hosts[k].share()
		}
	}
	for i := range stocks {
		for _, v := range stocks[i].volumes {
			if c, ok := image.ParseClaim(v.Name); ok && c.Of(installation) {
				if j, ours := places[c.Place]; ours && j != i {
					share(i, j)
				}
				continue
			}
			if _, ours := p.key(v.Name, installation); !ours {
				continue
			}
			if j, seen := of[v.Name]; seen && j != i {
				share(i, j)
			}
			of[v.Name] = i
		}
	}
}

func (h *host) share() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.shared = true
}

func (h *host) isShared() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.shared
}

// key is the image's key of a volume or marker that this provider uploaded for
// the installation.
func (p *Provider) key(volume, installation string) (image.Name, bool) {
	n, ok := image.ParseName(volume)
	return n, ok && n.By(installation, p.name)
}

// picked is an image in a pool, or what is left of one.
type picked struct {
	key string
	// volume is nil when only markers are there.
	volume  *virt.Volume
	markers []virt.Volume
}

func (p picked) whole() bool { return p.volume != nil && len(p.markers) > 0 }

// picked groups the pool's volumes of this provider by image.
func (p *Provider) picked(s stock, installation string) map[string]picked {
	out := map[string]picked{}
	for _, v := range s.volumes {
		n, ours := p.key(v.Name, installation)
		if !ours {
			continue
		}
		one := out[n.Volume]
		one.key = n.Key
		if n.Marker {
			one.markers = append(one.markers, v)
		} else {
			one.volume = &v
		}
		out[n.Volume] = one
	}
	return out
}

// needed says who needs an image, "" when nobody does.
func (p *Provider) needed(installation, volume string, one picked, used uses) string {
	switch {
	case used.images[volume]:
		return "a machine stands on it"
	case p.jobs.uploads(one.key):
		return "it is being uploaded"
	case one.whole() && p.configured(installation, one.key):
		return "it is an image of the configuration"
	}
	return ""
}

// configured reports whether a key is that of a configured image.
func (p *Provider) configured(installation, key string) bool {
	for _, pic := range p.conf.images {
		if image.Key(installation, p.name, pic.source) == key {
			return true
		}
	}
	return false
}

// leftovers judges what a pool has, sorted by id.
func (p *Provider) leftovers(h *host, installation string, s stock, used uses, kept map[string]bool) []provider.Leftover {
	var out []provider.Leftover
	add := func(name, what string) {
		out = append(out, provider.Leftover{Host: h.name, ID: name, What: what, Bytes: s.sizes[name]})
	}
	for name, one := range p.picked(s, installation) {
		switch {
		case p.needed(installation, name, one, used) != "", p.images.wanted(one.key, p.now()):
		case one.whole():
			add(name, whatImage)
		default:
			add(name, whatUpload)
		}
	}
	for _, v := range s.volumes {
		part, ours := domain.PartOf(v.Name, installation)
		switch {
		case !ours || used.domains[part.Domain] || kept[part.Tag]:
		case part.Seed:
			add(v.Name, whatSeed)
		default:
			add(v.Name, whatDisk)
		}
	}
	slices.SortFunc(out, func(a, b provider.Leftover) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// measure asks for the sizes of what may be leftovers.
func (s *stock) measure(ctx context.Context, c virt.Conn, list []provider.Leftover) error {
	s.sizes = map[string]int64{}
	for _, l := range list[:min(len(list), maxSized)] {
		i := slices.IndexFunc(s.volumes, func(v virt.Volume) bool { return v.Name == l.ID })
		if i < 0 {
			continue // a marker without its volume
		}
		info, err := c.StorageVolGetInfo(ctx, s.volumes[i])
		if err := notThere(err); err != nil {
			return err
		}
		s.sizes[l.ID] = int64(info.Physical)
	}
	return nil
}
