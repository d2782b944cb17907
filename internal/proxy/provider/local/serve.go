package local

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"fleetdesk/internal/core/fault"
)

const (
	// watchEvery is how often a child looks for its state file.
	watchEvery = 300 * time.Millisecond
	// maxLog bounds what a child writes to its log, in bytes.
	maxLog = 256 << 10
)

// Serve is the main function of a proxy process: it serves until ctx ends, the
// state file vanishes or the state file names another run. The caller ends ctx
// on SIGTERM. args are what Provider appended to Options.Command:
//
//	--state <path>  the instance's state.json
//	--lock-fd <n>   the open and locked lock file of the same folder
//	--listen-fd <n> the socket that listens on the state's address and port
//
// A proxy process is started by a Provider alone: without the two descriptors
// it refuses. It keeps the lock also after it returned, until the process ends. stderr gets at most about 256 KiB of log.
func Serve(ctx context.Context, args []string, stderr io.Writer) error {
	flags := flag.NewFlagSet("local-proxy", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	state := flags.String("state", "", "path of state.json")
	lockFD := flags.Int("lock-fd", -1, "descriptor of the locked lock file")
	listenFD := flags.Int("listen-fd", -1, "descriptor of the listening socket")
	if err := flags.Parse(args); err != nil {
		return fault.Wrap(fault.Invalid, err)
	}
	if flags.NArg() > 0 || !filepath.IsAbs(*state) || *lockFD < 3 || *listenFD < 3 {
		return fault.New(fault.Invalid, "this command is started by the local provider alone; it needs --state, --lock-fd and --listen-fd")
	}
	log := slog.New(slog.NewTextHandler(&bounded{w: stderr, left: maxLog}, nil))
	c := &child{path: *state, dir: filepath.Dir(*state)}
	if err := c.open(*lockFD, *listenFD); err != nil {
		return err
	}
	defer c.ln.Close()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := c.announce(); err != nil {
		return err
	}
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel(nil)
	group.Go(func() { c.watch(ctx, cancel) })
	log.Info("serving", "address", c.rec.Address, "port", c.rec.Port, "run", c.rec.Run)
	err := newForward(c.forwardConfig(log)).serve(ctx, c.ln)
	log.Info("ended", "cause", context.Cause(ctx))
	return err
}

// child is a proxy process's view of its own folder.
type child struct {
	path, dir string
	rec       *record
	lockFD    int
	ln        net.Listener
	auth      *verifier
}

// open reads the folder and takes over the inherited descriptors.
func (c *child) open(lockFD, listenFD int) (err error) {
	name := filepath.Base(c.dir)
	if c.rec, err = readRecord(c.path, name); err != nil {
		return fileFault("read", c.path, err)
	}
	if c.rec.Auth {
		c.auth = new(verifier)
		path := filepath.Join(c.dir, authFile)
		if err := readJSON(path, c.auth); err != nil {
			return fileFault("read", path, err)
		}
		if !c.auth.valid() {
			return fault.Errorf(fault.Permanent, "%s: %w", path, errTorn)
		}
	}
	lockPath := filepath.Join(c.dir, lifeFile)
	// The descriptor itself is never closed, here or by a finalizer: the lock
	// ends with the process and not before, or Delete would answer Gone while
	// the process is still there.
	c.lockFD = lockFD
	unix.CloseOnExec(lockFD)
	dup, err := unix.FcntlInt(uintptr(lockFD), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return fault.Errorf(fault.Permanent, "descriptor %d is not open: %w", lockFD, err)
	}
	lock := os.NewFile(uintptr(dup), lockPath)
	defer lock.Close()
	if !sameFile(lock, lockPath) {
		return fault.Errorf(fault.Permanent, "descriptor %d is not %s", lockFD, lockPath)
	}
	// For the inherited open file this changes nothing; it fails for any other.
	if got, err := tryLock(lock); err != nil || !got {
		return fault.Errorf(fault.Conflict, "%s is held by another process", lockPath)
	}
	unix.CloseOnExec(listenFD)
	sock := os.NewFile(uintptr(listenFD), "listening socket")
	defer sock.Close()
	if c.ln, err = net.FileListener(sock); err != nil {
		return fault.Errorf(fault.Permanent, "descriptor %d does not listen: %w", listenFD, err)
	}
	want := c.endpoint()
	if at, ok := c.ln.Addr().(*net.TCPAddr); !ok || at.AddrPort() != want {
		_ = c.ln.Close()
		return fault.Errorf(fault.Permanent, "the socket listens on %s and the state says %s", c.ln.Addr(), want)
	}
	return nil
}

func (c *child) endpoint() netip.AddrPort {
	return netip.AddrPortFrom(c.rec.Address, uint16(c.rec.Port))
}

// announce writes child.json: this process serves.
func (c *child) announce() error {
	ticks, err := startTicks(os.Getpid())
	if err != nil {
		return fault.Errorf(fault.Transient, "own start time: %w", err)
	}
	return writeJSON(c.dir, childFile, run{
		Format: format, Owner: c.rec.Owner, Run: c.rec.Run,
		Address: c.rec.Address, Port: c.rec.Port,
		PID: os.Getpid(), StartTicks: ticks, LockFD: c.lockFD,
	})
}

var (
	errStateVanished = errors.New("the state file vanished")
	errOtherRun      = errors.New("the state file names another run")
)

// watch ends the process when its state file vanishes or is another run's. A
// file that is there and cannot be read is no order to end.
func (c *child) watch(ctx context.Context, end context.CancelCauseFunc) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	var seen os.FileInfo
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now, err := os.Stat(c.path)
		if errors.Is(err, fs.ErrNotExist) {
			end(errStateVanished)
			return
		}
		// Files are replaced, never written in place: the same file again is
		// the same run.
		if err != nil || seen != nil && os.SameFile(seen, now) && seen.ModTime().Equal(now.ModTime()) {
			continue
		}
		rec, err := readRecord(c.path, filepath.Base(c.dir))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			end(errStateVanished)
			return
		case err != nil:
		case rec.Run != c.rec.Run:
			end(errOtherRun)
			return
		default:
			seen = now
		}
	}
}

func (c *child) forwardConfig(log *slog.Logger) forwardConfig {
	cfg := defaultForward()
	cfg.self, cfg.auth, cfg.log = c.endpoint(), c.auth, log
	// Each client may need a second descriptor for its target.
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil && limit.Cur/2 < uint64(cfg.maxClients)+32 {
		cfg.maxClients = max(16, int(limit.Cur/2)-32)
	}
	return cfg
}

// bounded writes up to its limit and then drops, so that a log cannot fill the
// disk; what is dropped counts as written.
type bounded struct {
	mu   sync.Mutex
	w    io.Writer
	left int
}

func (b *bounded) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left <= 0 {
		return len(p), nil
	}
	if b.left -= len(p); b.left <= 0 {
		_, err := fmt.Fprintf(b.w, "%s[the log is full: nothing more is written until the next start]\n", p)
		return len(p), err
	}
	return b.w.Write(p)
}
