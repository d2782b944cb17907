package fake

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// backend is the outside world: it outlives a Provider, as hosts outlive the
// operator.
type backend struct {
	name  string
	clock func() time.Time
	// address gives a machine its address; see Options.
	address  func(provider.Owner) (string, int)
	capacity int
	order    []string
	hosts    map[string]*host

	mu       sync.Mutex
	watchers map[*watcher]struct{}
}

// host is one place with its machines.
type host struct {
	name string

	mu   sync.Mutex
	byID map[string]*machine
	// byOwner finds a machine by its owner's installation and UID.
	byOwner map[ownerKey]*machine
	serial  int
	full    bool
	broken  error
	mute    chan struct{}
	latency time.Duration
	// cut counts the CutEvents in force.
	cut    int
	claims map[claimKey]provider.OtherClaim
	litter map[string]*litter
}

type ownerKey struct{ installation, uid string }

func keyOf(o provider.Owner) ownerKey { return ownerKey{o.Installation, o.UID} }

// part is one thing that a machine consists of; each is made by a step.
type part int

// The parts, in the order in which they are made.
const (
	record part = iota
	disk
	seed
	process
	lease
	parts
)

var partNames = [parts]string{"record", "disk", "seed", "process", "lease"}

// machine is one instance with what was made for it so far.
type machine struct {
	id      string
	owner   provider.Owner
	has     [parts]bool
	created time.Time
	address string
	port    int
	// deleting is set by the first step of Delete and never taken back.
	deleting, corrupt, impaired bool
}

func (m *machine) instance(h *host) provider.Instance {
	in := provider.Instance{ID: m.id, Owner: m.owner, Host: h.name, Created: m.created}
	switch {
	case m.corrupt:
		return provider.Instance{ID: m.id, Host: h.name, State: provider.Unknown, Message: "its record cannot be read"}
	case m.deleting:
		in.State = provider.Deleting
	case m.impaired:
		in.State, in.Message = provider.Impaired, "paused on an I/O error"
	case m.has[process] && m.has[lease]:
		in.State = provider.Running
	case m.has[lease]:
		in.State, in.Message = provider.Stopped, "it does not run"
	default:
		in.State, in.Message = provider.Provisioning, "stage "+m.missing().String()
	}
	if m.has[lease] {
		in.Address, in.Port = m.address, m.port
	}
	return in
}

func (p part) String() string { return partNames[p] }

// missing is the first part that is not there; parts when all are.
func (m *machine) missing() part {
	if i := slices.Index(m.has[:], false); i >= 0 {
		return part(i)
	}
	return parts
}

// enter waits until the host would answer, or says why it does not.
func (h *host) enter(ctx context.Context, limit time.Duration) error {
	h.mu.Lock()
	broken, mute, latency := h.broken, h.mute, h.latency
	h.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("host %s was not asked: %w", h.name, err)
	}
	if broken != nil {
		return fmt.Errorf("host %s: %w", h.name, broken)
	}
	if latency > 0 {
		timer := time.NewTimer(latency)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return fmt.Errorf("host %s is slow: %w", h.name, ctx.Err())
		}
	}
	if mute == nil {
		return nil
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-mute:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("host %s says nothing: %w", h.name, ctx.Err())
	case <-timer.C:
		return fault.Errorf(fault.Timeout, "host %s said nothing for %v", h.name, limit)
	}
}

// add makes the record of a new machine; the caller holds h.mu.
func (b *backend) add(h *host, o provider.Owner) *machine {
	h.serial++
	m := &machine{
		id:      fmt.Sprintf("%s://%s/%08x", b.name, h.name, h.serial),
		owner:   o,
		created: b.clock(),
	}
	m.has[record] = true
	h.byID[m.id], h.byOwner[keyOf(o)] = m, m
	return m
}

// drop takes the machine's last trace away; the caller holds h.mu.
func (h *host) drop(m *machine) {
	delete(h.byID, m.id)
	if h.byOwner[keyOf(m.owner)] == m {
		delete(h.byOwner, keyOf(m.owner))
	}
}

// locate gives the machine its address: the owner's own from Options, or one
// of 198.18.0.0/15 by host and serial.
func (b *backend) locate(h *host, m *machine, port int) {
	if b.address != nil {
		m.address, m.port = b.address(m.owner)
		return
	}
	var serial uint32
	_, _ = fmt.Sscanf(m.id[strings.LastIndexByte(m.id, '/')+1:], "%x", &serial)
	n := uint32(slices.Index(b.order, h.name))<<12 + serial
	m.address = netip.AddrFrom4([4]byte{198, 18 + byte(n>>16&1), byte(n >> 8), byte(n)}).String()
	m.port = port
}

// parse splits an id into host and serial. An id of this provider is
// name://host/8 hex digits, and nothing else is.
func (b *backend) parse(id string) (host string, err error) {
	rest, ok := strings.CutPrefix(id, b.name+"://")
	host, serial, cut := strings.Cut(rest, "/")
	if !ok || !cut || host == "" || len(serial) != 8 || strings.Trim(serial, "0123456789abcdef") != "" {
		return "", fault.Errorf(fault.Invalid, "%q is no id of provider %s; ids read %s://host/0123abcd", id, b.name, b.name)
	}
	return host, nil
}

// errNotConfigured is in the chain of an error about a host that is not ours.
var errNotConfigured = errors.New("not in the configuration")

// host finds a configured host.
func (b *backend) host(name string) (*host, error) {
	h, ok := b.hosts[name]
	if !ok {
		return nil, fault.Errorf(fault.Permanent, "host %q is %w of provider %s; it has %s",
			name, errNotConfigured, b.name, strings.Join(b.order, ", "))
	}
	return h, nil
}
