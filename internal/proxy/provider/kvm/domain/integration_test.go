//go:build integration

package domain_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"fleetdesk/internal/platform/proc"
	"fleetdesk/internal/proxy/provider/kvm/domain"
)

const aaHelper = "/usr/lib/libvirt/virt-aa-helper"

// tool runs a program of libvirt's or QEMU's; without it the test is skipped.
func tool(t *testing.T, env []string, shell string, needs ...string) string {
	t.Helper()
	for _, n := range needs {
		if _, err := os.Stat(n); err != nil {
			t.Skipf("%s is not installed", n)
		}
	}
	r, err := proc.Run(t.Context(), proc.Command{
		Shell: shell, Timeout: time.Minute, Env: append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}, env...),
	})
	if err != nil || r.Code != 0 {
		t.Fatalf("%s: %d, %v:\n%s", shell, r.Code, err, r.Output)
	}
	return r.Output
}

// What is written is what libvirt's own schemas allow.
func TestRealSchemaTakesTheGoldens(t *testing.T) {
	for pattern, schema := range map[string]string{"domain-*.xml": "domain", "volume-*.xml": "storagevol"} {
		files, err := filepath.Glob(filepath.Join("testdata", pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", pattern, files, err)
		}
		for _, f := range files {
			tool(t, []string{"F=" + f, "S=" + schema}, `virt-xml-validate "$F" "$S"`, "/usr/bin/virt-xml-validate")
		}
	}
}

// apparmor returns what AppArmor's helper on a stock Debian or Ubuntu host
// would open to QEMU for a domain: rights by path.
func apparmor(t *testing.T, doc, uuid string) map[string]string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "dom.xml")
	if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	out := tool(t, []string{"F=" + file, "U=libvirt-" + uuid}, aaHelper+` --dryrun -c -u "$U" <"$F"`, aaHelper)
	rights := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^  "([^"]+)" ([a-z]+),$`).FindAllStringSubmatch(out, -1) {
		rights[m[1]] = m[2]
	}
	return rights
}

// terraform-provider-libvirt 126, 1163, 920: permission denied by AppArmor. The
// overlay may be written, its base and the seed read; a disk that names pool
// and volume gets nothing at all, and the helper says so to nobody.
func TestRealAppArmorOpensTheDisks(t *testing.T) {
	dir := t.TempDir()
	base, overlay, iso := filepath.Join(dir, "base.qcow2"), filepath.Join(dir, "vm.qcow2"), filepath.Join(dir, "vm-seed.iso")
	tool(t, []string{"B=" + base, "O=" + overlay}, `qemu-img create -q -f qcow2 "$B" 64M && qemu-img create -q -f qcow2 -F qcow2 -b "$B" "$O"`, "/usr/bin/qemu-img")
	if err := os.WriteFile(iso, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, s := range shapes() {
		if name == "hostile" {
			continue // the helper refuses quotes in paths, and libvirt then starts nothing
		}
		t.Run(name, func(t *testing.T) {
			s.OverlayPath, s.SeedPath = overlay, iso
			doc, err := domain.XML(s)
			if err != nil {
				t.Fatal(err)
			}
			rights := apparmor(t, doc, s.UUID)
			for path, want := range map[string]string{overlay: "rwk", base: "rk", iso: "rk"} {
				if rights[path] != want {
					t.Errorf("%s has the rights %q, want %q; all: %v", path, rights[path], want, rights)
				}
			}
			// Without the driver's type the helper does not see the base.
			blind := strings.Replace(doc, ` type="qcow2"`, "", 1)
			if r := apparmor(t, blind, s.UUID); r[base] != "" || blind == doc {
				t.Errorf("without the driver's type the base has the rights %q: the contrast is gone", r[base])
			}
			volume := strings.NewReplacer(`<disk type="file" device="disk">`, `<disk type="volume" device="disk">`,
				`<source file="`+overlay+`">`, `<source pool="default" volume="vm.qcow2">`).Replace(doc)
			if r := apparmor(t, volume, s.UUID); volume == doc || slices.ContainsFunc([]string{overlay, base}, func(p string) bool { return r[p] != "" }) {
				t.Errorf("a disk by volume has rights: %v", r)
			}
		})
	}
}
