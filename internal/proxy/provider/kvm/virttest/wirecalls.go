package virttest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"

	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// Procedures that more is known of than their row in procedures.
const (
	procOpen      = 1
	procAuthList  = 66
	procUpload    = 208
	procRegister  = 316
	procLifecycle = 318
)

// subscriptionID is the number of a connection's one subscription.
const subscriptionID = 0

// Numbers of libvirt's API in what is asked.
const (
	metadataElement = 2 // VIR_DOMAIN_METADATA_ELEMENT
	affectCurrent   = 0
	affectLive      = 1
	affectConfig    = 2
	statsState      = 1 // VIR_DOMAIN_STATS_STATE
	getPhysical     = 1 // VIR_STORAGE_VOL_GET_PHYSICAL
	eventLifecycle  = 0 // VIR_DOMAIN_EVENT_ID_LIFECYCLE
	addressIPv4     = 0 // VIR_IP_ADDR_TYPE_IPV4
	addressIPv6     = 1
	typedInt        = 1 // VIR_TYPED_PARAM_INT
)

// doing is a call whose arguments are read.
type doing func(ctx context.Context, w *wire) (payload, error)

// procedures reads the arguments of each procedure that is served: those that
// [virt.Conn] needs, with the values that it has them asked with.
var procedures = map[uint32]func(a *args) doing{
	procAuthList: func(*args) doing {
		return func(context.Context, *wire) (payload, error) { return payload(nil).word(1).word(0), nil } // none
	},
	procOpen:     open,
	157:          nothing(func(ctx context.Context, c *conn) (payload, error) { return long(c.ConnectGetLibVersion(ctx)) }),
	59:           nothing(func(ctx context.Context, c *conn) (payload, error) { return str(c.ConnectGetHostname(ctx)) }),
	7:            nothing(func(ctx context.Context, c *conn) (payload, error) { return str(c.ConnectGetCapabilities(ctx)) }),
	342:          domainCaps,
	344:          domainStats,
	procRegister: register,
	23: func(a *args) doing {
		name := a.str()
		return func(ctx context.Context, w *wire) (payload, error) {
			return domain(w.link.DomainLookupByName(ctx, name))
		}
	},
	24: func(a *args) doing {
		id := a.uuid()
		return func(ctx context.Context, w *wire) (payload, error) { return domain(w.link.DomainLookupByUUID(ctx, id)) }
	},
	212: func(a *args) doing {
		d, flags := a.domain(), a.word()
		return plain(flags, func(ctx context.Context, w *wire) (payload, error) {
			s, r, err := w.link.DomainGetState(ctx, d)
			return payload(nil).word(int32(s)).word(int32(r)), err
		})
	},
	265: getMetadata,
	264: setMetadata,
	11: func(a *args) doing {
		doc := a.str()
		return func(ctx context.Context, w *wire) (payload, error) { return domain(w.link.DomainDefineXML(ctx, doc)) }
	},
	9: func(a *args) doing {
		d := a.domain()
		return func(ctx context.Context, w *wire) (payload, error) { return nil, w.link.DomainCreate(ctx, d) }
	},
	12: func(a *args) doing {
		d := a.domain()
		return func(ctx context.Context, w *wire) (payload, error) { return nil, w.link.DomainDestroy(ctx, d) }
	},
	231: func(a *args) doing {
		d, flags := a.domain(), virt.UndefineFlags(a.word())
		return func(ctx context.Context, w *wire) (payload, error) {
			return nil, w.link.DomainUndefineFlags(ctx, d, flags)
		}
	},
	353: addresses,
	46: func(a *args) doing {
		name := a.str()
		return func(ctx context.Context, w *wire) (payload, error) {
			_, err := w.link.NetworkLookupByName(ctx, name)
			return payload(nil).str(name).uuid(networkUUID(name)), err
		}
	},
	152: networkIsActive,
	84: func(a *args) doing {
		name := a.str()
		return func(ctx context.Context, w *wire) (payload, error) {
			p, err := w.link.StoragePoolLookupByName(ctx, name)
			return payload(nil).str(p.Name).uuid(p.UUID), err
		}
	},
	87: func(a *args) doing {
		p := a.pool()
		return func(ctx context.Context, w *wire) (payload, error) {
			i, err := w.link.StoragePoolGetInfo(ctx, p)
			return payload(nil).word(int32(i.State)).long(i.Capacity).long(i.Allocation).long(i.Available), err
		}
	},
	88: func(a *args) doing {
		p, flags := a.pool(), a.word()
		return plain(flags, func(ctx context.Context, w *wire) (payload, error) { return str(w.link.StoragePoolGetXMLDesc(ctx, p)) })
	},
	282: volumes,
	95: func(a *args) doing {
		p, name := a.pool(), a.str()
		return func(ctx context.Context, w *wire) (payload, error) {
			v, err := w.link.StorageVolLookupByName(ctx, p, name)
			return payload(nil).volume(v), err
		}
	},
	378: func(a *args) doing {
		v, flags := a.volume(), a.word()
		return plain(flags^getPhysical, func(ctx context.Context, w *wire) (payload, error) {
			i, err := w.link.StorageVolGetInfo(ctx, v)
			return payload(nil).word(0).long(i.Capacity).long(i.Physical), err
		})
	},
	100: func(a *args) doing {
		v := a.volume()
		return func(ctx context.Context, w *wire) (payload, error) { return str(w.link.StorageVolGetPath(ctx, v)) }
	},
	93: func(a *args) doing {
		p, doc, flags := a.pool(), a.str(), a.word()
		return plain(flags, func(ctx context.Context, w *wire) (payload, error) {
			v, err := w.link.StorageVolCreateXML(ctx, p, doc)
			return payload(nil).volume(v), err
		})
	},
	94: func(a *args) doing {
		v, flags := a.volume(), a.word()
		return plain(flags, func(ctx context.Context, w *wire) (payload, error) { return nil, w.link.StorageVolDelete(ctx, v) })
	},
}

// nothing is for a procedure without arguments.
func nothing(do func(ctx context.Context, c *conn) (payload, error)) func(*args) doing {
	return func(*args) doing {
		return func(ctx context.Context, w *wire) (payload, error) { return do(ctx, w.link) }
	}
}

// plain is do, or a refusal when something is asked for that is not served.
func plain(other uint32, do doing) doing {
	if other == 0 {
		return do
	}
	return func(context.Context, *wire) (payload, error) {
		return nil, failure(virt.CodeInvalidArg, fmt.Sprintf("invalid argument: unsupported flags (%#x)", other))
	}
}

// either is 1 when one of them is true: something that plain refuses.
func either(odd ...bool) uint32 {
	for _, o := range odd {
		if o {
			return 1
		}
	}
	return 0
}

func long(v virt.Version, err error) (payload, error) { return payload(nil).long(uint64(v)), err }

func str(s string, err error) (payload, error) { return payload(nil).str(s), err }

func domain(d virt.Domain, err error) (payload, error) { return payload(nil).domain(d), err }

func open(a *args) doing {
	uri, flags := a.opt(), a.word()
	return plain(flags, func(_ context.Context, w *wire) (payload, error) {
		const noConnect virt.Code = 5
		if uri != "qemu:///system" {
			return nil, failure(noConnect, "no connection driver available for "+uri)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.opened = true
		return nil, nil
	})
}

func domainCaps(a *args) doing {
	emulator, arch, machine, kind, flags := a.opt(), a.opt(), a.opt(), a.opt(), a.word()
	odd := either(emulator != "", arch != "x86_64", machine != "q35", flags != 0)
	return plain(odd, func(ctx context.Context, w *wire) (payload, error) {
		return str(w.link.ConnectGetDomainCapabilities(ctx, kind))
	})
}

func domainStats(a *args) doing {
	of, stats, flags := a.word(), a.word(), a.word()
	return plain(either(of != 0, stats != statsState, flags != 0), func(ctx context.Context, w *wire) (payload, error) {
		states, err := w.link.ConnectGetAllDomainStats(ctx)
		p := payload(nil).word(int32(len(states)))
		for _, s := range states {
			p = p.domain(s.Domain).word(2).
				str("state.state").word(typedInt).word(int32(s.State)).
				str("state.reason").word(typedInt).word(int32(s.Reason))
		}
		return p, err
	})
}

func getMetadata(a *args) doing {
	d, kind, space, flags := a.domain(), a.word(), a.opt(), a.word()
	odd := either(kind != metadataElement, space != virt.MetadataNamespace, flags != affectCurrent)
	return plain(odd, func(ctx context.Context, w *wire) (payload, error) { return str(w.link.DomainGetMetadata(ctx, d)) })
}

// setMetadata refuses to change a definition that runs where none does. It
// changes both, or the persistent one of a domain that does not run: the host
// knows no other change.
func setMetadata(a *args) doing {
	d, kind, element, key, space, flags := a.domain(), a.word(), a.opt(), a.opt(), a.opt(), a.word()
	odd := either(kind != metadataElement, key != virt.MetadataPrefix, space != virt.MetadataNamespace, flags&^affectLive != affectConfig)
	return plain(odd, func(ctx context.Context, w *wire) (payload, error) {
		if flags&affectLive != 0 && w.link.host.idle(d) {
			return nil, invalid("domain is not running")
		}
		return nil, w.link.DomainSetMetadata(ctx, d, element)
	})
}

// idle reports whether a domain is there and does not run.
func (h *Host) idle(ref virt.Domain) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	d, err := h.findDom(ref)
	return err == nil && !d.active()
}

func addresses(a *args) doing {
	d, source, flags := a.domain(), virt.AddressSource(a.word()), a.word()
	return plain(flags, func(ctx context.Context, w *wire) (payload, error) {
		nics, err := w.link.DomainInterfaceAddresses(ctx, d, source)
		p := payload(nil).word(int32(len(nics)))
		for _, n := range nics {
			if p = p.str(n.Name); n.MAC == "" {
				p = p.word(0)
			} else {
				p = p.opt(n.MAC)
			}
			p = p.word(int32(len(n.Addresses)))
			for _, at := range n.Addresses {
				p = p.word(family(at.IP)).str(at.IP).word(int32(at.Prefix))
			}
		}
		return p, err
	})
}

func family(ip string) int32 {
	if parsed, err := netip.ParseAddr(ip); err == nil && parsed.Is6() {
		return addressIPv6
	}
	return addressIPv4
}

// networkIsActive knows a network by its name: on a host in memory it is not
// defined again with another UUID.
func networkIsActive(a *args) doing {
	name, _ := a.str(), a.uuid()
	return func(ctx context.Context, w *wire) (payload, error) {
		return ask(ctx, w.link, "NetworkIsActive", func() (payload, error) {
			active, there := w.link.host.networks[name]
			switch {
			case !there:
				return nil, failure(virt.CodeNoNetwork, fmt.Sprintf("Network not found: no network with matching name '%s'", name))
			case active:
				return payload(nil).word(1), nil
			}
			return payload(nil).word(0), nil
		})
	}
}

// networkUUID is made of the name: hosts in memory give networks none.
func networkUUID(name string) string {
	s := sha256.Sum256([]byte("network " + name))
	u, _ := canonicalUUID(hex.EncodeToString(s[:16]))
	return u
}

func volumes(a *args) doing {
	p, results, flags := a.pool(), a.word(), a.word()
	return plain(either(results != 1, flags != 0), func(ctx context.Context, w *wire) (payload, error) {
		found, err := w.link.StoragePoolListAllVolumes(ctx, p)
		out := payload(nil).word(int32(len(found)))
		for _, v := range found {
			out = out.volume(v)
		}
		return out.word(int32(len(found))), err
	})
}

// register subscribes for as long as the connection lasts. libvirt takes one of
// a kind from each client.
func register(a *args) doing {
	kind, one := a.word(), a.there()
	return plain(either(kind != eventLifecycle, one), func(ctx context.Context, w *wire) (payload, error) {
		w.mu.Lock()
		again := w.subscribed
		w.subscribed = true
		w.mu.Unlock()
		if again {
			return nil, failure(virt.CodeInvalidArg, "invalid argument: event callback already tracked")
		}
		events, err := w.link.ConnectDomainEventRegisterAny(ctx)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.events, w.subscribed = events, err == nil
		return payload(nil).word(subscriptionID), err
	})
}

// tell sends what happens. A daemon loses no event of its own: a client that
// takes them too slowly for the host's queue loses the connection.
func (w *wire) tell() {
	w.mu.Lock()
	events := w.events
	w.mu.Unlock()
	for ev := range events {
		if ev.Kind == virt.EventsMissed {
			_ = w.stream.Close()
			return
		}
		w.sendBytes(EventFrame(ev))
	}
}
