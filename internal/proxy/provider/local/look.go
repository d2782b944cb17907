package local

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// view is what was seen of one instance's folder.
type view struct {
	// name is the folder's name, dir its path.
	name, dir string
	// absent: there is no folder; nothing else is set.
	absent bool
	// owner is whose it is, as far as the files tell; the UID always, by the
	// folder's name.
	owner owner
	// rec is nil when the state cannot be read; torn then says why.
	rec  *record
	torn error
	// run is who runs or ran last; nil when unknown.
	run *run
	// alive: a process holds the lock. deleting: the tombstone is set.
	alive, deleting bool
}

// look reads an instance. The order matters for a reader beside a writer: the
// writer puts a new state before it takes the lock and starts a child, so with
// the lock read first an old child.json never matches a newer state.
func (p *Provider) look(name string) (view, error) {
	uid, _, _ := splitFolder(name)
	v := view{name: name, dir: p.dir(name), owner: owner{UID: uid}}
	if gone, err := missing(v.dir); err != nil {
		return v, err
	} else if gone {
		v.absent = true
		return v, nil
	}
	alive, err := lockHeld(filepath.Join(v.dir, lifeFile))
	if err != nil {
		return v, fileFault("read", filepath.Join(v.dir, lifeFile), err)
	}
	v.alive = alive
	if r, err := readRun(filepath.Join(v.dir, childFile), name); err == nil {
		v.run, v.owner = r, r.Owner
	}
	rec, err := readRecord(filepath.Join(v.dir, stateFile), name)
	if errors.Is(err, fs.ErrNotExist) {
		if rec, err = readRecord(filepath.Join(v.dir, deletedFile), name); !errors.Is(err, fs.ErrNotExist) {
			v.deleting = true
		}
	}
	if err != nil {
		// The folder may have gone while its files were read.
		if gone, gerr := missing(v.dir); gerr == nil && gone {
			return view{name: name, dir: v.dir, absent: true}, nil
		}
		v.torn = err
		return v, nil
	}
	v.rec, v.owner = rec, rec.Owner
	return v, nil
}

// missing reports that there is no folder at dir.
func missing(dir string) (bool, error) {
	fi, err := os.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return true, nil
	case err != nil:
		return false, fileFault("read", dir, err)
	case !fi.IsDir():
		return false, fault.Errorf(fault.Permanent, "%s is not a folder; remove it", dir)
	}
	return false, nil
}

// ready reports that the child of the wanted run said that it serves.
func (v view) ready() bool { return v.rec != nil && v.run != nil && v.run.Run == v.rec.Run }

func (v view) state() (provider.State, string) {
	switch {
	case v.torn != nil:
		return provider.Unknown, "its state cannot be read: " + v.torn.Error() + "; delete the Proxy to remove it"
	case v.deleting:
		return provider.Deleting, "its removal has begun"
	case v.alive && v.ready():
		return provider.Running, ""
	case v.alive:
		return provider.Provisioning, "the process is starting"
	case v.ready():
		return provider.Stopped, "the process ended; " + filepath.Join(v.dir, logFile) + " may say why"
	default:
		return provider.Provisioning, "the process was not started yet"
	}
}

func (p *Provider) instance(v view) provider.Instance {
	uid, tag, _ := splitFolder(v.name)
	i := provider.Instance{
		ID:    ID{Provider: p.name, UID: uid, Tag: tag}.String(),
		Owner: provider.Owner(v.owner),
		Host:  Host,
	}
	i.State, i.Message = v.state()
	switch {
	case v.rec != nil:
		i.Address, i.Port, i.Created = v.rec.Address.String(), v.rec.Port, v.rec.Created
	case v.run != nil:
		i.Address, i.Port = v.run.Address.String(), v.run.Port
	}
	return i
}

// Get implements [provider.Provider]. An id that names the existing instance of
// another owner is Permanent: to say NotFound would have it rebuilt beside.
func (p *Provider) Get(ctx context.Context, ref provider.Ref) (provider.Instance, error) {
	name, err := p.target(ref)
	if err != nil {
		return provider.Instance{}, err
	}
	if ctx.Err() != nil {
		return provider.Instance{}, waitEnded(ctx, "get "+name)
	}
	v, err := p.look(name)
	if err != nil {
		return provider.Instance{}, err
	}
	if v.absent {
		// A state directory that is not there (not mounted) says nothing about
		// what is in it.
		if err := p.present(); err != nil {
			return provider.Instance{}, err
		}
		return provider.Instance{}, fault.Errorf(fault.NotFound, "there is no local instance %s in %s", name, p.stateDir)
	}
	if ref.Owner.Installation != "" && folderOf(ref.Owner) != name {
		return provider.Instance{}, fault.Errorf(fault.Permanent, "providerID %q is the instance of another owner (installation %q, Proxy %s/%s): it was left alone; remove this providerID, or delete the Proxy",
			ref.ID, short(v.owner.Installation), v.owner.Namespace, v.owner.Name)
	}
	if v.owner.Installation == "" {
		v.owner.Installation = ref.Owner.Installation
	}
	return p.instance(v), nil
}

// ListByTag implements [provider.Provider] with one row, of the host "local".
// The folders' names tell whose they are also where their files are damaged.
func (p *Provider) ListByTag(ctx context.Context, installation string) ([]provider.HostList, error) {
	list := provider.HostList{Host: Host}
	list.Instances, list.Err = p.list(ctx, installation)
	if list.Err != nil {
		list.Instances = nil
	}
	return []provider.HostList{list}, nil
}

func (p *Provider) list(ctx context.Context, installation string) ([]provider.Instance, error) {
	names, err := p.folders()
	if err != nil {
		return nil, err
	}
	mine := TagOf(installation)
	found := make([]provider.Instance, 0, len(names))
	for _, name := range names {
		if ctx.Err() != nil {
			return nil, waitEnded(ctx, "list of "+p.stateDir)
		}
		if _, tag, _ := splitFolder(name); tag != mine {
			continue
		}
		v, err := p.look(name)
		if err != nil {
			v.torn = err
		}
		if v.absent {
			continue // removed since the directory was read
		}
		v.owner.Installation = installation
		found = append(found, p.instance(v))
	}
	return found, nil
}

// folders returns the names of all instances' folders, sorted. Other names are
// none of ours: hidden ones are folders being made or removed. The same reading
// tells that this is the state directory: a mount may come or go at any moment.
func (p *Provider) folders() ([]string, error) {
	entries, err := os.ReadDir(p.stateDir)
	if err != nil {
		if why := p.present(); why != nil {
			return nil, why
		}
		return nil, fileFault("list", p.stateDir, err)
	}
	names, ours := make([]string, 0, len(entries)), false
	for _, e := range entries {
		if _, _, ok := splitFolder(e.Name()); ok && e.IsDir() {
			names = append(names, e.Name())
		}
		ours = ours || e.Name() == opsDir
	}
	if !ours {
		return nil, p.strange()
	}
	return names, nil
}

// leftovers returns the paths of folders that were being made for or removed
// from the name when their operator died.
func (p *Provider) leftovers(name string) ([]string, error) {
	entries, err := os.ReadDir(p.stateDir)
	if err != nil {
		return nil, fileFault("list", p.stateDir, err)
	}
	var paths []string
	for _, e := range entries {
		for _, prefix := range [...]string{makingPrefix, gonePrefix} {
			if rest, ok := strings.CutPrefix(e.Name(), prefix); ok && strings.HasPrefix(rest, name+"~") {
				paths = append(paths, filepath.Join(p.stateDir, e.Name()))
			}
		}
	}
	return paths, nil
}
