package httpd

import (
	"crypto/tls"
	"log/slog"
	"os"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
)

func tlsConfig(o Options) (*tls.Config, error) {
	c := &certificate{files: o.TLS, log: o.Log}
	if err := c.load(); err != nil {
		return nil, fault.Errorf(fault.Permanent, "TLS files %s and %s: %w: check %s and %s",
			o.TLS.Cert, o.TLS.Key, err, o.Flags.tlsCert(), o.Flags.tlsKey())
	}
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current(), nil },
	}, nil
}

// certificate keeps the pair in force. It looks at the files on a handshake,
// which needs no watcher and sees the symlink swaps of mounted Secrets.
type certificate struct {
	files TLSFiles
	log   *slog.Logger

	mu      sync.Mutex
	pair    *tls.Certificate
	loaded  stamp
	refused stamp
}

// stamp is what tells one version of the two files from another.
type stamp struct {
	cert, key fileStamp
}

type fileStamp struct {
	modified time.Time
	size     int64
	mode     os.FileMode
}

// current returns the pair for a handshake. Files that cannot be used (one of
// the two is not yet written) leave the previous pair in force, with one
// warning per version of the files.
func (c *certificate) current() *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, err := c.stat()
	if err == nil && now == c.loaded {
		return c.pair
	}
	if err == nil {
		if err = c.loadLocked(); err == nil {
			c.log.Info("TLS certificate read again", "file", c.files.Cert)
			return c.pair
		}
	}
	if now != c.refused {
		c.log.Warn("TLS files changed and cannot be used; the previous certificate stays",
			"file", c.files.Cert, "error", err)
	}
	c.refused = now
	return c.pair
}

func (c *certificate) load() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.loadLocked()
}

// loadLocked takes the stamp before it reads: a change in between is seen as a
// new version next time.
func (c *certificate) loadLocked() error {
	s, err := c.stat()
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(c.files.Cert, c.files.Key)
	if err != nil {
		return err
	}
	c.pair, c.loaded = &pair, s
	return nil
}

func (c *certificate) stat() (stamp, error) {
	var s stamp
	for _, f := range []struct {
		path string
		into *fileStamp
	}{{c.files.Cert, &s.cert}, {c.files.Key, &s.key}} {
		info, err := os.Stat(f.path)
		if err != nil {
			return stamp{}, err
		}
		*f.into = fileStamp{info.ModTime(), info.Size(), info.Mode()}
	}
	return s, nil
}
