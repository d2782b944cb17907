package token

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"fleetdesk/internal/core/fault"
)

// fileDelivery leaves the token in a file.
type fileDelivery struct{ path string }

// FileDelivery leaves the first admin token in a file that only its owner can
// read: the token and a line feed. The file's folder must exist. It follows no
// link, and replaces no file.
func FileDelivery(path string) Delivery { return fileDelivery{path} }

// maxTokenFile is more than any token; what is longer is somebody else's file.
const maxTokenFile = 1024

// Load implements [Delivery]. It trusts only a regular file of this user (or
// root) that others cannot reach: whoever could have written the token knows it.
func (d fileDelivery) Load(ctx context.Context) (Secret, bool, error) {
	if err := ctx.Err(); err != nil {
		return Secret{}, false, fault.Wrap(fault.Timeout, err)
	}
	refuse := func(what string) (Secret, bool, error) {
		return Secret{}, false, fault.Errorf(fault.Permanent, "token file %s: %s", d.path, what)
	}
	// O_NONBLOCK: opening a pipe must not wait for its writer.
	f, err := os.OpenFile(d.path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Secret{}, false, nil
	case errors.Is(err, unix.ELOOP):
		return refuse("it is a symbolic link: remove it, or give the real path")
	case err != nil:
		return Secret{}, false, fault.Errorf(fault.Permanent, "token file: %w: check the path and its owner", err)
	}
	defer func() { _ = f.Close() }()

	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return Secret{}, false, fault.Errorf(fault.Unavailable, "token file %s: %w", d.path, err)
	}
	switch euid := uint32(os.Geteuid()); {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return refuse("it is not a regular file: give another path")
	case st.Uid != euid && st.Uid != 0:
		return refuse("it belongs to another user: remove it, or give another path")
	case st.Mode&0o077 != 0:
		return refuse("others could read or write it, so its token may be known: remove it, and a new one is made")
	}
	b, err := io.ReadAll(io.LimitReader(f, maxTokenFile+1))
	if err != nil {
		return Secret{}, false, fault.Errorf(fault.Unavailable, "token file %s: %w", d.path, err)
	}
	text := strings.TrimSuffix(string(b), "\n")
	if _, _, ok := parse(text); !ok {
		return refuse("it holds something else than a token: move it away, or give another path")
	}
	return NewSecret(text), true, nil
}

// Save implements [Delivery]: a temporary file is written and synced, then given
// the name, which fails when the name is taken; last the folder is synced.
func (d fileDelivery) Save(ctx context.Context, token Secret) (err error) {
	if err := ctx.Err(); err != nil {
		return fault.Wrap(fault.Timeout, err)
	}
	dir := filepath.Dir(d.path)
	// The mode is 0600 whatever the umask.
	f, err := os.CreateTemp(dir, "."+filepath.Base(d.path)+".*.tmp")
	if errors.Is(err, fs.ErrNotExist) {
		return fault.Errorf(fault.Permanent, "token file %s: the folder %s does not exist: create it", d.path, dir)
	}
	if err != nil {
		return fault.Errorf(fault.Permanent, "token file %s: the folder %s cannot be written: check its owner and mode: %w", d.path, dir, err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = io.WriteString(f, token.Reveal()+"\n")
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fault.Errorf(fault.Unavailable, "token file %s: writing it: %w", d.path, err)
	}
	err = renameNew(f.Name(), d.path)
	if errors.Is(err, fs.ErrExist) {
		return fault.Errorf(fault.Conflict, "token file %s: it exists already: move it away", d.path)
	}
	if err != nil {
		return fault.Errorf(fault.Unavailable, "token file %s: giving it its name: %w", d.path, err)
	}
	if e := syncFolder(dir); e != nil {
		// The token is in place and is adopted by the next try.
		return fault.Errorf(fault.Unavailable, "token file %s: %w", d.path, e)
	}
	return nil
}

// renameNew is os.Rename that never replaces anything.
func renameNew(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	// Some file systems cannot; a link is as safe, only that a crash here leaves
	// the temporary name behind.
	if err := os.Link(from, to); err != nil {
		return err
	}
	return os.Remove(from)
}

func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = f.Sync()
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}
