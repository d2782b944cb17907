//go:build integration

package virttest_test

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"fleetdesk/internal/proxy/provider/kvm/link"
	"fleetdesk/internal/proxy/provider/kvm/rpc"
	"fleetdesk/internal/proxy/provider/kvm/virttest"
	"fleetdesk/internal/testkit/libvirthost"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(libvirthost.Around(m, libvirthost.Options{}))
}

// A real libvirtd with a real QEMU passes the suite that the fake passes: what
// tests build on the fake holds.
func TestRealLibvirtPassesTheSuite(t *testing.T) {
	h := libvirthost.Start(t, libvirthost.HostOptions{N: 21, Network: true})
	if err := h.SmallPool(t.Context(), "small", 32<<20); err != nil {
		t.Fatal(err)
	}
	dirs := map[string]string{"default": "/var/lib/libvirt/images", "small": "/var/lib/libvirt/small"}
	dial := func(t *testing.T) link.Link {
		t.Helper()
		c, err := new(net.Dialer).DialContext(t.Context(), "unix", h.LocalSocket())
		if err != nil {
			t.Fatal(err)
		}
		l, err := rpc.Open(t.Context(), c, rpc.Options{Host: h.Name()})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	s := virttest.Subject{
		Dial:       dial,
		Pool:       "default",
		Network:    "default",
		DomainType: "qemu",
		UEFI:       true,
		SmallPool:  "small",
		Pause: func(t *testing.T, domain string, on bool) {
			t.Helper()
			verb := map[bool]string{true: "suspend", false: "resume"}[on]
			if _, err := h.Virsh(t.Context(), verb, domain); err != nil {
				t.Fatal(err)
			}
		},
		Content: func(t *testing.T, pool, volume string) []byte {
			t.Helper()
			b, err := os.ReadFile(h.Path(filepath.Join(dirs[pool], volume)))
			if err != nil {
				t.Fatal(err)
			}
			return b
		},
	}
	for name, change := range map[string]func(s *virttest.Subject){
		"network": func(*virttest.Subject) {},
		"bridge":  func(s *virttest.Subject) { s.Network, s.Bridge = "", libvirthost.HostBridge },
	} {
		t.Run(name, func(t *testing.T) {
			s := s
			change(&s)
			real, fake := answers{}, answers{}
			s.Note = real.note
			l := dial(t)
			s.Conn = l
			t.Cleanup(func() {
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			})
			virttest.Run(t, s)
			f := subject(virttest.NewHost(h.Name()))
			f.Network, f.Bridge, f.Note = s.Network, s.Bridge, fake.note
			virttest.Run(t, f)
			if diff := cmp.Diff(real, fake); diff != "" {
				t.Errorf("the fake answers otherwise (-real +fake):\n%s", diff)
			}
		})
	}
	if left := h.Leftovers(t); len(left) > 0 {
		t.Errorf("the suite left %v", left)
	}
}

// answers are what a subject answered, by what was asked, without what differs
// from run to run.
type answers map[string][]string

var changes = []struct {
	re *regexp.Regexp
	to string
}{
	{regexp.MustCompile(`fdvt-[0-9a-f]+-`), "NAME-"},
	{regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`), "UUID"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z`), "TIME"},
	{regexp.MustCompile(`/var/lib/libvirt/small|/small`), "/SMALL"},
	// What a parser says of a broken document is its own.
	{regexp.MustCompile(`(?s)^(35 \w+ \(\w+\):1: ).*`), "$1"},
	// QEMU's command line is not rebuilt.
	{regexp.MustCompile(`(?s)(internal error: )(process exited while connecting to monitor|qemu unexpectedly closed the monitor): (?:TIME )?(qemu-system-x86_64: )-blockdev \{.*?\}`), "${1}QEMU ENDED: ${3}BLOCKDEV"},
	{regexp.MustCompile(`allocate \d+ bytes`), "allocate N bytes"},
}

func (a answers) note(what, answer string) {
	for _, c := range changes {
		what, answer = c.re.ReplaceAllString(what, c.to), c.re.ReplaceAllString(answer, c.to)
	}
	// How much of an upload that failed is there is a matter of time.
	if strings.Contains(what, ": sizes of") && !strings.HasPrefix(what, "StorageVolCreateXML:") {
		return
	}
	a[what] = append(a[what], answer)
	slices.Sort(a[what])
}

// The image that fakes are given is one to QEMU too.
func TestRealQEMUTakesTheFakesImage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "i.qcow2")
	if err := os.WriteFile(file, virttest.Qcow2(3<<30), 0o600); err != nil {
		t.Fatal(err)
	}
	h := libvirthost.Start(t, libvirthost.HostOptions{N: 22, Images: map[string]string{"i.qcow2": file}})
	out, err := h.Run(t.Context(), "qemu-img", "check", "/var/lib/libvirt/images/i.qcow2")
	if err != nil || !bytes.Contains([]byte(out), []byte("No errors were found")) {
		t.Errorf("%v: %s", err, out)
	}
}
