package sqldb

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"fleetdesk/internal/core/fault"
)

// purpose is what a file is opened for.
type purpose string

const (
	forReading purpose = "read"
	forWriting purpose = "written"
)

// place resolves the path to the file's real one, so that every process finds
// the same side files whatever links it came by, and refuses a place where a
// database cannot be kept safely. It touches nothing.
func place(given string, statfs func(string) (filesystem, error), need purpose) (path string, exists bool, err error) {
	if given == "" {
		return "", false, fault.New(fault.Invalid, "database: no path was given: name a file")
	}
	refuse := func(format string, args ...any) (string, bool, error) {
		return "", false, fault.Errorf(fault.Permanent, "database %s: "+format, append([]any{given}, args...)...)
	}
	path, err = filepath.Abs(given)
	if err != nil {
		return refuse("%w", err)
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return refuse("the folder %s does not exist: create it", filepath.Dir(path))
	case err != nil:
		return refuse("%w: check the folders above it", err)
	}
	path = filepath.Join(dir, filepath.Base(path))
	if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return refuse("the link leads nowhere: create its target's folder and give the real path: %w", err)
		}
		dir = filepath.Dir(path)
	}

	var st unix.Stat_t
	switch err := unix.Lstat(path, &st); {
	case errors.Is(err, unix.ENOENT):
	case err != nil:
		return refuse("%w", err)
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return refuse("it is not a regular file: give the path of a file")
	case st.Nlink > 1:
		// The log's name follows the database's: by two names there are two
		// logs, and the file is lost.
		return refuse("the file has %d names (hard links): remove all but one", st.Nlink)
	default:
		exists = true
	}

	look := []string{dir}
	if exists {
		look = append(look, path) // a file can be mounted by itself
	}
	for _, p := range look {
		f, err := statfs(p)
		if err != nil {
			return refuse("what file system %s is on cannot be told: %w", p, err)
		}
		if f.remote {
			return refuse("%s is on a network file system (%s), where locks and shared memory do not hold: put the file on a local disk", p, f.name)
		}
		mode, what := uint32(unix.X_OK), "folder"
		if p == path {
			mode, what = unix.R_OK, "file"
		}
		if need == forWriting {
			mode |= unix.W_OK
		}
		if err := unix.Faccessat(unix.AT_FDCWD, p, mode, unix.AT_EACCESS); err != nil {
			return refuse("the %s %s cannot be %s by this user (uid %d): change its owner or mode: %w", what, p, need, os.Geteuid(), err)
		}
	}
	return path, exists, nil
}

// createFile makes an empty database file that only its owner can read, when
// there is none. The caller holds the side lock, so nobody has the file open when
// its descriptor is closed here.
func createFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return fault.Errorf(fault.Permanent, "database %s: it cannot be created: check the folder's owner and mode: %w", path, err)
	}
	if err := f.Close(); err != nil {
		return fault.Errorf(fault.Unavailable, "database %s: creating it: %w", path, err)
	}
	return nil
}

// tighten takes all rights of others and of the group from the database and its
// side files; SQLite gives new ones the mode of the database.
func tighten(path string) error {
	for _, p := range []string{path, path + "-wal", path + "-shm"} {
		info, err := os.Lstat(p)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fault.Errorf(fault.Unavailable, "database %s: %w", p, err)
		}
		if !info.Mode().IsRegular() {
			return fault.Errorf(fault.Permanent, "database %s: it is not a regular file: remove it", p)
		}
		if info.Mode().Perm()&0o077 == 0 {
			continue
		}
		err = os.Chmod(p, 0o600)
		// Volumes that are shared by group (Kubernetes' fsGroup) may belong to
		// another user: the group's rights are how we got in.
		if err != nil && !errors.Is(err, fs.ErrNotExist) && info.Mode().Perm()&0o007 != 0 {
			return fault.Errorf(fault.Permanent, "database %s: everybody on this machine may read or write it: chmod 600 it: %w", p, err)
		}
	}
	return nil
}

// filesystem is what a place is on.
type filesystem struct {
	name   string
	remote bool
}

// remoteMagic are the numbers by which Linux names file systems whose files
// several machines may change at once, or whose locks stay on one of them.
// Source: statfs(2) and the kernel's magic.h.
var remoteMagic = map[int64]string{
	0x00006969: "nfs",
	0x0000517b: "smb",
	0xff534d42: "cifs",
	0xfe534d42: "smb2",
	0x01021997: "9p",
	0x00c36400: "ceph",
	0x0bd00bd0: "lustre",
	0x47504653: "gpfs",
	0x01161970: "gfs2",
	0x7461636f: "ocfs2",
	0x5346414f: "afs",
	0x6b414653: "kafs",
	0x73757245: "coda",
	0x0000564c: "ncp",
	0x786f4256: "vboxsf",
	0x20030528: "orangefs",
	0xbacbacbc: "vmhgfs",
}

const fuseMagic = 0x65735546

// localFUSE are the user-space file systems that keep their files on a disk of
// this machine. Every other one (sshfs, rclone, virtiofs ...) counts as remote:
// what is behind it cannot be told.
var localFUSE = map[string]bool{
	"fuseblk":             true,
	"fuse.fuse-overlayfs": true, // rootless containers
}

// statfs asks the kernel.
func statfs(path string) (filesystem, error) {
	var s unix.Statfs_t
	for {
		err := unix.Statfs(path, &s)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return filesystem{}, fmt.Errorf("statfs: %w", err)
		}
		break
	}
	if magic := int64(uint32(s.Type)); magic != fuseMagic {
		return ofMagic(magic), nil
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return filesystem{}, err
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return filesystem{}, err
	}
	return ofFUSE(table, unix.Major(st.Dev), unix.Minor(st.Dev)), nil
}

// ofMagic names a file system by its number; one that is not known to be remote
// is taken for local.
func ofMagic(magic int64) filesystem {
	if name, ok := remoteMagic[magic]; ok {
		return filesystem{name, true}
	}
	return filesystem{fmt.Sprintf("%#x", magic), false}
}

// ofFUSE finds the kind of a user-space file system in the mount table by its
// device. One line reads: id parent major:minor root point options [tags] - type source options.
func ofFUSE(mountinfo []byte, major, minor uint32) filesystem {
	device := fmt.Sprintf("%d:%d", major, minor)
	lines := bufio.NewScanner(bytes.NewReader(mountinfo))
	for lines.Scan() {
		left, right, ok := strings.Cut(lines.Text(), " - ")
		fields, kind := strings.Fields(left), strings.Fields(right)
		if !ok || len(fields) < 3 || len(kind) < 1 || fields[2] != device {
			continue
		}
		return filesystem{kind[0], !localFUSE[kind[0]]}
	}
	return filesystem{"fuse", true}
}
