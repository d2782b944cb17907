package e2e_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"fleetdesk/client"
)

// origin is a web site that remembers who fetched its pages.
type origin struct {
	*httptest.Server
	mu   sync.Mutex
	from []string
}

func newOrigin(t *testing.T) *origin {
	o := &origin{}
	o.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		o.mu.Lock()
		o.from = append(o.from, host)
		o.mu.Unlock()
		_, _ = io.WriteString(w, "hello "+host)
	}))
	t.Cleanup(o.Close)
	return o
}

// seen returns who fetched since the last call.
func (o *origin) seen() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	from := o.from
	o.from = nil
	return from
}

func fetch(t *testing.T, px client.Proxy, user *url.Userinfo, page string) string {
	t.Helper()
	via := &url.URL{Scheme: px.Protocol, Host: hostPort(px.Address, px.Port), User: user}
	c := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{Proxy: http.ProxyURL(via), DisableKeepAlives: true}}
	resp, err := c.Get(page)
	if err != nil {
		t.Fatalf("through %s/%s: %v", px.Namespace, px.Name, err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("through %s/%s: %s %s %v", px.Namespace, px.Name, resp.Status, b, err)
	}
	return string(b)
}

func (p *program) api(t *testing.T) *client.Client {
	t.Helper()
	token, err := os.ReadFile(p.at.TokenFile)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(client.Options{BaseURL: p.at.APIURL, Token: client.Token(strings.TrimSpace(string(token)))})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func ready(t *testing.T, api *client.Client, name string) client.Proxy {
	t.Helper()
	var px client.Proxy
	until(t, name+" being Ready", func() string {
		var err error
		if px, err = api.Proxy(t.Context(), "default", name); err != nil || !px.Ready {
			return fmt.Sprintf("%+v %v", px, err)
		}
		return ""
	})
	return px
}

const manifest = `
apiVersion: crawl.example.com/v1alpha1
kind: Proxy
metadata: {name: one, labels: {tier: home}}
spec:
  provider: local
  healthCheck: {interval: 1s, timeout: 900ms, failureThreshold: 2}
---
apiVersion: v1
kind: Secret
metadata: {name: two-auth}
stringData: {username: crawler, password: "a:b@c$d%e ü"}
---
apiVersion: crawl.example.com/v1alpha1
kind: Proxy
metadata: {name: two}
spec:
  provider: local
  authSecretRef: {name: two-auth}
  healthCheck: {interval: 1s, timeout: 900ms, failureThreshold: 2}
`

// The whole way: apply, Ready, a page fetched from an origin that sees the
// proxy's own address, the process killed and made again, the operator killed
// and started again with nothing lost, deletion, nothing left.
func TestTheMainJob(t *testing.T) {
	// Steps of one story, not subtests: the program outlives each of them.
	step := func(name string, f func()) {
		t.Log(name)
		f()
	}
	dir := filepath.Join(t.TempDir(), "data")
	p := start(t, dir)
	if out := p.kubectl(manifest, "apply", "-f", "-"); strings.Count(out, "created") != 3 {
		t.Errorf("apply: %s", out)
	}
	api, site := p.api(t), newOrigin(t)
	one, two := ready(t, api, "one"), ready(t, api, "two")
	if one.Address == two.Address {
		t.Error("the two share an address: an origin cannot tell them apart")
	}
	auth := url.UserPassword("crawler", "a:b@c$d%e ü")
	fetch(t, one, nil, site.URL)
	fetch(t, two, auth, site.URL)
	if from := site.seen(); !slices.Equal(from, []string{one.Address, two.Address}) {
		t.Errorf("the origin saw %v, want %s and %s", from, one.Address, two.Address)
	}
	if out := p.kubectl("", "get", "proxies"); !strings.Contains(out, one.Address) || !strings.Contains(out, "EXIT IP") {
		t.Errorf("kubectl get proxies:\n%s", out)
	}

	step("a killed proxy is made again", func() {
		of := holders(t, dir, one)
		if len(of) != 1 {
			t.Fatalf("processes of one Proxy: %v", of)
		}
		victim := of[0]
		if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		until(t, "another process", func() string {
			if now := holders(t, dir, one); len(now) != 1 || now[0] == victim {
				return fmt.Sprint(now)
			}
			return ""
		})
		now := ready(t, api, "one")
		fetch(t, now, nil, site.URL)
		if from := site.seen(); !slices.Equal(from, []string{one.Address}) {
			t.Errorf("the origin saw %v, want %s", from, one.Address)
		}
		if n := len(processes(t, dir)); n != 2 {
			t.Errorf("%d proxy processes for two Proxies", n)
		}
	})

	step("kill -9 of the operator loses nothing", func() {
		before := processes(t, dir)
		p.signal(syscall.SIGKILL)
		p.end()
		fetch(t, one, nil, site.URL) // crawlers go on meanwhile
		p = start(t, dir)
		api = p.api(t) // the token is the same file's
		again := ready(t, api, "one")
		if again.Address != one.Address || ready(t, api, "two").Address != two.Address {
			t.Error("the proxies changed their addresses")
		}
		if after := processes(t, dir); !slices.Equal(before, after) {
			t.Errorf("processes %v became %v: they were to be adopted", before, after)
		}
	})

	step("a second start on the same folder says so", func() {
		second := launch(t, dir)
		if code := second.end(); code == 0 {
			t.Error("it ran")
		}
		for _, want := range []string{dir, fmt.Sprint(p.cmd.Process.Pid)} {
			if !strings.Contains(second.err.String(), want) {
				t.Errorf("the error does not name %s: %s", want, &second.err)
			}
		}
		if _, err := api.Proxies(t.Context(), client.ProxyQuery{}); err != nil {
			t.Errorf("the first one suffered: %v", err)
		}
	})

	step("a wrong token", func() {
		wrong, err := client.New(client.Options{BaseURL: p.at.APIURL, Token: "fdt_000000000000_wrong"})
		if err != nil {
			t.Fatal(err)
		}
		var e *client.Error
		if _, err := wrong.Proxies(t.Context(), client.ProxyQuery{}); !errors.As(err, &e) || e.Status != http.StatusUnauthorized {
			t.Errorf("got %v", err)
		}
	})

	step("clean stop leaves the proxies running", func() {
		before := processes(t, dir)
		began := time.Now()
		p.signal(syscall.SIGTERM)
		if code := p.end(); code != 0 {
			t.Errorf("exit code %d", code)
		}
		t.Logf("stopped in %s", time.Since(began))
		if after := processes(t, dir); !slices.Equal(before, after) {
			t.Errorf("processes %v became %v", before, after)
		}
		p = start(t, dir)
		api = p.api(t)
	})

	step("deleted Proxies leave nothing", func() {
		p.kubectl("", "delete", "proxies", "--all", "--timeout=30s")
		until(t, "no process", func() string {
			if pids := processes(t, dir); len(pids) != 0 {
				return fmt.Sprint(pids)
			}
			return ""
		})
		for _, px := range []client.Proxy{one, two} {
			if _, err := listener(px); err == nil {
				t.Errorf("%s still listens", px.Name)
			}
		}
		left, err := filepath.Glob(filepath.Join(dir, "providers", "local", "[^.]*"))
		if err != nil || len(left) != 0 {
			t.Errorf("files left: %v %v", left, err)
		}
	})

	token, err := os.ReadFile(p.at.TokenFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{strings.TrimSpace(string(token)), "a:b@c$d%e"} {
		if strings.Contains(p.err.String()+p.out.String(), secret) {
			t.Errorf("a secret is in the output")
		}
	}
}

// listener tells whether somebody listens at a proxy's address.
func listener(px client.Proxy) (string, error) {
	conn, err := net.DialTimeout("tcp", hostPort(px.Address, px.Port), time.Second)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	return conn.RemoteAddr().String(), nil
}

// holders returns the processes of a proxy: those whose state has its address.
func holders(t *testing.T, dir string, px client.Proxy) (pids []int) {
	t.Helper()
	for _, pid := range processes(t, dir) {
		cmdline, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "cmdline"))
		if err != nil {
			continue // it ended meanwhile
		}
		for arg := range strings.SplitSeq(string(cmdline), "\x00") {
			b, err := os.ReadFile(arg)
			if err == nil && strings.HasSuffix(arg, "state.json") && strings.Contains(string(b), px.Address) {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func TestStopProxiesEndsThemAndTheNextStartBringsThemBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	p := start(t, dir, "--stop-proxies")
	p.kubectl(manifest, "apply", "-f", "-")
	one := ready(t, p.api(t), "one")
	p.signal(syscall.SIGTERM)
	if code := p.end(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if pids := processes(t, dir); len(pids) != 0 {
		t.Errorf("still running: %v", pids)
	}
	p = start(t, dir)
	until(t, "the proxy running again", func() string {
		if _, err := listener(one); err != nil {
			return err.Error()
		}
		return ""
	})
	if again := ready(t, p.api(t), "one"); again.Address != one.Address {
		t.Errorf("it came back at %s, was at %s", again.Address, one.Address)
	}
}

func TestWhatCannotStartSaysWhyAndTouchesNothing(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Close() }()
	port := fmt.Sprint(busy.Addr().(*net.TCPAddr).Port)
	root := t.TempDir()
	file := filepath.Join(root, "file")
	bad := filepath.Join(root, "bad.yaml")
	newer := filepath.Join(root, "newer")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.WriteFile(bad, []byte("providers:\n- name: a\n  kind: local\n- name: a\n  kind: local\n"), 0o600),
		os.Mkdir(newer, 0o700), os.WriteFile(filepath.Join(newer, "FORMAT"), []byte("999\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	fresh := filepath.Join(root, "fresh")
	for name, tc := range map[string]struct {
		dir  string
		args []string
		want []string
	}{
		"used port":             {fresh, []string{"--port", port}, []string{"--port", port}},
		"used api port":         {fresh, []string{"--api-port", port}, []string{"--api-port", port}},
		"data dir is a file":    {file, nil, []string{file, "--data-dir"}},
		"data dir under a file": {filepath.Join(file, "x"), nil, []string{file, "--data-dir"}},
		"newer format":          {newer, nil, []string{newer, "newer"}},
		"equal names":           {fresh, []string{"--providers-config", bad}, []string{"bad.yaml:4", `"a"`}},
		"no such config":        {fresh, []string{"--providers-config", "/no/such.yaml"}, []string{"/no/such.yaml"}},
		"unknown flag":          {fresh, []string{"--no-such-flag"}, []string{"--no-such-flag", "--help"}},
		"stray argument":        {fresh, []string{"start"}, []string{`"start"`, "--help"}},
		"not an address":        {fresh, []string{"--bind", "localhost"}, []string{"--bind"}},
		"origin anywhere":       {fresh, []string{"--origin-bind-address", "0.0.0.0:0"}, []string{"--origin-url"}},
		"short interval":        {fresh, []string{"--list-interval", "1ms"}, []string{"--list-interval"}},
		"public without TLS":    {fresh, []string{"--bind", "0.0.0.0"}, []string{"--api-allow-plaintext"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := launch(t, tc.dir, tc.args...)
			if code := p.end(); code == 0 || code == -1 {
				t.Errorf("exit code %d", code)
			}
			for _, want := range tc.want {
				if !strings.Contains(p.err.String(), want) {
					t.Errorf("the error does not say %q: %s", want, &p.err)
				}
			}
			if strings.Contains(p.err.String(), "goroutine ") {
				t.Errorf("a stack trace: %s", &p.err)
			}
			if _, err := os.Stat(fresh); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the data folder was touched: %v", err)
				_ = os.RemoveAll(fresh)
			}
		})
	}
}

func TestADataFolderThatMayNotBeWritten(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "theirs")
	if err := os.Mkdir(dir, 0o555); err != nil {
		t.Fatal(err)
	}
	program := binary(t, "proxy-operator-standalone")
	cmd := exec.Command(program, "--data-dir", dir, "--port", fmt.Sprint(freePort(t)), "--api-port", fmt.Sprint(freePort(t)))
	if os.Geteuid() == 0 {
		// Root may write anywhere: somebody else tries, with a program and a
		// folder that they can reach.
		copied := filepath.Join(reachable(t), "program")
		b, err := os.ReadFile(program)
		if err == nil {
			err = os.WriteFile(copied, b, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		dir = filepath.Join(filepath.Dir(copied), "theirs")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		cmd.Path, cmd.Args[0], cmd.Args[2], cmd.Dir = copied, copied, dir, "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("it ended with %v: %s", err, out)
	}
	for _, want := range []string{dir, "--data-dir"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the error does not say %q: %s", want, out)
		}
	}
}

// reachable returns a folder that any user may look into.
func reachable(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "fleetdesk-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Whoever lost the first admin token and has the operator's files gets another.
func TestALostAdminTokenCanBeReplaced(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	p := start(t, dir)
	if err := os.Remove(p.at.TokenFile); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (string, error) {
		out, err := exec.Command(binary(t, "proxy-operator-standalone"), append([]string{"admin-token"}, args...)...).CombinedOutput()
		return string(out), err
	}
	if out, err := run("--data-dir", dir); err != nil || !strings.Contains(out, p.at.TokenFile) {
		t.Fatalf("%v: %s", err, out)
	}
	if _, err := p.api(t).Proxies(t.Context(), client.ProxyQuery{}); err != nil {
		t.Errorf("the new token does not open the API: %v", err)
	}
	if out, err := run("--data-dir", dir); err == nil || !strings.Contains(out, "--file") {
		t.Errorf("an existing file: %v: %s", err, out)
	}
	if out, err := run("--data-dir", t.TempDir()); err == nil || !strings.Contains(out, "desk.db") {
		t.Errorf("no database: %v: %s", err, out)
	}
}

func TestHelpAndVersion(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"version"}} {
		out, err := exec.Command(binary(t, "proxy-operator-standalone"), args...).Output()
		if err != nil || len(out) == 0 {
			t.Errorf("%v: %v %s", args, err, out)
		}
	}
	out, err := exec.Command(binary(t, "proxy-operator-standalone"), "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"--data-dir", "--providers-config", "--demo", "--stop-proxies", "Exit codes"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("--help does not name %s", want)
		}
	}
	if strings.Contains(string(out), "local-proxy") {
		t.Error("--help shows the hidden subcommand")
	}
}
