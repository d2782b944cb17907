package local

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"fleetdesk/internal/proxy/provider"
)

// endWait bounds the wait after each signal; a child needs well below a second
// after the first.
const endWait = 3 * time.Second

// Delete implements [provider.Provider]. Its steps: "local: tombstone" (the
// child ends by itself from here on, and the instance is listed as Deleting),
// "local: terminate", "local: kill", "local: remove" (the folder loses its
// name) and "local: clear". The owner alone decides what goes, by the folder's
// name, so also where its files are damaged; an id that is malformed or means
// another instance is not followed, and what carries another tag cannot be
// reached. Another host, and an id of another provider's name, is Abandoned.
func (p *Provider) Delete(ctx context.Context, ref provider.Ref) (provider.State, error) {
	name, err := ownFolder(ref.Owner)
	if err != nil {
		return "", err
	}
	if ctx.Err() != nil {
		return "", waitEnded(ctx, "delete")
	}
	if id, err := ParseID(ref.ID); ref.Host != "" && ref.Host != Host || err == nil && id.Provider != p.name {
		return provider.Abandoned, nil // not a place of this provider
	}
	if err := p.present(); err != nil {
		return "", err
	}
	// What is already gone takes no lock: that would need a writable directory.
	if gone, err := p.nothing(name); err != nil || gone {
		return goneIf(gone), err
	}
	release, err := p.exclusive(ctx, name)
	if err != nil {
		return "", err
	}
	defer release()
	v, err := p.look(name)
	if err != nil {
		return "", err
	}
	if !v.absent {
		ended, err := p.end(ctx, v)
		if err != nil {
			return "", err
		}
		if !ended {
			return provider.Deleting, nil
		}
		if err := p.remove(ctx, v); err != nil {
			return "", err
		}
	}
	if err := p.clear(ctx, name); err != nil {
		return "", err
	}
	return provider.Gone, nil
}

func goneIf(gone bool) provider.State {
	if gone {
		return provider.Gone
	}
	return ""
}

// nothing reports that neither a folder nor a leftover of the name is there.
func (p *Provider) nothing(name string) (bool, error) {
	gone, err := missing(p.dir(name))
	if err != nil || !gone {
		return false, err
	}
	left, err := p.leftovers(name)
	return err == nil && len(left) == 0, err
}

// end sets the tombstone and ends the process. It reports whether the process
// is gone.
func (p *Provider) end(ctx context.Context, v view) (bool, error) {
	if !v.deleting {
		if err := provider.Step(ctx, "local: tombstone"); err != nil {
			return false, err
		}
		state := filepath.Join(v.dir, stateFile)
		err := os.Rename(state, filepath.Join(v.dir, deletedFile))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, fileFault("rename", state, err)
		}
		if err := syncDir(v.dir); err != nil {
			return false, fileFault("write", v.dir, err)
		}
	}
	return p.quit(ctx, v.dir, v.name)
}

// quit ends the process of a folder: it asks, then kills. It reports whether
// the process is gone.
func (p *Provider) quit(ctx context.Context, dir, name string) (bool, error) {
	for _, s := range [...]struct {
		step string
		sig  unix.Signal
	}{{"local: terminate", unix.SIGTERM}, {"local: kill", unix.SIGKILL}} {
		alive, err := p.alive(dir)
		if err != nil || !alive {
			return err == nil, err
		}
		if err := provider.Step(ctx, s.step); err != nil {
			return false, err
		}
		if err := signalChild(dir, name, s.sig); err != nil {
			return false, err
		}
		if ended, err := p.awaitEnd(ctx, dir); err != nil || ended {
			return ended, err
		}
	}
	return false, nil
}

func (p *Provider) alive(dir string) (bool, error) {
	path := filepath.Join(dir, lifeFile)
	held, err := lockHeld(path)
	if err != nil {
		return false, fileFault("read", path, err)
	}
	return held, nil
}

func (p *Provider) awaitEnd(ctx context.Context, dir string) (bool, error) {
	limit := time.NewTimer(endWait)
	defer limit.Stop()
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		alive, err := p.alive(dir)
		if err != nil || !alive {
			return err == nil, err
		}
		select {
		case <-ctx.Done():
			return false, waitEnded(ctx, "wait for the end of the proxy process in "+dir)
		case <-limit.C:
			return false, nil
		case <-tick.C:
		}
	}
}

// remove takes the folder's name away in one step, so that a half removed
// instance never looks like a damaged one; clear removes what is left.
func (p *Provider) remove(ctx context.Context, v view) error {
	if err := provider.Step(ctx, "local: remove"); err != nil {
		return err
	}
	if err := os.Rename(v.dir, filepath.Join(p.stateDir, gonePrefix+v.name+"~"+rand.Text())); err != nil {
		return fileFault("remove", v.dir, err)
	}
	if err := syncDir(p.stateDir); err != nil {
		return fileFault("write", p.stateDir, err)
	}
	return nil
}

// clear removes the folders that have no name yet or no more. The caller holds
// the name's lock, so nobody is working in them.
func (p *Provider) clear(ctx context.Context, name string) error {
	left, err := p.leftovers(name)
	if err != nil {
		return err
	}
	for _, path := range left {
		if err := provider.Step(ctx, "local: clear"); err != nil {
			return err
		}
		if err := os.RemoveAll(path); err != nil {
			return fileFault("remove", path, err)
		}
	}
	return nil
}
