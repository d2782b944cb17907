package leasecmd

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

// saved is what take leaves for renew and release: a lease with its secret, in a
// file that only this user can read.
type saved struct {
	// id is its public id, of which the key and the fence are parts.
	id   lease.ID
	pool string
	// server is the team server that it was taken from; "" for the local database.
	server string
	secret client.Secret
	// until is when the lease ends, by this machine's calendar: for tidying up alone.
	until time.Time
}

// savedFile is its file. It is not to be printed: its secret is plain text.
type savedFile struct {
	Lease  string    `json:"lease"`
	Key    string    `json:"key"`
	Pool   string    `json:"pool"`
	Fence  int64     `json:"fence"`
	Server string    `json:"server,omitempty"`
	Secret string    `json:"secret"`
	Until  time.Time `json:"until"`
}

const (
	// maxSaved bounds a file, in bytes.
	maxSaved = 16 << 10
	// maxTidied bounds how many files one command looks at.
	maxTidied = 2000
	// forgetAfter is how long after a lease's end its file is of no use to anybody.
	forgetAfter = 24 * time.Hour

	suffix = ".json"
	// parts are files that are being written.
	partPrefix = ".part-"
)

// leases is the folder of the saved ones of a project.
type leases struct{ dir string }

func (l leases) path(id string) string { return filepath.Join(l.dir, url.PathEscape(id)+suffix) }

// put writes a lease whole or not at all: when it returns nil, the file is on the
// disk.
func (l leases) put(s saved) error {
	raw, err := json.Marshal(savedFile{ //nolint:gosec // the file is for the secret
		s.id.String(), s.id.Key, s.pool, s.id.Fence, s.server, string(s.secret), s.until.UTC().Truncate(time.Second),
	})
	if err != nil {
		return err
	}
	if err := l.write(s.id.String(), append(raw, '\n')); err != nil {
		return fault.Errorf(fault.Permanent, "the lease cannot be kept in %s: %w: make the folder writable", l.dir, err)
	}
	return nil
}

func (l leases) write(id string, raw []byte) (err error) {
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return err
	}
	if err := os.Chmod(l.dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(l.dir, partPrefix+"*") // O_EXCL and 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if _, err = f.Write(raw); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), l.path(id)); err != nil {
		return err
	}
	dir, err := os.Open(l.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// remove forgets a lease; one that is not there is no error.
func (l leases) remove(id string) error {
	err := os.Remove(l.path(id))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.Errorf(fault.Permanent, "the file of lease %s cannot be removed: %w", id, err)
	}
	return nil
}

// get reads a lease by its id; ok is false when there is none.
func (l leases) get(id string) (s saved, ok bool, err error) {
	f, err := os.Open(l.path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return saved{}, false, nil
	}
	if err != nil {
		return saved{}, false, fault.Errorf(fault.Permanent, "the lease cannot be read: %w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxSaved+1))
	if err != nil {
		return saved{}, false, fault.Errorf(fault.Permanent, "the lease cannot be read: %w", err)
	}
	s, err = parseSaved(raw)
	if err != nil || s.id.String() != id {
		return saved{}, false, fault.Errorf(fault.Permanent,
			"%s is no lease that qasight wrote: remove the file; the lease ends by itself", f.Name())
	}
	return s, true, nil
}

// parseSaved reads a file. Fields that it does not know are a newer program's. Its
// error tells nothing of the file, which may hold a secret.
func parseSaved(raw []byte) (saved, error) {
	var f savedFile
	if len(raw) > maxSaved || json.Unmarshal(raw, &f) != nil {
		return saved{}, fault.New(fault.Invalid, "it is no JSON of a lease")
	}
	id, err := lease.ParseID(f.Lease)
	if err != nil || id.Key != f.Key || id.Fence != f.Fence || lease.ValidName(f.Pool) != nil || f.Secret == "" {
		return saved{}, fault.New(fault.Invalid, "it does not name a lease")
	}
	return saved{id, f.Pool, f.Server, client.Secret(f.Secret), f.Until}, nil
}

// all reads the saved leases, the newest last, and tidies up: the files of leases
// that ended long ago are removed. What is no file of a lease is passed over.
func (l leases) all(now time.Time) []saved {
	dir, err := os.Open(l.dir)
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(maxTidied) // what could be read is what there is
	var out []saved
	for _, name := range names {
		if strings.HasPrefix(name, partPrefix) {
			if info, err := os.Lstat(filepath.Join(l.dir, name)); err == nil && now.Sub(info.ModTime()) > forgetAfter {
				os.Remove(filepath.Join(l.dir, name))
			}
			continue
		}
		id, err := url.PathUnescape(strings.TrimSuffix(name, suffix))
		if err != nil || !strings.HasSuffix(name, suffix) {
			continue
		}
		s, ok, err := l.get(id)
		switch {
		case err != nil || !ok:
		case now.Sub(s.until) > forgetAfter:
			_ = l.remove(id)
		default:
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b saved) int { return cmp.Compare(a.id.Fence, b.id.Fence) })
	return out
}

// ids are the saved leases' ids as their files are named; no file is opened.
func (l leases) ids() []lease.ID {
	dir, err := os.Open(l.dir)
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(maxTidied) // what could be read is what there is
	var out []lease.ID
	for _, name := range names {
		plain, isLease := strings.CutSuffix(name, suffix)
		text, err := url.PathUnescape(plain)
		if id, e := lease.ParseID(text); isLease && err == nil && e == nil {
			out = append(out, id)
		}
	}
	return out
}

// find returns the lease that a person means: by its id, by its key (the newest one),
// or with neither the only one of a pool. Pool narrows; "" does not. ok is false
// when there is none.
func (l leases) find(name, pool string, now time.Time) (s saved, ok bool, err error) {
	every := l.all(now) // which tidies up, whatever is looked for
	if strings.Contains(name, "~") {
		id, err := lease.ParseID(name)
		if err != nil {
			return saved{}, false, fault.Errorf(fault.Invalid, "%.80q names no lease: want one such as qa-win-01~17, or a key", name)
		}
		return l.get(id.String())
	}
	if name != "" {
		if err := lease.ValidName(name); err != nil {
			return saved{}, false, fault.Errorf(fault.Invalid, "%w: want a lease such as qa-win-01~17, or a key", err)
		}
	}
	var found []saved
	for _, s := range every {
		if (name == "" || s.id.Key == name) && (pool == "" || s.pool == pool) {
			found = append(found, s)
		}
	}
	switch {
	case len(found) == 0:
		return saved{}, false, nil
	case name == "" && len(found) > 1:
		names := make([]string, len(found))
		for i, s := range found {
			names[i] = s.id.String()
		}
		return saved{}, false, fault.Errorf(fault.Invalid, "%d leases of pool %s were taken here: name one of %s",
			len(found), pool, strings.Join(names, ", "))
	}
	return found[len(found)-1], true, nil
}
