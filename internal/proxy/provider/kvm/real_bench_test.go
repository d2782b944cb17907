//go:build integration

package kvm_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm"
	"fleetdesk/internal/proxy/provider/kvm/link"
	"fleetdesk/internal/proxy/provider/kvm/virt"
	"fleetdesk/internal/testkit/libvirthost"
)

// figure prints one line of a benchmark for people and programs.
func figure(name string, value float64, unit string) {
	fmt.Printf("BENCH %s %.4g %s\n", name, value, unit)
}

// counting dials as the provider does and counts the calls to libvirt.
type counting struct {
	link.Dialer
	mu sync.Mutex
	n  map[string]int
}

func (c *counting) Dial(ctx context.Context, host string) (link.Link, error) {
	l, err := c.Dialer.Dial(ctx, host)
	if err != nil {
		return nil, err
	}
	return counted{virt.Counted(l, func(rpc string) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.n[rpc]++
		return nil
	}), l}, nil
}

// counted is a link whose calls are counted.
type counted struct {
	virt.Conn
	l link.Link
}

func (c counted) Done() <-chan struct{} { return c.l.Done() }
func (c counted) Err() error            { return c.l.Err() }
func (c counted) Close() error          { return c.l.Close() }

// took runs f and returns how many calls it made.
func (c *counting) took(f func()) (calls int, by map[string]int) {
	c.mu.Lock()
	c.n = map[string]int{}
	c.mu.Unlock()
	f()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.n {
		calls += n
	}
	return calls, c.n
}

// What one operation costs in calls to libvirt, on a real host: making a
// machine whose image is there, looking at it, listing a host with a hundred
// machines, checking a host.
func BenchmarkRealRPCs(b *testing.B) {
	f := newFleet(b, 1, func(o *libvirthost.HostOptions) { o.Network = true })
	name := f.hosts[0].Name()
	c := f.section.Hosts[name]
	c.Bridge, c.Network = "", "default"
	f.section.Hosts[name] = c
	l := &leases{f: f}
	count := &counting{Dialer: kvm.OverSSH(f.section), n: map[string]int{}}
	p := f.open(b, func(o *kvm.Options) { o.Dialer, o.Log = count, nil })
	ctx := patient(b)
	make1 := func(who string) provider.Spec {
		s := specOf(newOwner(who), name)
		l.know(b, s.Owner)
		if _, err := running(ctx, p, s, nil); err != nil {
			b.Fatal(err)
		}
		return s
	}
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	first := make1("first")
	for b.Loop() {
		n, by := count.took(func() { make1("cached") })
		figure("kvm.rpcs.create_cached", float64(n), "calls")
		b.Log(by)
		n, _ = count.took(func() { _, err := p.Get(ctx, provider.Ref{Owner: first.Owner, Host: name}); must(err) })
		figure("kvm.rpcs.get", float64(n), "calls")
		n, _ = count.took(func() { _, err := p.Check(ctx); must(err) })
		figure("kvm.rpcs.check", float64(n), "calls")
		for i := len(listed(b, p, 1)); i < 100; i++ {
			make1(fmt.Sprint("many", i))
		}
		listed(b, p, 100)
		began := time.Now()
		n, _ = count.took(func() { listed(b, p, 100) })
		figure("kvm.rpcs.list100", float64(n), "calls")
		figure("kvm.list100.ms", float64(time.Since(began).Microseconds())/1000, "ms")
	}
	for _, in := range listed(b, p, 100) {
		must(gone(ctx, p, provider.Ref{ID: in.ID, Owner: in.Owner}))
	}
}

// listed returns the instances of the only host, at least that many.
func listed(b *testing.B, p provider.Provider, least int) []provider.Instance {
	rows, err := p.ListByTag(context.Background(), installation)
	if err == nil {
		err = rows[0].Err
	}
	if err != nil || len(rows[0].Instances) < least {
		b.Fatalf("%d instances, %v", len(rows[0].Instances), err)
	}
	return rows[0].Instances
}

// slowLink is the rate of a home's uplink, in bytes a second.
const slowLink = 4_000_000

// How long a check takes while an image is uploaded over a slow link.
func BenchmarkRealCheckBesideUpload(b *testing.B) {
	f := newFleet(b, 1)
	h := f.hosts[0]
	size := 80 << 20
	f.noise(b, size)
	p := f.open(b, func(o *kvm.Options) { o.Log = nil })
	ctx := patient(b)
	if _, err := p.Check(ctx); err != nil { // the connection, and the host's first look at QEMU
		b.Fatal(err)
	}
	if err := h.Slow(ctx, slowLink); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		s := specOf(newOwner("slow"), h.Name())
		began := time.Now()
		if in, err := p.Create(ctx, s); err != nil || in.State != provider.Provisioning {
			b.Fatalf("%+v, %v", in, err)
		}
		uploading := func() bool {
			vols, err := h.Volumes(ctx, "default")
			if err != nil {
				b.Fatal(err)
			}
			return len(halvesOf(vols)) > 0
		}
		for end := time.Now().Add(10 * time.Second); !uploading(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				b.Fatal("no upload begins")
			}
		}
		var took []time.Duration
		for i := 0; ; i++ {
			start := time.Now()
			rows, err := p.Check(ctx)
			took = append(took, time.Since(start))
			if err != nil || rows[0].Reason != kvm.ReasonOK {
				b.Fatalf("%+v, %v", rows, err)
			}
			if i%10 == 9 && !uploading() {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		whole := time.Since(began)
		slices.Sort(took)
		figure("kvm.probe_during_upload.p50_ms", float64(took[len(took)/2].Microseconds())/1000, "ms")
		figure("kvm.probe_during_upload.p99_ms", float64(took[len(took)*99/100].Microseconds())/1000, "ms")
		figure("kvm.probe_during_upload.checks", float64(len(took)), "checks")
		figure("kvm.probe_during_upload.upload_mb_per_s", float64(size)/whole.Seconds()/1e6, "MB/s")
		if err := gone(ctx, p, provider.Ref{Owner: s.Owner, Host: h.Name()}); err != nil {
			b.Fatal(err)
		}
	}
}

// noise makes a raw image of that size, which does not compress, the default.
func (f *fleet) noise(b *testing.B, size int) string {
	b.Helper()
	file := filepath.Join(f.dir, "noise.raw")
	data := make([]byte, size)
	x := uint64(1)
	for i := range data {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		data[i] = byte(x)
	}
	clear(data[:1<<20])
	if err := os.WriteFile(file, data, 0o600); err != nil {
		b.Fatal(err)
	}
	url, sum := libvirthost.ServeFile(b, file)
	f.section.Images["noise"] = kvm.Image{URL: url, SHA256: sum, Format: "raw", Firmware: "bios"}
	f.section.DefaultImage = "noise"
	return file
}

// Our upload, from the URL to the verified image, beside virsh's of the same
// bytes from a local file through SSH, in turns.
func BenchmarkRealUploadBesideVirsh(b *testing.B) {
	f := newFleet(b, 1)
	h := f.hosts[0]
	const size = 256 << 20
	file := f.noise(b, size)
	p := f.open(b, func(o *kvm.Options) { o.Log = nil })
	ctx := patient(b)
	if _, err := p.Check(ctx); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		var ours, virshs []float64
		for i := range 3 {
			virshs = append(virshs, virshUpload(ctx, b, f, h, file, fmt.Sprint("virsh-", i, ".raw")))
			ours = append(ours, ourUpload(ctx, b, p, h))
		}
		slices.Sort(ours)
		slices.Sort(virshs)
		figure("kvm.upload.mb_per_s", size/ours[1]/1e6, "MB/s")
		figure("kvm.upload.virsh_mb_per_s", size/virshs[1]/1e6, "MB/s")
		figure("kvm.upload.ratio_vs_virsh", ours[1]/virshs[1], "ratio")
	}
}

func ourUpload(ctx context.Context, b *testing.B, p provider.Provider, h *libvirthost.Host) float64 {
	b.Helper()
	s := specOf(newOwner("upload"), h.Name())
	began := time.Now()
	if in, err := p.Create(ctx, s); err != nil || in.State != provider.Provisioning {
		b.Fatalf("%+v, %v", in, err)
	}
	// The marker is what an upload ends with.
	for {
		if found, err := filepath.Glob(h.Path("/var/lib/libvirt/images/fleetdesk-image-*.verified-*")); err != nil || ctx.Err() != nil {
			b.Fatal(err, ctx.Err())
		} else if len(found) > 0 {
			break
		}
		time.Sleep(2 * time.Millisecond)
	}
	took := time.Since(began).Seconds()
	if err := gone(ctx, p, provider.Ref{Owner: s.Owner, Host: h.Name()}); err != nil {
		b.Fatal(err)
	}
	vols, err := h.Volumes(ctx, "default")
	if err != nil {
		b.Fatal(err)
	}
	for _, v := range vols {
		if _, err := h.Virsh(ctx, "vol-delete", v, "default"); err != nil {
			b.Fatal(err)
		}
	}
	return took
}

func virshUpload(ctx context.Context, b *testing.B, f *fleet, h *libvirthost.Host, file, volume string) float64 {
	b.Helper()
	if _, err := h.Virsh(ctx, "vol-create-as", "default", volume, "256M", "--format", "raw"); err != nil {
		b.Fatal(err)
	}
	ssh := filepath.Join(f.dir, "ssh")
	script := fmt.Sprintf("#!/bin/sh\nexec ssh -i %s -o UserKnownHostsFile=%s -o StrictHostKeyChecking=yes \"$@\"\n", h.KeyFile(), f.section.SSH.KnownHostsFile)
	if err := os.WriteFile(ssh, []byte(script), 0o700); err != nil {
		b.Fatal(err)
	}
	uri := fmt.Sprintf("qemu+ssh://root@%s/system?command=%s", h.IP(), ssh)
	began := time.Now()
	if out, err := exec.CommandContext(ctx, "virsh", "-c", uri, "vol-upload", volume, file, "--pool", "default").CombinedOutput(); err != nil {
		b.Fatalf("virsh: %v: %s", err, out)
	}
	took := time.Since(began).Seconds()
	if _, err := h.Virsh(ctx, "vol-delete", volume, "default"); err != nil {
		b.Fatal(err)
	}
	return took
}
