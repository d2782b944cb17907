// Package virttest has an in-memory fake of libvirt daemons behind the seam
// [virt.Conn], and the suite that the fake and a real daemon both pass.
//
// A [Host] is one daemon with its domains, pools, volumes and networks; any
// number of links share its state. It answers as libvirt 9.0 with QEMU 7.2
// does, in codes and texts, as far as the seam can see. Faults are set on the
// Host ([Host.Break], [Host.Mute], [Host.FailNext], …), and what happened is
// read from it ([Host.Domains], [Host.StartedFrom], [Host.Calls], …).
//
// [ServeWire] puts a Host behind libvirt's RPC on a stream, for clients and
// faults of the wire.
//
// [Run] is the suite: each method's promises, told by a [Subject].
package virttest
