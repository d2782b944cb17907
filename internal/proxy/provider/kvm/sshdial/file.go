package sshdial

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"fleetdesk/internal/core/fault"
)

// Bounds of the two files, in bytes.
const (
	maxKeyFile        = 64 << 10
	maxKnownHostsFile = 1 << 20
)

// What the files are called in errors.
const (
	keyKind        = "SSH key file"
	knownHostsKind = "known_hosts file"
)

func digest(data []byte) [sha256.Size]byte { return sha256.Sum256(data) }

// missing marks the error of a file that is not there.
type missing struct{ error }

func (m missing) Unwrap() error { return m.error }

func isMissing(err error) bool {
	_, ok := errors.AsType[missing](err)
	return ok
}

// readFile reads a whole file of at most limit bytes. Modes and symbolic links
// do not matter: Secrets are mounted through links, with mode 0644. A file that
// is missing is Transient; all else is Permanent, except for a failure of the
// disk.
func readFile(kind, path string, limit int64) ([]byte, error) {
	if path == "" {
		return nil, fault.Errorf(fault.Permanent, "no %s is configured", kind)
	}
	// Opening a pipe would block; looked at before.
	info, err := os.Stat(path)
	if err != nil {
		return nil, fileError(kind, path, err)
	}
	switch {
	case info.IsDir():
		return nil, fault.Errorf(fault.Permanent, "%s %s is a directory: name the file in it (of a mounted Secret, a key of its data)", kind, path)
	case !info.Mode().IsRegular():
		return nil, fault.Errorf(fault.Permanent, "%s %s is no regular file", kind, path)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fileError(kind, path, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fileError(kind, path, err)
	}
	if int64(len(data)) > limit {
		return nil, fault.Errorf(fault.Permanent, "%s %s is larger than %d KiB: that is another file", kind, path, limit>>10)
	}
	return data, nil
}

func fileError(kind, path string, err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return missing{fault.Wrap(fault.Transient, fmt.Errorf("%s %s does not exist; when it comes from a Secret that is created later, it is read then (else check the mount and the Secret's keys): %w", kind, path, err))}
	case errors.Is(err, fs.ErrPermission):
		return fault.Errorf(fault.Permanent, "%s %s cannot be read by this process's user: %w", kind, path, err)
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.EINVAL):
		return fault.Errorf(fault.Permanent, "%s %s cannot be read: %w", kind, path, err)
	default:
		return fault.Errorf(fault.Transient, "%s %s cannot be read: %w", kind, path, err)
	}
}
