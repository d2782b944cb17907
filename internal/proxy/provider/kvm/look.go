package kvm

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// Get implements [provider.Provider]: it reads state, metadata and address
// from the host itself.
func (p *Provider) Get(ctx context.Context, ref provider.Ref) (provider.Instance, error) {
	t, err := p.find(ref)
	if err != nil {
		return provider.Instance{}, err
	}
	if err := ctx.Err(); err != nil {
		return provider.Instance{}, err
	}
	type answer struct {
		in  provider.Instance
		err error
	}
	answers := make([]answer, len(t.hosts))
	var wg sync.WaitGroup
	for i, h := range t.hosts {
		wg.Go(func() {
			err := p.on(ctx, h, func(ctx context.Context, c virt.Conn) error {
				h.fresh(p.links.Generation(h.name))
				v, err := p.look(ctx, c, h, t.uuids(), ref.Owner)
				if err == nil && !v.absent {
					answers[i].in, err = p.instance(ctx, c, h, v, true)
				}
				switch {
				case err == nil && v.absent, isGone(err):
					return fault.Errorf(fault.NotFound, "host %s has no domain with UUID %s", h.name, strings.Join(t.uuids(), " or "))
				case fault.Of(err) == fault.NotFound:
					// Something beside the domain is not there: no reason to make it again.
					return fault.Wrap(fault.Transient, err)
				}
				return err
			})
			answers[i].err = err
		})
	}
	wg.Wait()
	var silent error
	for _, a := range answers {
		switch {
		case a.err == nil:
			return a.in, nil
		case fault.Of(a.err) != fault.NotFound && silent == nil:
			silent = a.err
		}
	}
	if silent != nil {
		return provider.Instance{}, silent
	}
	if at := p.elsewhere(ctx, t); at != nil {
		return provider.Instance{}, fault.Errorf(fault.Permanent,
			"host %s has no domain with UUID %s, and host %s has: the addresses of the hosts were changed, or the domain was moved; put back what was", t.hosts[0].name, strings.Join(t.uuids(), " or "), at.name)
	}
	return provider.Instance{}, answers[0].err
}

// elsewhere returns another host that has a domain of the target, nil when none
// of those that answer has: before a machine is made again, or called gone, it
// must not be running where an address in the configuration was put by mistake.
func (p *Provider) elsewhere(ctx context.Context, t target) *host {
	rest := p.rest(t)
	found := make([]bool, len(rest))
	var wg sync.WaitGroup
	for i, h := range rest {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, elsewhereLimit)
			defer cancel()
			_ = p.on(ctx, h, func(ctx context.Context, c virt.Conn) error { // one that does not answer says nothing
				for _, uuid := range t.uuids() {
					if _, err := c.DomainLookupByUUID(ctx, uuid); err == nil {
						found[i] = true
					}
				}
				return nil
			})
		})
	}
	wg.Wait()
	if i := slices.Index(found, true); i >= 0 {
		return rest[i]
	}
	return nil
}

// elsewhereLimit bounds the question to hosts where nothing should be.
const elsewhereLimit = 5 * time.Second

// rest are the hosts that a target does not name.
func (p *Provider) rest(t target) []*host {
	var out []*host
	for _, h := range p.all() {
		if !slices.Contains(t.hosts, h) {
			out = append(out, h)
		}
	}
	return out
}

// isGone reports whether the daemon answered that the domain itself is not
// there. Networks, pools and volumes are NotFound as well, and say nothing of
// it.
func isGone(err error) bool { return virt.Is(err, virt.CodeNoDomain) }

// view is one domain as it is now.
type view struct {
	absent bool
	domain virt.Domain
	mark   domain.Mark
	// torn is why whose it is cannot be read.
	torn error
}

// look finds the domain of one of the UUIDs and reads whose it is. A domain
// that carries another owner than the given one is Conflict; with a zero owner
// it is not compared.
func (p *Provider) look(ctx context.Context, c virt.Conn, h *host, uuids []string, owner provider.Owner) (view, error) {
	for _, uuid := range uuids {
		d, err := c.DomainLookupByUUID(ctx, uuid)
		if isGone(err) {
			continue
		}
		if err != nil {
			return view{}, err
		}
		v := view{domain: d}
		v.mark, err = p.read(ctx, c, h, d)
		switch {
		case isGone(err):
			continue // it went between the two calls
		case isTorn(err):
			v.torn = err
			return v, nil
		case err != nil:
			return view{}, err
		}
		if isCopy(d, v.mark) {
			return v, fault.Errorf(fault.Conflict, "host %s: domain %.80q is a copy of the machine of Proxy %s/%s, and is left alone", h.name, d.Name, v.mark.Owner.Namespace, v.mark.Owner.Name)
		}
		if owner.UID != "" && (v.mark.Owner.UID != owner.UID || v.mark.Owner.Installation != owner.Installation) {
			return v, fault.Errorf(fault.Conflict, "host %s: domain %s belongs to Proxy %s/%s with UID %s of installation %s, and is left alone",
				h.name, d.Name, v.mark.Owner.Namespace, v.mark.Owner.Name, short(v.mark.Owner.UID), short(v.mark.Owner.Installation))
		}
		return v, nil
	}
	return view{absent: true}, nil
}

// torn is the error of a domain whose metadata says nothing.
type torn struct{ err error }

func (t *torn) Error() string { return t.err.Error() }
func (t *torn) Unwrap() error { return t.err }

func isTorn(err error) bool {
	_, ok := errors.AsType[*torn](err)
	return ok
}

// ownWords is what the daemon said, without where it was said.
func ownWords(err error) string {
	if e, ok := errors.AsType[*virt.Error](err); ok {
		return e.Message
	}
	return err.Error()
}

// answered reports whether err is what the daemon itself said, and not that it
// cannot be reached.
func answered(err error) bool {
	_, ok := errors.AsType[*virt.Error](err)
	return ok
}

// isCopy reports whether a domain has our mark and was not made by us: a clone
// takes the metadata along, and gets another UUID.
func isCopy(d virt.Domain, m domain.Mark) bool { return d.UUID != domain.UUIDOf(m.Owner) }

func isUnmarked(err error) bool { return virt.Is(err, virt.CodeNoDomainMetadata) }

// read reads a domain's metadata. None, or what cannot be parsed, is torn.
func (p *Provider) read(ctx context.Context, c virt.Conn, h *host, d virt.Domain) (domain.Mark, error) {
	text, err := c.DomainGetMetadata(ctx, d)
	if err == nil {
		var m domain.Mark
		if m, err = domain.ParseMark(text); err == nil {
			return m, nil
		}
	} else if !isUnmarked(err) {
		return domain.Mark{}, err
	}
	return domain.Mark{}, &torn{fault.Errorf(fault.Permanent,
		"host %s: whose domain %.80q is cannot be read from its metadata (%w): look at it there with virsh dumpxml %.80q; undefine it when it is nobody's", h.name, d.Name, err, d.Name)}
}

// instance is what the contract wants to know of a domain. again asks for its
// address anew.
func (p *Provider) instance(ctx context.Context, c virt.Conn, h *host, v view, again bool) (provider.Instance, error) {
	if v.torn != nil {
		return provider.Instance{ID: p.id(h, v.domain.UUID), Host: h.name, State: provider.Unknown, Message: v.torn.Error()}, nil //nolint:nilerr // it is there, and that is the answer
	}
	state, reason, err := c.DomainGetState(ctx, v.domain)
	if err != nil {
		return provider.Instance{}, err
	}
	return p.described(ctx, c, h, virt.DomainState{Domain: v.domain, State: state, Reason: reason}, v.mark, again)
}

// described turns a domain's state and mark into an instance.
func (p *Provider) described(ctx context.Context, c virt.Conn, h *host, d virt.DomainState, m domain.Mark, again bool) (provider.Instance, error) {
	in := provider.Instance{ID: p.id(h, d.Domain.UUID), Owner: m.Owner, Host: h.name, Port: m.Port, Created: m.Created}
	in.State, in.Message = domain.StateOf(d.State, d.Reason)
	switch {
	case m.Stage == domain.Deleting:
		in.State, in.Message = provider.Deleting, "its removal has begun"
	case m.Stage == domain.Making && in.State != provider.Running:
		in.State, in.Message = provider.Provisioning, "defined; its disks are being made"
	case in.State != provider.Running:
		// What was learned of the run that ended says nothing of the next, which
		// after a reboot of the host may have the same number.
		h.unsee(d.Domain.UUID)
	default:
		s, err := p.address(ctx, c, h, d.Domain, m, again)
		if err != nil {
			return provider.Instance{}, err
		}
		if !s.addr.IsValid() {
			in.State, in.Message = provider.Provisioning, s.waiting()
			break
		}
		in.Address = s.addr.String()
	}
	return in, nil
}

// ListByTag implements [provider.Provider]. A host costs one call for the
// states of all its domains, one for each domain that was not seen before, and
// a few for addresses that were not read for long.
func (p *Provider) ListByTag(ctx context.Context, installation string) ([]provider.HostList, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	hosts := p.all()
	rows := make([]provider.HostList, len(hosts))
	var wg sync.WaitGroup
	for i, h := range hosts {
		wg.Go(func() {
			rows[i].Host = h.name
			rows[i].Err = p.always(ctx, h, func(ctx context.Context, c virt.Conn) error {
				h.fresh(p.links.Generation(h.name))
				list, err := p.scan(ctx, c, h, installation)
				if err == nil {
					rows[i].Instances, err = p.describe(ctx, c, h, list)
				}
				return err
			})
			if rows[i].Err != nil {
				rows[i].Instances = nil
				return
			}
			h.mu.Lock()
			h.silent = time.Time{} // it answers
			h.mu.Unlock()
		})
	}
	wg.Wait()
	return rows, nil
}

// seen is one domain of an installation in a scan.
type seen struct {
	virt.DomainState
	mark domain.Mark
	torn error
	// copied says that the mark is another domain's, whose clone this is.
	copied bool
}

// abreast is how many calls of one scan run at once.
const abreast = 4

// scan returns the host's domains that carry the installation's tag, and those
// with a name of its making whose tag cannot be read.
func (p *Provider) scan(ctx context.Context, c virt.Conn, h *host, installation string) ([]seen, error) {
	all, err := c.ConnectGetAllDomainStats(ctx)
	if err != nil {
		return nil, err
	}
	list, err := p.among(ctx, c, h, installation, all, false)
	return slices.DeleteFunc(list, func(s seen) bool {
		return s.torn == nil && (s.copied || s.mark.Owner.Installation != installation)
	}), err
}

// among returns of all the host's domains those that carry a mark, whoever
// made it, and those with a name of the installation's whose mark cannot be
// read. Marks are read anew where they may have changed, with again all of
// them.
func (p *Provider) among(ctx context.Context, c virt.Conn, h *host, installation string, all []virt.DomainState, again bool) ([]seen, error) {
	h.prune(all)
	found := make([]*seen, len(all))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(abreast)
	for i, d := range all {
		m, known := h.marked(d.Domain.UUID)
		if known && !again && (m == nil || m.Stage == domain.Made) {
			if m != nil {
				found[i] = &seen{DomainState: d, mark: *m, copied: isCopy(d.Domain, *m)}
			}
			continue
		}
		group.Go(func() error {
			m, err := p.read(ctx, c, h, d.Domain)
			ours := domain.Ours(d.Domain.Name, installation)
			switch {
			case err == nil:
				copied := isCopy(d.Domain, m)
				if copied && !known {
					p.log.Warn("kvm: a copy of a machine is left alone: it carries the mark of another domain", "provider", p.name, "host", h.name, "domain", short(d.Domain.Name))
				}
				h.note(d.Domain.UUID, &m)
				found[i] = &seen{DomainState: d, mark: m, copied: copied}
			case isTorn(err):
				if ours {
					found[i] = &seen{DomainState: d, torn: err}
				} else {
					h.note(d.Domain.UUID, nil)
				}
			case isGone(err): // it went meanwhile
			case ours && ctx.Err() == nil && answered(err):
				found[i] = &seen{DomainState: d, torn: err}
			default:
				return err
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var out []seen
	for _, s := range found {
		if s != nil {
			out = append(out, *s)
		}
	}
	return out, nil
}

// rereads is how many addresses of running domains one listing of a host reads
// anew: it bounds what a listing costs, and all come round in time.
const (
	rereads   = 4
	rereadAge = time.Minute
	// rereadRarely is the age on a host that tells of what happens there.
	rereadRarely = 10 * time.Minute
)

func (p *Provider) describe(ctx context.Context, c virt.Conn, h *host, list []seen) ([]provider.Instance, error) {
	due := h.due(list, p.now())
	out := make([]provider.Instance, len(list))
	gone := make([]bool, len(list))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(abreast)
	for i, s := range list {
		if s.torn != nil {
			out[i] = provider.Instance{ID: p.id(h, s.Domain.UUID), Host: h.name, State: provider.Unknown, Message: s.torn.Error()}
			continue
		}
		group.Go(func() error {
			var err error
			out[i], err = p.described(ctx, c, h, s.DomainState, s.mark, due[s.Domain.UUID])
			if isGone(err) {
				gone[i], err = true, nil
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	kept := out[:0]
	for i, in := range out {
		if !gone[i] {
			kept = append(kept, in)
		}
	}
	return kept, nil
}

// prune drops what is known of domains that are there no more.
func (h *host) prune(all []virt.DomainState) {
	there := make(map[string]bool, len(all))
	for _, d := range all {
		there[d.Domain.UUID] = true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for uuid := range h.marks {
		if !there[uuid] {
			delete(h.marks, uuid)
		}
	}
	for uuid := range h.sights {
		if !there[uuid] {
			delete(h.sights, uuid)
		}
	}
	for uuid := range h.owners {
		if !there[uuid] {
			delete(h.owners, uuid)
		}
	}
}

func (h *host) marked(uuid string) (*domain.Mark, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m, ok := h.marks[uuid]
	return m, ok
}

func (h *host) note(uuid string, m *domain.Mark) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.marks[uuid] = m
	if m != nil && uuid == domain.UUIDOf(m.Owner) {
		h.owners[uuid] = ownership{m.Owner, h.owners[uuid].quiet}
	}
}
