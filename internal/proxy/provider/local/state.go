package local

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// The files of an instance's folder; doc.go says what each is for.
const (
	stateFile   = "state.json"
	deletedFile = "deleted.json"
	authFile    = "auth.json"
	childFile   = "child.json"
	lifeFile    = "lock"
	logFile     = "log"
	// newSuffix marks a file that is being written. The name is fixed for each
	// file, and each has one writer at a time, so a stale one is overwritten.
	newSuffix = ".new"
)

// format is the version of the files; another one is not read.
const format = 1

// maxFile bounds what is read of a state file, in bytes.
const maxFile = 64 << 10

// owner is provider.Owner as kept on disk.
type owner struct {
	Installation string `json:"installation"`
	Namespace    string `json:"namespace"`
	Name         string `json:"name"`
	UID          string `json:"uid"`
}

// record is state.json: what the instance shall be.
type record struct {
	Format   int               `json:"format"`
	Owner    owner             `json:"owner"`
	Address  netip.Addr        `json:"address"`
	Port     int               `json:"port"`
	Protocol provider.Protocol `json:"protocol"`
	// Auth says that auth.json must exist: a lost file must not open the proxy.
	Auth    bool      `json:"auth"`
	Created time.Time `json:"created"`
	// Run names one start of the process; a child of another run ends itself.
	Run string `json:"run"`
}

// run is child.json: who runs, by the child itself.
type run struct {
	Format  int        `json:"format"`
	Owner   owner      `json:"owner"`
	Run     string     `json:"run"`
	Address netip.Addr `json:"address"`
	Port    int        `json:"port"`
	PID     int        `json:"pid"`
	// StartTicks is field 22 of /proc/<pid>/stat: the start in clock ticks
	// since boot.
	StartTicks uint64 `json:"startTicks"`
	// LockFD is the child's descriptor of the lock file.
	LockFD int `json:"lockFD"`
}

// errTorn is a state file that cannot be understood.
var errTorn = errors.New("the file is damaged")

// readRecord reads state.json or deleted.json of the named folder. A missing
// file is fs.ErrNotExist; a damaged one, or one of another owner, is errTorn.
func readRecord(path, name string) (*record, error) {
	var r record
	if err := readJSON(path, &r); err != nil {
		return nil, err
	}
	if r.Format != format || folderOf(provider.Owner(r.Owner)) != name || r.Run == "" || !validEndpoint(r.Address, r.Port) {
		return nil, fmt.Errorf("%s: %w: a field has no valid value", path, errTorn)
	}
	return &r, nil
}

// readRun reads child.json of the named folder, with the errors of readRecord.
func readRun(path, name string) (*run, error) {
	var r run
	if err := readJSON(path, &r); err != nil {
		return nil, err
	}
	if r.Format != format || folderOf(provider.Owner(r.Owner)) != name || r.Run == "" || !validEndpoint(r.Address, r.Port) || r.PID <= 1 {
		return nil, fmt.Errorf("%s: %w: a field has no valid value", path, errTorn)
	}
	return &r, nil
}

func validEndpoint(a netip.Addr, port int) bool {
	return block.Contains(a) && port > 0 && port <= 65535
}

func readJSON(path string, into any) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return err
	}
	if len(data) > maxFile {
		return fmt.Errorf("%s: %w: more than %d bytes", path, errTorn, maxFile)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(into); err != nil {
		return fmt.Errorf("%s: %w: %w", path, errTorn, err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return fmt.Errorf("%s: %w: text after its end", path, errTorn)
	}
	return nil
}

// writeJSON replaces dir/name in one step: whoever reads it, also after a
// power cut, sees the old or the new file, whole. Its mode is 0600.
func writeJSON(dir, name string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fault.Errorf(fault.Permanent, "encode %s: %w", name, err)
	}
	path := filepath.Join(dir, name)
	if err := writeFile(path, append(data, '\n')); err != nil {
		return fileFault("write", path, err)
	}
	if err := syncDir(dir); err != nil {
		return fileFault("write", dir, err)
	}
	return nil
}

func writeFile(path string, data []byte) (err error) {
	tmp := path + newSuffix
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(tmp)
		}
	}()
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// fileFault classes a failure on the file system, and names the place and what
// helps.
func fileFault(doing, path string, err error) error {
	switch {
	case errors.Is(err, unix.EROFS):
		return fault.Errorf(fault.Permanent, "cannot %s %s: mount the file system writable, or set stateDir to a writable place: %w", doing, path, err)
	case errors.Is(err, fs.ErrPermission):
		return fault.Errorf(fault.Permanent, "cannot %s %s: let user %d write there, or set stateDir to another place: %w", doing, path, os.Getuid(), err)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fault.Errorf(fault.Transient, "cannot %s %s: free space there: %w", doing, path, err)
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ELOOP):
		return fault.Errorf(fault.Permanent, "cannot %s %s: something else stands at this path; remove it, or set stateDir to another place: %w", doing, path, err)
	default:
		return fault.Errorf(fault.Transient, "cannot %s %s: %w", doing, path, err)
	}
}
