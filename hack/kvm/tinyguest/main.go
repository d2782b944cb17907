//go:build linux

// Command tinyguest is the first and only program of a small virtual machine
// that stands for a proxy in tests: what a whole Debian does in half a minute
// under emulation, it does in ten seconds.
//
// It loads virtio drivers, reads a NoCloud seed (an ISO with the label cidata),
// applies the files of a cloud-config's write_files, gets an address by DHCP,
// runs Debian's squid with /etc/squid/squid.conf, speaks the protocol of QEMU's
// guest agent, and serves what it was given at port 8099 ([report]). It is a
// module of its own, so that the project carries none of what it needs.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// name is the guest's name until its seed gives it one.
const name = "tiny"

func main() {
	mountAll()
	console()
	say("started")
	loadModules("/modules")
	say("drivers loaded")

	go agent()
	s := waitSeed(2 * time.Second)
	host := name
	if s != nil {
		say("seed on %s: %d bytes of user-data", s.device, len(s.files["user-data"]))
		if h := s.hostName(); h != "" {
			host = h
		}
		if err := s.apply(); err != nil {
			say("user-data: %v", err)
		}
	} else {
		say("no seed")
	}
	if err := unix.Sethostname([]byte(host)); err != nil {
		say("host name %q: %v", host, err)
	}
	go squid()
	go report(s)
	address, err := network(context.Background(), host)
	say("address %s, %v", address, err)
	select {} // the kernel panics when its first process ends
}

// say writes a line to the console.
func say(format string, args ...any) {
	up, _ := os.ReadFile("/proc/uptime")
	at, _, _ := strings.Cut(string(up), " ")
	fmt.Fprintf(os.Stderr, "[tinyguest %s] %s\n", at, fmt.Sprintf(format, args...))
}

func mountAll() {
	for _, m := range []struct{ kind, at string }{
		{"proc", "/proc"},
		{"sysfs", "/sys"},
		{"devtmpfs", "/dev"},
		{"tmpfs", "/run"},
		{"tmpfs", "/dev/shm"}, // squid's
	} {
		_ = os.MkdirAll(m.at, 0o755)
		if err := unix.Mount(m.kind, m.at, m.kind, 0, ""); err != nil {
			say("mount %s: %v", m.at, err)
		}
	}
}

// console sends all output to the kernel's console.
func console() {
	c, err := os.OpenFile("/dev/console", os.O_RDWR, 0)
	if err != nil {
		return // nobody could be told
	}
	for fd := 1; fd <= 2; fd++ {
		_ = unix.Dup2(int(c.Fd()), fd)
	}
}

// loadModules loads what the file "order" in dir lists, in this order.
func loadModules(dir string) {
	order, err := os.ReadFile(filepath.Join(dir, "order"))
	if err != nil {
		say("drivers: %v", err)
	}
	for _, m := range strings.Fields(string(order)) {
		f, err := os.Open(filepath.Join(dir, m))
		if err == nil {
			err = unix.FinitModule(int(f.Fd()), "", 0)
			f.Close()
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			say("driver %s: %v", m, err)
		}
	}
}

// squid runs squid for ever.
func squid() {
	for {
		c := exec.Command("/usr/sbin/squid", "-N", "-f", "/etc/squid/squid.conf")
		c.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
		c.Stdout, c.Stderr = os.Stderr, os.Stderr
		say("squid ended: %v", c.Run())
		time.Sleep(500 * time.Millisecond)
	}
}

// powerOff ends the machine.
func powerOff(how int) {
	unix.Sync()
	say("power: %v", unix.Reboot(how))
}
