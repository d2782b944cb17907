package virttest

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"fleetdesk/internal/proxy/provider/kvm/link"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// DefaultPool, DefaultNetwork and DefaultBridge are what a new [Host] has.
const (
	DefaultPool    = "default"
	DefaultNetwork = "default"
	DefaultBridge  = "br0"
)

// version is what the fake says it is: libvirt 9.0.0.
const version virt.Version = 9_000_000

// Host is a libvirt daemon in memory with its host: what a guest starts from
// and what a link asks. All methods may be called concurrently, also from the
// hooks of a Host ([Host.OnCall] and the like) but for [Host.Addresses]'s.
type Host struct {
	name, uuid string

	mu       sync.Mutex
	types    []string
	efi      bool
	apparmor bool
	noARP    bool
	domains  map[string]*dom
	pools    map[string]*pool
	networks map[string]bool
	bridges  map[string]bool
	nvram    map[string]bool
	leases   map[string]netip.Addr
	answer   Addresser
	lastID   int32
	made     int
	links    map[*conn]bool
	planted  map[string]string
	queues   map[*virt.Events]*conn
	unsaid   []virt.DomainEvent
	faults   faults
}

// NewHost makes a daemon: pool "default" (dir, /var/lib/libvirt/images, 100
// GiB, running), network "default" (active), bridge "br0", the domain types
// kvm and qemu, and UEFI firmware.
func NewHost(name string) *Host {
	h := &Host{
		name:     name,
		types:    []string{"qemu", "kvm"},
		efi:      true,
		domains:  map[string]*dom{},
		pools:    map[string]*pool{},
		networks: map[string]bool{DefaultNetwork: true},
		bridges:  map[string]bool{DefaultBridge: true, "virbr0": true},
		nvram:    map[string]bool{},
		leases:   map[string]netip.Addr{},
		links:    map[*conn]bool{},
		planted:  map[string]string{},
		queues:   map[*virt.Events]*conn{},
		faults:   newFaults(),
	}
	h.uuid = h.newUUID()
	h.SetPool(Pool{Name: DefaultPool, Type: "dir", Path: "/var/lib/libvirt/images", State: virt.PoolRunning, Capacity: 100 << 30})
	return h
}

// newUUID is the next UUID that the host makes up; the same host makes the
// same ones. mu is held, or nobody knows h yet.
func (h *Host) newUUID() string {
	h.made++
	s := sha256.Sum256(fmt.Appendf(nil, "%s %d", h.name, h.made))
	s[6], s[8] = s[6]&0x0f|0x40, s[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", s[0:4], s[4:6], s[6:8], s[8:10], s[10:16])
}

// Pool is how a storage pool is set up.
type Pool struct {
	Name, Type, Path string
	State            virt.PoolState
	// Capacity is the size of the file system below, Used what others than the
	// pool's volumes take of it, in bytes.
	Capacity, Used uint64
}

// SetPool adds a pool, or changes one of that name and keeps its volumes.
func (h *Host) SetPool(p Pool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if old := h.pools[p.Name]; old != nil {
		old.conf = p
		return
	}
	h.pools[p.Name] = &pool{conf: p, uuid: h.newUUID(), vols: map[string]*vol{}}
}

// ChangePool lets f change how a pool is set up.
func (h *Host) ChangePool(name string, f func(p *Pool)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f(&h.mustPool(name).conf)
}

func (h *Host) mustPool(name string) *pool {
	p := h.pools[name]
	if p == nil {
		panic(fmt.Sprintf("virttest: host %s has no pool %q", h.name, name))
	}
	return p
}

// RemovePool takes a pool away with its volumes.
func (h *Host) RemovePool(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.pools, name)
}

// FillPool leaves free bytes in the pool "default".
func (h *Host) FillPool(free uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.mustPool(DefaultPool)
	p.conf.Used = p.conf.Capacity - min(p.conf.Capacity, p.allocated()+free)
}

// SetNetwork adds a network, or starts and stops one.
func (h *Host) SetNetwork(name string, active bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.networks[name] = active
}

// RemoveNetwork takes a network away.
func (h *Host) RemoveNetwork(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.networks, name)
}

// SetBridge adds a bridge to the host, or takes it away.
func (h *Host) SetBridge(name string, there bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bridges[name] = there
}

// Offer sets the domain types that the host offers ("qemu" alone is a host
// without KVM).
func (h *Host) Offer(types ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.types = slices.Clone(types)
}

// Firmware says whether UEFI firmware is installed.
func (h *Host) Firmware(efi bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.efi = efi
}

// AppArmor confines QEMU as stock Debian and Ubuntu do: a domain whose disk is
// named by pool and volume, not by path, may not read it; nor may one read the
// base of an overlay whose driver has no type.
func (h *Host) AppArmor(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.apparmor = on
}

// BreakARP lets the source ARP fail for every domain, as libvirt 9.0.0 does
// with kernels of today.
func (h *Host) BreakARP(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.noARP = on
}

// Link opens a connection; one to a host that is broken has ended already.
func (h *Host) Link() link.Link {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := &conn{host: h, done: make(chan struct{})}
	if h.faults.broken {
		c.end(errGone(h.name))
		return c
	}
	h.links[c] = true
	return c
}

// Links returns how many links are open.
func (h *Host) Links() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.links)
}

// sorted are a map's values in the order of their keys.
func sorted[V any](m map[string]V) []V {
	out := make([]V, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[k])
	}
	return out
}
