package controlplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"fleetdesk/internal/core/fault"
)

// fileFault classes an error of the file system; nil stays nil. What may well
// work later is Transient; the rest, such as a missing right or a disk that
// fails, waits for a person.
func fileFault(err error) error {
	for _, passing := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EINTR, syscall.EAGAIN} {
		if errors.Is(err, passing) {
			return fault.Wrap(fault.Transient, err)
		}
	}
	return fault.Wrap(fault.Permanent, err)
}

// writeFileAtomic writes a file so that a reader, and a start after a crash,
// sees the old content or the new, never a part.
func writeFileAtomic(path string, data []byte, mode os.FileMode) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".new-*")
	if err != nil {
		return fileFault(fmt.Errorf("write %s: %w", path, err))
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
			err = fileFault(fmt.Errorf("write %s: %w", path, err))
		}
	}()
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes renames in a folder survive a power cut.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	return d.Sync()
}
