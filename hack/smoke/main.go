// Command smoke is the demo without a person: it starts the standalone program
// as a process on a fresh data folder and free ports, waits for three Ready
// proxies, fetches the origin's page through each, asks the client API for
// them, deletes one and sees its process go, and stops the program. It cleans
// up whatever happens. The last line is
//
//	smoke: ok api_ready=2.4s ready=5.5s,5.7s,5.8s total=12.3s
//
// with seconds from the start of the process.
//
// usage: go run ./hack/smoke [path of proxy-operator-standalone]
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	kube "sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/client"
)

// How long each step may take on a busy machine, and all of them.
const (
	stepTimeout    = 60 * time.Second
	requestTimeout = 15 * time.Second
	totalTimeout   = 4 * time.Minute
	poll           = 50 * time.Millisecond
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, totalTimeout)
	defer cancel()
	program := filepath.Join("bin", "proxy-operator-standalone")
	if len(os.Args) > 1 {
		program = os.Args[1]
	}
	summary, err := smoke(ctx, program)
	if err != nil {
		fmt.Fprintln(os.Stderr, "smoke: FAILED:", err)
		os.Exit(1)
	}
	fmt.Println("smoke: ok", summary)
}

// smoke runs all steps and returns the figures of the last line.
func smoke(ctx context.Context, program string) (_ string, err error) {
	dir, err := os.MkdirTemp("", "fleetdesk-smoke-")
	if err != nil {
		return "", err
	}
	data := filepath.Join(dir, "data")
	p, err := start(program, data)
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	defer func() {
		if err != nil {
			said, _ := os.ReadFile(data + ".log")
			err = fmt.Errorf("%w\n--- what the program said:\n%s", err, said)
		}
		p.kill()
		err = errors.Join(err, p.endProxies(dir))
	}()

	at, err := p.endpoints(ctx)
	if err != nil {
		return "", err
	}
	fmt.Printf("smoke: the Kubernetes API was ready after %.1fs, everything after %.1fs\n", at.APIReadySeconds, p.since())
	k, err := kubeClient(at.Kubeconfig)
	if err != nil {
		return "", err
	}
	proxies, ready, err := p.awaitReady(ctx, k)
	if err != nil {
		return "", err
	}
	for i := range proxies {
		if err := throughProxy(ctx, &proxies[i], at.OriginURL); err != nil {
			return "", err
		}
	}
	if err := askAPI(ctx, at, proxies); err != nil {
		return "", err
	}
	if n := len(p.proxyProcesses()); n != len(proxies) {
		return "", fmt.Errorf("%d proxy processes for %d proxies", n, len(proxies))
	}
	if err := p.deleteOne(ctx, k, &proxies[0]); err != nil {
		return "", err
	}
	if err := p.stop(ctx); err != nil {
		return "", err
	}
	for i := range proxies[1:] {
		if !listens(ctx, &proxies[i+1]) {
			return "", fmt.Errorf("%s ended with the operator: local proxies go on running", proxies[i+1].Name)
		}
	}
	fmt.Println("smoke: stopped with exit code 0; the other proxies go on running")
	return fmt.Sprintf("api_ready=%.1fs ready=%s total=%.1fs", at.APIReadySeconds, strings.Join(ready, ","), p.since()), nil
}

// process is the running program.
type process struct {
	cmd   *exec.Cmd
	data  string
	began time.Time
	done  chan struct{}
	err   error // set before done is closed
}

func start(program, data string) (*process, error) {
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	p := &process{data: data, done: make(chan struct{})}
	p.cmd = exec.Command(program, "--demo", "--data-dir", data, "--port", ports[0], "--api-port", ports[1],
		"--origin-bind-address", net.JoinHostPort("127.0.0.1", ports[2]))
	out, err := os.OpenFile(data+".log", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	// Its own group: a Ctrl-C at the terminal comes to us, and we stop it.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	p.began = time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: run 'make standalone' first", err), out.Close())
	}
	go func() {
		defer close(p.done)
		p.err = p.cmd.Wait()
		_ = out.Close()
	}()
	return p, nil
}

func (p *process) since() float64 { return time.Since(p.began).Seconds() }

// until polls until ok, the step's time is over or the program ended.
func (p *process) until(ctx context.Context, what string, ok func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		err := ok(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s: the program ended by itself: %v", what, p.err)
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %s: %w", what, stepTimeout, err)
		case <-tick.C:
		}
	}
}

// endpoints is the part of endpoints.json that we need.
type endpoints struct {
	Kubeconfig, APIURL, OriginURL, TokenFile string
	APIReadySeconds                          float64
}

func (p *process) endpoints(ctx context.Context) (at endpoints, err error) {
	err = p.until(ctx, "endpoints.json", func(context.Context) error {
		b, err := os.ReadFile(filepath.Join(p.data, "endpoints.json"))
		if err != nil {
			return err
		}
		return json.Unmarshal(b, &at)
	})
	if err == nil && (at.Kubeconfig == "" || at.APIURL == "" || at.OriginURL == "" || at.TokenFile == "") {
		err = fmt.Errorf("endpoints.json lacks something: %+v", at)
	}
	return at, err
}

func kubeClient(kubeconfig string) (kube.Client, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	cfg.Timeout = requestTimeout
	s := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(s); err != nil {
		return nil, err
	}
	return kube.New(cfg, kube.Options{Scheme: s})
}

// awaitReady waits for three Ready Proxies and notes when each was.
func (p *process) awaitReady(ctx context.Context, k kube.Client) ([]v1alpha1.Proxy, []string, error) {
	const want = 3
	seen := map[string]bool{}
	var ready []string
	var list v1alpha1.ProxyList
	err := p.until(ctx, "three Ready proxies", func(ctx context.Context) error {
		if err := k.List(ctx, &list, kube.InNamespace("default")); err != nil {
			return err
		}
		for _, px := range list.Items {
			if px.Status.Phase == v1alpha1.PhaseReady && !seen[px.Name] {
				seen[px.Name] = true
				ready = append(ready, fmt.Sprintf("%.1fs", p.since()))
				fmt.Printf("smoke: %s is Ready at %s after %.1fs\n", px.Name, address(&px), p.since())
			}
		}
		if len(list.Items) != want || len(ready) != want {
			return fmt.Errorf("%d Proxies, %d Ready: %s", len(list.Items), len(ready), conditions(list.Items))
		}
		return nil
	})
	return list.Items, ready, err
}

func conditions(items []v1alpha1.Proxy) string {
	var all []string
	for _, px := range items {
		for _, c := range px.Status.Conditions {
			if c.Status != metav1.ConditionTrue {
				all = append(all, fmt.Sprintf("%s %s=%s (%s: %s)", px.Name, c.Type, c.Status, c.Reason, c.Message))
			}
		}
	}
	return strings.Join(all, "; ")
}

func address(px *v1alpha1.Proxy) string {
	return net.JoinHostPort(px.Status.Address, strconv.Itoa(int(px.Status.Port)))
}

// throughProxy fetches the origin's page through a proxy; the origin must have
// seen the proxy's own address.
func throughProxy(ctx context.Context, px *v1alpha1.Proxy, origin string) error {
	via := &http.Transport{
		Proxy:             http.ProxyURL(&url.URL{Scheme: "http", Host: address(px)}),
		DisableKeepAlives: true,
	}
	body, err := get(ctx, &http.Client{Transport: via, Timeout: requestTimeout}, origin+"/ip")
	if err != nil {
		return fmt.Errorf("through %s: %w", px.Name, err)
	}
	var page struct{ IP string }
	if err := json.Unmarshal(body, &page); err != nil || page.IP != px.Status.Address {
		return fmt.Errorf("through %s the origin saw %q, want %s", px.Name, body, px.Status.Address)
	}
	fmt.Printf("smoke: through %s the origin sees %s\n", px.Name, page.IP)
	return nil
}

func get(ctx context.Context, c *http.Client, where string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, where, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %s: %.200s", resp.Status, body)
	}
	return body, err
}

// askAPI asks the client API as a crawler does, and as a stranger.
func askAPI(ctx context.Context, at endpoints, want []v1alpha1.Proxy) error {
	token, err := os.ReadFile(at.TokenFile)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	c, err := client.New(client.Options{BaseURL: at.APIURL, Token: client.Token(strings.TrimSpace(string(token)))})
	if err != nil {
		return err
	}
	page, err := c.Proxies(ctx, client.ProxyQuery{Phase: string(v1alpha1.PhaseReady)})
	if err != nil {
		return fmt.Errorf("client API: %w", err)
	}
	shown := map[string]bool{}
	for _, px := range page.Items {
		shown[net.JoinHostPort(px.Address, strconv.Itoa(px.Port))] = true
	}
	for i := range want {
		if !shown[address(&want[i])] {
			return fmt.Errorf("the client API does not show %s at %s", want[i].Name, address(&want[i]))
		}
	}
	if _, err := get(ctx, &http.Client{Timeout: requestTimeout}, at.APIURL+"/api/v1/proxies"); err == nil || !strings.Contains(err.Error(), "401") {
		return fmt.Errorf("the client API without a token: want 401, got %v", err)
	}
	fmt.Printf("smoke: the client API shows %d Ready proxies, and nothing to strangers\n", len(page.Items))
	return useLease(ctx, c, at.OriginURL)
}

// useLease takes a proxy as a crawler does, uses it and gives it back.
func useLease(ctx context.Context, c *client.Client, origin string) error {
	l, err := c.Take(ctx, "default.default", client.TakeOptions{Holder: "smoke", TTL: time.Minute})
	if err != nil {
		return fmt.Errorf("take a proxy: %w", err)
	}
	access, ok := l.Proxy()
	if !ok {
		return fmt.Errorf("lease %s came without the proxy's address", l.ID())
	}
	via := &http.Transport{Proxy: http.ProxyURL(access.URL()), DisableKeepAlives: true}
	body, err := get(ctx, &http.Client{Transport: via, Timeout: requestTimeout}, origin+"/ip")
	if err != nil {
		return fmt.Errorf("through the leased %s: %w", l.Key(), err)
	}
	if !strings.Contains(string(body), access.Host) {
		return fmt.Errorf("through the leased %s the origin saw %q, want %s", l.Key(), body, access.Host)
	}
	if _, err := l.Release(ctx, client.ReleaseRequest{}); err != nil {
		return fmt.Errorf("give the proxy back: %w", err)
	}
	fmt.Printf("smoke: took %s, used it, gave it back\n", l.Key())
	return nil
}

// deleteOne deletes a Proxy and waits until it, its port and its process are
// gone, while the others stay.
func (p *process) deleteOne(ctx context.Context, k kube.Client, px *v1alpha1.Proxy) error {
	before := len(p.proxyProcesses())
	began := time.Now()
	if err := k.Delete(ctx, px); err != nil {
		return err
	}
	err := p.until(ctx, px.Name+" is gone", func(ctx context.Context) error {
		err := k.Get(ctx, kube.ObjectKeyFromObject(px), &v1alpha1.Proxy{})
		switch {
		case err == nil:
			return errors.New("the object is there")
		case !apierrors.IsNotFound(err):
			return err
		case listens(ctx, px):
			return errors.New("its port is open")
		case len(p.proxyProcesses()) != before-1:
			return fmt.Errorf("%d proxy processes", len(p.proxyProcesses()))
		}
		return nil
	})
	if err == nil {
		fmt.Printf("smoke: %s, its port and its process are gone after %.1fs\n", px.Name, time.Since(began).Seconds())
	}
	return err
}

func listens(ctx context.Context, px *v1alpha1.Proxy) bool {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address(px))
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

// proxyProcesses returns the processes of this run's proxies: those that were
// started with a state file below our data folder.
func (p *process) proxyProcesses() (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		b, err := os.ReadFile(f)
		args := strings.Split(string(b), "\x00")
		if err != nil || len(args) < 2 || args[1] != "local-proxy" || !strings.Contains(string(b), p.data+"/") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// stop asks the program to end, as systemd does, and wants exit code 0.
func (p *process) stop(ctx context.Context) error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	select {
	case <-p.done:
		if p.err != nil {
			return fmt.Errorf("stop: %w", p.err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("it did not stop within %s", stepTimeout)
	}
}

// kill ends the program if it still runs.
func (p *process) kill() {
	select {
	case <-p.done:
	default:
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// endProxies removes everything; a local proxy ends when its state file is
// gone. One that does not is a failure, and is killed.
func (p *process) endProxies(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	var left []int
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(poll) {
		if left = p.proxyProcesses(); len(left) == 0 {
			return nil
		}
	}
	for _, pid := range left {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	return fmt.Errorf("proxies do not end although their state is gone: %v", left)
}

// freePorts returns ports on which nobody listens.
func freePorts(n int) ([]string, error) {
	var ports []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }() // kept until all are chosen, so that they differ
		ports = append(ports, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	}
	return ports, nil
}
