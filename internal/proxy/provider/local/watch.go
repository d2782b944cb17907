package local

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

const (
	// settle is how long changes gather before they are told: one thing that
	// happens to an instance is several events.
	settle = 50 * time.Millisecond
	// dying bounds how often the end of a process is waited for: its lock's file
	// is closed an instant before the lock is free.
	dying = 4
	// lookEvery is how often it is asked whether the state directory's path
	// still leads where it did.
	lookEvery = time.Second
)

// What is listened to. A child holds its lock's file open for writing all its
// life, so the file is closed when the process ends, however that happens and
// whoever started it.
const (
	rootEvents   = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
	folderEvents = unix.IN_CLOSE_WRITE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ONLYDIR
)

// Watch implements [provider.Watcher] by inotify: one goroutine, the caller's,
// one descriptor, one watch of the kernel's for each instance, and once a
// second a look at the state directory's path. What this provider's own calls
// do is told as well. A kernel that has no watch left is Quota; a state
// directory that is not there is waited for.
func (p *Provider) Watch(ctx context.Context, installation string, changed func(provider.Change)) error {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return fault.Errorf(fault.Quota, "cannot watch %s: raise fs.inotify.max_user_instances: %w", p.stateDir, err)
	}
	w := &watch{
		p: p, tag: TagOf(installation), fd: fd, events: os.NewFile(uintptr(fd), "inotify"),
		tell: func(uid string) {
			if ctx.Err() == nil {
				changed(provider.Change{Host: Host, UID: uid})
			}
		},
		due: map[string]int{},
	}
	defer w.events.Close()
	defer context.AfterFunc(ctx, func() { _ = w.events.SetReadDeadline(time.Unix(1, 0)) })()
	return w.run(ctx)
}

// watch is one running Watch.
type watch struct {
	p      *Provider
	tag    string
	fd     int
	events *os.File
	tell   func(uid string)

	// at is the state directory that is watched, as root; nil for none.
	at   os.FileInfo
	root int32
	// folders are the names of the watched instances' folders.
	folders map[int32]string
	// due are the folders that changed, by name; above zero the end of a process
	// is awaited that many times more. dueAt is when they are told.
	due   map[string]int
	dueAt time.Time
}

func (w *watch) run(ctx context.Context) error {
	buf := make([]byte, 64<<10)
	next := time.Now()
	for {
		now := time.Now()
		if !now.Before(next) {
			if err := w.look(); err != nil {
				return err
			}
			next = now.Add(lookEvery)
		}
		if len(w.due) > 0 && !now.Before(w.dueAt) {
			w.flush()
		}
		until := next
		if len(w.due) > 0 && w.dueAt.Before(until) {
			until = w.dueAt
		}
		// In this order the end of ctx cannot be missed: it sets a deadline that
		// has passed.
		if err := w.events.SetReadDeadline(until); err != nil {
			return fault.Errorf(fault.Transient, "watch of %s: %w", w.p.stateDir, err)
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // its end is no error
		}
		n, err := w.events.Read(buf)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // its end is no error
		case errors.Is(err, os.ErrDeadlineExceeded):
		case err != nil:
			return fault.Errorf(fault.Transient, "watch of %s: %w", w.p.stateDir, err)
		default:
			if err := w.read(buf[:n]); err != nil {
				return err
			}
		}
	}
}

// look begins to watch the state directory when it is there and is not the one
// that is watched.
func (w *watch) look() error {
	fi, err := os.Stat(w.p.stateDir)
	if err == nil && w.at != nil && os.SameFile(fi, w.at) {
		return nil
	}
	w.leave()
	if err != nil || !fi.IsDir() {
		return nil //nolint:nilerr // it is asked again: not there is no error here
	}
	return w.attach(fi)
}

// leave ends what is watched.
func (w *watch) leave() {
	if w.at == nil {
		return
	}
	for wd := range w.folders {
		_, _ = unix.InotifyRmWatch(w.fd, uint32(wd))
	}
	_, _ = unix.InotifyRmWatch(w.fd, uint32(w.root))
	w.at, w.folders = nil, nil
}

// attach watches the state directory and each instance's folder, the former
// first, so that none is missed that comes meanwhile, and tells that anything
// may have changed.
func (w *watch) attach(fi os.FileInfo) error {
	root, err := w.add(w.p.stateDir, rootEvents)
	if err != nil || root < 0 {
		return err
	}
	w.at, w.root, w.folders = fi, root, map[int32]string{}
	names, err := w.p.folders()
	if err != nil {
		w.leave()
		return nil //nolint:nilerr // as look says
	}
	for _, name := range names {
		if err := w.enter(name); err != nil {
			return err
		}
	}
	w.tell("")
	return nil
}

// enter watches the folder of an instance of ours.
func (w *watch) enter(name string) error {
	if _, tag, ok := splitFolder(name); !ok || tag != w.tag {
		return nil
	}
	wd, err := w.add(w.p.dir(name), folderEvents)
	if err == nil && wd >= 0 {
		w.folders[wd] = name
	}
	return err
}

// add returns -1 for what is not there.
func (w *watch) add(path string, mask uint32) (int32, error) {
	wd, err := unix.InotifyAddWatch(w.fd, path, mask)
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.ENOMEM):
		return -1, fault.Errorf(fault.Quota, "cannot watch %s: raise fs.inotify.max_user_watches: %w", path, err)
	case err != nil:
		return -1, nil //nolint:nilerr // gone, or no folder: there is nothing to hear
	}
	return int32(wd), nil
}

// read goes through what the kernel told.
func (w *watch) read(buf []byte) error {
	for len(buf) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(buf))
		mask := binary.NativeEndian.Uint32(buf[4:])
		size := int(binary.NativeEndian.Uint32(buf[12:]))
		buf = buf[unix.SizeofInotifyEvent:]
		if size > len(buf) {
			break
		}
		name := strings.TrimRight(string(buf[:size]), "\x00")
		buf = buf[size:]
		if mask&unix.IN_Q_OVERFLOW != 0 {
			// What was lost may be anything: all is watched and told anew.
			w.leave()
			if err := w.look(); err != nil {
				return err
			}
			continue
		}
		if err := w.event(wd, mask, name); err != nil {
			return err
		}
	}
	return nil
}

func (w *watch) event(wd int32, mask uint32, name string) error {
	if w.at != nil && wd == w.root {
		if mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_UNMOUNT|unix.IN_IGNORED) != 0 {
			w.leave() // look finds what is at the path now
			return nil
		}
		if _, tag, ok := splitFolder(name); !ok || tag != w.tag || mask&unix.IN_ISDIR == 0 {
			return nil
		}
		if mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0 {
			if err := w.enter(name); err != nil {
				return err
			}
		}
		w.soon(name, 0)
		return nil
	}
	folder, ok := w.folders[wd]
	if !ok {
		return nil
	}
	if mask&unix.IN_IGNORED != 0 {
		delete(w.folders, wd)
		return nil
	}
	switch name {
	case lifeFile:
		w.soon(folder, dying)
	case stateFile, childFile:
		w.soon(folder, 0)
	}
	return nil
}

// soon puts a folder among those to be told.
func (w *watch) soon(name string, wait int) {
	if len(w.due) == 0 {
		w.dueAt = time.Now().Add(settle)
	}
	w.due[name] = max(w.due[name], wait)
}

// flush tells those that are due, but for processes that are just ending.
func (w *watch) flush() {
	for name, wait := range w.due {
		if wait > 0 {
			if held, err := lockHeld(filepath.Join(w.p.dir(name), lifeFile)); err == nil && held {
				w.due[name] = wait - 1
				continue
			}
		}
		delete(w.due, name)
		uid, _, _ := splitFolder(name)
		w.tell(uid)
	}
	w.dueAt = time.Now().Add(settle)
}
