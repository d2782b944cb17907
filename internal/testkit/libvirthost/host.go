//go:build linux

package libvirthost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// HostOptions says what a host is like.
type HostOptions struct {
	// N makes the host's address 10.99.0.(10+N); 1 to 50, and each but once at a
	// time.
	N int
	// Name is its host name, a DNS label; "" for box-N.
	Name string
	// HideKVM takes /dev/kvm away: the host offers emulation only. Where there is
	// none, or it is of no use (most containers), the host may offer kvm and fail
	// to start such domains.
	HideKVM bool
	// Network gives the host libvirt's network "default" beside its bridge: the
	// addresses 10.98.N.0/24, to which the test process has a route.
	Network bool
	// Images are files that the pool "default" has as volumes from the start, by
	// volume name.
	Images map[string]string
}

// The accounts of each host; both take the key of [Host.KeyFile].
const (
	// User may use libvirt's socket.
	User = "root"
	// PlainUser may log in and forward, and may not use the socket.
	PlainUser = "nobody"
)

// Host is a running libvirt host. Its methods may be called by many goroutines.
type Host struct {
	opts HostOptions
	dir  string // of what it sees as its own folders
	// first is the first process of its PID namespace.
	first *os.Process
	ended chan struct{}

	closing sync.Once
	mu      sync.Mutex
	foreign []Foreign
}

var hostName = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Start starts a host for one test and ends it, with all of its guests, when
// the test is over. When the test failed, what the host's programs said is in
// its log.
func Start(t testing.TB, o HostOptions) *Host {
	t.Helper()
	return StartAll(t, o)[0]
}

// StartAll starts hosts side by side, as Start does.
func StartAll(t testing.TB, all ...HostOptions) []*Host {
	t.Helper()
	hosts, errs := make([]*Host, len(all)), make([]error, len(all))
	var wg sync.WaitGroup
	for i, o := range all {
		wg.Go(func() { hosts[i], errs[i] = New(t.Context(), o) })
	}
	wg.Wait()
	for _, h := range hosts {
		if h != nil {
			h.endWith(t)
		}
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return hosts
}

// endWith ends the host with the test.
func (h *Host) endWith(t testing.TB) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(h.Logs())
		}
		if err := h.Close(); err != nil {
			t.Errorf("end host %s: %v", h.Name(), err)
		}
	})
}

// New starts a host that lives until Close. It returns when libvirtd and sshd
// answer and the pool "default" is active.
func New(ctx context.Context, o HostOptions) (_ *Host, err error) {
	if !Inside() {
		return nil, errors.New("no cell: TestMain must call libvirthost.Main")
	}
	if o.Name == "" {
		o.Name = "box-" + strconv.Itoa(o.N)
	}
	if o.N < 1 || o.N > 50 || !hostName.MatchString(o.Name) {
		return nil, fmt.Errorf("host %q, N %d: the name must be a DNS label and N from 1 to 50", o.Name, o.N)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	h := &Host{opts: o, dir: filepath.Join(hostsDir, strconv.Itoa(o.N)), ended: make(chan struct{})}
	if err := os.Mkdir(h.dir, 0o755); err != nil {
		return nil, fmt.Errorf("host %s: N %d is taken: %w", o.Name, o.N, err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("start host %s: %w\n%s", o.Name, err, h.Logs())
			_ = h.Close()
		}
	}()
	if err := h.furnish(ctx); err != nil {
		return nil, err
	}
	if err := h.launch(ctx); err != nil {
		return nil, err
	}
	return h, nil
}

// launch starts the host's first process and joins it to the LAN.
func (h *Host) launch(ctx context.Context) error {
	ready, readyW, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	goR, goW, err := os.Pipe()
	if err != nil {
		return err
	}
	defer goW.Close()
	log, err := os.Create(filepath.Join(h.dir, "init.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := again(hostInit, h.dir)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{goR, readyW}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET |
			syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		Setsid: true, // a Ctrl-C in the terminal is for the tests
	}
	err = cmd.Start()
	goR.Close()
	readyW.Close()
	if err != nil {
		return err
	}
	h.first = cmd.Process
	go func() {
		_ = cmd.Wait()
		close(h.ended)
	}()
	if err := h.plug(ctx); err != nil {
		return err
	}
	if _, err := goW.WriteString("go\n"); err != nil {
		return err
	}
	deadline, _ := ctx.Deadline()
	_ = ready.SetReadDeadline(deadline)
	said, err := io.ReadAll(io.LimitReader(ready, 16<<10))
	if err == nil && string(said) != "ready\n" {
		err = errors.New(tail(string(said), 4000))
	}
	return err
}

// plug makes the cable between the host and the LAN.
func (h *Host) plug(ctx context.Context) error {
	pid := strconv.Itoa(h.first.Pid)
	for _, args := range [][]string{
		{"link", "add", h.cable(), "type", "veth", "peer", "name", "up0", "netns", pid},
		{"link", "set", h.cable(), "master", Bridge, "up"},
	} {
		if _, err := run(ctx, nil, "ip", args...); err != nil {
			return err
		}
	}
	if h.opts.Network {
		_, err := run(ctx, nil, "ip", "route", "replace", h.subnet()+".0/24", "via", h.IP())
		return err
	}
	return nil
}

func (h *Host) cable() string { return "v-" + strconv.Itoa(h.opts.N) }

func (h *Host) subnet() string { return "10.98." + strconv.Itoa(h.opts.N) }

// Close ends the host as a power cut would: every process of it is killed, its
// files and its cable are removed. It returns when all are gone.
func (h *Host) Close() (err error) {
	h.closing.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
		defer cancel()
		if h.first != nil {
			// The kernel ends the namespace's other processes with it, before it is
			// reaped.
			_ = h.first.Kill()
			select {
			case <-h.ended:
			case <-ctx.Done():
				err = errors.New("its first process outlives SIGKILL")
			}
			// A namespace's devices are removed some time later: the name must be
			// free by now.
			if _, gone := os.Stat("/sys/class/net/" + h.cable()); gone == nil {
				if _, del := run(ctx, nil, "ip", "link", "del", h.cable()); del != nil && !strings.Contains(del.Error(), "Cannot find device") {
					err = errors.Join(err, del)
				}
			}
		}
		h.keepProbed()
		err = errors.Join(err, os.RemoveAll(h.dir))
	})
	return err
}

// Name returns the host's name.
func (h *Host) Name() string { return h.opts.Name }

// IP returns the host's address.
func (h *Host) IP() string { return fmt.Sprintf("10.99.0.%d", 10+h.opts.N) }

// Addr returns the address and port of its sshd.
func (h *Host) Addr() string { return h.IP() + ":22" }

// Socket is the path of libvirtd's socket on each host.
const Socket = "/run/libvirt/libvirt-sock"

// LocalSocket returns the path by which this process can reach the host's
// libvirtd without SSH.
func (h *Host) LocalSocket() string { return filepath.Join(h.dir, "run/libvirt/libvirt-sock") }

// KeyFile returns the path of the private key, in OpenSSH's form, that lets both
// accounts in.
func (h *Host) KeyFile() string { return keyFile }

// KnownHosts returns the lines that known_hosts needs for the host: of the kinds
// of key named ("ed25519", "ecdsa", "rsa"), or of all three.
func (h *Host) KnownHosts(kinds ...string) string {
	if len(kinds) == 0 {
		kinds = keyKinds
	}
	var b strings.Builder
	for _, kind := range kinds {
		pub, err := os.ReadFile(filepath.Join(h.dir, "etc-ssh", "host_"+kind+".pub"))
		if err != nil {
			panic("libvirthost: no host key of the kind " + kind) // a typo in a test
		}
		fields := strings.Fields(string(pub))
		fmt.Fprintf(&b, "%s %s %s\n", h.IP(), fields[0], fields[1])
	}
	return b.String()
}

// Path returns where this process finds a file of the host, also one in a file
// system that the host mounted: /var/lib/libvirt/images/a, say. It is valid
// until Close.
func (h *Host) Path(onHost string) string {
	return filepath.Join("/proc", strconv.Itoa(h.first.Pid), "root", onHost)
}

// Run runs a command on the host as root and returns its output. PATH is
// Debian's own.
func (h *Host) Run(ctx context.Context, name string, args ...string) (string, error) {
	inside := append([]string{"-t", strconv.Itoa(h.first.Pid), "-r", "-m", "-n", "-u", "-i", "-p", "--", name}, args...)
	out, err := run(ctx, nil, "nsenter", inside...)
	if err != nil {
		return out, fmt.Errorf("%s: %w", h.opts.Name, err)
	}
	return out, nil
}

// Virsh runs virsh -q on the host and returns its output.
func (h *Host) Virsh(ctx context.Context, args ...string) (string, error) {
	return h.Run(ctx, "virsh", append([]string{"-q"}, args...)...)
}

// Logs returns the ends of what the host's programs said.
func (h *Host) Logs() string {
	var b strings.Builder
	files := []string{"init.log", "var-log/sshd.log", "var-log/libvirt/libvirtd.log"}
	guests, _ := filepath.Glob(filepath.Join(h.dir, "var-log/libvirt/qemu/*.log"))
	for _, g := range guests {
		rel, _ := filepath.Rel(h.dir, g)
		files = append(files, rel)
	}
	for i, name := range files {
		if i == 16 {
			fmt.Fprintf(&b, "(%d more)\n", len(files)-i)
			break
		}
		if text := readTail(filepath.Join(h.dir, name), 8<<10); text != "" {
			fmt.Fprintf(&b, "--- %s: %s\n%s\n", h.opts.Name, strings.TrimPrefix(name, "var-log/"), text)
		}
	}
	return b.String()
}

// readTail returns the end of a file, "" when there is none.
func readTail(path string, n int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	b, _ := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-n), n))
	return strings.TrimSpace(string(b))
}

// poll asks until done or the context ends; then it returns what done said last.
func poll(ctx context.Context, done func() error) error {
	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		err := done()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-t.C:
		}
	}
}

// plan is what the host's first process is told.
type plan struct {
	Name    string
	IP      string
	MAC     string
	HideKVM bool
}

func (h *Host) writePlan() error {
	b, err := json.Marshal(plan{
		Name: h.opts.Name, IP: h.IP(), MAC: fmt.Sprintf("02:00:0a:63:00:%02x", h.opts.N), HideKVM: h.opts.HideKVM,
	})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(h.dir, "plan.json"), b, 0o644)
}
