package virttest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// every is each method of virt.Conn, asked about things that are there but for
// those which would change them.
func (b *bench) every(c virt.Conn) map[string]func(ctx context.Context) error {
	p := b.pool()
	v := b.volume("raw", 10, "")
	d := b.define(shape{metadata: metadataDoc(`<f:instance xmlns:f="NS" n="1"/>`)})
	name, vname := b.name("new"), b.name("newvol")
	one := func(_ any, err error) error { return err }
	return map[string]func(ctx context.Context) error{
		"ConnectGetLibVersion":          func(ctx context.Context) error { return one(c.ConnectGetLibVersion(ctx)) },
		"ConnectGetHostname":            func(ctx context.Context) error { return one(c.ConnectGetHostname(ctx)) },
		"ConnectGetCapabilities":        func(ctx context.Context) error { return one(c.ConnectGetCapabilities(ctx)) },
		"ConnectGetDomainCapabilities":  func(ctx context.Context) error { return one(c.ConnectGetDomainCapabilities(ctx, b.s.DomainType)) },
		"ConnectGetAllDomainStats":      func(ctx context.Context) error { return one(c.ConnectGetAllDomainStats(ctx)) },
		"ConnectDomainEventRegisterAny": func(ctx context.Context) error { return one(c.ConnectDomainEventRegisterAny(ctx)) },
		"DomainLookupByName":            func(ctx context.Context) error { return one(c.DomainLookupByName(ctx, d.Name)) },
		"DomainLookupByUUID":            func(ctx context.Context) error { return one(c.DomainLookupByUUID(ctx, d.UUID)) },
		"DomainGetState":                func(ctx context.Context) error { _, _, err := c.DomainGetState(ctx, d); return err },
		"DomainGetMetadata":             func(ctx context.Context) error { return one(c.DomainGetMetadata(ctx, d)) },
		"DomainSetMetadata":             func(ctx context.Context) error { return c.DomainSetMetadata(ctx, d, `<instance n="2"/>`) },
		"DomainDefineXML": func(ctx context.Context) error {
			made, err := c.DomainDefineXML(ctx, b.doc(shape{name: name}))
			if err == nil {
				b.forget(made)
			}
			return err
		},
		"DomainCreate":        func(ctx context.Context) error { return c.DomainCreate(ctx, d) },
		"DomainDestroy":       func(ctx context.Context) error { return c.DomainDestroy(ctx, d) },
		"DomainUndefineFlags": func(ctx context.Context) error { return c.DomainUndefineFlags(ctx, d, 0) },
		"DomainInterfaceAddresses": func(ctx context.Context) error {
			return one(c.DomainInterfaceAddresses(ctx, d, virt.FromLease))
		},
		"NetworkLookupByName":       func(ctx context.Context) error { return one(c.NetworkLookupByName(ctx, name)) },
		"StoragePoolLookupByName":   func(ctx context.Context) error { return one(c.StoragePoolLookupByName(ctx, p.Name)) },
		"StoragePoolGetInfo":        func(ctx context.Context) error { return one(c.StoragePoolGetInfo(ctx, p)) },
		"StoragePoolGetXMLDesc":     func(ctx context.Context) error { return one(c.StoragePoolGetXMLDesc(ctx, p)) },
		"StoragePoolListAllVolumes": func(ctx context.Context) error { return one(c.StoragePoolListAllVolumes(ctx, p)) },
		"StorageVolLookupByName":    func(ctx context.Context) error { return one(c.StorageVolLookupByName(ctx, p, v.Name)) },
		"StorageVolGetInfo":         func(ctx context.Context) error { return one(c.StorageVolGetInfo(ctx, v)) },
		"StorageVolGetPath":         func(ctx context.Context) error { return one(c.StorageVolGetPath(ctx, v)) },
		"StorageVolCreateXML": func(ctx context.Context) error {
			made, err := c.StorageVolCreateXML(ctx, p, volumeDoc(vname, "raw", 1, ""))
			if err == nil {
				b.discard(made)
			}
			return err
		},
		"StorageVolDelete": func(ctx context.Context) error { return c.StorageVolDelete(ctx, v) },
		"StorageVolUpload": func(ctx context.Context) error { return c.StorageVolUpload(ctx, v, strings.NewReader("x"), 1) },
	}
}

func testContexts(b *bench) {
	over, cancel := context.WithCancel(b.ctx)
	cancel()
	late, stop := context.WithDeadline(b.ctx, time.Now().Add(-time.Second))
	defer stop()
	for what, call := range b.every(b.c) {
		err := call(over)
		if !errors.Is(err, context.Canceled) {
			b.Errorf("%s, cancelled: %v", what, err)
		}
		b.isClass(what+", cancelled", err, fault.Transient)
		err = call(late)
		if !errors.Is(err, context.DeadlineExceeded) {
			b.Errorf("%s, too late: %v", what, err)
		}
		b.isClass(what+", too late", err, fault.Timeout)
	}
	// Nothing of it ended the connection.
	_, err := b.c.ConnectGetLibVersion(b.ctx)
	b.ok("a call after them", err)
}

// Answers that came after their callers had gone must not reach others.
func testLateAnswers(b *bench) {
	const calls = 40
	names := make([]string, 4)
	for i := range names {
		names[i] = b.volume("raw", uint64(i), "").Name
	}
	p := b.pool()
	for i := range calls {
		ctx, cancel := context.WithTimeout(b.ctx, time.Duration(i*i)*5*time.Microsecond)
		_, err := b.c.StorageVolLookupByName(ctx, p, names[i%len(names)])
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			b.Errorf("a hurried call: %v", err)
		}
		want := names[(i+1)%len(names)]
		v, err := b.c.StorageVolLookupByName(b.ctx, p, want)
		if b.ok("a call after one that was given up", err); v.Name != want {
			b.Fatalf("asked for %s, got %s", want, v.Name)
		}
	}
}

func testConcurrent(b *bench) {
	const callers, rounds = 16, 8
	p := b.pool()
	vols := make([]virt.Volume, callers)
	doms := make([]virt.Domain, callers)
	for i := range vols {
		vols[i] = b.volume("raw", uint64(i), "")
		doms[i] = b.define(shape{metadata: metadataDoc(fmt.Sprintf(`<f:instance xmlns:f="NS" n="%d"/>`, i))})
	}
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for range rounds {
				v, err := b.c.StorageVolLookupByName(b.ctx, p, vols[i].Name)
				if err != nil || v != vols[i] {
					b.Errorf("volume %d: %+v, %v", i, v, err)
				}
				info, err := b.c.StorageVolGetInfo(b.ctx, vols[i])
				if err != nil || info.Capacity != uint64(i) {
					b.Errorf("volume %d: %+v, %v", i, info, err)
				}
				m, err := b.c.DomainGetMetadata(b.ctx, doms[i])
				if want := fmt.Sprintf(`<instance n="%d"/>`, i); err != nil || m != want {
					b.Errorf("domain %d: %q, %v", i, m, err)
				}
				if _, err := b.c.DomainLookupByName(b.ctx, doms[i].Name+"x"); !virt.Is(err, virt.CodeNoDomain) {
					b.Errorf("domain %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
	// Of many that make the same thing at once one wins.
	var made, refused int
	var mu sync.Mutex
	name := b.name("race")
	for range 8 {
		wg.Go(func() {
			v, err := b.c.StorageVolCreateXML(b.ctx, p, volumeDoc(name, "raw", 0, ""))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				made++
				b.discard(v)
			case virt.Is(err, virt.CodeStorageVolExist):
				refused++
			default:
				b.Errorf("making one at once: %v", err)
			}
		})
	}
	wg.Wait()
	if made != 1 || refused != 7 {
		b.Errorf("%d made it, %d were refused", made, refused)
	}
}

func testTwoConnections(b *bench) {
	if b.s.Dial == nil {
		b.Skip("the subject dials no connections")
	}
	l := b.s.Dial(b.T)
	defer func() { _ = l.Close() }()
	v := b.volume("raw", 7, "")
	found, err := l.StorageVolLookupByName(b.ctx, b.pool(), v.Name)
	if b.ok("a volume made by the other", err); found != v {
		b.Errorf("%+v, want %+v", found, v)
	}
	d := b.define(shape{})
	b.ok("start", b.c.DomainCreate(b.ctx, d))
	now, err := l.DomainLookupByName(b.ctx, d.Name)
	if b.ok("a domain started by the other", err); now.UUID != d.UUID || now.ID < 0 {
		b.Errorf("%+v", now)
	}
	b.ok("close", l.Close())
	b.wantsState(d, virt.StateRunning)
}

func testClosed(b *bench) {
	if b.s.Dial == nil {
		b.Skip("the subject dials no connections")
	}
	l := b.s.Dial(b.T)
	defer func() { _ = l.Close() }()
	_, err := l.ConnectGetLibVersion(b.ctx)
	b.ok("a call", err)
	select {
	case <-l.Done():
		b.Fatal("it has ended already")
	default:
	}
	if l.Err() != nil {
		b.Errorf("it lives and has the error %v", l.Err())
	}
	calls := b.every(l)
	v := b.volume("raw", 0, "")
	g := newGate(text(100))
	done := make(chan error, 1)
	go func() { done <- l.StorageVolUpload(b.ctx, v, g, 0) }()
	soon(b, "the source", g.waiting)
	b.ok("close", l.Close())
	soon(b, "Done", l.Done())
	b.isClass("why it ended", l.Err(), fault.Unavailable)
	err = soon(b, "the upload's end", done)
	close(g.open)
	b.isClass("a call that waited", err, fault.Unavailable)
	for what, call := range calls {
		b.isClass(what+" on a closed connection", call(b.ctx), fault.Unavailable)
	}
	b.ok("closing it again", l.Close())
	_, err = b.c.ConnectGetLibVersion(b.ctx)
	b.ok("the other connection", err)
}
