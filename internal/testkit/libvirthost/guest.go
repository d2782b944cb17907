//go:build linux

package libvirthost

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// GuestImages are the disks that hack/kvm/images.sh built.
type GuestImages struct {
	// Dir is the folder that holds them.
	Dir string
	// Tiny is a kernel with a small first process and Debian's squid; see
	// hack/kvm/tinyguest. It answers 10 s after its start, and needs 512 MiB.
	Tiny string
	// Debian is a whole system with cloud-init, qemu-guest-agent, sshd and squid.
	Debian string
	// DebianBare is the same without qemu-guest-agent.
	DebianBare string
	// Repository is a folder that a test serves by HTTP as a Debian package
	// repository, "deb [trusted=yes] http://10.99.0.1:PORT/ ./": it has
	// qemu-guest-agent for DebianBare.
	Repository string
}

// Images returns the guests' disks. The test ends when they are not built.
func Images(t testing.TB) GuestImages {
	t.Helper()
	i, err := FindImages()
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// FindImages returns the guests' disks: bin/kvm of the repository above the
// working directory.
func FindImages() (GuestImages, error) {
	dir, err := os.Getwd()
	if err != nil {
		return GuestImages{}, err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "hack", "kvm", "images.sh")); err == nil {
			break
		}
		if dir == filepath.Dir(dir) {
			return GuestImages{}, errors.New("images of guests: this is no checkout of the repository")
		}
		dir = filepath.Dir(dir)
	}
	dir = filepath.Join(dir, "bin", "kvm")
	i := GuestImages{
		Dir: dir, Tiny: filepath.Join(dir, "tiny.qcow2"), Debian: filepath.Join(dir, "debian.qcow2"),
		DebianBare: filepath.Join(dir, "debian-bare.qcow2"), Repository: filepath.Join(dir, "repository"),
	}
	for _, file := range []string{i.Tiny, i.Debian, i.DebianBare, i.Repository} {
		if _, err := os.Stat(file); err != nil {
			return i, fmt.Errorf("images of guests: %w: run 'make kvm-images'", err)
		}
	}
	return i, nil
}

// Agent sends one command to a domain's guest agent and returns the value of
// "return". Arguments is nil or what marshals to a JSON object.
func (h *Host) Agent(ctx context.Context, domain, command string, arguments any) (json.RawMessage, error) {
	q := map[string]any{"execute": command}
	if arguments != nil {
		q["arguments"] = arguments
	}
	b, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	out, err := h.Virsh(ctx, "qemu-agent-command", "--timeout", "10", domain, string(b))
	if err != nil {
		return nil, err
	}
	var a struct{ Return json.RawMessage }
	if err := json.Unmarshal([]byte(out), &a); err != nil {
		return nil, fmt.Errorf("%s: agent of %s: %w: %s", h.opts.Name, domain, err, tail(out, 500))
	}
	return a.Return, nil
}

// Exec runs a shell command in a guest, through its agent, and returns what it
// wrote to stdout. It waits for at most a minute.
func (h *Host) Exec(ctx context.Context, domain, shell string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ret, err := h.Agent(ctx, domain, "guest-exec", map[string]any{
		"path": "/bin/sh", "arg": []string{"-c", shell}, "capture-output": true,
	})
	if err != nil {
		return "", err
	}
	var started struct{ PID int }
	if err := json.Unmarshal(ret, &started); err != nil {
		return "", err
	}
	var s struct {
		Exited   bool
		ExitCode int
		Signal   int
		Out      string `json:"out-data"`
		Err      string `json:"err-data"`
	}
	err = poll(ctx, func() error {
		ret, err := h.Agent(ctx, domain, "guest-exec-status", map[string]any{"pid": started.PID})
		if err != nil {
			return err
		}
		if err := json.Unmarshal(ret, &s); err != nil {
			return err
		}
		if !s.Exited {
			return errors.New("it still runs")
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("%s: in %s: %s: %w", h.opts.Name, domain, shell, err)
	}
	out, _ := base64.StdEncoding.DecodeString(s.Out)
	if s.ExitCode != 0 || s.Signal != 0 {
		said, _ := base64.StdEncoding.DecodeString(s.Err)
		return string(out), fmt.Errorf("%s: in %s: %s: exit code %d, signal %d: %s",
			h.opts.Name, domain, shell, s.ExitCode, s.Signal, tail(string(said), 2000))
	}
	return string(out), nil
}
