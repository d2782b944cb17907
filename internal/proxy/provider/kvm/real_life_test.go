//go:build integration

package kvm_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/testkit/libvirthost"
)

// get fetches a page, through a proxy when via is not empty.
func get(ctx context.Context, via, page string) (string, error) {
	tr := &http.Transport{DisableKeepAlives: true}
	if via != "" {
		u, err := url.Parse(via)
		if err != nil {
			return "", err
		}
		tr.Proxy = http.ProxyURL(u)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, page, nil)
	if err != nil {
		return "", err
	}
	resp, err := (&http.Client{Timeout: 10 * time.Second, Transport: tr}).Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 2<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %.200s", resp.Status, b)
	}
	return string(b), err
}

// Real guests with real squid, one on each of three hosts at once, each brought
// up from nothing, used, stopped behind the provider's back, started again,
// and removed; somebody else's domain and volume beside them stay as they are.
func TestRealLifeCycle(t *testing.T) {
	f := newFleet(t, 3)
	f.image(t, "tiny", libvirthost.Images(t).Tiny)
	var foreign []libvirthost.Foreign
	for _, h := range f.hosts {
		p, err := h.PlantForeign(t.Context(), "somebodys", "")
		if err != nil {
			t.Fatal(err)
		}
		foreign = append(foreign, p)
	}
	page := libvirthost.Serve(t, http.HandlerFunc(libvirthost.Hello))
	p := f.open(t)
	var wg sync.WaitGroup
	for _, h := range f.hosts {
		wg.Go(func() { oneLife(t, f, p, h, page.URL) })
	}
	wg.Wait()
	f.clean(t)
	for _, o := range foreign {
		if err := o.Untouched(t.Context()); err != nil {
			t.Error(err)
		}
	}
	rows, err := p.Check(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		t.Logf("check %s: %s %s", r.Host, r.Reason, r.Message)
		if r.Reason != "OK" || !strings.HasPrefix(r.Version, "9.") && !strings.HasPrefix(r.Version, "1") || r.FreeBytes < 1<<30 {
			t.Errorf("%+v", r)
		}
	}
}

func oneLife(t *testing.T, f *fleet, p provider.Provider, h *libvirthost.Host, page string) {
	ctx := patient(t)
	s := specOf(newOwner("life"), h.Name())
	s.Resources.MemoryBytes = 512 << 20
	s.UserData = provider.Secret(libvirthost.SquidUserData)
	began := time.Now()
	stage := func(what string) { t.Logf("%s %5.1fs %s", h.Name(), time.Since(began).Seconds(), what) }

	in, err := running(ctx, p, s, stage)
	if err != nil {
		t.Errorf("%s: %v", h.Name(), err)
		return
	}
	stage("address " + in.Address)
	proxied(ctx, t, in, page, stage)
	if again, err := p.Create(ctx, s); err != nil || again.ID != in.ID || again.Address != in.Address || !again.Created.Equal(in.Created) {
		t.Errorf("%s: Create again = %+v, %v; it was %+v", h.Name(), again, err, in)
	}
	user, err := get(ctx, "", fmt.Sprintf("http://%s/seed/user-data", net.JoinHostPort(in.Address, "8099")))
	if err != nil || user != libvirthost.SquidUserData {
		t.Errorf("%s: the guest sees the user-data %q, %v", h.Name(), user, err)
	}
	meta, err := get(ctx, "", fmt.Sprintf("http://%s/seed/meta-data", net.JoinHostPort(in.Address, "8099")))
	if err != nil || !strings.Contains(meta, s.Owner.UID) || !strings.Contains(meta, domain.NamesOf(s.Owner).Domain) {
		t.Errorf("%s: the guest sees the meta-data %q, %v", h.Name(), meta, err)
	}

	began = time.Now()
	if _, err := h.Virsh(ctx, "destroy", domain.NamesOf(s.Owner).Domain); err != nil {
		t.Error(err)
	}
	if got, err := p.Get(ctx, provider.Ref{ID: in.ID, Owner: s.Owner}); err != nil || got.State != provider.Stopped {
		t.Errorf("%s: after destroy: %+v, %v", h.Name(), got, err)
	}
	back, err := running(ctx, p, s, stage)
	if err != nil || back.ID != in.ID {
		t.Errorf("%s: started again: %+v, %v", h.Name(), back, err)
		return
	}
	proxied(ctx, t, back, page, stage)

	began = time.Now()
	if err := gone(ctx, p, provider.Ref{ID: in.ID, Owner: s.Owner}); err != nil {
		t.Errorf("%s: %v", h.Name(), err)
	}
	stage("deleted")
}

// proxied waits until squid in the guest fetches the page.
func proxied(ctx context.Context, t *testing.T, in provider.Instance, page string, stage func(string)) {
	t.Helper()
	for {
		got, err := fetchVia(ctx, in.Address, in.Port, page)
		if err == nil {
			stage("fetched: " + got)
			if !strings.Contains(got, "hello "+in.Address) || !strings.Contains(got, "squid") || !strings.Contains(got, "from-user-data") {
				t.Errorf("the page says %q", got)
			}
			return
		}
		select {
		case <-ctx.Done():
			t.Errorf("%s: no page through the proxy: %v", in.Host, err)
			return
		case <-time.After(200 * time.Millisecond):
		}
	}
}
