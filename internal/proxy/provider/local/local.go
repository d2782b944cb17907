package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// Options are what New needs.
type Options struct {
	// Name is the provider's name in the configuration; it is part of every
	// providerID.
	Name string
	// StateDir is the absolute path of the folder that holds the instances. New
	// makes it with mode 0700. Two provider objects, in one process or two, may
	// share it; two installations may too. It must not be on a network file
	// system.
	StateDir string
	// Command starts the child: the absolute path of our own binary and the
	// arguments that lead to Serve, which gets what the provider appends.
	Command []string
	// MaxInstances is how many instances StateDir may hold, of all
	// installations; one more is Quota. Zero means 1,000.
	MaxInstances int
	// Log takes the ends of children and nothing else; nil means none.
	Log *slog.Logger
	// Clock gives the time of creation; nil means time.Now.
	Clock func() time.Time
}

// Names inside StateDir that are no instances.
const (
	// claimsDir is in claim.go.
	opsDir       = ".ops"     // one lock file for each instance being worked on
	allocLock    = ".alloc"   // held while an address is chosen and written
	makingPrefix = ".making~" // a folder before it gets its name: .making~<name>~<run>
	gonePrefix   = ".gone~"   // a folder after it lost its name
)

// Provider implements provider.Provider and all optional interfaces. It keeps
// nothing in memory, so there is nothing to close; a goroutine for each child
// that it started waits to reap it.
type Provider struct {
	name     string
	stateDir string
	command  []string
	most     int
	log      *slog.Logger
	now      func() time.Time
}

var (
	_ provider.Provider = (*Provider)(nil)
	_ provider.Checker  = (*Provider)(nil)
	_ provider.Watcher  = (*Provider)(nil)
	_ provider.Claimer  = (*Provider)(nil)
	_ provider.Cleaner  = (*Provider)(nil)
)

// New returns the provider. Its errors name the option that is wrong (Invalid)
// or why the state directory cannot be made (Permanent for a read-only file
// system or missing rights, Transient for a full one).
func New(o Options) (*Provider, error) {
	if !validName(o.Name) {
		return nil, fault.Errorf(fault.Invalid, "local provider: name %q: want 1 to %d letters, digits, '-', '_' or '.'", short(o.Name), maxName)
	}
	if !filepath.IsAbs(o.StateDir) {
		return nil, fault.Errorf(fault.Invalid, "local provider %s: stateDir %q is not an absolute path", o.Name, o.StateDir)
	}
	if len(o.Command) == 0 || !filepath.IsAbs(o.Command[0]) {
		return nil, fault.Errorf(fault.Invalid, "local provider %s: the command that starts a proxy must begin with an absolute path", o.Name)
	}
	if o.MaxInstances < 0 {
		return nil, fault.Errorf(fault.Invalid, "local provider %s: maxInstances %d is below zero", o.Name, o.MaxInstances)
	}
	p := &Provider{
		name:     o.Name,
		stateDir: filepath.Clean(o.StateDir),
		command:  o.Command,
		most:     o.MaxInstances,
		log:      o.Log,
		now:      o.Clock,
	}
	if p.most == 0 {
		p.most = 1000
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	if p.now == nil {
		p.now = time.Now
	}
	ops := filepath.Join(p.stateDir, opsDir)
	if err := os.MkdirAll(ops, 0o700); err != nil {
		return nil, fileFault("make", ops, err)
	}
	return p, nil
}

func (p *Provider) dir(name string) string { return filepath.Join(p.stateDir, name) }

// present returns an error unless the state directory is there, and is one that
// New made: an empty mount point is none.
func (p *Provider) present() error {
	fi, err := os.Stat(p.stateDir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fault.Errorf(fault.Unavailable, "the state directory %s is not there: mount it, or restart the operator to begin with an empty one", p.stateDir)
	case err != nil:
		return fileFault("read", p.stateDir, err)
	case !fi.IsDir():
		return fileFault("list", p.stateDir, unix.ENOTDIR)
	}
	ops := p.dir(opsDir)
	switch fi, err = os.Lstat(ops); {
	case errors.Is(err, fs.ErrNotExist):
		return p.strange()
	case err != nil:
		return fileFault("read", ops, err)
	case !fi.IsDir():
		return fileFault("list", ops, unix.ENOTDIR)
	}
	return nil
}

// strange is the error of a folder at the state directory's path that is not it.
func (p *Provider) strange() error {
	return fault.Errorf(fault.Unavailable, "%s is not the state directory that the operator began with, since it has no %s: mount that, or restart the operator to begin with what is there", p.stateDir, opsDir)
}

// target returns the name of the folder that a reference means: the id's, or
// else the owner's.
func (p *Provider) target(ref provider.Ref) (string, error) {
	if ref.Host != "" && ref.Host != Host {
		return "", fault.Errorf(fault.Permanent, "host %q: the local provider has the host %q alone", short(ref.Host), Host)
	}
	if ref.ID == "" {
		return ownFolder(ref.Owner)
	}
	id, err := ParseID(ref.ID)
	if err != nil {
		return "", err
	}
	if id.Provider != p.name {
		return "", fault.Errorf(fault.Permanent, "providerID %q is of provider %q; this one is %q: put back its old name in the configuration", ref.ID, id.Provider, p.name)
	}
	return id.folder(), nil
}

// ownFolder is the name of the folder of an owner's instance, or Invalid when
// the owner names none.
func ownFolder(o provider.Owner) (string, error) {
	if !validName(o.UID) {
		return "", fault.Errorf(fault.Invalid, "owner UID %q: want 1 to %d letters, digits, '-', '_' or '.', the first a letter or digit", short(o.UID), maxName)
	}
	if o.Installation == "" {
		return "", fault.New(fault.Invalid, "owner installation is empty: an instance must carry whose it is")
	}
	return folderOf(o), nil
}

// Place implements [provider.Provider]: the single host is "local".
func (p *Provider) Place(ctx context.Context, spec provider.Spec) (string, error) {
	if err := validatePlace(spec); err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", waitEnded(ctx, "place")
	}
	names, err := p.folders()
	if err != nil {
		return "", err
	}
	if slices.Contains(names, folderOf(spec.Owner)) {
		return Host, nil // what exists needs no room
	}
	if err := p.room(len(names)); err != nil {
		return "", err
	}
	return Host, nil
}

// room returns Quota when n instances are all that may be.
func (p *Provider) room(n int) error {
	if n < p.most {
		return nil
	}
	return fault.Errorf(fault.Quota, "%s holds %d instances and may hold %d: delete Proxies, or raise maxInstances of provider %s", p.stateDir, n, p.most, p.name)
}

// waitEnded is the error for a context that ended while something was awaited;
// fault.Of tells a deadline (Timeout) from a cancellation.
func waitEnded(ctx context.Context, what string) error {
	class := fault.Transient
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		class = fault.Timeout
	}
	return fault.Errorf(class, "%s: %w", what, ctx.Err())
}

// Reasons of the row that Check returns.
const (
	// ReasonOK: proxies can be made.
	ReasonOK = "OK"
	// ReasonStateDirMissing: the state directory is not there or cannot be read.
	ReasonStateDirMissing = "StateDirMissing"
	// ReasonStateDirReadOnly: it cannot be written.
	ReasonStateDirReadOnly = "StateDirReadOnly"
	// ReasonStateDirFull: it has no space left, or less than 16 MiB.
	ReasonStateDirFull = "StateDirFull"
	// ReasonCommandMissing: the program that runs a proxy is not there.
	ReasonCommandMissing = "CommandMissing"
	// ReasonInstanceLimit: as many instances exist as may.
	ReasonInstanceLimit = "InstanceLimit"
)

// lowSpace is the free space, in bytes, below which Check warns.
const lowSpace = 16 << 20

// Check implements [provider.Checker] with one row, of the host "local": it
// writes and removes a small file in the state directory.
func (p *Provider) Check(ctx context.Context) ([]provider.HostHealth, error) {
	if err := ctx.Err(); err != nil {
		return nil, waitEnded(ctx, "check")
	}
	row := provider.HostHealth{Host: Host, Reason: ReasonOK}
	var st unix.Statfs_t
	if err := unix.Statfs(p.stateDir, &st); err == nil {
		row.FreeBytes = int64(st.Bavail) * st.Bsize
	}
	row.Reason, row.Message = p.health(row.FreeBytes)
	return []provider.HostHealth{row}, nil
}

func (p *Provider) health(free int64) (reason, message string) {
	if err := p.present(); err != nil {
		return ReasonStateDirMissing, err.Error()
	}
	names, err := p.folders()
	if err != nil {
		return ReasonStateDirMissing, err.Error()
	}
	if err := p.tryWrite(); err != nil {
		if fault.Of(err) == fault.Permanent {
			return ReasonStateDirReadOnly, err.Error()
		}
		return ReasonStateDirFull, err.Error()
	}
	if free < lowSpace {
		return ReasonStateDirFull, fmt.Sprintf("%s has %d bytes free: free space there", p.stateDir, free)
	}
	if _, err := os.Stat(p.command[0]); err != nil {
		return ReasonCommandMissing, fmt.Sprintf("%s: %v: restart the operator from the place where its binary is now", p.command[0], err)
	}
	if err := p.room(len(names)); err != nil {
		return ReasonInstanceLimit, err.Error()
	}
	return ReasonOK, fmt.Sprintf("%d instances", len(names))
}

func (p *Provider) tryWrite() error {
	f, err := os.CreateTemp(filepath.Join(p.stateDir, opsDir), ".check-")
	if err != nil {
		return fileFault("write", p.stateDir, err)
	}
	// It loses its name first: an operator that dies here leaves no file.
	err = os.Remove(f.Name())
	_, werr := f.Write(make([]byte, 4096))
	err = errors.Join(err, werr, f.Close())
	if err != nil {
		return fileFault("write", p.stateDir, err)
	}
	return nil
}
