//go:build integration

package kvm_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/testkit/libvirthost"
)

// input is one way to ask for what cannot be done, against real hosts.
type input struct {
	reason string
	// host is where; default the first.
	host string
	// sec and spec make the mistake.
	sec  func(t *testing.T, s *kvm.Section, h *kvm.Host)
	spec func(s *provider.Spec)
	// class is the error's, and want are parts of its text: what is wrong, where,
	// and what a person can do.
	class fault.Class
	want  []string
	// health is the reason of the host's check; "" when the check cannot know.
	health string
	// refused says that the provider is not made at all.
	refused bool
}

// Whatever a person gets wrong ends in an error whose class is right and whose
// text says what is wrong, where, and what to do; nothing is left on the hosts.
func TestRealBadInputs(t *testing.T) {
	f, n := quickFleet(t, 2, func(o *libvirthost.HostOptions) { o.HideKVM = o.N == 2 })
	end := f.beside(t)
	h, plain := f.hosts[0], f.hosts[1]
	ctx := t.Context()
	ok := func(_ string, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ok("", h.LogicalPool(ctx, "vg0"))
	ok(h.Virsh(ctx, "pool-define-as", "asleep", "dir", "--target", "/var/lib/libvirt/asleep"))
	ok(h.Run(ctx, "mkdir", "/var/lib/libvirt/asleep"))
	ok("", os.WriteFile(h.Path("/run/asleep.xml"), []byte("<network><name>asleep</name><bridge name='virbr7'/></network>"), 0o600))
	ok(h.Virsh(ctx, "net-define", "/run/asleep.xml"))
	web := libvirthost.Serve(t, http.NotFoundHandler())
	dead := libvirthost.Serve(t, http.NotFoundHandler())
	dead.Close()
	images := func(change func(i *kvm.Image)) func(*testing.T, *kvm.Section, *kvm.Host) {
		return func(_ *testing.T, s *kvm.Section, _ *kvm.Host) {
			i := s.Images["blank"]
			change(&i)
			s.Images = map[string]kvm.Image{"blank": i}
		}
	}
	key := func(make func(t *testing.T, s *kvm.Section) string) func(*testing.T, *kvm.Section, *kvm.Host) {
		return func(t *testing.T, s *kvm.Section, _ *kvm.Host) { s.SSH.KeyFile = make(t, s) }
	}
	known := func(text string) func(*testing.T, *kvm.Section, *kvm.Host) {
		return func(t *testing.T, s *kvm.Section, _ *kvm.Host) {
			s.SSH.KnownHostsFile = filepath.Join(t.TempDir(), "known_hosts")
			if err := os.WriteFile(s.SSH.KnownHostsFile, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	user := func(name string) func(*testing.T, *kvm.Section, *kvm.Host) {
		return func(_ *testing.T, s *kvm.Section, _ *kvm.Host) { s.SSH.User = name }
	}
	host := func(change func(h *kvm.Host)) func(*testing.T, *kvm.Section, *kvm.Host) {
		return func(_ *testing.T, _ *kvm.Section, h *kvm.Host) { change(h) }
	}
	others := strings.ReplaceAll(plain.KnownHosts(), plain.IP(), h.IP())

	for name, tc := range map[string]input{
		"host port closed": {
			reason: "a typo of the port, or sshd is off", sec: host(func(h *kvm.Host) { h.Port = 2222 }),
			class: fault.Unavailable, want: []string{h.IP() + ":2222", "connection refused", "does its SSH server listen there?"}, health: kvm.ReasonUnreachable,
		},
		"host off": {
			reason: "an address at which nobody is", sec: host(func(h *kvm.Host) { h.Address = "10.99.0.77" }),
			class: fault.Unavailable, want: []string{"10.99.0.77:22", "is the host up"}, health: kvm.ReasonUnreachable,
		},
		"key is a directory": {
			reason: "the mount and not the file in it", sec: key(func(t *testing.T, _ *kvm.Section) string { return t.TempDir() }),
			class: fault.Permanent, want: []string{"is a directory: name the file in it"}, health: kvm.ReasonSSHMaterial,
		},
		"key encrypted": {
			reason: "nobody types the passphrase", sec: key(func(t *testing.T, _ *kvm.Section) string {
				if out, err := h.Run(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "a passphrase", "-f", "/run/encrypted"); err != nil {
					t.Fatal(err, out)
				}
				return h.Path("/run/encrypted")
			}),
			class: fault.Permanent, want: []string{"encrypted with a passphrase", "ssh-keygen -p -N ''"}, health: kvm.ReasonSSHMaterial,
		},
		"key empty": {
			reason: "a Secret with an empty value", sec: key(func(t *testing.T, _ *kvm.Section) string { return f.file(t, "empty", "") }),
			class: fault.Permanent, want: []string{"is empty"}, health: kvm.ReasonSSHMaterial,
		},
		"key is the public one": {
			reason: "one letter too many", sec: key(func(_ *testing.T, s *kvm.Section) string { return s.SSH.KeyFile + ".pub" }),
			class: fault.Permanent, want: []string{"holds a public key: name the private one"}, health: kvm.ReasonSSHMaterial,
		},
		"known_hosts of another host": {
			reason: "the line is of another machine", sec: known(plain.KnownHosts()),
			class: fault.Permanent, want: []string{"is not in known_hosts file", h.IP() + " ssh-ed25519 AAAA", "SHA256:"}, health: kvm.ReasonSSHFailed,
		},
		"known_hosts with another key": {
			reason: "the host was installed anew", sec: known(others),
			class: fault.Permanent, want: []string{"is not the one in known_hosts file", "line 1", "attack"}, health: kvm.ReasonSSHFailed,
		},
		"known_hosts empty": {
			reason: "ssh-keyscan wrote nothing", sec: known(""),
			class: fault.Permanent, want: []string{h.IP() + " ssh-ed25519 AAAA"}, health: kvm.ReasonSSHFailed,
		},
		"user without rights on the socket": {
			reason: "it is not in the group libvirt", sec: user(libvirthost.PlainUser),
			class: fault.Unavailable, want: []string{"did not open the socket", `user "nobody"`, "put it into the group libvirt"}, health: kvm.ReasonLibvirtFailed,
		},
		"user who may not log in": {
			reason: "there is no such account", sec: user("stranger"),
			class: fault.Permanent, want: []string{`does not let user "stranger" in`, "authorized_keys"}, health: kvm.ReasonSSHFailed,
		},
		"socket elsewhere": {
			reason: "a modular daemon", sec: host(func(h *kvm.Host) { h.Socket = "/run/libvirt/virtqemud-sock" }),
			class: fault.Unavailable, want: []string{"did not open the socket /run/libvirt/virtqemud-sock", "has its socket elsewhere"}, health: kvm.ReasonLibvirtFailed,
		},
		"pool of type logical": {
			reason: "terraform-provider-libvirt 586, 1199", sec: host(func(h *kvm.Host) { h.Pool = "vg0" }),
			class: fault.Unsupported, want: []string{`pool "vg0" is of type "logical"`, "dir, fs, netfs"}, health: kvm.ReasonPoolUnsupported,
		},
		"pool never started": {
			reason: "terraform-provider-libvirt 52", sec: host(func(h *kvm.Host) { h.Pool = "asleep" }),
			class: fault.Transient, want: []string{`pool "asleep" is not running`, "virsh pool-start asleep", "pool-autostart"}, health: kvm.ReasonPoolInactive,
		},
		"pool missing": {
			reason: "another host's name for it", sec: host(func(h *kvm.Host) { h.Pool = "standard" }),
			class: fault.Permanent, want: []string{`no storage pool "standard"`, "virsh pool-define-as", "hosts.box-1.pool"}, health: kvm.ReasonPoolMissing,
		},
		"bridge missing": {
			reason: "a typo; the check does not look at bridges", sec: host(func(h *kvm.Host) { h.Bridge, h.Network = "br7", "" }),
			class: fault.Permanent, want: []string{"br7", "No such device", "make the bridge br7 there, or set hosts.box-1.bridge or network"},
		},
		"network missing": {
			reason: "a typo", sec: host(func(h *kvm.Host) { h.Network = "lan" }),
			class: fault.Permanent, want: []string{"'lan'", "virsh net-define", "hosts.box-1.network"}, health: kvm.ReasonNetworkMissing,
		},
		"network never started": {
			reason: "no net-autostart, and a reboot", sec: host(func(h *kvm.Host) { h.Network = "asleep" }),
			class: fault.Unavailable, want: []string{"'asleep' is not active", "virsh net-start asleep", "net-autostart"}, health: kvm.ReasonNetworkInactive,
		},
		"no acceleration": {
			reason: "virtualization is off in the firmware", host: plain.Name(), sec: host(func(h *kvm.Host) { h.DomainType = "" }),
			class: fault.Permanent, want: []string{"allowEmulation"}, health: kvm.ReasonNoAcceleration,
		},
		"kvm on a host without": {
			reason: "domainType overrides what is offered", host: plain.Name(), sec: host(func(h *kvm.Host) { h.DomainType = "kvm" }),
			class: fault.Permanent, want: []string{"domainType wants kvm", "virtualization", "/dev/kvm"}, health: kvm.ReasonNoAcceleration,
		},
		"memory of a Pod": {
			reason: "64Mi", spec: func(s *provider.Spec) { s.Resources.MemoryBytes = 64 << 20 },
			class: fault.Invalid, want: []string{"resources.memory: 64 MiB", "at least 128 MiB"}, health: kvm.ReasonOK,
		},
		"disk below the image": {
			reason: "terraform-provider-libvirt 561", spec: func(s *provider.Spec) { s.Resources.DiskBytes = 512 << 10 },
			class: fault.Permanent, want: []string{"resources.disk", "image blank"}, health: kvm.ReasonOK,
		},
		"image key unknown": {
			reason: "a typo", spec: func(s *provider.Spec) { s.Image = "debian-14" },
			class: fault.Invalid, want: []string{`placement.image "debian-14" is none of the images of provider "home" (blank), and no URL`}, health: kvm.ReasonOK,
		},
		"checksum wrong": {
			reason: "containerized-data-importer 4010", sec: images(func(i *kvm.Image) { i.SHA256 = strings.Repeat("ab", 32) }),
			class: fault.Permanent, want: []string{"image blank", "the checksum is wrong", strings.Repeat("ab", 32)}, health: kvm.ReasonOK,
		},
		"checksum of the wrong length": {
			reason: "a sha512, or cut", sec: images(func(i *kvm.Image) { i.SHA256 = i.SHA256[:63] }),
			class: fault.Invalid, want: []string{"kvm.images.blank", "sha256", "64"}, refused: true,
		},
		"image 404": {
			reason: "terraform-provider-libvirt 958", sec: images(func(i *kvm.Image) { i.URL = web.URL + "/gone.raw" }),
			class: fault.Permanent, want: []string{"image blank", "404 Not Found", "check the URL"}, health: kvm.ReasonOK,
		},
		"image server refuses": {
			reason: "it is down", sec: images(func(i *kvm.Image) { i.URL = dead.URL + "/gone.raw" }),
			class: fault.Unavailable, want: []string{"image blank", "connection refused"}, health: kvm.ReasonOK,
		},
		"image in a private network": {
			reason: "not opened", sec: func(_ *testing.T, s *kvm.Section, _ *kvm.Host) {
				s.ImageAllowCIDRs = nil
				s.Images["blank"] = kvm.Image{URL: web.URL + "/x", SHA256: strings.Repeat("ab", 32), Format: "raw", Firmware: "bios"}
			},
			class: fault.Permanent, want: []string{"image blank", "imageAllowCIDRs"}, health: kvm.ReasonOK,
		},
		"image not as promised": {
			reason: "raw called qcow2", sec: images(func(i *kvm.Image) { i.Format = "" }),
			class: fault.Permanent, want: []string{"image blank", "not qcow2 as promised"}, health: kvm.ReasonOK,
		},
	} {
		t.Run(name, func(t *testing.T) { f.refuses(t, n, tc) })
	}
	end()
}

// refuses asks for what the input says, and judges the answer.
func (f *fleet) refuses(t *testing.T, n *leases, tc input) {
	name := tc.host
	if name == "" {
		name = f.hosts[0].Name()
	}
	sec := f.section
	one := sec.Hosts[name]
	sec.Images = map[string]kvm.Image{"blank": f.section.Images["blank"]}
	if tc.sec != nil {
		tc.sec(t, &sec, &one)
	}
	sec.Hosts = map[string]kvm.Host{name: one}
	s := specOf(newOwner("bad"), name)
	if tc.class == fault.Permanent && tc.health == kvm.ReasonOK {
		s.Owner.Installation += "/" + s.Owner.UID // it has no image there
	}
	if tc.spec != nil {
		tc.spec(&s)
	}
	n.know(t, s.Owner)
	o := kvm.Options{Name: "home", Section: sec, Log: slog.New(slog.DiscardHandler)}
	p, err := kvm.New(o)
	if !tc.refused {
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = p.Close() }()
		began := time.Now()
		err = refusal(t, p, s)
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("it took %v", took)
		}
	}
	t.Logf("%s: Create: %s: %v", tc.reason, fault.Of(err), err)
	if fault.Of(err) != tc.class {
		t.Errorf("class %s; want %s", fault.Of(err), tc.class)
	}
	for _, w := range tc.want {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("the text lacks %q", w)
		}
	}
	if err != nil {
		readable(t, err.Error(), name)
	}
	if tc.refused {
		return
	}
	if tc.health != "" {
		row, _ := healthOf(t, p, name, 15*time.Second)
		if row.Reason != tc.health {
			t.Errorf("the check says %+v; want %s", row, tc.health)
		}
		readable(t, row.Message, name)
	}
	// What was begun is taken away again, where the host can be reached.
	q := f.open(t)
	if err := gone(patient(t), q, provider.Ref{Owner: s.Owner, Host: name}); err != nil {
		t.Error(err)
	}
	if left := f.parts(t, name, s.Owner); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// readable judges a text by what any text can get wrong.
func readable(t *testing.T, text, host string) {
	t.Helper()
	for _, twice := range []string{"host " + host + ":", `host "` + host + `":`} {
		if strings.Count(text, twice) > 1 {
			t.Errorf("%q is there more than once", twice)
		}
	}
	if strings.Contains(text, "host "+host+":") && strings.Contains(text, `host "`+host+`":`) {
		t.Error("the host is named twice")
	}
	if len(text) > 1200 || strings.ContainsAny(text, "\r\t\x00") {
		t.Errorf("%d bytes, which nobody reads", len(text))
	}
	for _, junk := range []string{"%!", "<nil>", "0x"} {
		if strings.Contains(text, junk) {
			t.Errorf("it has %q", junk)
		}
	}
}

// refusal repeats Create until it fails.
func refusal(t *testing.T, p provider.Provider, s provider.Spec) error {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		in, err := p.Create(patient(t), s)
		switch {
		case err != nil:
			return err
		case in.State == provider.Running:
			t.Fatalf("it runs: %+v", in)
		case time.Now().After(end):
			t.Fatalf("still %+v", in)
		}
	}
}

// cloud-init of 1 MB and a Proxy's name of 253 characters are nothing special.
func TestRealLargeInputs(t *testing.T) {
	f, n := quickFleet(t, 1)
	end := f.beside(t)
	h := f.hosts[0]
	p := f.open(t)
	s := specOf(newOwner(strings.Repeat("long-name.", 25)+"end"), h.Name())
	if len(s.Owner.Name) != 253 {
		t.Fatal(len(s.Owner.Name))
	}
	s.Owner.Namespace = strings.Repeat("n", 63)
	s.UserData = provider.Secret("#cloud-config\n#" + strings.Repeat("0123456789abcde\n#", 1<<16))
	n.know(t, s.Owner)
	in, err := running(patient(t), p, s, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := p.Get(patient(t), provider.Ref{ID: in.ID})
	if err != nil || got.Owner != s.Owner {
		t.Errorf("%+v, %v", got, err)
	}
	iso := read(t, h.Path(filepath.Join("/var/lib/libvirt/images", domain.NamesOf(s.Owner).Seed)))
	if !strings.Contains(iso, string(s.UserData)) {
		t.Error("the user-data is not in the seed byte for byte")
	}
	t.Logf("domain %s, seed of %d bytes", domain.NamesOf(s.Owner).Domain, len(iso))
	if err := gone(patient(t), p, provider.Ref{ID: in.ID, Owner: s.Owner}); err != nil {
		t.Error(err)
	}
	end()
}

// A pool fills up in mid-upload: the error says so, no half volume stays, and
// with room again the same Proxy comes up.
func TestRealPoolFillsUpInMidUpload(t *testing.T) {
	f, n := quickFleet(t, 1)
	end := f.beside(t)
	h := f.hosts[0]
	const dir = "/var/lib/libvirt/small"
	if err := h.SmallPool(t.Context(), "small", 1200<<20); err != nil {
		t.Fatal(err)
	}
	c := f.section.Hosts[h.Name()]
	c.Pool = "small"
	f.section.Hosts[h.Name()] = c
	image := f.slowImage(t, 32<<20)
	p := f.open(t)
	s := specOf(newOwner("filling"), h.Name())
	n.know(t, s.Owner)
	image.uploading(t, p, s, 3)
	room := func(size string) {
		t.Helper()
		for _, args := range [][]string{{"mount", "-o", "remount,size=" + size, dir}, {"virsh", "-q", "pool-refresh", "small"}} {
			if _, err := h.Run(t.Context(), args[0], args[1:]...); err != nil {
				// A pool with an upload is busy, and refreshes later.
				t.Logf("%v", err)
			}
		}
	}
	files := func() (names []string) {
		out, err := h.Run(t.Context(), "ls", dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range strings.Fields(out) {
			if strings.HasPrefix(name, "fleetdesk-image-") {
				names = append(names, name)
			}
		}
		return names
	}
	room("8m")
	took, err := fails(t, 30*time.Second, func(ctx context.Context) error {
		_, err := p.Create(ctx, s)
		return err
	})
	t.Logf("after %v: %s: %v", took.Round(time.Millisecond), fault.Of(err), err)
	if fault.Of(err) != fault.Quota || !strings.Contains(err.Error(), "No space left on device") || !strings.Contains(err.Error(), "image slow") || !strings.Contains(err.Error(), "free space in pool small there") {
		t.Errorf("%s: %v; want Quota that says so", fault.Of(err), err)
	}
	readable(t, err.Error(), h.Name())
	if left := files(); len(left) > 0 {
		t.Errorf("left in the full pool: %q", left)
	}
	if row, _ := healthOf(t, p, h.Name(), 5*time.Second); !slices.Contains([]string{kvm.ReasonPoolLow, kvm.ReasonOK}, row.Reason) {
		t.Errorf("%+v", row)
	}
	room("1200m")
	image.fast.Store(true)
	in, err := untilRoom(t, p, s)
	if err != nil {
		t.Fatal(err)
	}
	if left := halvesOf(files()); len(left) > 0 || len(files()) != 2 {
		t.Errorf("image volumes: %q", files())
	}
	if err := gone(patient(t), p, provider.Ref{ID: in.ID, Owner: s.Owner}); err != nil {
		t.Error(err)
	}
	end()
}

// untilRoom is running for one that met a full pool: Quota ends by itself too.
func untilRoom(t *testing.T, p provider.Provider, s provider.Spec) (provider.Instance, error) {
	for end := time.Now().Add(time.Minute); ; time.Sleep(300 * time.Millisecond) {
		in, err := running(patient(t), p, s, nil)
		if fault.Of(err) != fault.Quota || time.Now().After(end) {
			if err != nil {
				err = fmt.Errorf("there is room again: %w", err)
			}
			return in, err
		}
	}
}
