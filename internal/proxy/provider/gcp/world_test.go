package gcp_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	compute "google.golang.org/api/compute/v1"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/gcp"
	"fleetdesk/internal/proxy/provider/providertest"
	"fleetdesk/internal/testkit/gcefake"
)

const (
	tag  = "2f6c0a4e-0000-4000-8000-000000000001/fleet"
	port = 43128
	// userData is looked for in texts.
	userData = "#cloud-config\npassword: canary-7f3e-user-data\n"
)

// world is one fake project and the section of a provider over it.
type world struct {
	*gcefake.Server
	section gcp.Section
	limit   time.Duration
	logged  lines

	mu     sync.Mutex
	secret provider.Secret
	err    error
	ahead  time.Duration
}

// newWorld starts a project; with processes each proxy is a process.
func newWorld(t *testing.T, processes bool, o gcefake.Options) *world {
	t.Helper()
	if processes {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		o.Command = []string{self, proxyArg}
	}
	s, err := gcefake.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	w := &world{Server: s, secret: s.Key()}
	w.section = gcp.Section{
		Project: s.Project(), Zones: s.Zones(), Endpoint: s.Endpoint(), RequestsPerSecond: 1000,
		Images:      map[string]string{"debian-12": "projects/debian-cloud/global/images/family/debian-12"},
		Credentials: gcp.Credentials{SecretRef: gcp.SecretRef{Name: "gcp-key", Key: "key.json"}},
	}
	return w
}

// open returns one more provider over the project.
func (w *world) open(t providertest.T) *gcp.Provider {
	t.Helper()
	p, err := gcp.New(gcp.Options{
		Name: "cloud", Section: w.section, StepLimit: w.limit, Secret: w.read, OperationWait: 200 * time.Millisecond,
		Clock: func() time.Time { w.mu.Lock(); defer w.mu.Unlock(); return time.Now().Add(w.ahead) },
		Log:   slog.New(slog.NewTextHandler(&w.logged, &slog.HandlerOptions{Level: slog.LevelDebug - 4})),
	})
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// advance moves the providers' clock.
func (w *world) advance(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ahead += d
}

// read is the operator's reader of Secrets.
func (w *world) read(_ context.Context, ref provider.SecretRef) (provider.Secret, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ref != (provider.SecretRef{Name: "gcp-key", Key: "key.json"}) {
		return nil, fault.Errorf(fault.NotFound, "no Secret %s", ref.Name)
	}
	return w.secret, w.err
}

// keep puts another key, or none, into the Secret.
func (w *world) keep(s provider.Secret, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.secret, w.err = s, err
}

// lines is a log that tests look into.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func ownerOf(uid string) provider.Owner {
	return provider.Owner{Installation: tag, Namespace: "crawl", Name: "p-" + uid, UID: uid}
}

func specOf(uid, zone string) provider.Spec {
	return provider.Spec{Owner: ownerOf(uid), Host: zone, Port: port, Protocol: provider.HTTP, UserData: provider.Secret(userData)}
}

func refOf(s provider.Spec) provider.Ref { return provider.Ref{Owner: s.Owner, Host: s.Host} }

// up repeats Create until the instance runs.
func up(t *testing.T, p *gcp.Provider, s provider.Spec) provider.Instance {
	t.Helper()
	var in provider.Instance
	await(t, "Running", func() (bool, string) {
		var err error
		in, err = p.Create(context.Background(), s)
		if err != nil {
			t.Fatalf("Create: %s: %v", fault.Of(err), err)
		}
		return in.State == provider.Running, string(in.State) + ": " + in.Message
	})
	return in
}

// down repeats Delete until nothing is left.
func down(t *testing.T, p *gcp.Provider, r provider.Ref) {
	t.Helper()
	await(t, "Gone", func() (bool, string) {
		st, err := p.Delete(context.Background(), r)
		if err != nil {
			t.Fatalf("Delete: %s: %v", fault.Of(err), err)
		}
		return st == provider.Gone, string(st)
	})
}

// await repeats a look until it is as it should be.
func await(t *testing.T, what string, look func() (bool, string)) {
	t.Helper()
	last := ""
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		var ok bool
		if ok, last = look(); ok {
			return
		}
	}
	t.Fatalf("not %s in time: %s", what, last)
}

// instanceOf is the instance as the project has it; nil for none.
func (w *world) instanceOf(o provider.Owner) *compute.Instance {
	for _, z := range w.Zones() {
		for _, in := range w.Instances(z) {
			if in.Name == gcp.NameOf(o) {
				return &in
			}
		}
	}
	return nil
}
