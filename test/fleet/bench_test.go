package fleet_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/proxy/config"
	"fleetdesk/internal/proxy/operator"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/fake"
	"fleetdesk/internal/proxy/provider/kvm"
	"fleetdesk/internal/proxy/provider/kvm/virttest"
)

// What one run of the bench makes: so many machines, at this pace, on the hosts
// that are well.
const (
	isolationHosts = 50
	isolationRun   = 245
	isolationPace  = 25 * time.Millisecond
	isolationTurns = 2
)

// BenchmarkIsolation measures what one bad host of 50 costs the others: the
// time from a Proxy's creation to its running machine, over the kvm provider
// and its own client of libvirt's wire, whose other end are daemons in memory
// on ports of this machine; the bad one is bad at the wire. Runs take turns
// with undisturbed ones. It prints lines "BENCH name value unit".
func BenchmarkIsolation(b *testing.B) {
	for range b.N {
		isolation(b)
	}
}

func isolation(b *testing.B) {
	image := virttest.Qcow2(1 << 30)
	images := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(image) }))
	defer images.Close()
	sum := sha256.Sum256(image)
	section := kvm.Section{
		SSH:   kvm.SSH{User: "libvirt", KeyFile: "/nonexistent/key", KnownHostsFile: "/nonexistent/known_hosts"},
		Hosts: map[string]kvm.Host{}, ImageAllowCIDRs: []string{"127.0.0.0/8"},
		Images: map[string]kvm.Image{"debian-13": {URL: images.URL + "/debian-13.qcow2", SHA256: hex.EncodeToString(sum[:])}},
	}
	daemons := map[string]*daemon{}
	var names []string
	for i := range isolationHosts {
		name := fmt.Sprintf("box-%02d", i)
		names = append(names, name)
		daemons[name] = newDaemon(b, name)
		section.Hosts[name] = kvm.Host{Address: name + ".example.com"}
	}
	w := newWorld(b, cluster, fake.New(fake.Options{}))
	dialer := overWire{daemons, slog.New(slog.NewTextHandler(w, nil))}
	o := w.start(nil, func(o *operator.Options, _ *rest.Config) {
		// The operator's own intervals: a run is shorter than the time in which
		// a mute host is noticed.
		d := operator.Defaults()
		o.ListInterval, o.CheckInterval, o.SweepInterval = d.ListInterval, d.CheckInterval, d.SweepInterval
		o.Build = func(config.Entry, func() (provider.Provider, error)) (provider.Provider, error) {
			return kvm.New(kvm.Options{Name: "fake", Section: section, Dialer: dialer})
		}
	})
	defer o.stop()
	bad, well := names[0], names[1:]
	wave(b, w, "warm", bad, well)

	faults := []struct {
		name  string
		begin func(d *daemon, b *testing.B) (end func())
	}{{"dead", (*daemon).dead}, {"mute", (*daemon).mute}, {"slow", (*daemon).slow}, {"flood", (*daemon).flood}}
	quiet, disturbed := map[string][]time.Duration{}, map[string][]time.Duration{}
	for turn := range isolationTurns {
		for _, f := range faults {
			quiet[f.name] = append(quiet[f.name], wave(b, w, fmt.Sprintf("q%d-%s", turn, f.name), bad, well)...)
			end := f.begin(daemons[bad], b)
			disturbed[f.name] = append(disturbed[f.name], wave(b, w, fmt.Sprintf("d%d-%s", turn, f.name), bad, well)...)
			end()
		}
	}
	for _, f := range faults {
		q, d := p99(quiet[f.name]), p99(disturbed[f.name])
		fmt.Printf("BENCH operator.isolation.%s.quiet_p99 %.1f ms\n", f.name, float64(q.Microseconds())/1000)
		fmt.Printf("BENCH operator.isolation.%s.disturbed_p99 %.1f ms\n", f.name, float64(d.Microseconds())/1000)
		fmt.Printf("BENCH operator.isolation.%s.ratio %.2f ratio\n", f.name, float64(d)/float64(q))
	}
}

// wave makes Proxies on the hosts that are well, and a few on the bad one, and
// returns how long each on a well one took to its running machine. All are
// removed again; those on the bad host as soon as that can be.
func wave(b *testing.B, w *world, name, bad string, well []string) []time.Duration {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 3*time.Minute)
	defer cancel()
	of := []client.ListOption{client.InNamespace(w.ns), client.MatchingLabels{"wave": name}}
	changes, err := w.client.Watch(ctx, &v1alpha1.ProxyList{}, of...)
	if err != nil {
		b.Fatal(err)
	}
	defer changes.Stop()
	add := func(i int, host string) string {
		px := w.proxy(fmt.Sprintf("%s-%d", name, i))
		px.Labels = map[string]string{"wave": name}
		px.Spec.Placement = &v1alpha1.Placement{Host: host, Image: "debian-13"}
		px.Spec.HealthCheck = v1alpha1.HealthCheck{}
		if err := w.client.Create(ctx, px); err != nil {
			b.Error(err)
		}
		return px.Name
	}
	type start struct {
		name string
		at   time.Time
	}
	starts := make(chan start, isolationRun)
	go func() {
		for i := range 5 {
			add(10_000+i, bad)
		}
		for i := range isolationRun {
			at := time.Now()
			starts <- start{add(i, well[i%len(well)]), at}
			time.Sleep(isolationPace)
		}
		close(starts)
	}()
	ran, left := map[string]time.Time{}, isolationRun
	var took []time.Duration
	began := map[string]time.Time{}
	for left > 0 || len(ran) > 0 {
		select {
		case s, ok := <-starts:
			if !ok {
				starts = nil
				continue
			}
			began[s.name] = s.at
		case ev, ok := <-changes.ResultChan():
			if !ok {
				b.Fatalf("wave %s: the watch ended with %d machines missing", name, left)
			}
			px, isProxy := ev.Object.(*v1alpha1.Proxy)
			if !isProxy || px.Spec.Placement.Host == bad || !apimeta.IsStatusConditionTrue(px.Status.Conditions, v1alpha1.ConditionProvisioned) {
				continue
			}
			if _, known := ran[px.Name]; !known {
				ran[px.Name] = time.Now()
				left--
			}
		case <-ctx.Done():
			b.Fatalf("wave %s: %d machines do not run", name, left)
		}
		if left == 0 && len(began) == isolationRun {
			break
		}
	}
	for name, at := range ran {
		took = append(took, at.Sub(began[name]))
	}
	removeAll(b, w, bad, of)
	return took
}

// removeAll removes a wave.
func removeAll(b *testing.B, w *world, bad string, of []client.ListOption) {
	b.Helper()
	all := make([]client.DeleteAllOfOption, 0, len(of))
	for _, o := range of {
		all = append(all, o.(client.DeleteAllOfOption))
	}
	if err := w.client.DeleteAllOf(b.Context(), &v1alpha1.Proxy{}, all...); err != nil {
		b.Fatal(err)
	}
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		var list v1alpha1.ProxyList
		if err := w.client.List(b.Context(), &list, of...); err != nil {
			b.Fatal(err)
		}
		left := slices.DeleteFunc(list.Items, func(px v1alpha1.Proxy) bool { return px.Spec.Placement.Host == bad })
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			b.Fatalf("%d Proxies do not go, the first: %+v", len(left), left[0].Status)
		}
	}
}

// p99 is the 99th percentile.
func p99(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)*99/100]
}
