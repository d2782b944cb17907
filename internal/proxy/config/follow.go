package config

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"syscall"
	"time"

	"fleetdesk/internal/core/fault"
)

// muteAfter is how long a look at the file may take before it is called mute:
// a network mount whose server is away does not answer at all.
const muteAfter = 10 * time.Second

// FollowOptions are what [Follow] works with.
type FollowOptions struct {
	// Path is the providers file.
	Path string
	// Period is the time from one look to the next; default 1 s. A change is in
	// force after two of them.
	Period time.Duration
	// First is the content that is in force at the start.
	First []byte
	// Apply puts a changed file in force.
	Apply func(*File)
	// Refused is told why what is on disk cannot be used, once for each
	// problem, and nil when the file is fine again; what was in force stays in
	// force all the while. After a problem it is told nil behind Apply. It may
	// be nil itself.
	Refused func(error)
	Log     *slog.Logger
}

// Follow puts changes of the providers file in force until ctx ends, and then
// returns nil. It looks at the content, not at times or events, so that it
// does not matter how the file changes: written in place, renamed over, by the
// links of a mounted ConfigMap, or on a network mount. What it sees counts when
// two looks in a row saw the same: an editor empties a file before it writes.
//
// A file that is gone, unreadable, not YAML or without a list of providers keeps
// the last one in force: nothing but a readable list takes a provider away, and
// all of them only one that is empty in so many words ("providers: []").
func Follow(ctx context.Context, o FollowOptions) error {
	return follow(ctx, o, Read)
}

func follow(ctx context.Context, o FollowOptions, read func(path string) ([]byte, error)) error {
	if o.Period == 0 {
		o.Period = time.Second
	}
	f := &follower{o: o, force: digest(o.First)}
	looks := make(chan look, 1)
	// since is when the look began that has not answered; zero for none. Only
	// one is under way, so a mute mount costs one goroutine.
	var since time.Time
	ticker := time.NewTicker(o.Period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case l := <-looks:
			since = time.Time{}
			f.saw(l)
		case <-ticker.C:
			switch {
			case since.IsZero():
				since = time.Now()
				go func() { looks <- lookAt(o.Path, read) }()
			case time.Since(since) >= muteAfter:
				f.mute()
			}
		}
	}
}

// follower is what [Follow] remembers.
type follower struct {
	o FollowOptions
	// force is the digest of the content in force, last the key of the last
	// look.
	force, last string
	// refused is what was told last.
	refused error
}

// look is what one look saw: key tells it from another.
type look struct {
	key  string
	data []byte
	err  error
}

func lookAt(path string, read func(path string) ([]byte, error)) look {
	data, err := read(path)
	if err != nil {
		return look{key: err.Error(), err: err}
	}
	return look{key: digest(data), data: data}
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// saw takes a look over once the one before saw the same.
func (f *follower) saw(l look) {
	if l.key != f.last {
		f.last = l.key
		return
	}
	if l.err == nil && l.key == f.force {
		f.tell(nil)
		return
	}
	file, err := f.read(l)
	if err != nil {
		f.tell(err)
		return
	}
	f.force = l.key
	f.o.Log.Info("the providers file changed and is in force", "file", f.o.Path, "providers", len(file.Providers))
	f.o.Apply(file)
	f.tell(nil)
}

func (f *follower) read(l look) (*File, error) {
	if l.err != nil {
		return nil, l.err
	}
	if len(bytes.TrimSpace(l.data)) == 0 {
		// A full disk leaves this behind: the file was emptied, and what should
		// be in it did not get there.
		return nil, fault.Errorf(fault.Invalid, "%s is empty: write it again; to have no provider, write \"providers: []\"", f.o.Path)
	}
	file, err := Parse(f.o.Path, l.data)
	if err == nil && !file.listed {
		// So does whoever writes the file in pieces, or comments the last entry
		// out: that no provider is wanted is worth a word of its own.
		return nil, fault.Errorf(fault.Invalid, "%s has no list of providers, so it is probably half written: write it again; to have no provider, write \"providers: []\"", f.o.Path)
	}
	return file, err
}

func (f *follower) mute() {
	f.tell(fault.Errorf(fault.Unavailable, "%s cannot be read: its file system does not answer: look after what is mounted there", f.o.Path))
}

// tell passes news on, and nothing twice.
func (f *follower) tell(err error) {
	switch {
	case err == nil && f.refused == nil, err != nil && f.refused != nil && err.Error() == f.refused.Error():
		return
	case err == nil:
		f.o.Log.Info("the providers file can be used again", "file", f.o.Path)
	default:
		f.o.Log.Error("the providers file is refused; what it said before stays in force",
			"file", f.o.Path, "class", string(fault.Of(err)), "error", err)
	}
	f.refused = err
	if f.o.Refused != nil {
		f.o.Refused(err)
	}
}

// Read reads a providers file, at most one byte more than it may have. Errors
// name the file and the remedy; they are Invalid, and Transient when the disk
// fails. It never waits for the writer of a pipe.
func Read(path string) ([]byte, error) {
	// Looked at before, because opening what is no file may have effects.
	info, err := os.Stat(path)
	if err == nil {
		err = regular(path, info)
	}
	if err != nil {
		return nil, unreadable(path, err)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, unreadable(path, err)
	}
	defer f.Close()
	// And again: another one may have come in its place meanwhile.
	if info, err = f.Stat(); err == nil {
		err = regular(path, info)
	}
	if err != nil {
		return nil, unreadable(path, err)
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxBytes+1))
	if err != nil {
		return nil, unreadable(path, err)
	}
	if len(data) > MaxBytes {
		return nil, fault.Errorf(fault.Invalid, "%s is larger than a providers file may be (%d bytes): make it smaller, or name another file", path, MaxBytes)
	}
	return data, nil
}

func regular(path string, info fs.FileInfo) error {
	switch {
	case info.IsDir():
		return fault.Errorf(fault.Invalid, "%s is a folder: name the file in it (of a mounted ConfigMap, a key of its data)", path)
	case !info.Mode().IsRegular():
		return fault.Errorf(fault.Invalid, "%s is no regular file: put one in its place", path)
	}
	return nil
}

func unreadable(path string, err error) error {
	if fault.Classed(err) {
		return err
	}
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err // the path stands in front
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fault.Errorf(fault.Invalid, "%s does not exist: put it there (of a mounted ConfigMap, check the key's name): %w", path, err)
	case errors.Is(err, fs.ErrPermission):
		return fault.Errorf(fault.Invalid, "%s may not be read by this process's user: mend the mode or owner of the file and its folders: %w", path, err)
	case errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ENAMETOOLONG):
		return fault.Errorf(fault.Invalid, "%s leads to no file: mend the path or its links: %w", path, err)
	}
	return fault.Errorf(fault.Transient, "%s cannot be read: look after the disk or mount it is on: %w", path, err)
}
