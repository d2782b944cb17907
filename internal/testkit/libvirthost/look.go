//go:build linux

package libvirthost

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Domains returns the names of all domains, defined or running, in order.
func (h *Host) Domains(ctx context.Context) ([]string, error) {
	return h.lines(ctx, "list", "--all", "--name")
}

// Volumes returns the names of a pool's files, in order, as they are on disk:
// also those that libvirt has not seen.
func (h *Host) Volumes(ctx context.Context, pool string) ([]string, error) {
	xml, err := h.Virsh(ctx, "pool-dumpxml", pool)
	if err != nil {
		return nil, err
	}
	_, rest, _ := strings.Cut(xml, "<path>")
	dir, _, found := strings.Cut(rest, "</path>")
	if !found {
		return nil, fmt.Errorf("%s: pool %s has no path", h.opts.Name, pool)
	}
	return filesIn(h.Path(dir))
}

// NVRAM returns the names of the files of UEFI variables, in order.
func (h *Host) NVRAM() ([]string, error) { return filesIn(h.Path("/var/lib/libvirt/qemu/nvram")) }

// Guests returns the names of the domains that have a QEMU process, in order.
func (h *Host) Guests(ctx context.Context) ([]string, error) {
	out, err := h.Run(ctx, "sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | sed -n 's/^guest=\\([^,]*\\).*/\\1/p'")
	if err != nil {
		return nil, err
	}
	return sorted(out), nil
}

func (h *Host) lines(ctx context.Context, args ...string) ([]string, error) {
	out, err := h.Virsh(ctx, args...)
	if err != nil {
		return nil, err
	}
	return sorted(out), nil
}

func sorted(out string) []string {
	var all []string
	for l := range strings.Lines(out) {
		if l = strings.TrimSpace(l); l != "" {
			all = append(all, l)
		}
	}
	slices.Sort(all)
	return all
}

// filesIn lists a folder; one that is not there is empty.
func filesIn(dir string) ([]string, error) {
	all, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names, nil
}

// Leftovers returns what there is on the host beside what PlantForeign put
// there and what the host had at its start: "domain a", "guest a" (a QEMU
// process), "nvram a_VARS.fd", "volume default/a". Volumes whose name a pattern
// of path.Match fits are left out: cached images, say. The test ends when it
// cannot look.
func (h *Host) Leftovers(t testing.TB, but ...string) []string {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	var left []string
	add := func(kind string, names []string, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			if !h.mine(kind, n, but) {
				left = append(left, kind+n)
			}
		}
	}
	domains, err := h.Domains(ctx)
	add("domain ", domains, err)
	guests, err := h.Guests(ctx)
	add("guest ", guests, err)
	nvram, err := h.NVRAM()
	add("nvram ", nvram, err)
	pools, err := h.lines(ctx, "pool-list", "--name")
	if err != nil {
		t.Fatal(err)
	}
	for _, pool := range pools {
		volumes, err := h.Volumes(ctx, pool)
		add("volume "+pool+"/", volumes, err)
	}
	return left
}

// mine reports whether something is the test's own.
func (h *Host) mine(kind, name string, but []string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range h.foreign {
		if name == f.Domain || kind == "volume default/" && name == f.Volume {
			return true
		}
	}
	if !strings.HasPrefix(kind, "volume ") {
		return false
	}
	if _, had := h.opts.Images[name]; had && kind == "volume default/" {
		return true
	}
	return slices.ContainsFunc(but, func(pattern string) bool {
		match, err := path.Match(pattern, name)
		return err == nil && match
	})
}

// Foreign is somebody else's domain with a volume in the pool "default".
type Foreign struct {
	Domain, Volume string

	h            *Host
	xml, sum, id string
}

// PlantForeign defines and starts a domain of somebody else (it stands still,
// so that it takes no time) and gives it a volume. Name is the domain's; the
// volume is name.qcow2. The metadata, an XML element, is put into the domain
// unless it is empty.
func (h *Host) PlantForeign(ctx context.Context, name, metadata string) (Foreign, error) {
	f := Foreign{Domain: name, Volume: name + ".qcow2", h: h}
	if metadata != "" {
		metadata = "<metadata>" + metadata + "</metadata>"
	}
	def := fmt.Sprintf("<domain type='qemu'><name>%s</name>%s<memory unit='MiB'>32</memory><os><type arch='x86_64' machine='q35'>hvm</type></os>"+
		"<devices><disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='%s/%s'/><target dev='vda' bus='virtio'/></disk></devices></domain>",
		name, metadata, poolDir, f.Volume)
	file := "/run/" + name + ".xml"
	if err := os.WriteFile(h.Path(file), []byte(def), 0o644); err != nil {
		return f, err
	}
	for _, args := range [][]string{
		{"vol-create-as", "default", f.Volume, "1M", "--format", "qcow2"},
		{"define", file},
		{"start", name, "--paused"},
	} {
		if _, err := h.Virsh(ctx, args...); err != nil {
			return f, err
		}
	}
	var err error
	if f.xml, f.sum, f.id, err = f.look(ctx); err != nil {
		return f, err
	}
	h.mu.Lock()
	h.foreign = append(h.foreign, f)
	h.mu.Unlock()
	return f, os.Remove(h.Path(file))
}

// look returns the domain as defined, its run and state, and what is in its
// volume.
func (f Foreign) look(ctx context.Context) (xml, sum, id string, err error) {
	if xml, err = f.h.Virsh(ctx, "dumpxml", "--inactive", f.Domain); err != nil {
		return "", "", "", err
	}
	if id, err = f.h.Virsh(ctx, "domid", f.Domain); err != nil {
		return "", "", "", err
	}
	state, err := f.h.Virsh(ctx, "domstate", f.Domain, "--reason")
	if err != nil {
		return "", "", "", err
	}
	file, err := os.Open(f.h.Path(filepath.Join(poolDir, f.Volume)))
	if err != nil {
		return "", "", "", err
	}
	defer file.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return "", "", "", err
	}
	return xml, hex.EncodeToString(hash.Sum(nil)), strings.TrimSpace(id) + " " + strings.TrimSpace(state), nil
}

// Untouched returns an error when the domain or its volume is gone or is not as
// it was planted.
func (f Foreign) Untouched(ctx context.Context) error {
	xml, sum, id, err := f.look(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("somebody else's domain %s: %w", f.Domain, err)
	case xml != f.xml:
		return fmt.Errorf("somebody else's domain %s was\n%s\nand is\n%s", f.Domain, f.xml, xml)
	case sum != f.sum:
		return fmt.Errorf("somebody else's volume %s has other content", f.Volume)
	case id != f.id:
		return fmt.Errorf("somebody else's domain %s was %q and is %q", f.Domain, f.id, id)
	}
	return nil
}
