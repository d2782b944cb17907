package e2e_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// far is a started origin, as people run it somewhere on the internet.
type far struct {
	cmd    *exec.Cmd
	err    buffer
	url    string
	exited chan struct{}
}

func startOrigin(t *testing.T) *far {
	t.Helper()
	f := &far{exited: make(chan struct{})}
	f.cmd = exec.Command(binary(t, "proxy-operator-standalone"), "origin", "--bind-address", "127.0.0.1:0")
	f.cmd.Stderr = &f.err
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = f.cmd.Wait() // the exit code says it all
		close(f.exited)
	}()
	t.Cleanup(func() { _ = f.cmd.Process.Kill(); <-f.exited })
	says := regexp.MustCompile(`the origin answers.* url=(\S+)`)
	until(t, "the origin", func() string {
		found := says.FindStringSubmatch(f.err.String())
		if found == nil {
			return "the log says: " + f.err.String()
		}
		f.url = found[1]
		return ""
	})
	return f
}

// The origin that people run themselves tells the fleet by which address each
// Proxy leaves, and which headers tell of it; a pool leaves out what leaks.
func TestAnOriginOfOnesOwn(t *testing.T) {
	t.Parallel()
	origin := startOrigin(t)
	// What stands between a proxy and the internet may tell of it too.
	to, err := url.Parse(origin.url)
	if err != nil {
		t.Fatal(err)
	}
	upstream := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Header.Set("Via", "1.1 gateway.example.com")
		r.SetXForwarded()
	}})
	t.Cleanup(upstream.Close)

	p := start(t, t.TempDir(), "--health-check-url", origin.url+"/generate_204", "--health-allow-cidr", "127.0.0.0/8")
	p.kubectl(fmt.Sprintf(`
apiVersion: crawl.example.com/v1alpha1
kind: Proxy
metadata: {name: clean}
spec: {provider: local, healthCheck: {interval: 1s, timeout: 900ms}}
---
apiVersion: crawl.example.com/v1alpha1
kind: Proxy
metadata: {name: leaky}
spec: {provider: local, healthCheck: {url: %q, interval: 1s, timeout: 900ms}}
---
apiVersion: crawl.example.com/v1alpha1
kind: Proxy
metadata: {name: leaky-too}
spec: {provider: local, healthCheck: {url: %q, interval: 1s, timeout: 900ms}}
---
apiVersion: crawl.example.com/v1alpha1
kind: ProxyPool
metadata: {name: quiet}
spec: {leaks: Refuse}
`, upstream.URL+"/generate_204", upstream.URL+"/generate_204"), "apply", "-f", "-")

	api := p.api(t)
	clean, leaky := ready(t, api, "clean"), ready(t, api, "leaky")
	if clean.ExitIP != clean.Address || clean.Leaks == nil || len(*clean.Leaks) != 0 || clean.ExitIPShared != 0 {
		t.Errorf("the clean one: %+v", clean)
	}
	want := []string{"Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"}
	if leaky.ExitIP != "127.0.0.1" || leaky.Leaks == nil || !slices.Equal(*leaky.Leaks, want) {
		t.Errorf("the leaky one: %+v", leaky)
	}
	until(t, "both that leave by one address saying so", func() string {
		for _, name := range []string{"leaky", "leaky-too"} {
			px, err := api.Proxy(t.Context(), "default", name)
			if err != nil || px.ExitIPShared != 1 {
				return fmt.Sprintf("%+v %v", px, err)
			}
		}
		return ""
	})
	if out := p.kubectl("", "get", "proxies", "-o", "wide"); !regexp.MustCompile(`leaky\s.*127\.0\.0\.1\s+1\s+\["Via",`).MatchString(out) {
		t.Errorf("kubectl does not show it:\n%s", out)
	}

	until(t, "the pool without those that leak", func() string {
		out := p.kubectl("", "get", "proxypool", "quiet", "-o", "jsonpath={.status.proxies} {.status.refused} {.status.exitIPs}")
		if out != "1 2 1" {
			return out
		}
		return ""
	})
	l := take(t, api, "default.quiet")
	if l.Key() != "default.clean" || l.Info().Attributes["leaks"] != "none" {
		t.Errorf("taken: %s %+v", l.Key(), l.Info())
	}
	release(t, l)

	if err := origin.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-origin.exited:
	case <-time.After(patience):
		t.Fatal("the origin does not stop when asked")
	}
	if code := origin.cmd.ProcessState.ExitCode(); code != 0 || strings.Contains(origin.err.String(), "msg=request") {
		t.Errorf("exit code %d:\n%s", code, &origin.err)
	}
	if resp, err := http.Get(origin.url); err == nil {
		_ = resp.Body.Close()
		t.Error("something answers in its place")
	}
}
