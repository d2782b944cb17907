package kvm_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/proxy/provider/kvm/virttest"
)

// mem is a provider's world in memory: hosts of package virttest, and a web
// server with one image.
type mem struct {
	hosts   map[string]*virttest.Host
	section kvm.Section
	// image is what the server gives; a test may change it.
	image []byte
	// serve replaces the server's answer when it is set.
	serve http.HandlerFunc
	// asked counts the requests for the image.
	asked int
	mu    sync.Mutex
	later time.Duration
}

// tag is the installation of what these tests make.
const tag = "2d4f7c1e-5a0b-4f5e-9c3d-8e1f0a2b3c4d/fleetdesk"

func newMem(t testing.TB, names ...string) *mem {
	t.Helper()
	m := &mem{hosts: map[string]*virttest.Host{}, section: section(), image: virttest.Qcow2(2 << 30)}
	m.section.Hosts = map[string]kvm.Host{}
	for _, name := range names {
		m.hosts[name] = virttest.NewHost(name)
		m.section.Hosts[name] = kvm.Host{Address: name + ".example.com"}
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.mu.Lock()
		m.asked++
		serve, image := m.serve, m.image
		m.mu.Unlock()
		if serve != nil {
			serve(w, r)
			return
		}
		_, _ = w.Write(image)
	}))
	t.Cleanup(srv.Close)
	sum := sha256.Sum256(m.image)
	m.section.Images = map[string]kvm.Image{"debian-13": {URL: srv.URL + "/debian-13.qcow2", SHA256: hex.EncodeToString(sum[:])}}
	m.section.ImageAllowCIDRs = []string{"127.0.0.0/8"}
	return m
}

func (m *mem) requests() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asked
}

func (m *mem) answer(f http.HandlerFunc) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.serve = f
}

func (m *mem) names() []string { return slices.Sorted(maps.Keys(m.hosts)) }

func (m *mem) advance(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.later += d
}

func (m *mem) now() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Now().Add(m.later)
}

// cleanup is the part of a T that open needs.
type cleanup interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
	Cleanup(func())
}

func (m *mem) open(t cleanup, with ...func(*kvm.Options)) *kvm.Provider {
	t.Helper()
	o := kvm.Options{
		Name: "home", Section: m.section, Dialer: &virttest.Dialer{Hosts: m.hosts},
		StepLimit: 1500 * time.Millisecond, Clock: m.now, Log: slog.New(slog.DiscardHandler),
	}
	for _, f := range with {
		f(&o)
	}
	p, err := kvm.New(o)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return p
}

// spec is what a Proxy of that name asks for on a host.
func (m *mem) spec(name, host string) provider.Spec {
	sum := sha256.Sum256([]byte(name))
	h := hex.EncodeToString(sum[:])
	uid := h[:8] + "-" + h[8:12] + "-4" + h[13:16] + "-a" + h[17:20] + "-" + h[20:32]
	return provider.Spec{
		Owner: provider.Owner{Installation: tag, Namespace: "crawl", Name: name, UID: uid},
		Host:  host, Port: 3128, Protocol: provider.HTTP, UserData: provider.Secret("#cloud-config\npassword: c4n4ry-7Qx\n"),
	}
}

// up drives Create to Running.
func up(t testing.TB, p provider.Provider, s provider.Spec) provider.Instance {
	t.Helper()
	in, err := tryUp(t.Context(), p, s)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func tryUp(ctx context.Context, p provider.Provider, s provider.Spec) (provider.Instance, error) {
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		in, err := p.Create(ctx, s)
		switch {
		case err == nil && in.State == provider.Running:
			return in, nil
		case err != nil && !slices.Contains([]fault.Class{fault.Conflict, fault.Transient, fault.Timeout, fault.Unavailable}, fault.Of(err)):
			return in, err
		case time.Now().After(end):
			return in, fmt.Errorf("still %+v: %w", in, err)
		}
	}
}

// down drives Delete to Gone.
func down(t testing.TB, p provider.Provider, r provider.Ref) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		st, err := p.Delete(t.Context(), r)
		switch {
		case err == nil && st == provider.Gone:
			return
		case time.Now().After(end):
			t.Fatalf("still %s: %v", st, err)
		}
	}
}

// parts names what a host has of an owner.
func (m *mem) parts(o provider.Owner) []string {
	names := domain.NamesOf(o)
	var found []string
	for host, h := range m.hosts {
		for _, d := range h.Domains() {
			if d.Name == names.Domain || d.UUID == domain.UUIDOf(o) {
				found = append(found, host+": domain "+d.Name)
			}
		}
		for _, v := range h.Volumes("default") {
			if strings.HasPrefix(v.Name, names.Domain) {
				found = append(found, host+": volume "+v.Name)
			}
		}
		for _, name := range h.NVRAM() {
			if name == names.Domain {
				found = append(found, host+": NVRAM of "+name)
			}
		}
	}
	slices.Sort(found)
	return found
}

// halves are the volumes of images that no marker verifies, and the markers of
// none.
func (m *mem) halves(host string) []string {
	var names []string
	for _, v := range m.hosts[host].Volumes("default") {
		if strings.HasPrefix(v.Name, "fleetdesk-image-") {
			names = append(names, v.Name)
		}
	}
	return halvesOf(names)
}

// halvesOf are the names of image volumes that belong to no verified image.
func halvesOf(names []string) (out []string) {
	for _, n := range names {
		if !strings.HasPrefix(n, "fleetdesk-image-") {
			continue
		}
		of := func(marker, volume string) bool { return marker != volume && strings.HasPrefix(marker, volume+".") }
		marked := slices.ContainsFunc(names, func(o string) bool { return of(o, n) })
		marks := slices.ContainsFunc(names, func(o string) bool { return of(n, o) })
		if !marked && !marks {
			out = append(out, n)
		}
	}
	return out
}

// A host that is mute takes no machine, and holds up none that another one can
// take: it is waited for once, and not by each Proxy.
func TestAMuteHostHoldsUpNoPlacing(t *testing.T) {
	m := newMem(t, "box-1", "box-2", "box-3")
	p := m.open(t)
	mute := m.hosts["box-3"]
	mute.Mute()
	asked := func() int {
		n := 0
		for _, c := range mute.Calls() {
			n += c
		}
		return n
	}
	var first int
	for i := range 20 {
		host, err := p.Place(t.Context(), m.spec(fmt.Sprintf("px-%d", i), ""))
		if err != nil || host == "box-3" {
			t.Fatalf("placed on %q: %v", host, err)
		}
		if i == 0 {
			first = asked()
		}
	}
	if n := asked(); n != first || n == 0 {
		t.Errorf("the mute host was asked %d times, %d of them by the first", n, first)
	}
	mute.Mend()
	if _, err := p.ListByTag(t.Context(), tag); err != nil {
		t.Fatal(err)
	}
	if host, err := p.Place(t.Context(), m.spec("px-wished", "box-3")); err != nil || host != "box-3" {
		t.Errorf("placed on %q: %v", host, err)
	}
	on := map[string]bool{}
	for i := range 20 {
		host, err := p.Place(t.Context(), m.spec(fmt.Sprintf("later-%d", i), ""))
		if err != nil {
			t.Fatal(err)
		}
		on[host] = true
	}
	if !on["box-3"] {
		t.Error("a host that answers again gets no machine")
	}
}
