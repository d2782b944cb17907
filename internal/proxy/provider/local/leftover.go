package local

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// What a leftover is, for people.
const (
	// WhatFolder is a folder that was being made or removed.
	WhatFolder = "folder"
	// WhatLock is a lock file that nobody holds.
	WhatLock = "lock file"
)

// lockPrefix begins the id of a lock file: lock~<folder's name>~<time of its
// making, in nanoseconds>. A lock file's name comes back, so it alone would
// not name one for ever; a folder's hidden name ends in a text of its own.
const lockPrefix = "lock~"

// stray is a thing in the state directory that a dead operator left.
type stray struct {
	id, what string
	// name is the folder's name of the instance that it was for.
	name string
	path string
	// made is when a lock file was made, in nanoseconds; zero for a folder.
	made int64
}

// parseStray reads the id of a leftover.
func (p *Provider) parseStray(id string) (stray, error) {
	for prefix, what := range map[string]string{makingPrefix: WhatFolder, gonePrefix: WhatFolder, lockPrefix: WhatLock} {
		rest, ok := strings.CutPrefix(id, prefix)
		i := strings.LastIndexByte(rest, '~')
		if !ok || i < 0 || !validName(rest[i+1:]) {
			continue
		}
		s := stray{id: id, what: what, name: rest[:i], path: p.dir(id)}
		if _, _, ok := splitFolder(s.name); !ok {
			continue
		}
		if what == WhatFolder {
			return s, nil
		}
		made, err := strconv.ParseInt(rest[i+1:], 10, 64)
		if err != nil || strconv.FormatInt(made, 10) != rest[i+1:] {
			continue
		}
		s.path, s.made = p.lockPath(s.name), made
		return s, nil
	}
	return stray{}, fault.Errorf(fault.Invalid, "%q is no id of a leftover of the local provider", short(id))
}

func (p *Provider) lockPath(name string) string { return filepath.Join(p.stateDir, opsDir, name) }

// Leftovers implements [provider.Cleaner] with one row, of the host "local":
// what an operator left that was killed in Create or Delete, for a Proxy for
// which neither will be called again. Those are folders without a name and
// lock files; all else is removed by whoever comes next. What a call holds the
// lock of is in its hands, and what stands beside an instance goes with it.
func (p *Provider) Leftovers(ctx context.Context, installation string, keep []string) ([]provider.HostLeftovers, error) {
	if ctx.Err() != nil {
		return nil, waitEnded(ctx, "leftovers")
	}
	row := provider.HostLeftovers{Host: Host}
	if row.Leftovers, row.Err = p.unused(ctx, TagOf(installation), keep); row.Err != nil {
		row.Leftovers = nil
	}
	return []provider.HostLeftovers{row}, nil
}

func (p *Provider) unused(ctx context.Context, tag string, keep []string) ([]provider.Leftover, error) {
	all, err := p.strays()
	if err != nil {
		return nil, err
	}
	kept := make(map[string]bool, len(keep))
	for _, uid := range keep {
		kept[uid] = true
	}
	var found []provider.Leftover
	for _, s := range all {
		if ctx.Err() != nil {
			return nil, waitEnded(ctx, "leftovers in "+p.stateDir)
		}
		if uid, of, _ := splitFolder(s.name); of != tag || kept[uid] {
			continue
		}
		if none, err := missing(p.dir(s.name)); err != nil || !none {
			continue // the instance's Delete removes it, or people must look
		}
		used, err := p.inUse(s)
		if err != nil {
			return nil, err
		}
		if !used {
			found = append(found, provider.Leftover{Host: Host, ID: s.id, What: s.what, Bytes: sizeOf(s.path)})
		}
	}
	slices.SortFunc(found, func(a, b provider.Leftover) int { return cmp.Compare(a.ID, b.ID) })
	return found, nil
}

// strays are all things that may be leftovers, of every installation.
func (p *Provider) strays() ([]stray, error) {
	if err := p.present(); err != nil {
		return nil, err
	}
	var all []stray
	entries, err := os.ReadDir(p.stateDir)
	if err != nil {
		return nil, fileFault("list", p.stateDir, err)
	}
	for _, e := range entries {
		if s, err := p.parseStray(e.Name()); err == nil && s.what == WhatFolder && e.IsDir() {
			all = append(all, s)
		}
	}
	ops := filepath.Join(p.stateDir, opsDir)
	if entries, err = os.ReadDir(ops); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fileFault("list", ops, err)
	}
	for _, e := range entries {
		fi, err := e.Info()
		if _, _, ours := splitFolder(e.Name()); err != nil || !ours || !fi.Mode().IsRegular() {
			continue
		}
		made := fi.ModTime().UnixNano()
		all = append(all, stray{
			id:   lockPrefix + e.Name() + "~" + strconv.FormatInt(made, 10),
			what: WhatLock, name: e.Name(), path: p.lockPath(e.Name()), made: made,
		})
	}
	return all, nil
}

// inUse reports whether a call works on the instance that s was for, or a
// process lives in the folder.
func (p *Provider) inUse(s stray) (bool, error) {
	held, err := lockHeld(p.lockPath(s.name))
	if err != nil {
		return false, fileFault("read", p.lockPath(s.name), err)
	}
	if held || s.what == WhatLock {
		return held, nil
	}
	return p.alive(s.path)
}

// sizeOf is what the files at path, a file or a folder, take.
func sizeOf(path string) (bytes int64) {
	_ = filepath.WalkDir(path, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return nil //nolint:nilerr // what goes meanwhile takes nothing
		}
		if fi, err := e.Info(); err == nil {
			bytes += fi.Size()
		}
		return nil
	})
	return bytes
}

// RemoveLeftover implements [provider.Cleaner], under the lock of the instance
// that it was for, by one step, "local: clear".
func (p *Provider) RemoveLeftover(ctx context.Context, installation string, l provider.Leftover) error {
	if l.Host != Host {
		return fault.Errorf(fault.Permanent, "host %q: the local provider has the host %q alone", short(l.Host), Host)
	}
	s, err := p.parseStray(l.ID)
	if err != nil {
		return err
	}
	if _, tag, _ := splitFolder(s.name); tag != TagOf(installation) {
		return fault.Errorf(fault.Denied, "%s is of another installation: it was left alone", s.path)
	}
	if ctx.Err() != nil {
		return waitEnded(ctx, "removal of "+s.path)
	}
	if err := p.present(); err != nil {
		return err
	}
	if gone, err := s.gone(); err != nil || gone {
		return err
	}
	if err := provider.Step(ctx, "local: clear"); err != nil {
		return err
	}
	release, err := attempt(p.lockPath(s.name))
	if err != nil {
		return err
	}
	if release == nil {
		return fault.Errorf(fault.Conflict, "%s stays: a call is working on local instance %s", s.path, s.name)
	}
	// To give the lock back removes its file, which is all there is to do for a
	// lock file.
	defer release()
	if s.what == WhatLock {
		return nil
	}
	if alive, err := p.alive(s.path); err != nil {
		return err
	} else if alive {
		return fault.Errorf(fault.Conflict, "%s: a process lives in it: it stays", s.path)
	}
	if err := os.RemoveAll(s.path); err != nil {
		return fileFault("remove", s.path, err)
	}
	return nil
}

// gone reports that s is not there any more; a lock file that was made anew is
// another one.
func (s stray) gone() (bool, error) {
	fi, err := os.Lstat(s.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return true, nil
	case err != nil:
		return false, fileFault("read", s.path, err)
	}
	return s.what == WhatLock && fi.ModTime().UnixNano() != s.made, nil
}
