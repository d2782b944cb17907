package config_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/config"
)

// Who may not read the file is told so, also where the tests run as root: the
// file is read by a thread that has nobody's rights on files.
func TestReadTellsWhatMayNotBeRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "providers.yaml")
	if err := os.WriteFile(path, []byte(one), 0o600); err != nil {
		t.Fatal(err)
	}
	errs := make(chan error)
	for _, rights := range []os.FileMode{0o600, 0o000} {
		if err := os.Chmod(path, rights); err != nil {
			t.Fatal(err)
		}
		go func() {
			runtime.LockOSThread() // and never unlocked: the thread ends with us
			if rights == 0 {
				_, _ = unix.SetfsuidRetUid(65534)
			}
			_, err := config.Read(path)
			errs <- err
		}()
		err := <-errs
		switch {
		case rights != 0 && err != nil:
			t.Errorf("mode %o: %v", rights, err)
		case rights == 0 && (fault.Of(err) != fault.Invalid || !strings.Contains(err.Error(), path+" may not be read by this process's user: mend the mode")):
			t.Errorf("mode %o: %v (%s); want what to mend", rights, err, fault.Of(err))
		}
	}
}
