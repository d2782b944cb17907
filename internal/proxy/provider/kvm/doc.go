// Package kvm makes proxies as virtual machines on libvirt hosts that are
// reached by SSH; nothing has to be installed on a host besides libvirt.
//
// An instance is a domain, an overlay on a cached image and a seed for
// cloud-init. The domain is defined first and undefined last, so that whatever
// lies on a host is always under a domain that shows whose it is: its metadata
// carries the owner and the stage (making, made, deleting). A crash at any
// instant leaves what the next call goes on from.
//
// docs/kvm-provider.md is the page for people; the packages below are: virt,
// the seam to one libvirt daemon; rpc, its implementation; sshdial and link,
// the connections; domain, the rules of a domain; image and seed, what its
// disks are made from; virttest, the daemon in memory.
package kvm
