package local

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// startWait bounds how long one Create waits for the child to be ready.
const startWait = 5 * time.Second

// Create implements [provider.Provider]. Its steps, as provider.Step names
// them: "local: state" (the folder, with the owner's tag in it, appears under
// its name at once), "local: credentials", "local: start" and "local: ready".
// A stopped instance is started at its old port, at its old address when that
// is still free, and with the spec's credentials as they are now.
func (p *Provider) Create(ctx context.Context, spec provider.Spec) (provider.Instance, error) {
	if err := validate(spec); err != nil {
		return provider.Instance{}, err
	}
	if err := ctx.Err(); err != nil {
		return provider.Instance{}, waitEnded(ctx, "create")
	}
	if err := p.present(); err != nil {
		return provider.Instance{}, err
	}
	name := folderOf(spec.Owner)
	release, err := p.exclusive(ctx, name)
	if err != nil {
		return provider.Instance{}, err
	}
	defer release()
	if err := p.clear(ctx, name); err != nil {
		return provider.Instance{}, err
	}
	v, err := p.look(name)
	if err != nil {
		return provider.Instance{}, err
	}
	switch {
	case v.absent:
	case v.torn != nil:
		v.owner.Installation = spec.Owner.Installation
		return p.instance(v), nil
	case v.deleting:
		return provider.Instance{}, fault.Errorf(fault.Conflict, "the removal of %s has begun; finish it by Delete before making it again", v.dir)
	case v.alive:
		return p.awaitReady(ctx, v, nil)
	}
	return p.start(ctx, spec, v)
}

// exclusive takes the lock of one instance against all other calls that change
// it.
func (p *Provider) exclusive(ctx context.Context, name string) (release func(), err error) {
	return acquire(ctx, filepath.Join(p.stateDir, opsDir, name), "local instance "+name)
}

// start makes the folder when there is none, and starts the child.
func (p *Provider) start(ctx context.Context, spec provider.Spec, v view) (provider.Instance, error) {
	rec, ln, err := p.settle(ctx, spec, v)
	if err != nil {
		return provider.Instance{}, err
	}
	defer ln.Close()
	if err := p.writeAuth(ctx, v.dir, spec.Credentials); err != nil {
		return provider.Instance{}, err
	}

	// The lock is taken here and inherited by the child, so that there is no
	// moment at which the child lives without holding it.
	lockPath := filepath.Join(v.dir, lifeFile)
	lock, err := os.OpenFile(lockPath, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return provider.Instance{}, fileFault("open", lockPath, err)
	}
	defer lock.Close()
	if got, err := tryLock(lock); err != nil {
		return provider.Instance{}, fileFault("lock", lockPath, err)
	} else if !got {
		return provider.Instance{}, fault.Errorf(fault.Conflict, "%s: a process holds the lock that did not a moment ago", lockPath)
	}
	if err := provider.Step(ctx, "local: start"); err != nil {
		return provider.Instance{}, err
	}
	ended, err := p.launch(v.dir, rec, lock, ln)
	if err != nil {
		return provider.Instance{}, err
	}
	// Only the child may hold these from here on: this process's copies would
	// keep a dead child's lock and port.
	_ = lock.Close()
	_ = ln.Close()
	if err := provider.Step(ctx, "local: ready"); err != nil {
		return provider.Instance{}, err
	}
	v.absent, v.rec, v.owner = false, rec, rec.Owner
	return p.awaitReady(ctx, v, ended)
}

// settle chooses the address, opens the listening socket and writes the state:
// a new folder for an absent instance, a new run for a stopped one.
func (p *Provider) settle(ctx context.Context, spec provider.Spec, v view) (*record, *net.TCPListener, error) {
	release, err := acquire(ctx, filepath.Join(p.stateDir, allocLock), "choice of an address in "+p.stateDir)
	if err != nil {
		return nil, nil, err
	}
	defer release()
	rec := &record{
		Format:   format,
		Owner:    owner(spec.Owner),
		Port:     portOf(spec),
		Protocol: provider.HTTP,
		Auth:     !spec.Credentials.IsZero(),
		Created:  p.now().UTC(),
		Run:      rand.Text(),
	}
	var keep netip.Addr
	if v.absent {
		names, err := p.folders()
		if err != nil {
			return nil, nil, err
		}
		if err := p.room(len(names)); err != nil {
			return nil, nil, err
		}
	} else {
		// A start keeps what the instance was made with; another port in the spec
		// applies when it is made again. The credentials are the present ones,
		// since those are what clients are given.
		rec.Owner, rec.Created, keep, rec.Port = v.rec.Owner, v.rec.Created, v.rec.Address, v.rec.Port
	}
	ln, err := p.listen(ctx, v.name, keep, rec.Port)
	if err != nil {
		return nil, nil, err
	}
	rec.Address = ln.Addr().(*net.TCPAddr).AddrPort().Addr()
	if err := p.writeState(ctx, v, rec); err != nil {
		_ = ln.Close()
		return nil, nil, err
	}
	return rec, ln, nil
}

func (p *Provider) writeState(ctx context.Context, v view, rec *record) error {
	if err := provider.Step(ctx, "local: state"); err != nil {
		return err
	}
	if !v.absent {
		return writeJSON(v.dir, stateFile, rec)
	}
	making := filepath.Join(p.stateDir, makingPrefix+v.name+"~"+rec.Run)
	if err := os.Mkdir(making, 0o700); err != nil {
		return fileFault("make", making, err)
	}
	err := writeJSON(making, stateFile, rec)
	if err == nil {
		if err = os.Rename(making, v.dir); err == nil {
			err = syncDir(p.stateDir)
		}
		if err != nil {
			err = fileFault("make", v.dir, err)
		}
	}
	if err != nil {
		_ = os.RemoveAll(making)
	}
	return err
}

func (p *Provider) writeAuth(ctx context.Context, dir string, c provider.Credentials) error {
	if err := provider.Step(ctx, "local: credentials"); err != nil {
		return err
	}
	if !c.IsZero() {
		return writeJSON(dir, authFile, newVerifier(c))
	}
	path := filepath.Join(dir, authFile)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fileFault("remove", path, err)
	}
	return nil
}

// awaitReady waits until the child says that it serves, for at most startWait.
// ended, when not nil, is closed at the end of a child that this call started.
func (p *Provider) awaitReady(ctx context.Context, v view, ended <-chan struct{}) (provider.Instance, error) {
	limit := time.NewTimer(startWait)
	defer limit.Stop()
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		now, err := p.look(v.name)
		if err != nil {
			return provider.Instance{}, err
		}
		if now.absent {
			return provider.Instance{}, fault.Errorf(fault.Transient, "%s vanished while its process was starting", v.dir)
		}
		if !now.alive || now.ready() || now.torn != nil || now.deleting {
			if ended != nil && !now.alive && !now.ready() {
				return provider.Instance{}, fault.Errorf(fault.Transient, "the proxy process ended at once; %s ends with: %s", filepath.Join(v.dir, logFile), logTail(v.dir))
			}
			return p.instance(now), nil
		}
		select {
		case <-ctx.Done():
			return provider.Instance{}, waitEnded(ctx, "wait for the proxy process in "+v.dir)
		case <-limit.C:
			return p.instance(now), nil
		case <-ended:
			ended = closedOnce(ended)
		case <-tick.C:
		}
	}
}

// closedOnce keeps a select from spinning on a closed channel: a second
// receive would be ready at once, and the state is read again on the tick.
func closedOnce(<-chan struct{}) <-chan struct{} { return make(chan struct{}) }

// logTail returns the end of an instance's log, for a message.
func logTail(dir string) string {
	f, err := os.Open(filepath.Join(dir, logFile))
	if err != nil {
		return "(no log)"
	}
	defer f.Close()
	const most = 300
	if fi, err := f.Stat(); err == nil && fi.Size() > most {
		_, _ = f.Seek(-most, io.SeekEnd)
	}
	data, _ := io.ReadAll(io.LimitReader(f, most))
	if data = bytes.TrimSpace(data); len(data) > 0 {
		return string(data)
	}
	return "(nothing)"
}
