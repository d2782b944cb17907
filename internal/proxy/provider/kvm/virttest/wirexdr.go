package virttest

import (
	"encoding/binary"
	"encoding/hex"
	"strings"

	"fleetdesk/internal/proxy/provider/kvm/virt"
)

// payload is XDR as it is written.
type payload []byte

func (p payload) word(v int32) payload { return binary.BigEndian.AppendUint32(p, uint32(v)) }

func (p payload) long(v uint64) payload { return binary.BigEndian.AppendUint64(p, v) }

func (p payload) str(s string) payload {
	p = append(p.word(int32(len(s))), s...)
	for range -len(s) & 3 {
		p = append(p, 0)
	}
	return p
}

// opt is an optional string that is there.
func (p payload) opt(s string) payload { return p.word(1).str(s) }

// uuid is a UUID in its canonical form.
func (p payload) uuid(s string) payload {
	var u [16]byte
	_, _ = hex.Decode(u[:], []byte(strings.ReplaceAll(s, "-", "")))
	return append(p, u[:]...)
}

func (p payload) domain(d virt.Domain) payload { return p.str(d.Name).uuid(d.UUID).word(d.ID) }

func (p payload) volume(v virt.Volume) payload { return p.str(v.Pool).str(v.Name).str(v.Key) }

// args is XDR as it is read. What ends too early or is no XDR makes it broken,
// and everything after is zero.
type args struct {
	left   []byte
	broken bool
}

func (a *args) take(n uint64) []byte {
	if a.broken || n > uint64(len(a.left)) {
		a.broken = true
		return nil
	}
	b := a.left[:n]
	a.left = a.left[n:]
	return b
}

func (a *args) word() uint32 {
	if b := a.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (a *args) long() uint64 {
	if b := a.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (a *args) str() string {
	n := uint64(a.word())
	if b := a.take((n + 3) &^ 3); b != nil {
		return string(b[:n])
	}
	return ""
}

// there reads whether an optional value is there: all but zero is true, as for
// the C library's xdr_bool, and as go-libvirt has it when it opens.
func (a *args) there() bool { return a.word() != 0 }

func (a *args) opt() string {
	if a.there() {
		return a.str()
	}
	return ""
}

func (a *args) uuid() string {
	s, _ := canonicalUUID(hex.EncodeToString(a.take(16)))
	return s
}

func (a *args) domain() virt.Domain {
	return virt.Domain{Name: a.str(), UUID: a.uuid(), ID: int32(a.word())}
}

func (a *args) pool() virt.Pool { return virt.Pool{Name: a.str(), UUID: a.uuid()} }

func (a *args) volume() virt.Volume {
	return virt.Volume{Pool: a.str(), Name: a.str(), Key: a.str()}
}

// whole reports whether it was all read, and nothing else was there.
func (a *args) whole() bool { return !a.broken && len(a.left) == 0 }
