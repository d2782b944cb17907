//go:build integration

package kvm_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/proc"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/proxy/provider/kvm/image"
	"fleetdesk/internal/proxy/provider/kvm/virt"
	"fleetdesk/internal/testkit/libvirthost"
)

// foreignHost is the variable that turns the tests against a host of the
// person's own on; docs/testing.md has them all.
const foreignHost = "KVM_TEST_HOST"

// foreignSection is a provider's section from the variables.
func foreignSection(t *testing.T) kvm.Section {
	t.Helper()
	env := func(name, otherwise string) string {
		if v := os.Getenv(name); v != "" {
			return v
		}
		return otherwise
	}
	if os.Getenv(foreignHost) == "" {
		t.Skipf("no %s: this test is for a host of your own; docs/testing.md has its variables", foreignHost)
	}
	for _, needed := range []string{"KVM_TEST_KEY", "KVM_TEST_KNOWN_HOSTS", "KVM_TEST_IMAGE_URL"} {
		if os.Getenv(needed) == "" {
			t.Fatalf("%s is set and %s is not: docs/testing.md has the variables", foreignHost, needed)
		}
	}
	port, err := strconv.Atoi(env("KVM_TEST_PORT", "22"))
	if err != nil {
		t.Fatalf("KVM_TEST_PORT: %v", err)
	}
	s := kvm.Section{
		SSH: kvm.SSH{User: env("KVM_TEST_USER", "libvirt"), KeyFile: os.Getenv("KVM_TEST_KEY"), KnownHostsFile: os.Getenv("KVM_TEST_KNOWN_HOSTS")},
		Hosts: map[string]kvm.Host{"own": {
			Address: os.Getenv(foreignHost), Port: port, Socket: os.Getenv("KVM_TEST_SOCKET"), Pool: env("KVM_TEST_POOL", "default"),
			Bridge: os.Getenv("KVM_TEST_BRIDGE"), Network: os.Getenv("KVM_TEST_NETWORK"), DomainType: os.Getenv("KVM_TEST_DOMAIN_TYPE"),
		}},
		Images: map[string]kvm.Image{"given": {URL: os.Getenv("KVM_TEST_IMAGE_URL"), SHA256: os.Getenv("KVM_TEST_IMAGE_SHA256")}},
	}
	if list := os.Getenv("KVM_TEST_ALLOW_CIDRS"); list != "" {
		s.ImageAllowCIDRs = strings.Split(list, ",")
	}
	return s
}

// The life of one machine on a host of the person's own. It carries a tag of
// this run alone, nothing else is looked at, and all of it is removed at the
// end, also when the test failed.
func TestForeignHostLifeCycle(t *testing.T) {
	f := &fleet{section: foreignSection(t)}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	p := f.open(t)
	rows, err := p.Check(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("check: %s: %s", rows[0].Reason, rows[0].Message)
	if rows[0].Reason != kvm.ReasonOK {
		t.Fatal("the host is not ready: see docs/kvm-provider.md for that reason")
	}

	s := specOf(newOwner("foreign"), "own")
	s.Owner.Installation = "kvm-test/" + s.Owner.UID
	s.Resources.MemoryBytes = 1 << 30
	if file := os.Getenv("KVM_TEST_USER_DATA"); file != "" {
		s.UserData = provider.Secret(read(t, file))
	}
	t.Logf("installation of this run: %s; its domain: %s", s.Owner.Installation, domain.NamesOf(s.Owner).Domain)
	t.Cleanup(func() { f.sweep(t, s) })
	shown := func(p *kvm.Provider) []provider.Instance {
		t.Helper()
		rows, err := p.ListByTag(ctx, s.Owner.Installation)
		if err != nil || rows[0].Err != nil {
			t.Fatalf("%+v, %v", rows, err)
		}
		return rows[0].Instances
	}
	if in := shown(p); len(in) != 0 {
		t.Fatalf("before anything is made: %+v", in)
	}

	began := time.Now()
	stage := func(what string) { t.Logf("%6.1fs %s", time.Since(began).Seconds(), what) }
	in, err := running(ctx, p, s, stage)
	if err != nil {
		t.Fatal(err)
	}
	stage("address " + in.Address)
	if again, err := p.Create(ctx, s); err != nil || again.ID != in.ID || again.Address != in.Address {
		t.Errorf("Create again: %+v, %v; it was %+v", again, err, in)
	}
	q := f.open(t)
	if got, err := q.Get(ctx, provider.Ref{ID: in.ID, Owner: s.Owner}); err != nil || got.Owner != s.Owner || got.State != provider.Running {
		t.Errorf("a new provider sees %+v, %v", got, err)
	}
	if list := shown(q); len(list) != 1 || list[0].ID != in.ID {
		t.Errorf("the list shows %+v", list)
	}
	if len(s.UserData) > 0 {
		if got, err := foreignPage(ctx, t, in); err != nil {
			t.Errorf("KVM_TEST_USER_DATA shall make a proxy on port %d: %v", in.Port, err)
		} else {
			stage("fetched through the proxy: " + got)
		}
	}

	began = time.Now()
	if err := gone(ctx, q, provider.Ref{ID: in.ID, Owner: s.Owner}); err != nil {
		t.Fatal(err)
	}
	stage("deleted")
	if list := shown(q); len(list) != 0 {
		t.Errorf("after the removal: %+v", list)
	}
	if got, err := q.Get(ctx, provider.Ref{ID: in.ID, Owner: s.Owner}); fault.Of(err) != fault.NotFound {
		t.Errorf("after the removal: %+v, %v", got, err)
	}
}

// foreignPage fetches a page of this machine through the instance.
func foreignPage(ctx context.Context, t *testing.T, in provider.Instance) (string, error) {
	t.Helper()
	// The address by which this machine reaches the guest is the one by which the
	// guest reaches it.
	way, err := (&net.Dialer{}).DialContext(ctx, "udp", net.JoinHostPort(in.Address, "9"))
	if err != nil {
		return "", err
	}
	from, _, _ := net.SplitHostPort(way.LocalAddr().String())
	_ = way.Close()
	l, err := net.Listen("tcp", net.JoinHostPort(from, "0"))
	if err != nil {
		return "", err
	}
	page := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "via %s", r.Header.Get("Via"))
	}))
	_ = page.Listener.Close()
	page.Listener = l
	page.Start()
	defer page.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		got, err := fetchVia(ctx, in.Address, in.Port, page.URL)
		if err == nil {
			return got, nil
		}
		select {
		case <-ctx.Done():
			return "", err
		case <-time.After(time.Second):
		}
	}
}

// sweep removes what an owner and its installation have on the person's host:
// the machine, and the images of this run's tag.
func (f *fleet) sweep(t *testing.T, s provider.Spec) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	// A provider of its own: that of the test may be closed, with its uploads.
	p := f.open(t)
	if err := gone(ctx, p, provider.Ref{Owner: s.Owner, Host: "own"}); err != nil {
		t.Errorf("remove domain %s and its volumes by hand: %v", domain.NamesOf(s.Owner).Domain, err)
	}
	d, err := kvm.DialOverSSH(f.section, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c, err := d.Dial(ctx, "own")
	if err != nil {
		t.Fatalf("remove image volumes by hand: %v", err)
	}
	defer func() { _ = c.Close() }()
	pool, err := c.StoragePoolLookupByName(ctx, f.section.Hosts["own"].Pool)
	if err != nil {
		t.Fatal(err)
	}
	vols, err := c.StoragePoolListAllVolumes(ctx, pool)
	if err != nil {
		t.Fatal(err)
	}
	var removed []string
	for _, v := range vols {
		if strings.HasPrefix(v.Name, domain.NamesOf(s.Owner).Domain) {
			t.Errorf("the removal left %s", v.Name)
		} else if n, ok := image.ParseName(v.Name); !ok || !n.Of(s.Owner.Installation) {
			continue
		}
		if err := c.StorageVolDelete(ctx, v); err != nil && !virt.Is(err, virt.CodeNoStorageVol) {
			t.Errorf("remove volume %s by hand: %v", v.Name, err)
		}
		removed = append(removed, v.Name)
	}
	slices.Sort(removed)
	t.Logf("removed: %q", removed)
}

// The tests for a host of the person's own, as a person starts them: a second
// run of this program with the variables set, against a simulated host that
// other machines are on.
func TestRealForeignHostStory(t *testing.T) {
	f, n := quickFleet(t, 1)
	end := f.beside(t)
	h := f.hosts[0]
	p := f.open(t)
	other := specOf(newOwner("other"), h.Name())
	n.know(t, other.Owner)
	if _, err := running(patient(t), p, other, nil); err != nil {
		t.Fatal(err)
	}
	was := must(h.Volumes(t.Context(), "default"))
	url, sum := libvirthost.ServeFile(t, libvirthost.Images(t).Tiny)
	env := []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TMPDIR=" + t.TempDir(), "KVM_TEST_LOG_LEVEL=0",
		"KVM_TEST_HOST=" + h.IP(), "KVM_TEST_PORT=22", "KVM_TEST_USER=" + libvirthost.User, "KVM_TEST_KEY=" + h.KeyFile(),
		"KVM_TEST_KNOWN_HOSTS=" + f.section.SSH.KnownHostsFile, "KVM_TEST_SOCKET=" + libvirthost.Socket,
		"KVM_TEST_BRIDGE=" + libvirthost.HostBridge, "KVM_TEST_DOMAIN_TYPE=qemu", "KVM_TEST_ALLOW_CIDRS=" + libvirthost.LAN,
		"KVM_TEST_USER_DATA=" + f.file(t, "user-data", libvirthost.SquidUserData), "KVM_TEST_IMAGE_URL=" + url, "KVM_TEST_IMAGE_SHA256=" + sum,
	}
	story := func(more ...string) (string, int) {
		t.Helper()
		var all bytes.Buffer
		r, err := proc.Run(patient(t), proc.Command{
			Args: []string{"/proc/self/exe", "-test.run=^TestForeignHost", "-test.v"}, Env: append(env, more...), Timeout: 4 * time.Minute, Stdout: &all, Stderr: &all,
		})
		if err != nil {
			t.Fatalf("%v\n%s", err, all.String())
		}
		return all.String(), r.Code
	}
	out, code := story()
	for line := range strings.Lines(out) {
		t.Log("| " + strings.TrimSuffix(line, "\n")) // what reads this log shall not take it for its own
	}
	if code != 0 || !strings.Contains(out, "--- PASS: TestForeignHostLifeCycle") || !strings.Contains(out, "fetched through the proxy: via") {
		t.Errorf("exit code %d", code)
	}
	if now := must(h.Volumes(t.Context(), "default")); !slices.Equal(now, was) {
		t.Errorf("the pool had %q and has %q", was, now)
	}
	if in, err := p.Get(patient(t), provider.Ref{Owner: other.Owner}); err != nil || in.State != provider.Running {
		t.Errorf("the machine beside it: %+v, %v", in, err)
	}
	// Without a host it is skipped; with a half of the variables it says which.
	if out, code := story("KVM_TEST_HOST="); code != 0 || !strings.Contains(out, "--- SKIP") || !strings.Contains(out, "docs/testing.md") {
		t.Errorf("without a host: %d: %s", code, out)
	}
	if out, code := story("KVM_TEST_IMAGE_URL="); code == 0 || !strings.Contains(out, "KVM_TEST_IMAGE_URL is not") {
		t.Errorf("without an image: %d: %s", code, out)
	}
	if err := gone(patient(t), p, provider.Ref{Owner: other.Owner}); err != nil {
		t.Error(err)
	}
	end()
}
