//go:build linux

package libvirthost

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The LAN of the cell: the test process is its gateway, and its DHCP and DNS
// server tells guests so.
const (
	// Gateway is the address of the test process.
	Gateway = "10.99.0.1"
	// Bridge is the LAN's bridge in the cell; a host's own bridge is HostBridge.
	Bridge = "lan0"
	// HostBridge is the bridge of each host, which is joined to the LAN.
	HostBridge = "br0"
	// LAN holds all addresses; guests get 10.99.0.100 to 10.99.0.200.
	LAN = "10.99.0.0/24"
)

// What the cell keeps, in memory and for itself.
const (
	cellDir  = "/run/fleetdesk-cell"
	tempDir  = cellDir + "/tmp"
	hostsDir = cellDir + "/hosts"
	keyFile  = cellDir + "/id_ed25519"
	// lanReady exists when everything is: its presence tells the tests that they
	// are inside.
	lanReady = cellDir + "/ready"
)

// The names under which this program starts itself again.
const (
	cellInit = "fleetdesk-cell-init"
	hostInit = "fleetdesk-host-init"
)

// Options says where the tests run.
type Options struct {
	// Foreign runs the tests as they are, without a cell: they go to a host of
	// somebody's choosing (KVM_TEST_*).
	Foreign bool
	// Stderr gets what is wrong with the machine. Nil means os.Stderr.
	Stderr io.Writer
}

// Main runs the tests in a cell and returns the exit code: the tests' own, 128
// plus its number when a signal ended them, and 1 with a line on stderr when no
// cell can be made here (no root, a program is missing).
//
// Flags, standard streams and the environment pass through, but for TMPDIR;
// so do HUP, INT, QUIT and TERM.
func Main(m interface{ Run() int }, o Options) int {
	if o.Stderr == nil {
		o.Stderr = os.Stderr
	}
	var code int
	var err error
	switch {
	case os.Args[0] == cellInit:
		code, err = runCell()
	case os.Args[0] == hostInit:
		code, err = runHost()
	case o.Foreign || Inside():
		return m.Run()
	default:
		code, err = enter()
	}
	if err != nil {
		fmt.Fprintln(o.Stderr, "libvirt hosts for tests:", err)
		return max(code, 1)
	}
	return code
}

// Around returns an m whose tests run as Main runs them, for those who check
// something after that.
func Around(m interface{ Run() int }, o Options) interface{ Run() int } { return around{m, o} }

type around struct {
	m interface{ Run() int }
	o Options
}

func (a around) Run() int { return Main(a.m, a.o) }

// Inside reports whether this process is in a cell.
func Inside() bool {
	_, err := os.Stat(lanReady)
	return err == nil
}

// passed are the signals that the tests get when their starter does.
var passed = []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM}

// enter starts the cell and waits for its end.
func enter() (int, error) {
	if err := fit(); err != nil {
		return 1, err
	}
	cmd := again(cellInit, os.Args[1:]...)
	cmd.Args = append([]string{cellInit, os.Args[0]}, os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET |
			syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		Pdeathsig: syscall.SIGKILL,
	}
	// The kernel takes the thread that started the cell for its parent: it must
	// stay as long as the cell.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return wait(cmd)
}

// again is this program under another name. It is started by what it is, not by
// its path: that may be gone or replaced by now.
func again(name string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = name
	return cmd
}

// wait runs a command to its end, hands it signals, and returns its exit code.
func wait(cmd *exec.Cmd) (int, error) {
	// Caught before it starts: none falls between.
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, passed...)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return 1, fmt.Errorf("start %s: %w", cmd.Args[0], err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			_ = cmd.Process.Signal(s)
		case err := <-ended:
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				return 1, err
			}
			return exitCode(cmd.ProcessState.Sys().(syscall.WaitStatus)), nil
		}
	}
}

func exitCode(s syscall.WaitStatus) int {
	if s.Signaled() {
		return 128 + int(s.Signal())
	}
	return s.ExitStatus()
}

// runCell is the first process of the cell: it makes the LAN, starts the tests
// and looks after orphans. When it ends, so does everything in its namespace.
func runCell() (int, error) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, passed...)
	if err := makeCell(); err != nil {
		return 1, err
	}
	if len(os.Args) < 2 {
		return 1, errors.New("the cell's first process is started by the tests alone")
	}
	cmd := again(os.Args[1], os.Args[2:]...)
	cmd.Env = append(cmd.Environ(), "TMPDIR="+tempDir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return 1, fmt.Errorf("start the tests: %w", err)
	}
	var passing sync.WaitGroup
	passing.Go(func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	})
	status := reapUntil(cmd.Process.Pid)
	signal.Stop(signals)
	close(signals)
	passing.Wait()
	return exitCode(status), nil
}

// reapUntil waits for every child, and returns how the one with that pid ended;
// with pid 0 it goes on until no child is left.
func reapUntil(pid int) syscall.WaitStatus {
	for {
		var s syscall.WaitStatus
		got, err := syscall.Wait4(-1, &s, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return s
		case got == pid:
			return s
		}
	}
}

// programs are what a cell and its hosts run, and Debian's packages of them.
var programs = []struct{ name, pkg string }{
	{"ip", "iproute2"},
	{"tc", "iproute2"},
	{"nsenter", "util-linux"},
	{"dnsmasq", "dnsmasq-base"},
	{"ssh-keygen", "openssh-client"},
	{"sshd", "openssh-server"},
	{"virsh", "libvirt-clients"},
	{"libvirtd", "libvirt-daemon-system"},
	{"qemu-system-x86_64", "qemu-system-x86"},
	{"qemu-img", "qemu-utils"},
}

// fit says what this machine lacks, and the line that mends it.
func fit() error {
	if os.Geteuid() != 0 {
		return errors.New("they need root (namespaces, bridges, mounts): run 'make test-integration-kvm' as root")
	}
	path := searchPath()
	var missing []string
	for _, p := range programs {
		if lookPath(path, p.name) == "" {
			missing = append(missing, p.name+" ("+p.pkg+")")
		}
	}
	for _, dir := range []string{"/etc/libvirt", "/etc/ssh", "/var/lib/libvirt", "/var/cache/libvirt"} {
		if _, err := os.Stat(dir); err != nil {
			missing = append(missing, dir)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("missing here: %s: run 'make setup-kvm'", strings.Join(missing, ", "))
	}
	return nil
}

// searchPath is where Debian puts programs; a user's PATH may lack the half of
// it.
func searchPath() []string {
	return []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/sbin", "/usr/local/bin"}
}

func lookPath(path []string, name string) string {
	for _, dir := range path {
		p := filepath.Join(dir, name)
		if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return p
		}
	}
	return ""
}

// How long one command, and a host's start, may take on a busy machine.
const (
	commandTimeout = 30 * time.Second
	startTimeout   = 60 * time.Second
	tick           = 20 * time.Millisecond
)
