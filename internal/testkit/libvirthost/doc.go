// Package libvirthost gives tests real libvirt hosts: sshd, libvirtd and QEMU,
// each host in namespaces of its own, all of them inside a cell that the kernel
// ends with the tests.
//
// It needs root on Linux and Debian's packages (make setup-kvm); without them
// the tests fail and say so. Only packages with the build tag integration use
// it:
//
//	func TestMain(m *testing.M) { os.Exit(libvirthost.Main(m, libvirthost.Options{})) }
//
//	func TestSomething(t *testing.T) {
//		h := libvirthost.Start(t, libvirthost.HostOptions{N: 1})
//		// ssh -i h.KeyFile() root@h.Addr(), known_hosts: h.KnownHosts()
//		origin := libvirthost.Serve(t, http.HandlerFunc(libvirthost.Hello))
//		…
//		if left := h.Leftovers(t); len(left) > 0 { t.Error(left) }
//	}
//
// With leak checks: goleak.VerifyTestMain(libvirthost.Around(m, libvirthost.Options{})).
//
// [Main] runs the test binary a second time in new PID, mount, network, UTS and
// IPC namespaces. There the tests are at [Gateway] on a bridge, lan0, whose
// DHCP and DNS server answers guests and hosts, and which has no way out: an
// address that is wrong reaches nobody. Host N has the address 10.99.0.(10+N).
// /run and the folder of temporary files are in memory. Whatever a test starts
// lives in that PID namespace: when the test process ends, even by SIGKILL, the
// kernel ends the rest, and nothing is left on the machine.
//
// A host's processes are in a PID namespace below, and its files in folders that
// only it sees: /etc/libvirt, /var/lib/libvirt, /var/log, /run and so on. QEMU
// is a plain emulator in most containers, although libvirt offers kvm there:
// tests use domains of type qemu.
package libvirthost
