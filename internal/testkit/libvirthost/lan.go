//go:build linux

package libvirthost

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// makeCell gives the new namespaces a file system and a network.
func makeCell() error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	resolved, err := os.Readlink("/etc/resolv.conf")
	if err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, m := range []struct {
		kind, at, data string
		flags          uintptr
	}{
		{kind: "proc", at: "/proc"},
		{kind: "sysfs", at: "/sys"},
		{kind: "tmpfs", at: "/run", data: "mode=755,size=75%"},
	} {
		if err := syscall.Mount(m.kind, m.at, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	for _, dir := range []string{cellDir, tempDir, hostsDir, "/run/lock", "/run/sshd"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(tempDir, 0o777|fs.ModeSticky); err != nil {
		return err
	}
	if err := syscall.Sethostname([]byte("cell")); err != nil {
		return err
	}
	if err := names(resolved); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := lan(ctx); err != nil {
		return err
	}
	if _, err := run(ctx, nil, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "tests", "-f", keyFile); err != nil {
		return err
	}
	return os.WriteFile(lanReady, nil, 0o644)
}

// names lets the cell's own server answer: the machine's cannot be reached, and
// asking it would take its time.
func names(resolved string) error {
	hosts := "127.0.0.1 localhost\n" + Gateway + " cell\n"
	if err := cover("/etc/hosts", hosts); err != nil {
		return err
	}
	conf := "nameserver " + Gateway + "\noptions timeout:1 attempts:1\n"
	at := "/etc/resolv.conf"
	if resolved != "" {
		// It points into what is covered by now, on systems with a resolver.
		if !filepath.IsAbs(resolved) {
			resolved = filepath.Join("/etc", resolved)
		}
		if _, err := os.Stat(resolved); errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(resolved, "/run/") {
			if err := os.MkdirAll(filepath.Dir(resolved), 0o755); err != nil {
				return err
			}
			return os.WriteFile(resolved, []byte(conf), 0o644)
		}
		at = resolved
	}
	return cover(at, conf)
}

// cover mounts a file with that text over another.
func cover(at, text string) error {
	f, err := os.CreateTemp(cellDir, filepath.Base(at))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if _, err := f.WriteString(text); err != nil {
		return err
	}
	return bind(f.Name(), at)
}

func bind(from, to string) error {
	if err := syscall.Mount(from, to, "", syscall.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s over %s: %w", from, to, err)
	}
	return nil
}

// lan makes the bridge and its DHCP and DNS server.
func lan(ctx context.Context) error {
	for _, args := range []string{
		"link set lo up",
		"link add " + Bridge + " address 02:00:0a:63:00:fe type bridge",
		"link set " + Bridge + " up",
		"addr add " + Gateway + "/24 dev " + Bridge,
	} {
		if _, err := run(ctx, nil, "ip", strings.Fields(args)...); err != nil {
			return err
		}
	}
	log := cellDir + "/dnsmasq.log"
	// It goes to the background when it listens, or says what is wrong.
	_, err := run(ctx, nil, "dnsmasq", "--conf-file=/dev/null", "--user=root", "--group=root",
		"--port=53", "--interface="+Bridge, "--except-interface=lo", "--bind-interfaces", "--no-resolv", "--no-poll",
		"--dhcp-range=10.99.0.100,10.99.0.200,255.255.255.0,1h", "--dhcp-option=3,"+Gateway, "--dhcp-option=6,"+Gateway,
		"--dhcp-leasefile="+cellDir+"/leases", "--dhcp-authoritative", "--no-ping",
		"--pid-file="+cellDir+"/dnsmasq.pid", "--log-facility="+log, "--log-dhcp")
	return err
}

// run runs a command to its end and returns what it said on stdout; an error
// has what it said on stderr. A command whose context has no end gets one.
func run(ctx context.Context, env []string, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	path := lookPath(searchPath(), name)
	if path == "" {
		return "", fmt.Errorf("%s: no such program here: run 'make setup-kvm'", name)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append([]string{"PATH=" + strings.Join(searchPath(), ":"), "LC_ALL=C", "HOME=/"}, env...)
	cmd.WaitDelay = tick
	var out, said strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	// Something that it started may hold its streams: it has ended all the same.
	if err != nil && !(errors.Is(err, exec.ErrWaitDelay) && cmd.ProcessState.Success()) {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w (%w)", ctx.Err(), err)
		}
		return out.String(), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, tail(said.String(), 2000))
	}
	return out.String(), nil
}

// tail returns the end of a text, trimmed.
func tail(s string, n int) string {
	s = strings.TrimSpace(s)
	if len(s) > n {
		s = "…" + s[len(s)-n:]
	}
	return s
}
