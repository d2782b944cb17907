package servecmd_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"fleetdesk/client"
	"fleetdesk/internal/qasight/cli/command"
	"fleetdesk/internal/qasight/cli/servecmd"
	"fleetdesk/internal/testkit/postgres"
)

var database = postgres.Shared(postgres.Options{})

func TestMain(m *testing.M) { goleak.VerifyTestMain(database.Around(m)) }

const patience = 30 * time.Second

func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if cond() {
			return
		}
	}
	t.Fatalf("%s: still not after %s", what, patience)
}

// process is one run of a command in this process.
type process struct {
	dir     string
	out     string // path of its standard output
	err     string
	signals chan os.Signal
	done    chan error
}

// terminal has the command take its standard output for a terminal.
func terminal(f *command.Factory) { f.Streams.OutTerminal = true }

// run runs a command until it ends by itself, or by a signal.
func run(t *testing.T, dir string, args []string, change ...func(*command.Factory)) *process {
	t.Helper()
	p := &process{dir: dir, signals: make(chan os.Signal, 4), done: make(chan error, 1)}
	file := func(pattern string) *os.File {
		f, err := os.CreateTemp(t.TempDir(), pattern)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	out, errors, in := file("out"), file("err"), file("in")
	p.out, p.err = out.Name(), errors.Name()
	f := &command.Factory{Program: command.Program{
		Environ: []string{"HOME=" + dir, "XDG_STATE_HOME=" + dir + "/state", "XDG_CONFIG_HOME=" + dir + "/config"},
		Signals: p.signals,
		Streams: command.Streams{In: in, Out: out, Err: errors},
	}}
	for _, c := range change {
		c(f)
	}
	root := &cobra.Command{Use: "qasight", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(servecmd.New(f)...)
	root.SetArgs(args)
	go func() { p.done <- root.ExecuteContext(context.Background()) }()
	return p
}

func (p *process) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-p.done:
		p.done <- err // for whoever asks again
		return err
	case <-time.After(patience):
		t.Fatalf("it does not end:\n%s", read(t, p.err))
		return nil
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// server is a running team server.
type server struct {
	*process
	url string
	// token is that of the first admin.
	token client.Token
	stop  func()
}

// start starts a server on any free port, and ends it with the test.
func start(t *testing.T, dir string, args []string, change ...func(*command.Factory)) *server {
	t.Helper()
	address := filepath.Join(dir, "address")
	s := &server{process: run(t, dir, append([]string{"server", "--listen", "127.0.0.1:0", "--address-file", address}, args...), change...)}
	s.stop = sync.OnceFunc(func() {
		s.signals <- syscall.SIGTERM
		if err := s.wait(t); err != nil {
			t.Errorf("the server ended with %v:\n%s", err, read(t, s.err))
		}
	})
	t.Cleanup(s.stop)
	until(t, "the server listens", func() bool {
		select {
		case err := <-s.done:
			s.done <- err
			t.Fatalf("the server ended with %v:\n%s", err, read(t, s.err))
		default:
		}
		text, err := os.ReadFile(address)
		s.url = strings.TrimSpace(string(text))
		return err == nil
	})
	s.token = clientToken(t, filepath.Join(dir, "state/qasight/server/admin-token"))
	return s
}

// ask sends a request and returns status and body.
func (s *server) ask(t *testing.T, method, path, body string) (int, string) {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true}
	r, err := http.NewRequestWithContext(t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+string(s.token))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := (&http.Client{Transport: transport, Timeout: patience}).Do(r)
	if err != nil {
		t.Errorf("%s %s: %v", method, path, err)
		return 0, ""
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	if _, err := io.Copy(&b, resp.Body); err != nil {
		t.Errorf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode, b.String()
}

// clientToken is the token that a file holds.
func clientToken(t *testing.T, file string) client.Token {
	t.Helper()
	return client.Token(strings.TrimSpace(read(t, file)))
}
