package operator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"fleetdesk/internal/core/fault"
)

// script is a control plane and an operator that do as a test says, and note
// what happens to them.
type script struct {
	cfg *rest.Config
	at  Endpoints
	// failControl and failOperator end the part with an error: before it is
	// ready, or when the channel yields.
	failControl, failOperator     error
	breakControl, breakOperator   chan error
	silentControl, silentOperator bool

	mu   sync.Mutex
	seen []string
}

func (s *script) note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, what)
}

func (s *script) notes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

func (s *script) control(ctx context.Context, o ControlPlaneOptions, ready func(*rest.Config)) error {
	s.note("control starts")
	defer s.note("control ends")
	if s.failControl != nil {
		return s.failControl
	}
	if err := os.WriteFile(o.Kubeconfig, []byte("kubeconfig"), 0o600); err != nil {
		return err
	}
	if !s.silentControl {
		ready(s.cfg)
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-s.breakControl:
		return err
	}
}

func (s *script) operator(ctx context.Context, _ *rest.Config, o Options) error {
	s.note("operator starts")
	defer s.note("operator ends")
	if s.failOperator != nil {
		return s.failOperator
	}
	if !s.silentOperator {
		at := s.at
		at.API = "http://" + o.APIBind
		at.AdminTokenFile = filepath.Join(o.StateDir, "admin-token")
		if err := os.WriteFile(at.AdminTokenFile, []byte("sesame\n"), 0o600); err != nil {
			return err
		}
		o.Ready(at)
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-s.breakOperator:
		return err
	}
}

// buffer is a stream that a test reads while others write.
type buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// started is a running standalone.
type started struct {
	o        StandaloneOptions
	out, err *buffer
	stop     context.CancelFunc
	done     chan error
}

func startStandalone(t *testing.T, s *script, change func(*StandaloneOptions, *Streams)) *started {
	t.Helper()
	if s.cfg == nil {
		// Nobody is there: what asks this API fails at once.
		s.cfg = &rest.Config{Host: "http://127.0.0.1:1"}
	}
	r := &started{out: &buffer{}, err: &buffer{}, done: make(chan error, 1)}
	r.o = StandaloneOptions{
		Operator: Defaults(),
		DataDir:  filepath.Join(t.TempDir(), "data"), Bind: "127.0.0.1", Port: port(t), APIPort: port(t), Kubectl: "kubectl",
	}
	streams := Streams{Out: r.out, Err: r.err}
	if change != nil {
		change(&r.o, &streams)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r.stop = cancel
	go func() { r.done <- runStandalone(ctx, r.o, streams, s.control, s.operator) }()
	t.Cleanup(cancel)
	return r
}

func (r *started) end(t *testing.T) error {
	t.Helper()
	r.stop()
	return r.wait(t)
}

func (r *started) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-r.done:
		return err
	case <-time.After(40 * time.Second):
		t.Fatal("it does not end")
		return nil
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(30 * time.Second); !ok(); {
		select {
		case <-tick.C:
		case <-end:
			t.Fatal("never: " + what)
		}
	}
}

func port(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

func TestStandaloneStopsPartByPart(t *testing.T) {
	s := &script{at: Endpoints{Origin: "http://127.0.0.1:2"}}
	r := startStandalone(t, s, nil)
	file := filepath.Join(r.o.DataDir, "endpoints.json")
	eventually(t, "endpoints.json", func() bool { _, err := os.Stat(file); return err == nil })
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got endpoints
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	got.APIReadySeconds = 0
	want := endpoints{
		PID: os.Getpid(), Kubeconfig: filepath.Join(r.o.DataDir, "kubeconfig"), KubernetesURL: s.cfg.Host,
		APIURL: "http://127.0.0.1:" + strconv.Itoa(r.o.APIPort), OriginURL: s.at.Origin,
		TokenFile: filepath.Join(r.o.DataDir, "admin-token"),
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	modes := map[string]os.FileMode{".": 0o700, "endpoints.json": 0o600, "lock": 0o600, "FORMAT": 0o600}
	for name, want := range modes {
		fi, err := os.Stat(filepath.Join(r.o.DataDir, name))
		if err != nil || fi.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want mode %o", name, fi.Mode(), err, want)
		}
	}
	if err := r.end(t); err != nil {
		t.Errorf("a clean stop returns %v", err)
	}
	order := []string{"control starts", "operator starts", "operator ends", "control ends"}
	if d := cmp.Diff(order, s.notes()); d != "" {
		t.Errorf("the operator needs the API until its end: %s", d)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Error("endpoints.json tells of a process that is gone")
	}
	if d, err := claimData(r.o.DataDir); err != nil {
		t.Errorf("the data folder is not free after the stop: %v", err)
	} else {
		d.release()
	}
}

func TestStandaloneEnds(t *testing.T) {
	boom := fault.New(fault.Unavailable, "boom")
	cases := map[string]struct {
		reason string
		script *script
		// act waits for a moment and does something; then the run must end.
		act   func(t *testing.T, s *script, r *started)
		says  string
		class fault.Class
	}{
		"API does not start":      {"the error of the part is the error of the program", &script{failControl: boom}, nil, "the Kubernetes API: boom", fault.Unavailable},
		"operator does not start": {"the API server must not stay behind", &script{failOperator: boom}, nil, "the operator: boom", fault.Unavailable},
		"API breaks later": {
			"an operator without an API does nothing", &script{breakControl: make(chan error)},
			func(t *testing.T, s *script, r *started) { ready(t, r); s.breakControl <- boom }, "the Kubernetes API: boom", fault.Unavailable,
		},
		"operator breaks later": {
			"an API without an operator looks alive and is not", &script{breakOperator: make(chan error)},
			func(t *testing.T, s *script, r *started) { ready(t, r); s.breakOperator <- boom }, "the operator: boom", fault.Unavailable,
		},
		"operator ends in silence": {
			"a part that ends without an error still ended", &script{breakOperator: make(chan error)},
			func(t *testing.T, s *script, r *started) { ready(t, r); s.breakOperator <- nil }, "stopped by itself", fault.Unavailable,
		},
		"signal while the API starts": {
			"a person who changes his mind gets a clean stop", &script{silentControl: true},
			func(t *testing.T, s *script, r *started) {
				eventually(t, "start", func() bool { return len(s.notes()) == 1 })
				r.stop()
			}, "", "",
		},
		"signal while the operator starts": {
			"the same, a moment later", &script{silentOperator: true},
			func(t *testing.T, s *script, r *started) {
				eventually(t, "start", func() bool { return len(s.notes()) == 2 })
				r.stop()
			}, "", "",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r := startStandalone(t, c.script, nil)
			if c.act != nil {
				c.act(t, c.script, r)
			}
			err := r.wait(t)
			if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("ended with %v, want %q: %s", err, c.says, c.reason)
			}
			if fault.Of(err) != c.class {
				t.Errorf("class %q, want %q", fault.Of(err), c.class)
			}
			starts, ends := 0, 0
			for _, n := range c.script.notes() {
				if strings.HasSuffix(n, "starts") {
					starts++
				} else {
					ends++
				}
			}
			if starts != ends {
				t.Errorf("%d parts started and %d ended: %s", starts, ends, c.reason)
			}
		})
	}
}

func ready(t *testing.T, r *started) {
	t.Helper()
	eventually(t, "ready", func() bool {
		return strings.Contains(r.err.String(), "ready\n") && strings.Contains(r.out.String(), "Admin token")
	})
}

func TestStandaloneShowsTheTokenOnceAndToATerminalOnly(t *testing.T) {
	cases := map[string]struct {
		reason          string
		terminal, fresh bool
		shown           bool
	}{
		"terminal, new":   {"a person needs it once", true, true, true},
		"pipe, new":       {"what goes to a pipe ends up in a log", false, true, false},
		"terminal, known": {"it was shown once", true, false, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r := startStandalone(t, &script{at: Endpoints{NewAdminToken: c.fresh}},
				func(_ *StandaloneOptions, s *Streams) { s.OutIsTerminal = c.terminal })
			ready(t, r)
			if err := r.end(t); err != nil {
				t.Error(err)
			}
			if strings.Contains(r.out.String(), "sesame") != c.shown || strings.Contains(r.err.String(), "sesame") {
				t.Errorf("shown is not %v: %s\n%s", c.shown, c.reason, r.out)
			}
			if !strings.Contains(r.out.String(), filepath.Join(r.o.DataDir, "admin-token")) {
				t.Error("the token's file is not named")
			}
		})
	}
}

func TestStandaloneRefusesAndTouchesNothing(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Close() }()
	taken := busy.Addr().(*net.TCPAddr).Port
	mkdir := func(t *testing.T, dir string, files map[string]string) {
		t.Helper()
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	cases := map[string]struct {
		reason string
		change func(t *testing.T, o *StandaloneOptions)
		says   []string
		class  fault.Class
	}{
		"port in use":     {"two starts with default flags", func(_ *testing.T, o *StandaloneOptions) { o.Port = taken }, []string{strconv.Itoa(taken), "--port"}, fault.Conflict},
		"API port in use": {"8700 is somebody else's", func(_ *testing.T, o *StandaloneOptions) { o.APIPort = taken }, []string{strconv.Itoa(taken), "--api-port"}, fault.Conflict},
		"origin in use": {"the same for the third port", func(_ *testing.T, o *StandaloneOptions) {
			o.Operator.OriginBind = fmt.Sprint("127.0.0.1:", taken)
		}, []string{strconv.Itoa(taken), "--origin-bind-address"}, fault.Conflict},
		"one port twice":  {"a typo", func(_ *testing.T, o *StandaloneOptions) { o.APIPort = o.Port }, []string{"--port", "--api-port"}, fault.Invalid},
		"foreign address": {"an address of another machine", func(_ *testing.T, o *StandaloneOptions) { o.Bind = "192.0.2.1" }, []string{"192.0.2.1", "--bind"}, fault.Invalid},
		"name":            {"names resolve to several addresses", func(_ *testing.T, o *StandaloneOptions) { o.Bind = "localhost" }, []string{"--bind"}, fault.Invalid},
		"newer data": {"an older program must not touch what it does not know", func(t *testing.T, o *StandaloneOptions) {
			mkdir(t, o.DataDir, map[string]string{"FORMAT": "2\n", "secret": "x"})
		}, []string{"newer version", "format 2"}, fault.Permanent},
		"damaged format": {"nobody knows what is in there", func(t *testing.T, o *StandaloneOptions) {
			mkdir(t, o.DataDir, map[string]string{"FORMAT": "\x00"})
		}, []string{"FORMAT", "backup"}, fault.Permanent},
		"somebody's folder": {"--data-dir=$HOME by mistake", func(t *testing.T, o *StandaloneOptions) {
			mkdir(t, o.DataDir, map[string]string{"thesis.odt": "x"})
		}, []string{"not empty", "thesis.odt"}, fault.Invalid},
		"open to all": {"whoever may write replaces the keys of the administrator", func(t *testing.T, o *StandaloneOptions) {
			mkdir(t, o.DataDir, map[string]string{"FORMAT": "1\n"})
			chmod(t, o.DataDir, 0o777)
		}, []string{"0777", "chmod 700 ", "--data-dir"}, fault.Permanent},
		"open to the group": {"an empty folder fares no better: files may come between look and claim", func(t *testing.T, o *StandaloneOptions) {
			mkdir(t, o.DataDir, nil)
			chmod(t, o.DataDir, 0o720)
		}, []string{"0720", "chmod 700 "}, fault.Permanent},
		"temp folder": {"nobody must be told to close a folder that is for all", func(t *testing.T, o *StandaloneOptions) {
			mkdir(t, o.DataDir, map[string]string{"x": ""})
			chmod(t, o.DataDir, 0o777|os.ModeSticky)
		}, []string{"not empty"}, fault.Invalid},
		"a file": {"a typo", func(t *testing.T, o *StandaloneOptions) {
			mkdir(t, filepath.Dir(o.DataDir), map[string]string{filepath.Base(o.DataDir): ""})
		}, []string{"is a file"}, fault.Invalid},
		"unwritable": {"a folder below a file can never be made, not even by root", func(t *testing.T, o *StandaloneOptions) {
			mkdir(t, filepath.Dir(o.DataDir), map[string]string{"file": ""})
			o.DataDir = filepath.Join(filepath.Dir(o.DataDir), "file", "data")
		}, []string{"cannot be used", "--data-dir"}, fault.Permanent},
		"providers": {"a typo in the file must not cost a start of an API server", func(_ *testing.T, o *StandaloneOptions) {
			o.Operator.ProvidersConfig = "/nonexistent.yaml"
		}, []string{"--providers-config"}, fault.Invalid},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := &script{}
			var before map[string]string
			r := startStandalone(t, s, func(o *StandaloneOptions, _ *Streams) {
				c.change(t, o)
				before = tree(t, o.DataDir)
			})
			err := r.wait(t)
			for _, want := range c.says {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want it to say %q: %s", err, want, c.reason)
				}
			}
			if fault.Of(err) != c.class {
				t.Errorf("class %q, want %q", fault.Of(err), c.class)
			}
			if d := cmp.Diff(before, tree(t, r.o.DataDir)); d != "" {
				t.Errorf("touched something: %s", d)
			}
			if len(s.notes()) > 0 {
				t.Errorf("started something: %v", s.notes())
			}
		})
	}
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func TestDataFolderOfAnotherUser(t *testing.T) {
	dir := t.TempDir()
	chmod(t, dir, 0o700)
	fi, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := oursAlone(dir, fi, os.Geteuid()); err != nil {
		t.Error(err)
	}
	err = oursAlone(dir, fi, os.Geteuid()+1)
	if fault.Of(err) != fault.Permanent || !strings.Contains(err.Error(), "--data-dir") {
		t.Errorf("its owner can read all keys: got %v", err)
	}
	if os.Geteuid() != 0 {
		return // only root can give a folder away
	}
	if err := os.Chown(dir, 65534, -1); err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func() error{
		"inspect": func() error { return inspectData(dir) },
		"claim":   func() error { _, err := claimData(dir); return err },
	} {
		if err := f(); fault.Of(err) != fault.Permanent || !strings.Contains(err.Error(), "uid 65534") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := tree(t, dir); len(got) > 0 {
		t.Errorf("touched something: %v", got)
	}
}

func TestClaimClosesTheFolder(t *testing.T) {
	dir := t.TempDir()
	chmod(t, dir, 0o755)
	if err := inspectData(dir); err != nil {
		t.Fatalf("a folder that others may only read: %v", err)
	}
	d, err := claimData(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.release()
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v: others may read the names of what is kept", fi.Mode(), err)
	}
	chmod(t, dir, 0o777)
	if _, err := claimData(dir); fault.Of(err) != fault.Permanent {
		t.Errorf("a folder that was opened after the look is claimed: %v", err)
	}
}

// tree returns the names and contents below dir; nil when it is not there.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	m := map[string]string{}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		m[e.Name()] = string(b)
	}
	return m
}

func TestStandaloneSaysWhoHoldsTheData(t *testing.T) {
	first := startStandalone(t, &script{}, nil)
	ready(t, first)
	second := startStandalone(t, &script{}, func(o *StandaloneOptions, _ *Streams) {
		// With default flags the ports are taken too: the folder is the better news.
		o.DataDir, o.Port, o.APIPort = first.o.DataDir, first.o.Port, first.o.APIPort
	})
	err := second.wait(t)
	if fault.Of(err) != fault.Conflict {
		t.Fatalf("a second start on one folder: %v", err)
	}
	for _, want := range []string{first.o.DataDir, "process " + strconv.Itoa(os.Getpid())} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	if err := first.end(t); err != nil {
		t.Error(err)
	}
}

func TestPartSaysThatItDoesNotStop(t *testing.T) {
	release := make(chan struct{})
	p := startPart(t.Context(), func(context.Context, func(int)) error { <-release; return errors.New("late") })
	err := p.stop("the part", time.Millisecond)
	if fault.Of(err) != fault.Timeout || !strings.Contains(err.Error(), "the part did not stop") {
		t.Errorf("got %v: a stop that hangs must end", err)
	}
	close(release)
	<-p.done
}
