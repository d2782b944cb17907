//go:build linux

package libvirthost

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

// folders are a host's own, by their names in its folder and where it sees
// them. What is last covers the folder that they are in.
var folders = []struct{ own, at string }{
	{"etc-libvirt", "/etc/libvirt"},
	{"etc-ssh", "/etc/ssh"},
	{"var-lib-libvirt", "/var/lib/libvirt"},
	{"var-cache-libvirt", "/var/cache/libvirt"},
	{"var-log", "/var/log"},
	{"hosts", "/etc/hosts"},
	{"run", "/run"},
}

// keyKinds are the host's keys.
var keyKinds = []string{"ed25519", "ecdsa", "rsa"}

// poolDir is the folder of the pool "default".
const poolDir = "/var/lib/libvirt/images"

// furnish writes the host's files.
func (h *Host) furnish(ctx context.Context) error {
	for _, dir := range []string{
		"etc-libvirt/storage/autostart", "etc-libvirt/qemu/networks/autostart", "etc-libvirt/nwfilter", "etc-ssh",
		"var-lib-libvirt/images", "var-cache-libvirt", "var-log/libvirt/qemu", "run/libvirt", "run/lock", "run/sshd",
	} {
		if err := os.MkdirAll(filepath.Join(h.dir, dir), 0o755); err != nil {
			return err
		}
	}
	keys := make(chan error, len(keyKinds))
	for _, kind := range keyKinds {
		go func() { keys <- h.makeKey(ctx, kind) }()
	}
	err := errors.Join(h.writeFiles(), h.writePlan())
	for range keyKinds {
		err = errors.Join(err, <-keys)
	}
	// Without it, a host is not told what QEMU can do before 4 s after it is asked
	// first.
	if err := os.CopyFS(filepath.Join(h.dir, "var-cache-libvirt/qemu"), os.DirFS(h.probed())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for name, file := range h.opts.Images {
		err = errors.Join(err, copyFile(filepath.Join(h.dir, "var-lib-libvirt/images", name), file))
	}
	return err
}

// probed is where libvirt's notes on QEMU are kept for the hosts to come: those
// of the first host that ended with some.
func (h *Host) probed() string { return fmt.Sprintf("%s/qemu-hide-kvm-%t", cellDir, h.opts.HideKVM) }

// keepProbed moves the notes of a host that has ended there.
func (h *Host) keepProbed() {
	// Whoever is second finds the place taken, and drops its own.
	_ = os.Rename(filepath.Join(h.dir, "var-cache-libvirt/qemu"), h.probed())
}

func (h *Host) makeKey(ctx context.Context, kind string) error {
	args := []string{"-q", "-t", kind, "-N", "", "-C", h.opts.Name, "-f", filepath.Join(h.dir, "etc-ssh", "host_"+kind)}
	if kind == "rsa" {
		args = append(args, "-b", "2048") // half a second less than the default
	}
	_, err := run(ctx, nil, "ssh-keygen", args...)
	return err
}

func (h *Host) writeFiles() error {
	key, err := os.ReadFile(keyFile + ".pub")
	if err != nil {
		return err
	}
	uuid := make([]byte, 16)
	_, _ = rand.Read(uuid) // it never fails
	uuid[6], uuid[8] = uuid[6]&0x0f|0x40, uuid[8]&0x3f|0x80
	files := map[string]string{
		"hosts": "127.0.0.1 localhost\n" + h.IP() + " " + h.opts.Name + "\n" + Gateway + " cell\n",
		"etc-libvirt/libvirtd.conf": fmt.Sprintf("auth_unix_rw = \"none\"\nauth_unix_ro = \"none\"\nunix_sock_rw_perms = \"0700\"\n"+
			"host_uuid = \"%x-%x-%x-%x-%x\"\nlog_outputs = \"2:file:/var/log/libvirt/libvirtd.log\"\n",
			uuid[:4], uuid[4:6], uuid[6:8], uuid[8:10], uuid[10:]),
		// No security driver, cgroups or private /dev for guests: none works in a
		// namespace in a container. Nobody runs virtlogd here.
		"etc-libvirt/qemu.conf": "security_driver = \"none\"\nuser = \"root\"\ngroup = \"root\"\ndynamic_ownership = 0\nremember_owner = 0\n" +
			"namespaces = []\ncgroup_controllers = []\nstdio_handler = \"file\"\n",
		"etc-libvirt/storage/default.xml": "<pool type='dir'><name>default</name><target><path>" + poolDir + "</path></target></pool>\n",
		"etc-ssh/authorized_keys":         string(key),
		"etc-ssh/sshd_config": strings.Join([]string{
			"ListenAddress " + h.IP() + ":22",
			"HostKey /etc/ssh/host_ed25519", "HostKey /etc/ssh/host_ecdsa", "HostKey /etc/ssh/host_rsa",
			"AuthorizedKeysFile /etc/ssh/authorized_keys",
			"PermitRootLogin prohibit-password", "PasswordAuthentication no", "KbdInteractiveAuthentication no",
			"UsePAM no", "UseDNS no", "StrictModes no", "PidFile /run/sshd.pid", "LogLevel VERBOSE",
			// As many at once as a test likes.
			"MaxStartups 200", "MaxSessions 100", "",
		}, "\n"),
	}
	if h.opts.Network {
		// Open: the host's firewall is not touched, guests are routed.
		files["etc-libvirt/qemu/networks/default.xml"] = fmt.Sprintf(
			"<network><name>default</name><forward mode='open'/><bridge name='virbr0'/>"+
				"<ip address='%[1]s.1' netmask='255.255.255.0'><dhcp><range start='%[1]s.100' end='%[1]s.200'/></dhcp></ip></network>\n", h.subnet())
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(h.dir, name), []byte(text), 0o644); err != nil {
			return err
		}
		if kind, found := strings.CutSuffix(filepath.Base(name), ".xml"); found {
			// What it is to start by itself.
			link := filepath.Join(h.dir, filepath.Dir(name), "autostart", kind+".xml")
			if err := os.Symlink(filepath.Join("/etc/libvirt", strings.TrimPrefix(name, "etc-libvirt")), link); err != nil {
				return err
			}
		}
	}
	return nil
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// runHost is the host's first process. It makes the host's view of the machine,
// starts its daemons, says "ready" and looks after orphans until it is killed.
func runHost() (int, error) {
	if len(os.Args) != 2 {
		return 1, errors.New("a host's first process is started by New alone")
	}
	dir := os.Args[1]
	for fd := 3; fd <= 4; fd++ {
		syscall.CloseOnExec(fd) // the starter waits for the end of ready
	}
	start, ready := os.NewFile(3, "start"), os.NewFile(4, "ready")
	// The cable is there when the starter says so; when the starter is gone, so is
	// everything.
	if said, err := io.ReadAll(io.LimitReader(start, 3)); err != nil || string(said) != "go\n" {
		return 1, fmt.Errorf("nobody waits for this host: %w", err)
	}
	start.Close()
	if err := inhabit(dir); err != nil {
		fmt.Fprintln(ready, err)
		return 1, err
	}
	if _, err := io.WriteString(ready, "ready\n"); err != nil {
		return 1, err
	}
	ready.Close()
	orphans := make(chan os.Signal, 1)
	signal.Notify(orphans, syscall.SIGCHLD)
	for {
		reapUntil(0) // until not one is left
		<-orphans
	}
}

func inhabit(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, "plan.json"))
	if err != nil {
		return err
	}
	var p plan
	if err := json.Unmarshal(b, &p); err != nil {
		return err
	}
	if err := errors.Join(
		syscall.Sethostname([]byte(p.Name)),
		syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""),
		syscall.Mount("proc", "/proc", "proc", 0, ""),
		syscall.Mount("sysfs", "/sys", "sysfs", 0, ""),
	); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	if p.HideKVM {
		if _, err := os.Stat("/dev/kvm"); err == nil {
			none := filepath.Join(dir, "no-kvm")
			if err := os.WriteFile(none, nil, 0); err != nil {
				return err
			}
			if err := bind(none, "/dev/kvm"); err != nil {
				return err
			}
		}
	}
	for _, f := range folders {
		if err := bind(filepath.Join(dir, f.own), f.at); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for _, args := range []string{
		"link set lo up",
		// A fixed address: guests and the LAN remember the one of an earlier host.
		"link add " + HostBridge + " address " + p.MAC + " type bridge",
		"link set up0 master " + HostBridge + " up",
		"link set " + HostBridge + " up",
		"addr add " + p.IP + "/24 dev " + HostBridge,
		"route add default via " + Gateway,
	} {
		if _, err := run(ctx, nil, "ip", strings.Fields(args)...); err != nil {
			return err
		}
	}
	if _, err := run(ctx, nil, "sshd", "-f", "/etc/ssh/sshd_config", "-E", "/var/log/sshd.log"); err != nil {
		return err
	}
	if _, err := run(ctx, nil, "libvirtd", "-d", "-p", "/run/libvirtd.pid"); err != nil {
		return err
	}
	return poll(ctx, func() error {
		_, err := run(ctx, nil, "virsh", "-q", "pool-info", "default")
		return err
	})
}
