//go:build integration

package seed_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/proc"
	"fleetdesk/internal/proxy/provider/kvm/seed"
)

func command(t *testing.T, env []string, shell string) (int, string) {
	t.Helper()
	r, err := proc.Run(t.Context(), proc.Command{Shell: shell, Timeout: time.Minute, Env: append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}, env...)})
	if err != nil {
		t.Fatal(err)
	}
	return r.Code, r.Output
}

// cloud-init finds a seed by the label that blkid reads.
func TestRealBlkidReadsTheLabel(t *testing.T) {
	if _, err := os.Stat("/usr/sbin/blkid"); err != nil {
		t.Skip("blkid is not installed")
	}
	file := filepath.Join(t.TempDir(), "seed.iso")
	if err := os.WriteFile(file, build(t, input()), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out := command(t, []string{"F=" + file}, `blkid -p -o export "$F"`)
	if code != 0 || !strings.Contains(out, "LABEL=cidata\n") || !strings.Contains(out, "TYPE=iso9660\n") {
		t.Errorf("blkid: %d: %s", code, out)
	}
}

// The classes of a folder for temporary files that is full or read-only, with
// real ones in a mount namespace; needs root.
func TestRealFileSystemsThatAreFull(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ mount, want string }{
		"full":     {"size=64k", "transient"},
		"readOnly": {"ro", "permanent"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			code, out := command(t, []string{"D=" + dir, "SELF=" + self, "O=" + tc.mount}, `exec unshare --mount --propagation private sh -c '
				mount -t tmpfs -o "$O" tmpfs "$D" && TMPDIR="$D" FLEETDESK_TEST_STAGING=1 "$SELF" -test.v -test.run="^TestStagingInside$"'`)
			if code != 0 || !strings.Contains(out, "class="+tc.want+" ") || !strings.Contains(out, dir) || strings.Contains(out, canary) {
				t.Errorf("%d: %s", code, out)
			}
		})
	}
}

// TestStagingInside is the part of the one above that runs in the namespace.
func TestStagingInside(t *testing.T) {
	if os.Getenv("FLEETDESK_TEST_STAGING") == "" {
		t.Skip("a part of another test")
	}
	in := input()
	in.UserData = []byte(strings.Repeat(canary, 1<<20/len(canary)))
	image, err := seed.Build(in)
	t.Logf("class=%s image=%d: %v", fault.Of(err), len(image), err)
	left, globErr := filepath.Glob(filepath.Join(os.TempDir(), "*"))
	if err == nil || image != nil || len(left) > 0 || globErr != nil {
		t.Errorf("Build = %d bytes, %v; left: %v, %v", len(image), err, left, globErr)
	}
}
