// Package virt is the seam between the kvm provider and libvirt: what the
// provider asks of one daemon, in types of its own.
//
// [Conn] has one method for each libvirt call that the provider makes, named
// as in libvirt's public API, so that a trace reads like libvirt's own log.
// Package rpc implements it over the wire, package virttest in memory; both
// pass virttest's suite.
package virt
