package e2e_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleetdesk/client"
)

// pools is what the pool "home" has beside the manifest of the main job.
const pools = `
apiVersion: crawl.example.com/v1alpha1
kind: ProxyPool
metadata: {name: home}
spec:
  selector: {matchLabels: {tier: home}}
  leaseTime: {max: 10m}
`

// fetchBy fetches a page as a holder does who knows nothing but its lease.
func fetchBy(t *testing.T, l *client.Lease, page string) error {
	t.Helper()
	way, ok := l.Proxy()
	if !ok {
		return fmt.Errorf("lease %s does not say how to reach its proxy", l.ID())
	}
	c := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{Proxy: http.ProxyURL(way.URL()), DisableKeepAlives: true}}
	resp, err := c.Get(page)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

func take(t *testing.T, api *client.Client, pool string) *client.Lease {
	t.Helper()
	l, err := api.Take(t.Context(), pool, client.TakeOptions{Holder: "e2e", Wait: 30 * time.Second, TTL: 5 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func release(t *testing.T, l *client.Lease) {
	t.Helper()
	if _, err := l.Release(t.Context(), client.ReleaseRequest{}); err != nil {
		t.Fatal(err)
	}
}

func renew(t *testing.T, l *client.Lease) client.LeaseInfo {
	t.Helper()
	if err := l.Renew(t.Context(), client.RenewRequest{}); err != nil {
		t.Fatal(err)
	}
	return l.Info()
}

func code(err error) string {
	if e, ok := errors.AsType[*client.Error](err); ok {
		return e.Code
	}
	return ""
}

// The way of a lease through the programs as they run: handed out with
// credentials, lost on nobody's restart, told of trouble, and waited for.
func TestLeases(t *testing.T) {
	step := func(name string, f func()) {
		t.Log(name)
		f()
	}
	dir := filepath.Join(t.TempDir(), "data")
	p := start(t, dir)
	p.kubectl(manifest+"---"+pools, "apply", "-f", "-")
	api, site := p.api(t), newOrigin(t)
	one, two := ready(t, api, "one"), ready(t, api, "two")
	address := map[string]string{"default.one": one.Address, "default.two": two.Address}
	var secrets []string
	programs := []*program{p}
	restart := func() {
		t.Helper()
		p.signal(syscall.SIGKILL)
		p.end()
		p = start(t, dir)
		programs = append(programs, p)
	}

	step("each key goes to one holder, with what its proxy needs", func() {
		a, b := take(t, api, "default.default"), take(t, api, "default.default")
		secrets = append(secrets, string(a.Secret()), string(b.Secret()))
		keys := []string{a.Key(), b.Key()}
		if slices.Sort(keys); !slices.Equal(keys, []string{"default.one", "default.two"}) {
			t.Fatalf("handed out: %v", keys)
		}
		site.seen()
		for _, l := range []*client.Lease{a, b} {
			if err := fetchBy(t, l, site.URL); err != nil {
				t.Errorf("with what lease %s says: %v", l.ID(), err)
			}
			if from := site.seen(); !slices.Equal(from, []string{address[l.Key()]}) {
				t.Errorf("the origin saw %v, want %s", from, address[l.Key()])
			}
			if way, _ := l.Proxy(); (way.Password != "") != (l.Key() == "default.two") {
				t.Errorf("%s: password %t", l.Key(), way.Password != "")
			}
		}
		_, err := api.Take(t.Context(), "default.home", client.TakeOptions{})
		var e *client.Error
		if !errors.As(err, &e) || e.Code != "none_free" || len(e.Holders) != 1 || e.Holders[0].Holder != "e2e" {
			t.Errorf("a pool whose only key is held: %v, holders %+v", err, e)
		}
		release(t, a)
		release(t, b)
	})

	step("an attribute can be asked for", func() {
		l, err := api.Take(t.Context(), "default.default", client.TakeOptions{Constraints: map[string]string{"label:tier": "home"}})
		if err != nil || l.Key() != "default.one" || l.Info().Attributes["exitIP"] != one.Address {
			t.Fatalf("%v %v", l, err)
		}
		release(t, l)
	})

	step("a proxy that stops to work is not handed out, and its holder reads why", func() {
		l := take(t, api, "default.home")
		of := holders(t, dir, one)
		if len(of) != 1 {
			t.Fatalf("processes of one Proxy: %v", of)
		}
		// It runs, and answers nobody: no repair mends that.
		if err := syscall.Kill(of[0], syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		until(t, "the holder being told", func() string {
			if notice := renew(t, l).Notice; !strings.Contains(notice, "unhealthy") {
				return fmt.Sprintf("notice %q", notice)
			}
			return ""
		})
		release(t, l)
		if _, err := api.Take(t.Context(), "default.home", client.TakeOptions{}); code(err) != "none_free" {
			t.Errorf("taking it: %v", err)
		}
		other := take(t, api, "default.default")
		if other.Key() != "default.two" {
			t.Errorf("handed out: %s", other.Key())
		}
		release(t, other)
		// A waiter gets it as soon as it works again.
		got := make(chan error, 1)
		go func() {
			l, err := api.Take(t.Context(), "default.home", client.TakeOptions{Wait: 30 * time.Second})
			if err == nil {
				_, err = l.Release(t.Context(), client.ReleaseRequest{})
			}
			got <- err
		}()
		if err := syscall.Kill(of[0], syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if err := <-got; err != nil {
			t.Errorf("waiting for it: %v", err)
		}
	})

	step("kill -9 of the operator ends no lease", func() {
		l := take(t, api, "default.home")
		fence := l.Fence()
		restart()
		api = p.api(t)
		again, err := api.Resume(t.Context(), l.ID(), l.Secret())
		if err != nil || again.Info().State != client.StateHeld {
			t.Fatalf("%v %v", again, err)
		}
		if _, err := api.Take(t.Context(), "default.home", client.TakeOptions{}); code(err) != "none_free" {
			t.Errorf("somebody else takes it: %v", err)
		}
		release(t, again)
		next := take(t, api, "default.home")
		if next.Fence() <= fence {
			t.Errorf("fence %d after %d", next.Fence(), fence)
		}
		release(t, next)
	})

	step("a deleted Proxy waits for its lease, over kill -9, and then goes at once", func() {
		l := take(t, api, "default.home")
		p.kubectl("", "delete", "proxy", "one", "--wait=false")
		drains := func() {
			t.Helper()
			until(t, "the Proxy saying for whom it waits", func() string {
				px, err := api.Proxy(t.Context(), "default", "one")
				if err != nil {
					return err.Error()
				}
				for _, c := range px.Conditions {
					if c.Type == "Ready" && c.Reason == "Draining" && strings.Contains(c.Message, l.ID()) && strings.Contains(c.Message, "account admin (e2e)") {
						return ""
					}
				}
				return fmt.Sprintf("%+v", px.Conditions)
			})
		}
		drains()
		restart()
		api = p.api(t)
		again, err := api.Resume(t.Context(), l.ID(), l.Secret())
		if err != nil || !strings.Contains(again.Info().Notice, "draining") {
			t.Fatalf("%v %v, notice %q", again, err, again.Info().Notice)
		}
		drains()
		if err := fetchBy(t, l, site.URL); err != nil {
			t.Errorf("its holder works on: %v", err)
		}
		release(t, again)
		began := time.Now()
		p.kubectl("", "wait", "--for=delete", "proxy/one", "--timeout=30s")
		if waited := time.Since(began); waited > 5*time.Second {
			t.Errorf("gone %s after the release", waited)
		}
		if _, err := listener(one); err == nil {
			t.Error("it still listens")
		}
	})

	step("a deleted Proxy waits no longer than its pools say", func() {
		p.kubectl("apiVersion: crawl.example.com/v1alpha1\nkind: ProxyPool\nmetadata: {name: default}\nspec: {drainTimeout: 4s}\n", "apply", "-f", "-")
		l := take(t, api, "default.default")
		began := time.Now()
		p.kubectl("", "delete", "proxy", "two", "--timeout=30s")
		if waited := time.Since(began); waited < 3*time.Second || waited > 20*time.Second {
			t.Errorf("gone after %s", waited)
		}
		until(t, "the holder hearing of it", func() string {
			if err := l.Renew(t.Context(), client.RenewRequest{}); code(err) != "lease_removed" && code(err) != "lease" {
				return fmt.Sprint(err)
			}
			return ""
		})
		if events := p.kubectl("", "get", "events.events.k8s.io", "-o", "jsonpath={.items[*].reason}"); !strings.Contains(events, "DrainTimedOut") {
			t.Errorf("events: %s", events)
		}
	})

	step("no rows are left", func() {
		until(t, "pools without keys", func() string {
			list, err := api.Pools(t.Context(), client.Page{})
			if err != nil {
				return err.Error()
			}
			for _, pool := range list.Items {
				if pool.Keys != 0 {
					return fmt.Sprintf("%+v", pool)
				}
			}
			if len(list.Items) != 2 {
				return fmt.Sprintf("pools %+v", list.Items)
			}
			return ""
		})
		p.kubectl("", "delete", "proxypools", "--all")
		until(t, "no pools", func() string {
			list, err := api.Pools(t.Context(), client.Page{})
			if err != nil || len(list.Items) != 0 {
				return fmt.Sprintf("%+v %v", list, err)
			}
			return ""
		})
	})

	for _, secret := range append(secrets, "a:b@c$d%e", url.QueryEscape("a:b@c$d%e ü")) {
		for _, p := range programs {
			if strings.Contains(p.err.String()+p.out.String(), secret) {
				t.Error("a secret is in the output")
			}
		}
	}
}
