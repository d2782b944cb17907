package e2e_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleetdesk/client"
)

// The program is killed again and again while it makes proxies, and while it
// removes them. Whatever instant that hits, the next start converges: each
// Proxy has one process, no process has no Proxy, and in the end nothing is
// left.
func TestKillAtAnyInstant(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	const n = 6
	var objects strings.Builder
	for i := range n {
		fmt.Fprintf(&objects, "apiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {name: p%d}\nspec: {provider: local}\n---\n", i)
	}
	delays := []time.Duration{0, 60 * time.Millisecond, 150 * time.Millisecond, 400 * time.Millisecond, time.Second}
	crash := func(do func(p *program)) {
		for _, delay := range delays {
			p := start(t, dir)
			do(p)
			time.Sleep(delay)
			p.signal(syscall.SIGKILL)
			p.end()
		}
	}

	crash(func(p *program) { p.kubectl(objects.String(), "apply", "-f", "-") })
	p := start(t, dir)
	for i := range n {
		ready(t, p.api(t), fmt.Sprint("p", i))
	}
	if pids := processes(t, dir); len(pids) != n {
		t.Errorf("%d processes for %d Proxies: %v", len(pids), n, pids)
	}
	until(t, "one key a Proxy", func() string {
		pool, err := p.api(t).Pool(t.Context(), "default.default", client.Page{})
		if err != nil || pool.Keys != n || pool.Free != n {
			return fmt.Sprintf("%+v %v", pool, err)
		}
		return ""
	})
	// One is held while everything is killed and removed around it.
	held, err := p.api(t).Take(t.Context(), "default.default", client.TakeOptions{TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGKILL)
	p.end()

	crash(func(p *program) { p.kubectl("", "delete", "proxies", "--all", "--wait=false", "--ignore-not-found") })
	p = start(t, dir)
	again, err := p.api(t).Resume(t.Context(), held.ID(), held.Secret())
	if err != nil {
		t.Fatalf("the lease did not survive: %v", err)
	}
	p.kubectl("", "wait", "--for=delete", "proxies", "--field-selector=metadata.name!="+strings.TrimPrefix(held.Key(), "default."), "--timeout=30s")
	if pids := processes(t, dir); len(pids) != 1 {
		t.Errorf("processes besides the one that is held: %v", pids)
	}
	if _, err := again.Release(t.Context(), client.ReleaseRequest{}); err != nil {
		t.Fatal(err)
	}
	p.kubectl("", "delete", "proxies", "--all", "--timeout=30s")
	until(t, "no pools", func() string {
		if pools, err := p.api(t).Pools(t.Context(), client.Page{}); err != nil || len(pools.Items) != 0 {
			return fmt.Sprintf("%+v %v", pools, err)
		}
		return ""
	})
	until(t, "no process", func() string {
		if pids := processes(t, dir); len(pids) != 0 {
			return fmt.Sprint(pids)
		}
		return ""
	})
	left, err := filepath.Glob(filepath.Join(dir, "providers", "local", "[^.]*"))
	if err != nil || len(left) != 0 {
		t.Errorf("files left: %v %v", left, err)
	}
}
