package fake

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// litter is a thing on a host that is no instance.
type litter struct {
	provider.Leftover
	installation, uid string
	used              bool
}

// Leftovers implements provider.Cleaner; hosts are asked concurrently. What
// was put there for the UID of a machine is none while that machine is.
func (p *Provider) Leftovers(ctx context.Context, installation string, keep []string) ([]provider.HostLeftovers, error) {
	if err := p.begin(ctx, "Leftovers"); err != nil {
		return nil, err
	}
	kept := make(map[string]bool, len(keep))
	for _, uid := range keep {
		kept[uid] = true
	}
	rows := make([]provider.HostLeftovers, len(p.b.order))
	p.each(ctx, func(i int, h *host, err error) {
		rows[i] = provider.HostLeftovers{Host: h.name, Err: err}
		if err != nil {
			return
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, l := range h.litter {
			if l.installation == installation && !kept[l.uid] && !h.uses(l) {
				rows[i].Leftovers = append(rows[i].Leftovers, l.Leftover)
			}
		}
		slices.SortFunc(rows[i].Leftovers, func(a, b provider.Leftover) int { return cmp.Compare(a.ID, b.ID) })
	})
	return rows, nil
}

// uses reports whether something needs l; the caller holds h.mu.
func (h *host) uses(l *litter) bool {
	return l.used || l.uid != "" && h.byOwner[ownerKey{l.installation, l.uid}] != nil
}

// RemoveLeftover implements provider.Cleaner, by one step, "remove leftover".
// An id is letters, digits, '-', '_' and '.', the first a letter or digit.
func (p *Provider) RemoveLeftover(ctx context.Context, installation string, l provider.Leftover) error {
	if err := p.begin(ctx, "RemoveLeftover"); err != nil {
		return err
	}
	h, err := p.b.host(l.Host)
	if err != nil {
		return err
	}
	if !validLitter(l.ID) {
		return fault.Errorf(fault.Invalid, "%q is no id of a leftover on host %s", l.ID, h.name)
	}
	if err := h.enter(ctx, p.limit); err != nil {
		return err
	}
	if gone, err := h.mayRemove(installation, l.ID); gone || err != nil {
		return err
	}
	if err := provider.Step(ctx, "remove leftover"); err != nil {
		return err
	}
	// It is looked at again: somebody may have begun to use it meanwhile.
	h.mu.Lock()
	defer h.mu.Unlock()
	gone, err := h.judge(installation, l.ID)
	if gone || err != nil {
		return err
	}
	delete(h.litter, l.ID)
	return nil
}

func (h *host) mayRemove(installation, id string) (gone bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.judge(installation, id)
}

// judge says whether the leftover is gone already, or why it must stay; the
// caller holds h.mu.
func (h *host) judge(installation, id string) (gone bool, err error) {
	l := h.litter[id]
	switch {
	case l == nil:
		return true, nil
	case l.installation != installation:
		return false, fault.Errorf(fault.Denied, "%s on host %s is of another installation: it is not touched", id, h.name)
	case h.uses(l):
		return false, fault.Errorf(fault.Conflict, "%s on host %s is used: it stays", id, h.name)
	}
	return false, nil
}

func validLitter(id string) bool {
	const alnum = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	return id != "" && strings.IndexAny(id[:1], alnum) == 0 && strings.Trim(id, alnum+"-_.") == ""
}

// Litter puts a thing on the host that nothing uses, for the owner's
// installation; with a UID it is a part of what was made for it once. An id
// that is there already is replaced.
func (p *Provider) Litter(name, what, id string, o provider.Owner) provider.Leftover {
	if !validLitter(id) {
		panic("fake: no id of a leftover: " + id)
	}
	h := p.must(name)
	h.mu.Lock()
	defer h.mu.Unlock()
	l := &litter{
		Leftover:     provider.Leftover{Host: name, ID: id, What: what, Bytes: 1 << 20},
		installation: o.Installation, uid: o.UID,
	}
	h.litter[id] = l
	return l.Leftover
}

// Use makes something need the leftover of that id, until mend. Its host is
// looked up; an id that is nowhere panics.
func (p *Provider) Use(id string) (mend func()) {
	for _, name := range p.b.order {
		h := p.b.hosts[name]
		h.mu.Lock()
		l := h.litter[id]
		if l != nil {
			l.used = true
		}
		h.mu.Unlock()
		if l != nil {
			return func() {
				h.mu.Lock()
				defer h.mu.Unlock()
				l.used = false
			}
		}
	}
	panic("fake: no leftover " + id)
}

// Clear takes a leftover away, as a person would.
func (p *Provider) Clear(l provider.Leftover) {
	h := p.must(l.Host)
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.litter, l.ID)
}

// Litters returns everything that Litter put on any host and is still there.
func (p *Provider) Litters() []provider.Leftover {
	var all []provider.Leftover
	for _, name := range p.b.order {
		h := p.b.hosts[name]
		h.mu.Lock()
		for _, l := range h.litter {
			all = append(all, l.Leftover)
		}
		h.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b provider.Leftover) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.ID, b.ID))
	})
	return all
}
