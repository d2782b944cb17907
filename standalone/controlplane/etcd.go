package controlplane

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"

	"fleetdesk/internal/core/fault"
)

const (
	// socketPrefix starts the name of each folder of sockets that we make.
	socketPrefix = "fleetdesk-etcd-"
	// socketNote is the file in the data directory that names the folder, so
	// that the start after a kill -9 can remove it.
	socketNote = "etcd-sockets"
	// storeQuota is when etcd refuses writes rather than fill the disk.
	storeQuota = 2 << 30
)

// store is a running etcd.
type store struct {
	// endpoint is the URL of its unix socket.
	endpoint string
	// failed yields the error of an etcd that stopped by itself.
	failed <-chan error
	stop   func()
}

// startEtcd starts a single etcd member that listens on unix sockets only, in
// a folder that nobody else can enter.
func startEtcd(ctx context.Context, dataDir string, log *slog.Logger) (*store, error) {
	dir := filepath.Join(dataDir, "etcd")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fileFault(fmt.Errorf("make etcd's folder: %w", err))
	}
	sockets, err := makeSocketDir(dataDir)
	if err != nil {
		return nil, err
	}
	removeSockets := func() {
		_ = os.RemoveAll(sockets)
		_ = os.Remove(filepath.Join(dataDir, socketNote))
	}

	cfg := embed.NewConfig()
	cfg.Name = "standalone"
	cfg.Dir = dir
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zapLogger(log))
	client := url.URL{Scheme: "unix", Path: filepath.Join(sockets, "c.sock")}
	peer := url.URL{Scheme: "unix", Path: filepath.Join(sockets, "p.sock")}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.Name + "=" + peer.String()
	cfg.AutoCompactionMode = "revision"
	cfg.AutoCompactionRetention = "1000"
	cfg.QuotaBackendBytes = storeQuota
	// A single member has nobody to wait for.
	cfg.TickMs, cfg.ElectionMs = 20, 200

	e, err := embed.StartEtcd(cfg)
	if err != nil {
		removeSockets()
		return nil, fileFault(fmt.Errorf("start etcd in %s: %w", dir, err))
	}
	stop := func() { e.Close(); removeSockets() }
	select {
	case <-e.Server.ReadyNotify():
		return &store{endpoint: client.String(), failed: e.Err(), stop: stop}, nil
	case err = <-e.Err():
		err = fileFault(err)
	case <-e.Server.StopNotify():
		err = fault.New(fault.Unavailable, "it stopped while starting")
	case <-ctx.Done():
		err = fault.Wrap(fault.Transient, ctx.Err())
	case <-time.After(etcdStartTimeout):
		err = fault.Errorf(fault.Timeout, "not ready within %s", etcdStartTimeout)
	}
	stop()
	return nil, fmt.Errorf("start etcd in %s: %w", dir, err)
}

// makeSocketDir makes a folder for the sockets in the temp folder, since the
// path of a unix socket has at most 107 bytes and a data directory may well be
// deeper. It first removes the folder that a killed predecessor left.
func makeSocketDir(dataDir string) (string, error) {
	note := filepath.Join(dataDir, socketNote)
	if b, err := os.ReadFile(note); err == nil {
		removeStaleSockets(strings.TrimSpace(string(b)))
	}
	dir, err := os.MkdirTemp("", socketPrefix)
	if err != nil {
		return "", fileFault(fmt.Errorf("make a folder for etcd's sockets: %w", err))
	}
	if longest := filepath.Join(dir, "c.sock"); len(longest) > 107 {
		_ = os.Remove(dir)
		return "", fault.Errorf(fault.Permanent, "the path of etcd's socket %s is longer than 107 bytes: set TMPDIR to a shorter folder", longest)
	}
	if err := writeFileAtomic(note, []byte(dir+"\n"), 0o600); err != nil {
		_ = os.Remove(dir)
		return "", err
	}
	return dir, nil
}

// removeStaleSockets removes dir if it can only be one of ours: the name that
// we give, a real folder, of this user. The caller holds the lock of the data
// directory, so nobody lives in it.
func removeStaleSockets(dir string) {
	if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir || !strings.HasPrefix(filepath.Base(dir), socketPrefix) {
		return
	}
	fi, err := os.Lstat(dir)
	if err != nil || !fi.IsDir() {
		return
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != os.Geteuid() {
		return
	}
	_ = os.RemoveAll(dir)
}
