package sshdial_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// bound calls f as a user whom the modes of files bind, also when root runs the
// tests. It opens the folders above the given files to that user, so that the
// files' own modes decide.
func bound(t *testing.T, f func(), files ...string) {
	t.Helper()
	if os.Getuid() == 0 {
		for _, path := range files {
			for dir := filepath.Dir(path); len(dir) > len(filepath.Clean(os.TempDir())); dir = filepath.Dir(dir) {
				check(t, os.Chmod(dir, 0o755))
			}
		}
		// The kernel keeps this user for each thread, and takes from it the
		// capabilities by which root reads everything.
		const nobody = 65534
		runtime.LockOSThread() // and never unlock: the thread ends with the test
		_, err := unix.SetfsuidRetUid(nobody)
		check(t, err)
		defer func() { _ = unix.Setfsuid(0) }()
	}
	f()
}
