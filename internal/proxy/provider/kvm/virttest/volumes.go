package virttest

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"fleetdesk/internal/proxy/provider/kvm/virt"
)

type pool struct {
	conf Pool
	uuid string
	vols map[string]*vol
}

// vol is one volume: a file.
type vol struct {
	pool, name, path, format string
	capacity                 uint64
	// size is the file's length; content its first bytes, and zeros follow.
	// The bytes of a qcow2 that the host made are not kept.
	size    uint64
	content []byte
	made    bool
	// solid volumes take all their space from the beginning.
	solid          bool
	backing, bform string
}

// allocated is the space that a volume takes.
func (v *vol) allocated() uint64 {
	switch {
	case v.solid:
		return max(v.size, uint64(len(v.content)))
	case v.made:
		return max(v.size, uint64(len(v.content)))
	}
	return uint64(len(v.content))
}

func (p *pool) allocated() uint64 {
	var n uint64
	for _, v := range p.vols {
		n += v.allocated()
	}
	return n
}

func (p *pool) info() virt.PoolInfo {
	i := virt.PoolInfo{State: p.conf.State}
	if p.active() {
		i.Capacity = p.conf.Capacity
		i.Allocation = min(p.conf.Used+p.allocated(), i.Capacity)
		i.Available = i.Capacity - i.Allocation
	}
	return i
}

func (p *pool) active() bool {
	return p.conf.State == virt.PoolRunning || p.conf.State == virt.PoolDegraded || p.conf.State == virt.PoolInaccessible
}

const (
	// zeroQcow2 is the length of a qcow2 file of no capacity, and also the
	// capacity that libvirt 9.0 reports of it. For each l1Reach of capacity 8
	// bytes are added.
	zeroQcow2       = 196608
	l1Reach         = 512 << 20
	qcow2Magic      = "QFI\xfb"
	noSpace         = "No space left on device"
	badXML          = virt.CodeXMLError
	longestFileName = 255
)

func (h *Host) findPool(p virt.Pool) (*pool, error) {
	for _, q := range h.pools {
		if q.uuid == p.UUID {
			return q, nil
		}
	}
	return nil, failure(virt.CodeNoStoragePool, fmt.Sprintf("Storage pool not found: no storage pool with matching uuid '%s' (%s)", p.UUID, p.Name))
}

func (p *pool) mustBeActive() error {
	if p.active() {
		return nil
	}
	return failure(virt.CodeOperationInvalid, fmt.Sprintf("Requested operation is not valid: storage pool '%s' is not active", p.conf.Name))
}

// activePool finds a pool for something that only an active one can do.
func (h *Host) activePool(p virt.Pool) (*pool, error) {
	q, err := h.findPool(p)
	if err == nil {
		err = q.mustBeActive()
	}
	return q, err
}

func (p *pool) find(name string) (*vol, error) {
	if v := p.vols[name]; v != nil {
		return v, nil
	}
	return nil, failure(virt.CodeNoStorageVol, fmt.Sprintf("Storage volume not found: no storage vol with matching name '%s'", name))
}

// findVol finds a volume by its pool's name and its own, as libvirt does; the
// key is not looked at.
func (h *Host) findVol(v virt.Volume) (*pool, *vol, error) {
	p := h.pools[v.Pool]
	if p == nil {
		return nil, nil, failure(virt.CodeNoStoragePool, fmt.Sprintf("Storage pool not found: no storage pool with matching name '%s'", v.Pool))
	}
	if err := p.mustBeActive(); err != nil {
		return nil, nil, err
	}
	found, err := p.find(v.Name)
	return p, found, err
}

func (v *vol) ref() virt.Volume { return virt.Volume{Pool: v.pool, Name: v.name, Key: v.path} }

// NetworkLookupByName implements virt.Conn.
func (c *conn) NetworkLookupByName(ctx context.Context, name string) (bool, error) {
	return ask(ctx, c, "NetworkLookupByName", func() (bool, error) {
		active, ok := c.host.networks[name]
		if !ok {
			return false, failure(virt.CodeNoNetwork, fmt.Sprintf("Network not found: no network with matching name '%s'", name))
		}
		return active, nil
	})
}

// StoragePoolLookupByName implements virt.Conn.
func (c *conn) StoragePoolLookupByName(ctx context.Context, name string) (virt.Pool, error) {
	return ask(ctx, c, "StoragePoolLookupByName", func() (virt.Pool, error) {
		p := c.host.pools[name]
		if p == nil {
			return virt.Pool{}, failure(virt.CodeNoStoragePool, fmt.Sprintf("Storage pool not found: no storage pool with matching name '%s'", name))
		}
		return virt.Pool{Name: name, UUID: p.uuid}, nil
	})
}

// StoragePoolGetInfo implements virt.Conn.
func (c *conn) StoragePoolGetInfo(ctx context.Context, p virt.Pool) (virt.PoolInfo, error) {
	return ask(ctx, c, "StoragePoolGetInfo", func() (virt.PoolInfo, error) {
		q, err := c.host.findPool(p)
		if err != nil {
			return virt.PoolInfo{}, err
		}
		return q.info(), nil
	})
}

// StoragePoolGetXMLDesc implements virt.Conn.
func (c *conn) StoragePoolGetXMLDesc(ctx context.Context, p virt.Pool) (string, error) {
	return ask(ctx, c, "StoragePoolGetXMLDesc", func() (string, error) {
		q, err := c.host.findPool(p)
		if err != nil {
			return "", err
		}
		return poolXML(q), nil
	})
}

// StoragePoolListAllVolumes implements virt.Conn.
func (c *conn) StoragePoolListAllVolumes(ctx context.Context, p virt.Pool) ([]virt.Volume, error) {
	return ask(ctx, c, "StoragePoolListAllVolumes", func() ([]virt.Volume, error) {
		q, err := c.host.activePool(p)
		if err != nil {
			return nil, err
		}
		var out []virt.Volume
		for _, v := range sorted(q.vols) {
			out = append(out, v.ref())
		}
		return out, nil
	})
}

// StorageVolLookupByName implements virt.Conn.
func (c *conn) StorageVolLookupByName(ctx context.Context, p virt.Pool, name string) (virt.Volume, error) {
	return ask(ctx, c, "StorageVolLookupByName", func() (virt.Volume, error) {
		q, err := c.host.activePool(p)
		if err != nil {
			return virt.Volume{}, err
		}
		v, err := q.find(name)
		if err != nil {
			return virt.Volume{}, err
		}
		return v.ref(), nil
	})
}

// StorageVolGetInfo implements virt.Conn.
func (c *conn) StorageVolGetInfo(ctx context.Context, v virt.Volume) (virt.VolumeInfo, error) {
	return ask(ctx, c, "StorageVolGetInfo", func() (virt.VolumeInfo, error) {
		_, found, err := c.host.findVol(v)
		if err != nil {
			return virt.VolumeInfo{}, err
		}
		return virt.VolumeInfo{Capacity: found.capacity, Physical: found.size}, nil
	})
}

// StorageVolGetPath implements virt.Conn.
func (c *conn) StorageVolGetPath(ctx context.Context, v virt.Volume) (string, error) {
	return ask(ctx, c, "StorageVolGetPath", func() (string, error) {
		_, found, err := c.host.findVol(v)
		if err != nil {
			return "", err
		}
		return found.path, nil
	})
}

// StorageVolDelete implements virt.Conn. Neither a running domain nor an
// upload keeps a volume from being deleted.
func (c *conn) StorageVolDelete(ctx context.Context, v virt.Volume) error {
	return tell(ctx, c, "StorageVolDelete", func() error {
		p, found, err := c.host.findVol(v)
		if err == nil {
			delete(p.vols, found.name)
		}
		return err
	})
}

// StorageVolCreateXML implements virt.Conn.
func (c *conn) StorageVolCreateXML(ctx context.Context, p virt.Pool, doc string) (virt.Volume, error) {
	return ask(ctx, c, "StorageVolCreateXML", func() (virt.Volume, error) {
		q, err := c.host.activePool(p)
		if err != nil {
			return virt.Volume{}, err
		}
		v, err := c.host.newVol(q, doc)
		if err != nil {
			return virt.Volume{}, err
		}
		q.vols[v.name] = v
		return v.ref(), nil
	})
}

var units = map[string]uint64{
	"": 1, "b": 1, "bytes": 1, "KB": 1000, "k": 1 << 10, "KiB": 1 << 10, "MB": 1e6, "M": 1 << 20, "MiB": 1 << 20,
	"GB": 1e9, "G": 1 << 30, "GiB": 1 << 30, "TB": 1e12, "T": 1 << 40, "TiB": 1 << 40,
}

// amount reads <capacity unit='…'>; what names it in the error.
func amount(n *node, what string) (uint64, error) {
	v, err := strconv.ParseUint(strings.TrimSpace(n.value()), 10, 63)
	if err != nil {
		return 0, failure(badXML, "XML error: malformed "+what+" element")
	}
	u, ok := units[n.attr("unit")]
	if !ok {
		return 0, failure(virt.CodeInvalidArg, fmt.Sprintf("invalid argument: unknown suffix '%s'", n.attr("unit")))
	}
	return v * u, nil
}

// newVol is the volume of a <volume> document.
func (h *Host) newVol(p *pool, doc string) (*vol, error) {
	n, err := parseXML("storage_volume_definition", doc)
	if err != nil {
		return nil, err
	}
	if n.local != "volume" {
		return nil, failure(badXML, fmt.Sprintf("XML error: expecting root element of 'volume', not '%s'", n.local))
	}
	v := &vol{pool: p.conf.Name, name: n.child("name").value(), format: n.child("target/format").attr("type")}
	if v.name == "" {
		return nil, failure(badXML, "XML error: missing volume name element")
	}
	v.path = strings.TrimSuffix(p.conf.Path, "/") + "/" + v.name
	backing := n.child("backingStore")
	size := n.child("capacity")
	if size == nil && backing == nil {
		return nil, failure(badXML, "XML error: missing capacity element")
	}
	if size != nil {
		if v.capacity, err = amount(size, "capacity"); err != nil {
			return nil, err
		}
	}
	v.solid = true
	if a := n.child("allocation"); a != nil {
		take, err := amount(a, "allocation")
		if err != nil {
			return nil, err
		}
		v.solid = take > 0
	}
	switch v.format {
	case "":
		v.format = "raw"
	case "raw", "qcow2", "iso":
	default:
		return nil, failure(virt.CodeConfigUnsupported, "unsupported configuration: unknown volume format type "+v.format)
	}
	switch {
	case strings.Contains(v.name, "/"):
		return nil, failure(virt.CodeOperationInvalid, fmt.Sprintf("Requested operation is not valid: volume name '%s' cannot contain '/'", v.name))
	case p.vols[v.name] != nil:
		return nil, failure(virt.CodeStorageVolExist, fmt.Sprintf("storage volume '%s' exists already", v.name))
	case v.name == "." || v.name == "..":
		return nil, failure(virt.CodeOperationInvalid, fmt.Sprintf("Requested operation is not valid: volume target path '%s' already exists", v.path))
	case len(v.name) > longestFileName:
		return nil, failure(virt.CodeSystemError, fmt.Sprintf("Failed to create file '%s': File name too long", v.path))
	}
	if v.format != "qcow2" {
		return v, h.makeRaw(p, v, backing)
	}
	return v, h.makeQcow2(p, v, n.child("target/compat"), backing)
}

func (h *Host) makeRaw(p *pool, v *vol, backing *node) error {
	if backing != nil {
		return failure(virt.CodeNoSupport, "this function is not supported by the connection driver: backing storage not supported for raw volumes")
	}
	v.size = v.capacity
	if v.capacity > 1<<44 {
		return failure(virt.CodeSystemError, fmt.Sprintf("cannot extend file '%s': File too large", v.path))
	}
	if v.solid && v.size > p.info().Available {
		return failure(virt.CodeSystemError, fmt.Sprintf("cannot allocate %d bytes in file '%s': %s", v.size, v.path, noSpace))
	}
	return nil
}

func (h *Host) makeQcow2(p *pool, v *vol, compat, backing *node) error {
	options := "compat=0.10"
	if compat != nil {
		c := compat.value()
		if c != "0.10" && c != "1.1" {
			return failure(badXML, "XML error: forbidden characters in 'compat' attribute")
		}
		options = "compat=" + c
	}
	v.made, v.solid = true, false
	kib := (v.capacity + 1023) / 1024
	v.capacity = kib * 1024
	args := ""
	qemuImg := func(why string) error {
		return failure(virt.CodeInternalError, fmt.Sprintf("internal error: Child process (/usr/bin/qemu-img create -f qcow2 %s-o %s %s %dK) unexpected exit status 1: qemu-img: %s: %s\n",
			args, options, v.path, kib, v.path, why))
	}
	if backing != nil {
		v.backing, v.bform = backing.child("path").value(), backing.child("format").attr("type")
		base := h.file(v.backing)
		if base == nil {
			return failure(virt.CodeSystemError, fmt.Sprintf("inaccessible backing store volume %s: No such file or directory", v.backing))
		}
		args = "-b " + v.backing + " "
		if v.bform != "" {
			options = "backing_fmt=" + v.bform + "," + options
		}
		if v.bform == "qcow2" && !base.isQcow2() {
			return qemuImg("Image is not in qcow2 format\nCould not open backing image.")
		}
		if kib == 0 {
			v.capacity = base.capacity
		}
	} else if kib == 0 {
		v.capacity = zeroQcow2
	}
	v.size = zeroQcow2
	if kib > 0 || backing != nil {
		v.size += (v.capacity + l1Reach - 1) / l1Reach * 8
	}
	switch {
	case v.capacity > 1<<61:
		return qemuImg("The image size is too large for file format 'qcow2' (try using a larger cluster size)")
	case v.allocated() > p.info().Available:
		return qemuImg("Could not write qcow2 header: " + noSpace)
	}
	return nil
}

// file is the volume at a path on the host; nil when nothing is there.
func (h *Host) file(path string) *vol {
	for _, p := range h.pools {
		for _, v := range p.vols {
			if v.path == path {
				return v
			}
		}
	}
	return nil
}

// isQcow2 tells by the content, as QEMU does.
func (v *vol) isQcow2() bool {
	if len(v.content) == 0 {
		return v.made
	}
	return bytes.HasPrefix(v.content, []byte(qcow2Magic))
}

// probe sets the capacity by the content after it changed, as libvirt does.
func (v *vol) probe() {
	switch {
	case v.isQcow2() && len(v.content) >= 32:
		v.capacity = binary.BigEndian.Uint64(v.content[24:32])
	case v.format != "qcow2":
		v.capacity = v.size
	}
}
