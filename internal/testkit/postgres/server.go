package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// How long the parts may take on a busy machine.
const (
	startTimeout = 60 * time.Second
	stopTimeout  = 20 * time.Second
	tick         = 10 * time.Millisecond
)

// Superuser is the role that tests connect as; anybody on the machine may be it
// through the socket. Over TCP it needs Password.
const (
	Superuser = "postgres"
	Password  = "p@ss/w?rd#1" // every sign of it must be escaped in a URL
)

// Options says what a server has.
type Options struct {
	// TCP makes it listen on a free port of 127.0.0.1 too, where the superuser
	// needs the password.
	TCP bool
	// TLS makes it offer TLS on that port, with a certificate for localhost
	// that [Server.CA] signed.
	TLS bool
	// Settings are lines of postgresql.conf, such as "max_connections": "10".
	Settings map[string]string
	// Binaries is the folder of initdb and postgres; empty means the newest
	// that Debian's packages installed.
	Binaries string
}

// Server is one PostgreSQL server with a cluster of its own. Its methods may be
// called by one goroutine at a time; databases may be made by many at once.
type Server struct {
	opts Options
	bin  string
	dir  string // holds all below
	data string
	sock string
	port int
	cred *syscall.Credential // nil: this process's own
	lock *os.File            // held while this process lives

	serial  atomic.Int64 // of databases
	mu      sync.Mutex
	running *process
}

// process is one run of the server; done is closed when it ended.
type process struct {
	pid  int
	done chan struct{}
}

// New makes a cluster and starts its server, which ends with this process at
// the latest. It works without a test around it; [Server.Close] removes all.
func New(ctx context.Context, o Options) (_ *Server, err error) {
	bin, err := binaries(o.Binaries)
	if err != nil {
		return nil, err
	}
	s := &Server{opts: o, bin: bin, port: 5432}
	if s.cred, err = unprivileged(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if err := s.makeFolders(); err != nil {
		return nil, fmt.Errorf("folder for PostgreSQL: %w", err)
	}
	if o.TCP || o.TLS {
		if s.port, err = freePort(); err != nil {
			return nil, err
		}
	}
	if err := s.initialize(ctx); err != nil {
		return nil, err
	}
	return s, s.Start(ctx)
}

// URL returns the address of a database on the socket, for the superuser.
func (s *Server) URL(database string) string {
	u := url.URL{Scheme: "postgres", User: url.User(Superuser), Path: "/" + database}
	u.RawQuery = url.Values{"host": {s.sock}, "port": {strconv.Itoa(s.port)}}.Encode()
	return u.String()
}

// TCPURL returns the address of a database on the loopback port, for the
// superuser with the password. The server must have been made with TCP or TLS.
func (s *Server) TCPURL(database string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(Superuser, Password), Path: "/" + database}
	u.Host = net.JoinHostPort("localhost", strconv.Itoa(s.port))
	return u.String()
}

// CA returns the path of the certificate (PEM) that signed the server's.
func (s *Server) CA() string { return filepath.Join(s.dir, "ca.pem") }

// Exec runs statements in a database, as the superuser.
func (s *Server) Exec(ctx context.Context, database, statements string) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.URL(database))
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, statements)
	return errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
}

// Create makes a new, empty database.
func (s *Server) Create(ctx context.Context, name string) error {
	if err := s.Exec(ctx, "postgres", "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()); err != nil {
		return fmt.Errorf("make database %s: %w", name, err)
	}
	return nil
}

// Drop removes a database, whoever is connected to it.
func (s *Server) Drop(ctx context.Context, name string) error {
	if err := s.Exec(ctx, "postgres", "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)"); err != nil {
		return fmt.Errorf("remove database %s: %w", name, err)
	}
	return nil
}

// Start starts the server and waits until it answers. One that runs stays.
func (s *Server) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running != nil {
		return nil
	}
	p, err := s.launch()
	if err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	s.running = p
	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		err := s.answers(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			s.running = nil
			return fmt.Errorf("PostgreSQL ended at its start: %s", s.logTail())
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("PostgreSQL does not answer: %w: %s", err, s.logTail()), s.end(syscall.SIGQUIT))
		case <-t.C:
		}
	}
}

func (s *Server) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// Stop ends the server in order: connections are cut, everything is written.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end(syscall.SIGINT)
}

// Kill ends the server and all processes of it at once, as a loss of power
// would, but for what the kernel still holds. Start recovers it.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		return nil
	}
	// Its children made sessions of their own, so no group holds them all.
	// While it is stopped it makes no new ones.
	if err := syscall.Kill(s.running.pid, syscall.SIGSTOP); err != nil {
		return err
	}
	all := children(s.running.pid)
	err := s.end(syscall.SIGKILL)
	for _, pid := range all {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended with its parent
	}
	return errors.Join(err, waitGone(all))
}

// Freeze stops the server's processes in the middle of whatever they do: it
// accepts connections and never answers. The returned function lets them go on.
func (s *Server) Freeze() (thaw func() error, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		return nil, errors.New("freeze PostgreSQL: it does not run")
	}
	pid := s.running.pid
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return nil, err
	}
	all := children(pid)
	for _, child := range all {
		_ = syscall.Kill(child, syscall.SIGSTOP)
	}
	return func() error {
		for _, child := range all {
			_ = syscall.Kill(child, syscall.SIGCONT)
		}
		return syscall.Kill(pid, syscall.SIGCONT)
	}, nil
}

// end sends the signal and waits for the end. The caller holds mu.
func (s *Server) end(sig syscall.Signal) error {
	p := s.running
	if p == nil {
		return nil
	}
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	for {
		if err := syscall.Kill(p.pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
		select {
		case <-p.done:
			s.running = nil
			return nil
		case <-timer.C:
			if sig == syscall.SIGKILL {
				return fmt.Errorf("PostgreSQL (process %d) outlives SIGKILL", p.pid)
			}
			sig = syscall.SIGKILL
			timer.Reset(stopTimeout)
		}
	}
}

// Close ends the server and removes its cluster.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.end(syscall.SIGQUIT) // nothing of it is kept
	if s.dir != "" {
		err = errors.Join(err, os.RemoveAll(s.dir))
	}
	if s.lock != nil {
		_ = s.lock.Close()
	}
	return err
}

// initialize makes the cluster's files.
func (s *Server) initialize(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	pw := filepath.Join(s.dir, "password")
	if err := os.WriteFile(pw, []byte(Password+"\n"), 0o644); err != nil {
		return err
	}
	// What initdb leaves in the kernel's cache is written with the rest.
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, "initdb"), "--pgdata="+s.data, "--username="+Superuser, "--pwfile="+pw,
		"--auth-local=trust", "--auth-host=scram-sha-256", "--locale=C", "--encoding=UTF8", "--no-sync", "--no-instructions")
	s.prepare(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	if s.opts.TLS {
		if err := s.makeCertificates(); err != nil {
			return err
		}
	}
	conf := map[string]string{
		"listen_addresses":        "''",
		"port":                    strconv.Itoa(s.port),
		"unix_socket_directories": quote(s.sock),
		"timezone":                "'UTC'",
		"log_timezone":            "'UTC'",
	}
	if s.opts.TCP || s.opts.TLS {
		conf["listen_addresses"] = "'127.0.0.1'"
	}
	if s.opts.TLS {
		conf["ssl"] = "on"
		conf["ssl_cert_file"] = quote(filepath.Join(s.data, "server.pem"))
		conf["ssl_key_file"] = quote(filepath.Join(s.data, "server.key"))
	}
	for k, v := range s.opts.Settings {
		conf[k] = quote(v)
	}
	var lines []string
	for k, v := range conf {
		lines = append(lines, k+" = "+v+"\n")
	}
	slices.Sort(lines)
	f, err := os.OpenFile(filepath.Join(s.data, "postgresql.conf"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(strings.Join(lines, ""))
	return errors.Join(err, f.Close())
}

func quote(v string) string { return "'" + strings.ReplaceAll(v, "'", "''") + "'" }

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}
