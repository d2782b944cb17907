//go:build integration

package kvm_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/testkit/libvirthost"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(libvirthost.Around(m, libvirthost.Options{Foreign: os.Getenv(foreignHost) != ""}))
}

// installation is the tag of what the real tests make.
const installation = tag

// fleet is a provider over real hosts.
type fleet struct {
	hosts   []*libvirthost.Host
	section kvm.Section
	dir     string
}

// newFleet starts n hosts and writes the section of a provider over them. The
// only image is a raw disk of zeros: nothing boots from it, and QEMU runs all
// the same.
func newFleet(t testing.TB, n int, with ...func(*libvirthost.HostOptions)) *fleet {
	t.Helper()
	opts := make([]libvirthost.HostOptions, n)
	for i := range opts {
		opts[i].N = i + 1
		for _, f := range with {
			f(&opts[i])
		}
	}
	f := &fleet{hosts: libvirthost.StartAll(t, opts...), dir: t.TempDir()}
	var known strings.Builder
	hosts := map[string]kvm.Host{}
	for _, h := range f.hosts {
		known.WriteString(h.KnownHosts())
		hosts[h.Name()] = kvm.Host{Address: h.IP(), Bridge: "br0", DomainType: "qemu"}
	}
	blank := f.file(t, "blank.raw", string(make([]byte, 1<<20)))
	url, sum := libvirthost.ServeFile(t, blank)
	no := false
	f.section = kvm.Section{
		SSH:               kvm.SSH{User: libvirthost.User, KeyFile: f.hosts[0].KeyFile(), KnownHostsFile: f.file(t, "known_hosts", known.String())},
		Hosts:             hosts,
		Images:            map[string]kvm.Image{"blank": {URL: url, SHA256: sum, Format: "raw", Firmware: "bios"}},
		DefaultImage:      "blank",
		ImageAllowCIDRs:   []string{"10.99.0.0/24"},
		InstallGuestAgent: &no,
	}
	return f
}

// image adds an image from a file and makes it the default.
func (f *fleet) image(t testing.TB, key, file string) {
	t.Helper()
	url, sum := libvirthost.ServeFile(t, file)
	f.section.Images[key] = kvm.Image{URL: url, SHA256: sum}
	f.section.DefaultImage = key
}

func (f *fleet) file(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(f.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// on returns one host by its name.
func (f *fleet) on(name string) *libvirthost.Host {
	i := slices.IndexFunc(f.hosts, func(h *libvirthost.Host) bool { return h.Name() == name })
	return f.hosts[i]
}

func (f *fleet) names() []string {
	var out []string
	for _, h := range f.hosts {
		out = append(out, h.Name())
	}
	return out
}

// open makes a provider; the test's end closes it.
func (f *fleet) open(t testing.TB, with ...func(*kvm.Options)) *kvm.Provider {
	t.Helper()
	o := kvm.Options{Name: "home", Section: f.section, Log: slog.New(slog.NewTextHandler(logTo{t}, &slog.HandlerOptions{Level: logLevel(t)}))}
	for _, w := range with {
		w(&o)
	}
	p, err := kvm.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return p
}

// logLevel is KVM_TEST_LOG_LEVEL: 0 shows warnings, 1 (the default) each call
// to libvirt, 2 also XML, metadata and addresses.
func logLevel(t testing.TB) slog.Level {
	switch v := os.Getenv("KVM_TEST_LOG_LEVEL"); v {
	case "0":
		return slog.LevelWarn
	case "", "1":
		return slog.LevelDebug
	case "2":
		return slog.LevelDebug - 4
	default:
		t.Fatalf("KVM_TEST_LOG_LEVEL is %q: want 0, 1 or 2", v)
		return 0
	}
}

// logTo writes a log into a test's own; what comes after its end is dropped.
type logTo struct{ t testing.TB }

func (l logTo) Write(b []byte) (int, error) {
	defer func() { _ = recover() }() // the test is over
	_, text, _ := strings.Cut(strings.TrimSuffix(string(b), "\n"), " ")
	l.t.Log(text)
	return len(b), nil
}

func newOwner(name string) provider.Owner {
	var b [16]byte
	_, _ = rand.Read(b[:])
	h := hex.EncodeToString(b[:])
	return provider.Owner{Installation: installation, Namespace: "real", Name: name, UID: h[:8] + "-" + h[8:12] + "-4" + h[13:16] + "-a" + h[17:20] + "-" + h[20:]}
}

func specOf(o provider.Owner, host string) provider.Spec {
	return provider.Spec{Owner: o, Host: host, Port: 3128, Protocol: provider.HTTP, Resources: provider.Resources{MilliCPUs: 1000, MemoryBytes: 128 << 20}}
}

// again are the classes after which the reconciler tries soon.
var again = []fault.Class{fault.Conflict, fault.Transient, fault.Timeout, fault.Unavailable}

// running drives Create as the reconciler does, and notes the time at which
// each stage was first seen.
func running(ctx context.Context, p provider.Provider, s provider.Spec, stage func(string)) (provider.Instance, error) {
	seen := ""
	for {
		in, err := p.Create(ctx, s)
		what := string(in.State) + ": " + in.Message
		if err != nil {
			what = err.Error()
		}
		if label, _, _ := strings.Cut(what, " since "); label != seen {
			seen = label
			if stage != nil {
				stage(what)
			}
		}
		switch {
		case err == nil && in.State == provider.Running:
			return in, nil
		case err != nil && !slices.Contains(again, fault.Of(err)):
			return in, err
		}
		select {
		case <-ctx.Done():
			return in, fmt.Errorf("still %s: %w", what, ctx.Err())
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// gone drives Delete to Gone.
func gone(ctx context.Context, p provider.Provider, r provider.Ref) error {
	for {
		st, err := p.Delete(ctx, r)
		switch {
		case err == nil && st == provider.Gone:
			return nil
		case err != nil && !slices.Contains(again, fault.Of(err)):
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("still %s: %w", st, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// patient bounds what one story of a test may take.
func patient(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 4*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// clean asserts that nothing but image volumes and claims is left on any host.
func (f *fleet) clean(t testing.TB) {
	t.Helper()
	for _, h := range f.hosts {
		if left := h.Leftovers(t, "fleetdesk-image-*", "fleetdesk-claim-*"); len(left) > 0 {
			t.Errorf("left on %s: %q", h.Name(), left)
		}
		vols, err := h.Volumes(t.Context(), "default")
		if err != nil {
			t.Error(err)
		}
		var images []string
		for _, v := range vols {
			if strings.HasPrefix(v, "fleetdesk-image-") {
				images = append(images, v)
			}
		}
		if left := halvesOf(images); len(left) > 0 {
			t.Errorf("halves of images are left on %s: %q", h.Name(), left)
		}
	}
}

// leases stands in for guests: it writes an address for the MAC of each owner
// that it is told into the file of libvirt's DHCP server, as if the guest had
// asked for one. So domains without an operating system become Running, and
// hundreds of them cost seconds.
type leases struct {
	f  *fleet
	mu sync.Mutex
	of []lease
}

type lease struct {
	IP     string `json:"ip-address"`
	MAC    string `json:"mac-address"`
	Expiry int64  `json:"expiry-time"`
}

func (l *leases) know(t fataler, o provider.Owner) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of = append(l.of, lease{fmt.Sprintf("10.98.%d.%d", 100+len(l.of)/250, 1+len(l.of)%250), domain.MACOf(o), time.Now().Add(time.Hour).Unix()})
	b, err := json.Marshal(l.of)
	if err != nil {
		t.Fatalf("%v", err)
	}
	for _, h := range l.f.hosts {
		file := h.Path("/var/lib/libvirt/dnsmasq/virbr0.status")
		if err := os.WriteFile(file+".new", b, 0o644); err != nil {
			t.Fatalf("%v", err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatalf("%v", err)
		}
	}
}

// fataler is what both *testing.T and the suite's own T offer.
type fataler interface {
	Fatalf(format string, args ...any)
}

// fetchVia fetches a page through a proxy.
func fetchVia(ctx context.Context, address string, port int, page string) (string, error) {
	via := "http://" + net.JoinHostPort(address, fmt.Sprint(port))
	return get(ctx, via, page)
}
