// Package postgres gives tests a real PostgreSQL server.
//
// Each has a cluster of its own in a temporary folder, made by the binaries of
// Debian's package postgresql; a server that the machine runs anyway is not
// touched. It writes as safely as in production (fsync). One server serves all
// tests of a test binary, and starts when the first test asks for it:
//
//	var server = postgres.Shared(postgres.Options{})
//
//	func TestMain(m *testing.M) { os.Exit(server.Run(m)) }
//
//	func TestSomething(t *testing.T) {
//		url := server.Database(t)
//
// With leak checks: goleak.VerifyTestMain(server.Around(m)). A test that stops
// or kills its server starts one with [Private].
package postgres

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"strings"
	"sync"
	"testing"
)

// Cluster is one server for all tests of a test binary.
type Cluster struct {
	opts Options

	once   sync.Once
	server *Server
	err    error
}

// Shared returns a cluster whose server starts when the first test asks for it.
// Run or Around must be called by TestMain, to stop it.
func Shared(o Options) *Cluster { return &Cluster{opts: o} }

// Run runs the tests, stops the server, and returns the exit code.
func (c *Cluster) Run(m interface{ Run() int }) int {
	code := m.Run()
	if err := c.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop PostgreSQL:", err)
		return max(code, 1)
	}
	return code
}

// Around returns an m that stops the server when its tests are over, for those
// who check something after that.
func (c *Cluster) Around(m interface{ Run() int }) interface{ Run() int } { return around{c, m} }

type around struct {
	c *Cluster
	m interface{ Run() int }
}

func (a around) Run() int { return a.c.Run(a.m) }

// Server returns the running server. The test ends when there is none.
func (c *Cluster) Server(t testing.TB) *Server {
	t.Helper()
	c.once.Do(func() { c.server, c.err = New(context.Background(), c.opts) })
	if c.err != nil {
		t.Fatal(c.err)
	}
	return c.server
}

// Database makes an empty database for this test and returns its URL.
func (c *Cluster) Database(t testing.TB) string {
	t.Helper()
	return c.Server(t).Database(t)
}

func (c *Cluster) stop() error {
	c.once.Do(func() { c.err = errors.New("no PostgreSQL for tests: they are over") })
	if c.server == nil {
		return nil
	}
	return c.server.Close()
}

// Private starts a server for one test, which may do with it what it likes, and
// ends it with the test.
func Private(t testing.TB, o Options) *Server {
	t.Helper()
	s, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("stop PostgreSQL: %v", err)
		}
	})
	return s
}

// Database makes an empty database for this test and returns its URL. It is
// removed with the server.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	name := databaseName(t.Name(), s.serial.Add(1))
	if err := s.Create(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	return s.URL(name)
}

// databaseName makes a name of at most 63 bytes that a person can match to the
// test, and that no two calls share.
func databaseName(test string, n int64) string {
	var b strings.Builder
	for _, r := range strings.ToLower(strings.TrimPrefix(test, "Test")) {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			b.WriteRune(r)
		} else {
			b.WriteByte('_')
		}
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(test))
	tail := fmt.Sprintf("_%08x_%d", h.Sum32(), n)
	head := "t_" + b.String()
	return head[:min(len(head), 63-len(tail))] + tail
}
