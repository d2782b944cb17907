package virt

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"
)

// levelDetail is the level at which a trace also says XML, metadata and
// addresses; its lines themselves are on slog.LevelDebug.
const levelDetail = slog.LevelDebug - 4

// clipAt is the most of a document that a line says, in bytes.
const clipAt = 16 << 10

// Traced returns c with one line on log for each call, written after the call
// returned: rpc (the name in libvirt's public API), host, the identifiers that
// were given, selected results, duration; on failure error, and for an answer
// of the daemon libvirtError (the code's name) and libvirtCode. XML, metadata
// and addresses come only when log takes levels four below slog.LevelDebug;
// what an upload carries is never said, only how many bytes.
func Traced(c Conn, host string, log *slog.Logger) Conn { return &traced{c, host, log} }

type traced struct {
	c    Conn
	host string
	log  *slog.Logger
}

// call is one call under way.
type call struct {
	t     *traced
	start time.Time
	attrs []slog.Attr
}

func (t *traced) begin(rpc string, given ...slog.Attr) *call {
	attrs := make([]slog.Attr, 0, len(given)+8)
	attrs = append(attrs, slog.String("rpc", rpc), slog.String("host", t.host))
	return &call{t, time.Now(), append(attrs, given...)}
}

// detail adds what only the lower level says; say is not called otherwise.
func (k *call) detail(ctx context.Context, say func() slog.Attr) {
	if k.t.log.Enabled(ctx, levelDetail) {
		k.attrs = append(k.attrs, say())
	}
}

// end writes the line; results are said only when the call did not fail.
func (k *call) end(ctx context.Context, err error, results ...slog.Attr) {
	attrs := k.attrs
	if err == nil {
		attrs = append(attrs, results...)
	}
	attrs = append(attrs, slog.Duration("duration", time.Since(k.start)))
	if err != nil {
		attrs = append(attrs, slog.String("error", clip(err.Error())))
		if e, ok := errors.AsType[*Error](err); ok {
			attrs = append(attrs, slog.String("libvirtError", e.Code.String()), slog.Int("libvirtCode", int(e.Code)))
		}
	}
	k.t.log.LogAttrs(ctx, slog.LevelDebug, "libvirt call", attrs...)
}

func domainAttr(d Domain) slog.Attr {
	return slog.Group("", slog.String("name", d.Name), slog.String("uuid", d.UUID))
}

// String is what a trace and an error call the source.
func (s AddressSource) String() string {
	switch s {
	case FromLease:
		return "lease"
	case FromAgent:
		return "agent"
	case FromARP:
		return "arp"
	}
	return strconv.Itoa(int(s))
}

func clip(s string) string {
	if len(s) <= clipAt {
		return s
	}
	return s[:clipAt] + "…"
}

// countingReader counts what an upload took from its source.
type countingReader struct {
	r io.Reader
	n atomic.Int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}

func (t *traced) ConnectGetLibVersion(ctx context.Context) (Version, error) {
	k := t.begin("virConnectGetLibVersion")
	v, err := t.c.ConnectGetLibVersion(ctx)
	k.end(ctx, err, slog.String("version", v.String()))
	return v, err
}

func (t *traced) ConnectGetHostname(ctx context.Context) (string, error) {
	k := t.begin("virConnectGetHostname")
	s, err := t.c.ConnectGetHostname(ctx)
	k.end(ctx, err, slog.String("hostname", clip(s)))
	return s, err
}

func (t *traced) ConnectGetCapabilities(ctx context.Context) (string, error) {
	k := t.begin("virConnectGetCapabilities")
	s, err := t.c.ConnectGetCapabilities(ctx)
	if err == nil {
		k.detail(ctx, func() slog.Attr { return slog.String("xml", clip(s)) })
	}
	k.end(ctx, err, slog.Int("bytes", len(s)))
	return s, err
}

func (t *traced) ConnectGetDomainCapabilities(ctx context.Context, domainType string) (string, error) {
	k := t.begin("virConnectGetDomainCapabilities", slog.String("type", domainType))
	s, err := t.c.ConnectGetDomainCapabilities(ctx, domainType)
	if err == nil {
		k.detail(ctx, func() slog.Attr { return slog.String("xml", clip(s)) })
	}
	k.end(ctx, err, slog.Int("bytes", len(s)))
	return s, err
}

func (t *traced) ConnectGetAllDomainStats(ctx context.Context) ([]DomainState, error) {
	k := t.begin("virConnectGetAllDomainStats")
	s, err := t.c.ConnectGetAllDomainStats(ctx)
	k.end(ctx, err, slog.Int("count", len(s)))
	return s, err
}

func (t *traced) ConnectDomainEventRegisterAny(ctx context.Context) (<-chan DomainEvent, error) {
	k := t.begin("virConnectDomainEventRegisterAny")
	c, err := t.c.ConnectDomainEventRegisterAny(ctx)
	k.end(ctx, err)
	return c, err
}

func (t *traced) DomainLookupByName(ctx context.Context, name string) (Domain, error) {
	k := t.begin("virDomainLookupByName", slog.String("name", name))
	d, err := t.c.DomainLookupByName(ctx, name)
	k.end(ctx, err, slog.String("uuid", d.UUID), slog.Int("id", int(d.ID)))
	return d, err
}

func (t *traced) DomainLookupByUUID(ctx context.Context, uuid string) (Domain, error) {
	k := t.begin("virDomainLookupByUUID", slog.String("uuid", uuid))
	d, err := t.c.DomainLookupByUUID(ctx, uuid)
	k.end(ctx, err, slog.String("name", d.Name), slog.Int("id", int(d.ID)))
	return d, err
}

func (t *traced) DomainGetState(ctx context.Context, d Domain) (State, Reason, error) {
	k := t.begin("virDomainGetState", domainAttr(d))
	s, r, err := t.c.DomainGetState(ctx, d)
	k.end(ctx, err, slog.Int("state", int(s)), slog.Int("reason", int(r)))
	return s, r, err
}

func (t *traced) DomainGetMetadata(ctx context.Context, d Domain) (string, error) {
	k := t.begin("virDomainGetMetadata", domainAttr(d))
	s, err := t.c.DomainGetMetadata(ctx, d)
	if err == nil {
		k.detail(ctx, func() slog.Attr { return slog.String("metadata", clip(s)) })
	}
	k.end(ctx, err, slog.Int("bytes", len(s)))
	return s, err
}

func (t *traced) DomainSetMetadata(ctx context.Context, d Domain, element string) error {
	k := t.begin("virDomainSetMetadata", domainAttr(d))
	k.detail(ctx, func() slog.Attr { return slog.String("metadata", clip(element)) })
	err := t.c.DomainSetMetadata(ctx, d, element)
	k.end(ctx, err)
	return err
}

func (t *traced) DomainDefineXML(ctx context.Context, xml string) (Domain, error) {
	k := t.begin("virDomainDefineXML")
	k.detail(ctx, func() slog.Attr { return slog.String("xml", clip(xml)) })
	d, err := t.c.DomainDefineXML(ctx, xml)
	k.end(ctx, err, slog.String("name", d.Name), slog.String("uuid", d.UUID))
	return d, err
}

func (t *traced) DomainCreate(ctx context.Context, d Domain) error {
	k := t.begin("virDomainCreate", domainAttr(d))
	err := t.c.DomainCreate(ctx, d)
	k.end(ctx, err)
	return err
}

func (t *traced) DomainDestroy(ctx context.Context, d Domain) error {
	k := t.begin("virDomainDestroy", domainAttr(d))
	err := t.c.DomainDestroy(ctx, d)
	k.end(ctx, err)
	return err
}

func (t *traced) DomainUndefineFlags(ctx context.Context, d Domain, flags UndefineFlags) error {
	k := t.begin("virDomainUndefineFlags", domainAttr(d), slog.Any("flags", uint32(flags)))
	err := t.c.DomainUndefineFlags(ctx, d, flags)
	k.end(ctx, err)
	return err
}

func (t *traced) DomainInterfaceAddresses(ctx context.Context, d Domain, source AddressSource) ([]Interface, error) {
	k := t.begin("virDomainInterfaceAddresses", domainAttr(d), slog.String("source", source.String()))
	i, err := t.c.DomainInterfaceAddresses(ctx, d, source)
	if err == nil {
		k.detail(ctx, func() slog.Attr { return slog.Any("addresses", i) })
	}
	k.end(ctx, err, slog.Int("count", len(i)))
	return i, err
}

func (t *traced) NetworkLookupByName(ctx context.Context, name string) (bool, error) {
	k := t.begin("virNetworkLookupByName", slog.String("name", name))
	active, err := t.c.NetworkLookupByName(ctx, name)
	k.end(ctx, err, slog.Bool("active", active))
	return active, err
}

func (t *traced) StoragePoolLookupByName(ctx context.Context, name string) (Pool, error) {
	k := t.begin("virStoragePoolLookupByName", slog.String("pool", name))
	p, err := t.c.StoragePoolLookupByName(ctx, name)
	k.end(ctx, err, slog.String("uuid", p.UUID))
	return p, err
}

func (t *traced) StoragePoolGetInfo(ctx context.Context, p Pool) (PoolInfo, error) {
	k := t.begin("virStoragePoolGetInfo", slog.String("pool", p.Name))
	i, err := t.c.StoragePoolGetInfo(ctx, p)
	k.end(ctx, err, slog.Int("state", int(i.State)), slog.Uint64("available", i.Available))
	return i, err
}

func (t *traced) StoragePoolGetXMLDesc(ctx context.Context, p Pool) (string, error) {
	k := t.begin("virStoragePoolGetXMLDesc", slog.String("pool", p.Name))
	s, err := t.c.StoragePoolGetXMLDesc(ctx, p)
	if err == nil {
		k.detail(ctx, func() slog.Attr { return slog.String("xml", clip(s)) })
	}
	k.end(ctx, err, slog.Int("bytes", len(s)))
	return s, err
}

func (t *traced) StoragePoolListAllVolumes(ctx context.Context, p Pool) ([]Volume, error) {
	k := t.begin("virStoragePoolListAllVolumes", slog.String("pool", p.Name))
	v, err := t.c.StoragePoolListAllVolumes(ctx, p)
	k.end(ctx, err, slog.Int("count", len(v)))
	return v, err
}

func (t *traced) StorageVolLookupByName(ctx context.Context, p Pool, name string) (Volume, error) {
	k := t.begin("virStorageVolLookupByName", slog.String("pool", p.Name), slog.String("volume", name))
	v, err := t.c.StorageVolLookupByName(ctx, p, name)
	k.end(ctx, err, slog.String("key", v.Key))
	return v, err
}

func (t *traced) StorageVolGetInfo(ctx context.Context, v Volume) (VolumeInfo, error) {
	k := t.begin("virStorageVolGetInfo", slog.Group("", slog.String("pool", v.Pool), slog.String("volume", v.Name)))
	i, err := t.c.StorageVolGetInfo(ctx, v)
	k.end(ctx, err, slog.Uint64("capacity", i.Capacity), slog.Uint64("physical", i.Physical))
	return i, err
}

func (t *traced) StorageVolGetPath(ctx context.Context, v Volume) (string, error) {
	k := t.begin("virStorageVolGetPath", slog.Group("", slog.String("pool", v.Pool), slog.String("volume", v.Name)))
	s, err := t.c.StorageVolGetPath(ctx, v)
	k.end(ctx, err, slog.String("path", clip(s)))
	return s, err
}

func (t *traced) StorageVolCreateXML(ctx context.Context, p Pool, xml string) (Volume, error) {
	k := t.begin("virStorageVolCreateXML", slog.String("pool", p.Name))
	k.detail(ctx, func() slog.Attr { return slog.String("xml", clip(xml)) })
	v, err := t.c.StorageVolCreateXML(ctx, p, xml)
	k.end(ctx, err, slog.String("volume", v.Name))
	return v, err
}

func (t *traced) StorageVolDelete(ctx context.Context, v Volume) error {
	k := t.begin("virStorageVolDelete", slog.Group("", slog.String("pool", v.Pool), slog.String("volume", v.Name)))
	err := t.c.StorageVolDelete(ctx, v)
	k.end(ctx, err)
	return err
}

func (t *traced) StorageVolUpload(ctx context.Context, v Volume, r io.Reader, length uint64) error {
	k := t.begin("virStorageVolUpload", slog.Group("", slog.String("pool", v.Pool), slog.String("volume", v.Name)))
	n := &countingReader{r: r}
	err := t.c.StorageVolUpload(ctx, v, n, length)
	// Said on failure too: it tells how far the upload came.
	k.attrs = append(k.attrs, slog.Int64("bytes", n.n.Load()))
	k.end(ctx, err)
	return err
}
