package operator

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/httpd"
)

// dataFormat is the format of the data folder that this program writes. A
// greater number means: older programs must not touch it.
const dataFormat = 1

// The files of a data folder that this package knows.
const (
	lockFile       = "lock"
	formatFile     = "FORMAT"
	kubeconfigFile = "kubeconfig"
	endpointsFile  = "endpoints.json"
)

// dataDir is a data folder that this process holds.
type dataDir struct {
	dir  string
	lock *os.File
}

func (d *dataDir) path(name string) string { return filepath.Join(d.dir, name) }

// inspectData says why dir cannot be used, and changes nothing.
func inspectData(dir string) error {
	fi, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return unusable(dir, err)
	case !fi.IsDir():
		return fault.Errorf(fault.Invalid, "the data folder %s is a file: give a folder with --data-dir", dir)
	}
	// Before anything in it is opened: others may have put it there.
	if err := oursAlone(dir, fi, os.Geteuid()); err != nil {
		return err
	}
	lock, err := os.Open(filepath.Join(dir, lockFile))
	switch {
	case err == nil:
		err = hold(lock, dir)
		_ = lock.Close() // which lets the lock go
		if err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return unusable(dir, err)
	}
	known, err := readFormat(dir)
	if err != nil || known {
		return err
	}
	return onlyOurs(dir)
}

// oursAlone refuses a folder in which another user could put or replace keys.
// A folder that holds no data of ours is refused for that, so that nobody is
// told to change the mode of somebody's home or of the temp folder.
func oursAlone(dir string, fi fs.FileInfo, euid int) error {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok && int64(st.Uid) != int64(euid) {
		return fault.Errorf(fault.Permanent,
			"the data folder %s belongs to the user with uid %d, and this process runs as uid %d: start it as that user, or give another folder with --data-dir", dir, st.Uid, euid)
	}
	if fi.Mode().Perm()&0o022 == 0 {
		return nil
	}
	if _, err := os.Lstat(filepath.Join(dir, formatFile)); errors.Is(err, fs.ErrNotExist) {
		if err := onlyOurs(dir); err != nil {
			return err
		}
	}
	return fault.Errorf(fault.Permanent,
		"other users may write to the data folder %s (mode %04o) and could replace its keys: look whether every file in it is yours, then run chmod 700 %s, or give another folder with --data-dir", dir, fi.Mode().Perm(), quote(dir))
}

// readFormat reports whether the folder has data of a format that we know.
func readFormat(dir string) (bool, error) {
	path := filepath.Join(dir, formatFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, unusable(dir, err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	switch {
	case err != nil || n < 1:
		return false, fault.Errorf(fault.Permanent, "%s does not hold a number: restore the file from a backup, or give another folder with --data-dir", path)
	case n > dataFormat:
		return false, fault.Errorf(fault.Permanent,
			"the data in %s was written by a newer version (format %d, this one knows up to %d): start that version, or give another folder with --data-dir", dir, n, dataFormat)
	}
	return true, nil
}

// onlyOurs refuses a folder that has other people's files: a typo in
// --data-dir must not fill somebody's home.
func onlyOurs(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return unusable(dir, err)
	}
	for _, e := range entries {
		switch name := e.Name(); {
		case name == lockFile, name == "lost+found", strings.HasPrefix(name, "."+formatFile+"."):
		default:
			return fault.Errorf(fault.Invalid,
				"%s is not empty (%s) and holds no data of ours: give an empty or new folder with --data-dir", dir, name)
		}
	}
	return nil
}

// claimData makes the folder when it is missing, gives it mode 0700, and holds
// it until release, or until the process ends in any way.
func claimData(dir string) (_ *dataDir, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, unusable(dir, err)
	}
	fi, err := os.Stat(dir)
	if err != nil {
		return nil, unusable(dir, err)
	}
	if err := oursAlone(dir, fi, os.Geteuid()); err != nil {
		return nil, err
	}
	d := &dataDir{dir: dir}
	if d.lock, err = os.OpenFile(d.path(lockFile), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, unusable(dir, err)
	}
	defer func() {
		if err != nil {
			_ = d.lock.Close()
		}
	}()
	if err := hold(d.lock, dir); err != nil {
		return nil, err
	}
	known, err := readFormat(dir)
	if err != nil {
		return nil, err
	}
	if fi.Mode().Perm() != 0o700 {
		if err := os.Chmod(dir, 0o700); err != nil { // a folder, and nobody else's
			return nil, unusable(dir, err)
		}
	}
	if err := d.lock.Truncate(0); err != nil {
		return nil, unusable(dir, err)
	}
	if _, err := d.lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return nil, unusable(dir, err)
	}
	if !known {
		if err := d.write(formatFile, []byte(strconv.Itoa(dataFormat)+"\n")); err != nil {
			return nil, err
		}
	}
	d.forget(endpointsFile) // of a process that was killed
	return d, nil
}

// release lets the folder go. The lock file stays: removing it would let two
// processes hold two files of one name.
func (d *dataDir) release() {
	_ = d.lock.Truncate(0) // a pid that is not there any more misleads
	_ = d.lock.Close()
}

// hold locks f, or says who holds it.
func hold(f *os.File, dir string) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return nil
	}
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return fault.Errorf(fault.Permanent, "%s cannot be locked: %w: give a folder on a local disk with --data-dir", f.Name(), err)
	}
	pid := make([]byte, 32)
	n, err := f.ReadAt(pid, 0)
	if holder := strings.TrimSpace(string(pid[:n])); holder != "" && errors.Is(err, io.EOF) {
		return fault.Errorf(fault.Conflict, "the data folder %s is in use by process %s: stop that one, or give another folder with --data-dir", dir, holder)
	}
	return fault.Errorf(fault.Conflict, "the data folder %s is in use by another process (lock file %s): stop that one, or give another folder with --data-dir", dir, f.Name())
}

func unusable(dir string, err error) error {
	return fault.Errorf(fault.Permanent, "the data folder %s cannot be used: %w: give a writable folder with --data-dir", dir, err)
}

// write writes a file (0600) so that a reader, and a start after a crash, sees
// the old content or the new.
func (d *dataDir) write(name string, data []byte) (err error) {
	f, err := os.CreateTemp(d.dir, "."+name+".")
	if err != nil {
		return unusable(d.dir, err)
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
			err = unusable(d.dir, err)
		}
	}()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), d.path(name))
}

func (d *dataDir) forget(name string) { _ = os.Remove(d.path(name)) }

// checkPorts says which port is taken, before anything starts.
func (o *StandaloneOptions) checkPorts(ctx context.Context) error {
	type listener struct{ addr, flag string }
	all := []listener{
		{net.JoinHostPort(o.Bind, strconv.Itoa(o.Port)), "--port"},
		{net.JoinHostPort(o.Bind, strconv.Itoa(o.APIPort)), "--api-port"},
	}
	if o.Operator.OriginBind != "" {
		all = append(all, listener{o.Operator.OriginBind, "--origin-bind-address"})
	}
	for _, l := range all {
		ln, err := httpd.Listen(ctx, l.addr, l.flag)
		switch {
		case err == nil:
			// Held until all are tried, so that two flags cannot name one port.
			defer func() { _ = ln.Close() }()
		case ctx.Err() != nil:
			return nil // called off; the caller sees it too
		case errors.Is(err, syscall.EADDRINUSE):
			return fault.Errorf(fault.Conflict, "%s is in use: give another port with %s", l.addr, l.flag)
		case errors.Is(err, syscall.EADDRNOTAVAIL):
			return fault.Errorf(fault.Invalid, "%s is no address of this machine: give another one with %s", l.addr, addressFlag(l.flag))
		case errors.Is(err, syscall.EACCES):
			return fault.Wrap(fault.Invalid, err) // a low port: the flag is wrong for this user
		default:
			return err
		}
	}
	return nil
}

func addressFlag(flag string) string {
	if flag == "--origin-bind-address" {
		return flag
	}
	return "--bind"
}
