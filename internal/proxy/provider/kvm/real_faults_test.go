//go:build integration

package kvm_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/proxy/provider/kvm/link"
	"fleetdesk/internal/proxy/provider/kvm/virt"
	"fleetdesk/internal/testkit/libvirthost"
)

// quickFleet is a fleet whose domains are Running as soon as they are started:
// see leases.
func quickFleet(t testing.TB, n int, with ...func(*libvirthost.HostOptions)) (*fleet, *leases) {
	t.Helper()
	f := newFleet(t, n, append(with, func(o *libvirthost.HostOptions) { o.Network = true })...)
	for name, c := range f.section.Hosts {
		c.Bridge, c.Network = "", "default"
		f.section.Hosts[name] = c
	}
	return f, &leases{f: f}
}

// beside plants a domain and a volume of somebody else on each host. The test
// calls what it returns at its end: nothing of ours is left then, and those are
// as they were.
func (f *fleet) beside(t *testing.T) (end func()) {
	t.Helper()
	var foreign []libvirthost.Foreign
	for _, h := range f.hosts {
		p, err := h.PlantForeign(t.Context(), "somebodys", "")
		if err != nil {
			t.Fatal(err)
		}
		foreign = append(foreign, p)
	}
	return func() {
		t.Helper()
		f.clean(t)
		for _, o := range foreign {
			if err := o.Untouched(patient(t)); err != nil {
				t.Error(err)
			}
		}
	}
}

// parts are the files that a host's pool has of an owner.
func (f *fleet) parts(t testing.TB, host string, o provider.Owner) (found []string) {
	t.Helper()
	vols, err := f.on(host).Volumes(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range vols {
		if strings.HasPrefix(v, domain.NamesOf(o).Domain) {
			found = append(found, v)
		}
	}
	return found
}

// tap is a dialer that tells the name of each call on its links before it runs,
// and counts them.
type tap struct {
	link.Dialer
	note  func(rpc string, l link.Link) error
	dials atomic.Int32
}

type tappedLink struct {
	virt.Conn
	l link.Link
}

func (l tappedLink) Done() <-chan struct{} { return l.l.Done() }
func (l tappedLink) Err() error            { return l.l.Err() }
func (l tappedLink) Close() error          { return l.l.Close() }

func (d *tap) Dial(ctx context.Context, host string) (link.Link, error) {
	d.dials.Add(1)
	l, err := d.Dialer.Dial(ctx, host)
	if err != nil {
		return nil, err
	}
	return tappedLink{virt.Counted(l, func(rpc string) error { return d.note(rpc, l) }), l}, nil
}

// Stamp implements link.Stamper as the dialer behind it does.
func (d *tap) Stamp() string { return d.Dialer.(link.Stamper).Stamp() }

// tapped is the option that puts a tap between a provider and its hosts.
func (f *fleet) tapped(t testing.TB, note func(rpc string, l link.Link) error) (*tap, func(*kvm.Options)) {
	t.Helper()
	d, err := kvm.DialOverSSH(f.section, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if note == nil {
		note = func(string, link.Link) error { return nil }
	}
	tp := &tap{Dialer: d, note: note}
	return tp, func(o *kvm.Options) { o.Dialer = tp }
}

// Whoever is cut off at any call to a real daemon and repeats gets one whole
// machine, and whoever is cut off at any call of the removal leaves nothing.
// "before" ends the caller's context before the call is sent. The other two are
// for calls that change something: "in flight" ends it a moment after, so that
// libvirtd does what nobody waits for; "dropped" ends the connection too, on a
// host that lacks the image.
func TestRealCutOffAtEachCall(t *testing.T) {
	f, n := quickFleet(t, 1)
	end := f.beside(t)
	host := f.hosts[0].Name()
	ctx := patient(t)
	first := specOf(newOwner("first"), host)
	n.know(t, first.Owner)
	p := f.open(t)
	if _, err := running(ctx, p, first, nil); err != nil { // the image is there
		t.Fatal(err)
	}
	if err := gone(ctx, p, provider.Ref{Owner: first.Owner}); err != nil {
		t.Fatal(err)
	}
	for _, how := range []string{"before", "in flight", "dropped"} {
		for _, making := range []bool{true, false} {
			t.Run(fmt.Sprintf("making %t, %s", making, how), func(t *testing.T) {
				var cut []string
				for k := 1; ; k++ {
					if k > 100 {
						t.Fatal("there is no end of calls")
					}
					rpc := cutOffReally(t, f, n, k, making, how)
					if rpc == "" {
						break
					}
					cut = append(cut, rpc)
				}
				t.Logf("cut off at %d calls: %s", len(cut), strings.Join(cut, " "))
				if len(cut) < 5 {
					t.Errorf("only %d calls were cut off", len(cut))
				}
			})
		}
	}
	end()
}

// reads are calls that change nothing.
var reads = regexp.MustCompile("Lookup|Get|List|InterfaceAddresses")

// cutOffReally cuts off at the k-th call and returns its name, "" when there
// are fewer.
func cutOffReally(t *testing.T, f *fleet, n *leases, k int, making bool, how string) (cut string) {
	t.Helper()
	host := f.hosts[0].Name()
	s := specOf(newOwner("cut"), host)
	if how == "dropped" && making {
		s.Owner.Installation += "/" + s.Owner.UID // it has no image there
	}
	s.UserData = provider.Secret("#cloud-config\n# " + s.Owner.UID + strings.Repeat("\n# 0123456789abcdef", 10_000) + "\n# the end\n")
	n.know(t, s.Owner)
	ref := provider.Ref{Owner: s.Owner, Host: host}
	if !making {
		q := f.open(t)
		if _, err := running(patient(t), q, s, nil); err != nil {
			t.Fatalf("call %d: %v", k, err)
		}
		_ = q.Close()
	}

	ctx, cancel := context.WithCancel(patient(t))
	defer cancel()
	var mu sync.Mutex
	calls := 0
	_, through := f.tapped(t, func(rpc string, l link.Link) error {
		mu.Lock()
		defer mu.Unlock()
		if how != "before" && reads.MatchString(rpc) {
			return nil
		}
		if calls++; calls != k {
			return nil
		}
		cut = rpc
		switch how {
		case "before":
			cancel()
		case "in flight":
			time.AfterFunc(time.Duration(k%4)*300*time.Microsecond, cancel)
		case "dropped":
			time.AfterFunc(time.Duration(k%3)*300*time.Microsecond, cancel)
			go func() { _ = l.Close() }()
		}
		return nil
	})
	p := f.open(t, through)
	var err error
	if making {
		_, err = running(ctx, p, s, nil)
	} else {
		err = gone(ctx, p, ref)
	}
	_ = p.Close()
	mu.Lock()
	at := cut
	mu.Unlock()
	if at == "" && err != nil {
		t.Errorf("not cut off, and %v", err)
	}

	q := f.open(t)
	defer func() { _ = q.Close() }()
	if making {
		in, err := running(patient(t), q, s, nil)
		if err != nil {
			t.Errorf("cut off %s call %d (%s): %v", how, k, at, err)
		} else if parts := f.parts(t, host, s.Owner); len(parts) != 2 {
			t.Errorf("cut off %s call %d (%s): the machine has %q", how, k, at, parts)
		} else if iso := read(t, f.hosts[0].Path(filepath.Join("/var/lib/libvirt/images", domain.NamesOf(s.Owner).Seed))); !strings.Contains(iso, string(s.UserData)) {
			t.Errorf("cut off %s call %d (%s): the seed has %d bytes and not the user-data", how, k, at, len(iso))
		} else if got, err := q.Get(patient(t), ref); err != nil || got.ID != in.ID || got.Address != in.Address {
			t.Errorf("cut off %s call %d (%s): %+v, %v; Create said %+v", how, k, at, got, err, in)
		}
	}
	if err := gone(patient(t), q, ref); err != nil {
		t.Errorf("cut off %s call %d (%s): %v", how, k, at, err)
	}
	if left := f.parts(t, host, s.Owner); len(left) > 0 {
		t.Errorf("cut off %s call %d (%s): left %q", how, k, at, left)
	}
	return at
}

// dribble serves a raw disk of zeros, 64 KiB at a time, slowly until it is told
// to hurry.
type dribble struct {
	size  int64
	fast  atomic.Bool
	asked atomic.Int32
	sent  atomic.Int64
}

func (d *dribble) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.asked.Add(1)
	w.Header().Set("Content-Length", fmt.Sprint(d.size))
	chunk := make([]byte, 64<<10)
	for at := int64(0); at < d.size; at += int64(len(chunk)) {
		if _, err := w.Write(chunk); err != nil {
			return
		}
		d.sent.Add(int64(len(chunk)))
		if !d.fast.Load() {
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
}

// slowImage adds an image that a dribble serves and makes it the default.
func (f *fleet) slowImage(t testing.TB, size int64) *dribble {
	t.Helper()
	d := &dribble{size: size}
	s := libvirthost.Serve(t, d)
	h := sha256.New()
	for chunk := make([]byte, 1<<20); size > 0; size -= int64(len(chunk)) {
		_, _ = h.Write(chunk)
	}
	f.section.Images["slow"] = kvm.Image{URL: s.URL + "/slow.raw", SHA256: hex.EncodeToString(h.Sum(nil)), Format: "raw", Firmware: "bios"}
	f.section.DefaultImage = "slow"
	return d
}

// uploading repeats Create until the upload runs and some MiB were served since
// the call.
func (d *dribble) uploading(t *testing.T, p provider.Provider, s provider.Spec, mib int64) {
	t.Helper()
	before := d.sent.Load()
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		in, err := p.Create(patient(t), s)
		if err != nil || in.State != provider.Provisioning {
			t.Fatalf("no upload was seen: %+v, %v", in, err)
		}
		if strings.Contains(in.Message, "uploading the image") && d.sent.Load()-before >= mib<<20 {
			t.Logf("cut in here: %s", in.Message)
			return
		}
		if time.Now().After(end) {
			t.Fatalf("still %s", in.Message)
		}
	}
}

// fails repeats a call until it fails, and returns how and after what time.
func fails(t *testing.T, limit time.Duration, call func(ctx context.Context) error) (time.Duration, error) {
	t.Helper()
	began := time.Now()
	for ; ; time.Sleep(100 * time.Millisecond) {
		if err := call(patient(t)); err != nil {
			return time.Since(began), err
		}
		if time.Since(began) > limit {
			t.Fatalf("no failure after %v", limit)
		}
	}
}

// unreached asserts that an error is about a host that does not answer.
func unreached(t *testing.T, err error, host string, words ...string) {
	t.Helper()
	if !slices.Contains([]fault.Class{fault.Unavailable, fault.Timeout}, fault.Of(err)) {
		t.Errorf("class %s: %v; want Unavailable or Timeout", fault.Of(err), err)
	}
	if err == nil || !strings.Contains(err.Error(), host) || !slices.ContainsFunc(words, func(w string) bool { return strings.Contains(err.Error(), w) }) {
		t.Errorf("%v; want the host %s and one of %q", err, host, words)
	}
}

// libvirtd dies in mid-upload: the error names the true cause, and once it is
// back the same Proxy comes up, with nothing half left; also when the operator
// ends in between, and cannot tidy up.
func TestRealLibvirtdKilledInMidUpload(t *testing.T) {
	f, n := quickFleet(t, 1)
	end := f.beside(t)
	image := f.slowImage(t, 64<<20)
	h := f.hosts[0]
	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprintf("operator restarted %t", restarted), func(t *testing.T) {
			image.fast.Store(false)
			asked := image.asked.Load()
			p := f.open(t)
			s := specOf(newOwner("killed"), h.Name())
			s.Owner.Installation += fmt.Sprint("/", restarted) // it has no image there
			n.know(t, s.Owner)
			image.uploading(t, p, s, 8)
			if err := h.KillLibvirtd(t.Context()); err != nil {
				t.Fatal(err)
			}
			create := func(ctx context.Context) error {
				_, err := p.Create(ctx, s)
				return err
			}
			took, err := fails(t, 20*time.Second, create)
			t.Logf("after %v: %s: %v", took.Round(time.Millisecond), fault.Of(err), err)
			unreached(t, err, h.Name(), "did not open the socket", "the connection to libvirtd on "+h.Name()+" ended")
			time.Sleep(link.RedialPause + 100*time.Millisecond) // a failed dial answers for that long
			took, err = fails(t, 20*time.Second, create)
			t.Logf("then after %v: %s: %v", took.Round(time.Millisecond), fault.Of(err), err)
			unreached(t, err, h.Name(), "did not open the socket")
			if restarted {
				began := time.Now()
				if err := p.Close(); err != nil || time.Since(began) > 10*time.Second {
					t.Errorf("closed after %v: %v", time.Since(began), err)
				}
				if half := halvesOf(f.images(t, h)); len(half) != 1 {
					t.Errorf("there is nothing to tidy up: %q", half)
				}
				p = f.open(t)
			}
			if err := h.StartLibvirtd(t.Context()); err != nil {
				t.Fatal(err)
			}
			image.fast.Store(true)
			began := time.Now()
			in, err := running(patient(t), p, s, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("it runs %v after libvirtd's start", time.Since(began).Round(time.Millisecond))
			if n := image.asked.Load() - asked; n != 2 {
				t.Errorf("the image was asked for %d times; want 2", n)
			}
			if !strings.HasSuffix(in.ID, domain.UUIDOf(s.Owner)) {
				t.Errorf("another machine: %+v", in)
			}
			f.halvesBeside(t, s.Owner)
			if err := gone(patient(t), p, provider.Ref{ID: in.ID, Owner: s.Owner}); err != nil {
				t.Error(err)
			}
		})
	}
	end()
}

// images are the names of a host's image volumes and markers, as they are on
// disk: libvirtd need not run.
func (f *fleet) images(t testing.TB, h *libvirthost.Host) (names []string) {
	t.Helper()
	files, err := filepath.Glob(h.Path("/var/lib/libvirt/images/fleetdesk-image-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		names = append(names, filepath.Base(file))
	}
	return names
}

// halvesBeside asserts that there are no halves of images while an owner's
// machine runs.
func (f *fleet) halvesBeside(t *testing.T, o provider.Owner) {
	t.Helper()
	for _, h := range f.hosts {
		if left := halvesOf(f.images(t, h)); len(left) > 0 {
			t.Errorf("halves beside %s on %s: %q", o.Name, h.Name(), left)
		}
	}
}

// libvirtd dies at each step of Create and of Delete, right before what the
// step does, and while it is done.
func TestRealLibvirtdKilledInMidCreate(t *testing.T) {
	f, n := quickFleet(t, 1)
	end := f.beside(t)
	h := f.hosts[0]
	p := f.open(t)
	steps := func(call func(ctx context.Context) error) (all []string) {
		if err := call(provider.WithStepHook(patient(t), func(step string) error {
			all = append(all, step)
			return nil
		})); err != nil {
			t.Fatal(err)
		}
		return all
	}
	first := specOf(newOwner("first"), h.Name())
	n.know(t, first.Owner)
	if _, err := running(patient(t), p, first, nil); err != nil {
		t.Fatal(err)
	}
	second := specOf(newOwner("second"), h.Name())
	n.know(t, second.Owner)
	making := steps(func(ctx context.Context) error {
		_, err := running(ctx, p, second, nil)
		return err
	})
	ending := steps(func(ctx context.Context) error {
		return gone(ctx, p, provider.Ref{Owner: second.Owner, Host: h.Name()})
	})
	t.Logf("steps of Create: %q; of Delete: %q", making, ending)
	if len(making) < 6 || len(ending) < 5 {
		t.Fatal("too few steps")
	}

	killedAt := func(t *testing.T, at int, create bool, call func(ctx context.Context) error) {
		t.Helper()
		i := 0
		var after sync.WaitGroup
		ctx := provider.WithStepHook(patient(t), func(string) error {
			if i++; i != at+1 {
				return nil
			}
			kill := func() {
				if err := h.KillLibvirtd(context.Background()); err != nil {
					t.Error(err)
				}
			}
			if at%2 == 0 == create {
				kill()
			} else {
				after.Go(kill) // it takes some ms to begin
			}
			return nil
		})
		began := time.Now()
		err := call(ctx)
		after.Wait()
		t.Logf("after %v: %s: %v", time.Since(began).Round(time.Millisecond), fault.Of(err), err)
		if err != nil {
			unreached(t, err, h.Name(), "the connection to libvirtd on "+h.Name()+" ended", "did not open the socket")
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("it took %v", took)
		}
		if err := h.StartLibvirtd(patient(t)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range making {
		t.Run(fmt.Sprintf("Create at %d, %s", i, making[i]), func(t *testing.T) {
			s := specOf(newOwner("killed"), h.Name())
			n.know(t, s.Owner)
			killedAt(t, i, true, func(ctx context.Context) error {
				_, err := p.Create(ctx, s)
				return err
			})
			if in, err := running(patient(t), p, s, nil); err != nil || !strings.HasSuffix(in.ID, domain.UUIDOf(s.Owner)) {
				t.Errorf("%+v, %v", in, err)
			}
			if err := gone(patient(t), p, provider.Ref{Owner: s.Owner}); err != nil {
				t.Error(err)
			}
			if left := f.parts(t, h.Name(), s.Owner); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
	for i := range ending {
		t.Run(fmt.Sprintf("Delete at %d, %s", i, ending[i]), func(t *testing.T) {
			s := specOf(newOwner("killed"), h.Name())
			n.know(t, s.Owner)
			if _, err := running(patient(t), p, s, nil); err != nil {
				t.Fatal(err)
			}
			ref := provider.Ref{Owner: s.Owner, Host: h.Name()}
			killedAt(t, i, false, func(ctx context.Context) error {
				_, err := p.Delete(ctx, ref)
				return err
			})
			if err := gone(patient(t), p, ref); err != nil {
				t.Error(err)
			}
			if left := f.parts(t, h.Name(), s.Owner); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
	if in, err := p.Get(patient(t), provider.Ref{Owner: first.Owner}); err != nil || in.State != provider.Running {
		t.Errorf("the machine beside them: %+v, %v", in, err)
	}
	if err := gone(patient(t), p, provider.Ref{Owner: first.Owner}); err != nil {
		t.Error(err)
	}
	end()
}

// A pool that is stopped keeps a removal from ending: the domain stays and shows
// whose the volumes are, until they can be removed.
func TestRealDeleteWhileThePoolIsStopped(t *testing.T) {
	f, n := quickFleet(t, 1)
	end := f.beside(t)
	h := f.hosts[0]
	p := f.open(t)
	s := specOf(newOwner("stopped"), h.Name())
	n.know(t, s.Owner)
	in, err := running(patient(t), p, s, nil)
	if err != nil {
		t.Fatal(err)
	}
	ref := provider.Ref{ID: in.ID, Owner: s.Owner}
	if err := h.StopPool(t.Context(), "default"); err != nil {
		t.Fatal(err)
	}
	st, err := p.Delete(patient(t), ref)
	t.Logf("%s, %s: %v", st, fault.Of(err), err)
	if fault.Of(err) != fault.Transient || !strings.Contains(err.Error(), "virsh pool-start default") {
		t.Errorf("%s, %s: %v", st, fault.Of(err), err)
	}
	if got, err := p.Get(patient(t), ref); err != nil || got.State != provider.Deleting {
		t.Errorf("the domain shows %+v, %v", got, err)
	}
	if err := h.StartPool(t.Context(), "default"); err != nil {
		t.Fatal(err)
	}
	if err := gone(patient(t), p, ref); err != nil {
		t.Error(err)
	}
	end()
}

// back waits until every host answers a listing, and returns how long it took.
func back(t *testing.T, p provider.Provider) time.Duration {
	t.Helper()
	began := time.Now()
	for ; ; time.Sleep(50 * time.Millisecond) {
		rows, err := p.ListByTag(patient(t), installation)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(rows, func(r provider.HostList) bool { return r.Err != nil }) {
			return time.Since(began)
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("%+v", rows)
		}
	}
}

// healthOf checks with a time limit and returns one host's row.
func healthOf(t *testing.T, p *kvm.Provider, host string, limit time.Duration) (provider.HostHealth, time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	began := time.Now()
	rows, err := p.Check(ctx)
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	i := slices.IndexFunc(rows, func(r provider.HostHealth) bool { return r.Host == host })
	t.Logf("check of %s after %v: %s: %s", host, took.Round(time.Millisecond), rows[i].Reason, rows[i].Message)
	if took > limit+500*time.Millisecond {
		t.Errorf("the check had %v and took %v", limit, took)
	}
	return rows[i], took
}

// A host is cut off, on an idle connection and in mid-upload: calls end in
// bounded time and say so, the other host goes on, and when it is back all
// converges by itself with nothing doubled.
func TestRealHostCutOffAndBack(t *testing.T) {
	f, n := quickFleet(t, 2)
	end := f.beside(t)
	image := f.slowImage(t, 64<<20)
	near, far := f.hosts[0], f.hosts[1]
	p := f.open(t)
	blank := specOf(newOwner("idle"), far.Name())
	blank.Image = "blank"
	other := specOf(newOwner("other"), near.Name())
	other.Image = "blank"
	for _, s := range []provider.Spec{blank, other} {
		n.know(t, s.Owner)
		if _, err := running(patient(t), p, s, nil); err != nil {
			t.Fatal(err)
		}
	}
	ref := provider.Ref{Owner: blank.Owner, Host: far.Name()}
	was, err := p.Get(patient(t), ref)
	if err != nil {
		t.Fatal(err)
	}

	if err := far.Cut(t.Context()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	since := func() time.Duration { return time.Since(began).Round(10 * time.Millisecond) }
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	_, err = p.Get(ctx, ref)
	cancel()
	t.Logf("idle, cut off for %v: Get with 2 s: %s: %v", since(), fault.Of(err), err)
	if fault.Of(err) != fault.Timeout || since() > 3*time.Second {
		t.Errorf("after %v: %s: %v", since(), fault.Of(err), err)
	}
	if row, _ := healthOf(t, p, far.Name(), 2*time.Second); row.Reason != kvm.ReasonTimeout {
		t.Errorf("%+v", row)
	}
	listed := time.Now()
	rows, err := p.ListByTag(patient(t), installation)
	if err != nil || len(rows) != 2 {
		t.Fatalf("%+v, %v", rows, err)
	}
	t.Logf("ListByTag took %v; %+v", time.Since(listed).Round(10*time.Millisecond), rows)
	for _, r := range rows {
		switch r.Host {
		case near.Name():
			if r.Err != nil || len(r.Instances) != 1 || r.Instances[0].State != provider.Running {
				t.Errorf("the host that is there: %+v", r)
			}
		case far.Name():
			if len(r.Instances) != 0 {
				t.Errorf("%+v", r)
			}
			unreached(t, r.Err, far.Name(), "sent nothing for", "no answer")
		}
	}
	if since() > 45*time.Second {
		t.Errorf("that took %v", since())
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		row, _ := healthOf(t, p, far.Name(), 25*time.Second)
		if row.Reason == kvm.ReasonUnreachable && strings.Contains(row.Message, "is the host up") {
			break
		}
		// The check of before ends with its connection, a moment after the listing.
		if row.Reason != kvm.ReasonTimeout || time.Now().After(end) {
			t.Fatalf("%+v", row)
		}
	}
	if row, took := healthOf(t, p, near.Name(), 3*time.Second); row.Reason != kvm.ReasonOK {
		t.Errorf("%+v after %v", row, took)
	}
	if err := far.Mend(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("back %v after the cable is", back(t, p).Round(10*time.Millisecond))
	if got, err := p.Get(patient(t), ref); err != nil || got.ID != was.ID || got.Address != was.Address || got.State != provider.Running {
		t.Errorf("%+v, %v; it was %+v", got, err, was)
	}

	s := specOf(newOwner("uploading"), far.Name())
	n.know(t, s.Owner)
	image.uploading(t, p, s, 6)
	if err := far.Cut(t.Context()); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	took, err := fails(t, time.Minute, func(ctx context.Context) error {
		_, err := p.Create(ctx, s)
		return err
	})
	t.Logf("in mid-upload: Create failed %v after the cut: %s: %v", took.Round(10*time.Millisecond), fault.Of(err), err)
	unreached(t, err, far.Name(), "sent nothing for", "no answer", "does not answer")
	if took > 40*time.Second {
		t.Errorf("it took %v", took)
	}
	if _, err := p.Get(patient(t), provider.Ref{Owner: other.Owner, Host: near.Name()}); err != nil {
		t.Errorf("the other host: %v", err)
	}
	took, err = fails(t, time.Minute, func(ctx context.Context) error {
		_, err := p.Create(ctx, s)
		return err
	})
	t.Logf("the next Create failed after %v: %s: %v", took.Round(10*time.Millisecond), fault.Of(err), err)
	unreached(t, err, far.Name(), "does not answer")
	image.fast.Store(true)
	if err := far.Mend(t.Context()); err != nil {
		t.Fatal(err)
	}
	mended := time.Now()
	var seen []string
	in, err := running(patient(t), p, s, func(what string) { seen = append(seen, what) })
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("it runs %v after the cable is back, and said meanwhile:\n%s", time.Since(mended).Round(10*time.Millisecond), strings.Join(seen, "\n"))
	if n := image.asked.Load(); n != 2 {
		t.Errorf("the image was asked for %d times; want 2", n)
	}
	f.halvesBeside(t, s.Owner)
	rows, err = p.ListByTag(patient(t), installation)
	if err != nil || len(rows[0].Instances)+len(rows[1].Instances) != 3 {
		t.Errorf("%+v, %v", rows, err)
	}
	for _, r := range []provider.Ref{{ID: in.ID, Owner: s.Owner}, {Owner: blank.Owner}, {Owner: other.Owner}} {
		if err := gone(patient(t), p, r); err != nil {
			t.Error(err)
		}
	}
	end()
}

// libvirtd stands still in mid-upload: a check ends with its own time, the next
// one does not wait as well, and when libvirtd goes on so does all else, over
// the same connection.
func TestRealFrozenLibvirtd(t *testing.T) {
	f, n := quickFleet(t, 1)
	end := f.beside(t)
	image := f.slowImage(t, 64<<20)
	h := f.hosts[0]
	tp, through := f.tapped(t, nil)
	p := f.open(t, through)
	s := specOf(newOwner("frozen"), h.Name())
	n.know(t, s.Owner)
	image.uploading(t, p, s, 4)
	if row, _ := healthOf(t, p, h.Name(), 2*time.Second); row.Reason != kvm.ReasonOK {
		t.Errorf("during an upload: %+v", row)
	}
	if err := h.FreezeLibvirtd(t.Context()); err != nil {
		t.Fatal(err)
	}
	frozen := time.Now()
	if row, took := healthOf(t, p, h.Name(), 1500*time.Millisecond); row.Reason != kvm.ReasonTimeout || took < 1400*time.Millisecond {
		t.Errorf("%+v after %v", row, took)
	}
	row, took := healthOf(t, p, h.Name(), 10*time.Second)
	if row.Reason != kvm.ReasonTimeout || took > 300*time.Millisecond || !strings.Contains(row.Message, "earlier check") {
		t.Errorf("%+v after %v", row, took)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	_, err := p.Get(ctx, provider.Ref{Owner: s.Owner, Host: h.Name()})
	cancel()
	t.Logf("Get with 2 s: %s: %v", fault.Of(err), err)
	unreached(t, err, h.Name(), "no answer", "was not asked")
	for time.Since(frozen) < 12*time.Second { // more than enough for keepalives to count
		time.Sleep(100 * time.Millisecond)
	}
	if err := h.ThawLibvirtd(t.Context()); err != nil {
		t.Fatal(err)
	}
	thawed := time.Now()
	for end := thawed.Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if row, _ := healthOf(t, p, h.Name(), 3*time.Second); row.Reason == kvm.ReasonOK {
			break
		} else if time.Now().After(end) {
			t.Fatalf("%+v", row)
		}
	}
	t.Logf("well %v after it goes on", time.Since(thawed).Round(time.Millisecond))
	image.fast.Store(true)
	in, err := running(patient(t), p, s, nil)
	if err != nil {
		t.Fatal(err)
	}
	if image.asked.Load() != 1 || tp.dials.Load() != 1 {
		t.Errorf("the image was asked for %d times over %d connections; want 1 and 1", image.asked.Load(), tp.dials.Load())
	}
	f.halvesBeside(t, s.Owner)
	if err := gone(patient(t), p, provider.Ref{ID: in.ID, Owner: s.Owner}); err != nil {
		t.Error(err)
	}
	end()
}

// Two installations on one host, with a Proxy of the same UID each.
func TestRealTwoInstallations(t *testing.T) {
	f, n := quickFleet(t, 1)
	end := f.beside(t)
	image := f.slowImage(t, 8<<20)
	h := f.hosts[0]
	p, q := f.open(t), f.open(t)
	a := specOf(newOwner("twin"), h.Name())
	b := a
	b.Owner.Installation = "99999999-5a0b-4f5e-9c3d-8e1f0a2b3c4d/fleetdesk"
	for _, s := range []provider.Spec{a, b} {
		n.know(t, s.Owner)
	}
	images := func() []string { return f.images(t, h) }
	// Both upload at once: neither takes the other's half for one to remove.
	image.uploading(t, p, a, 1)
	image.uploading(t, q, b, 1)
	image.fast.Store(true)
	ins := map[string]provider.Instance{}
	for name, one := range map[string]struct {
		p *kvm.Provider
		s provider.Spec
	}{"a": {p, a}, "b": {q, b}} {
		in, err := running(patient(t), one.p, one.s, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		ins[name] = in
	}
	if n := image.asked.Load(); n != 2 {
		t.Errorf("the image was asked for %d times; want 2, one for each installation", n)
	}
	if ins["a"].ID == ins["b"].ID || ins["a"].Address == ins["b"].Address {
		t.Errorf("they are one: %+v", ins)
	}
	both := images()
	if len(both) != 4 {
		t.Errorf("image volumes and markers: %q; want two of each", both)
	}
	shows := func(p *kvm.Provider, s provider.Spec, want ...provider.Owner) {
		t.Helper()
		rows, err := p.ListByTag(patient(t), s.Owner.Installation)
		if err != nil || rows[0].Err != nil {
			t.Fatalf("%+v, %v", rows, err)
		}
		var got []provider.Owner
		for _, in := range rows[0].Instances {
			got = append(got, in.Owner)
		}
		if !slices.Equal(got, want) {
			t.Errorf("it shows %+v; want %+v", got, want)
		}
	}
	shows(p, a, a.Owner)
	shows(q, b, b.Owner)
	// Its own id does not lead to the other's machine either.
	if st, err := q.Delete(patient(t), provider.Ref{ID: ins["a"].ID, Owner: b.Owner}); err != nil || st != provider.Gone {
		t.Errorf("%s, %v", st, err)
	}
	if in, err := p.Get(patient(t), provider.Ref{ID: ins["a"].ID, Owner: a.Owner}); err != nil || in.State != provider.Running {
		t.Errorf("a Delete by another installation reached it: %+v, %v", in, err)
	}
	if err := gone(patient(t), q, provider.Ref{Owner: b.Owner}); err != nil {
		t.Error(err)
	}
	shows(q, b)
	shows(p, a, a.Owner)
	if in, err := p.Get(patient(t), provider.Ref{ID: ins["a"].ID, Owner: a.Owner}); err != nil || in.State != provider.Running {
		t.Errorf("%+v, %v", in, err)
	}
	if now := images(); !slices.Equal(now, both) {
		t.Errorf("images were %q and are %q", both, now)
	}
	// The other one comes back, on its own image.
	if _, err := running(patient(t), q, b, nil); err != nil {
		t.Error(err)
	}
	if image.asked.Load() != 2 || !slices.Equal(images(), both) {
		t.Errorf("%d requests, images %q; there were %q", image.asked.Load(), images(), both)
	}
	for _, one := range []struct {
		p *kvm.Provider
		s provider.Spec
	}{{p, a}, {q, b}} {
		if err := gone(patient(t), one.p, provider.Ref{Owner: one.s.Owner}); err != nil {
			t.Error(err)
		}
	}
	end()
}

// secret is a folder as the kubelet mounts a Secret: its files are links
// through ..data, which is swapped.
type secret struct {
	dir string
	n   int
}

func (s *secret) write(t *testing.T, files map[string]string) {
	t.Helper()
	s.n++
	name := fmt.Sprintf("..2026_01_%02d", s.n)
	if err := os.MkdirAll(filepath.Join(s.dir, name), 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range files {
		if err := os.WriteFile(filepath.Join(s.dir, name, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join("..data", file), filepath.Join(s.dir, file)); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
	}
	next := filepath.Join(s.dir, "..data_tmp")
	if err := os.Symlink(name, next); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(s.dir, "..data")); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The Secret with key and known_hosts comes later than the provider, and is
// rotated while it runs: no new provider is needed.
func TestRealSecretCreatedLate(t *testing.T) {
	f, n := quickFleet(t, 1)
	end := f.beside(t)
	h := f.hosts[0]
	files := map[string]string{"id": read(t, f.section.SSH.KeyFile), "known_hosts": read(t, f.section.SSH.KnownHostsFile)}
	mount := &secret{dir: t.TempDir()}
	f.section.SSH.KeyFile, f.section.SSH.KnownHostsFile = filepath.Join(mount.dir, "id"), filepath.Join(mount.dir, "known_hosts")
	tp, through := f.tapped(t, nil)
	p := f.open(t, through)
	s := specOf(newOwner("late"), h.Name())
	n.know(t, s.Owner)
	create := func() (provider.Instance, error) { return p.Create(patient(t), s) }

	_, err := create()
	t.Logf("no Secret: %s: %v", fault.Of(err), err)
	if fault.Of(err) != fault.Transient || !strings.Contains(err.Error(), "does not exist") || !strings.Contains(err.Error(), mount.dir) {
		t.Errorf("%s: %v", fault.Of(err), err)
	}
	if row, _ := healthOf(t, p, h.Name(), 3*time.Second); row.Reason != kvm.ReasonSSHMaterial {
		t.Errorf("%+v", row)
	}
	mount.write(t, map[string]string{"known_hosts": files["known_hosts"]})
	if _, err = create(); fault.Of(err) != fault.Transient || !strings.Contains(err.Error(), "SSH key file") {
		t.Errorf("no key: %s: %v", fault.Of(err), err)
	}
	mount.write(t, files)
	in, err := running(patient(t), p, s, nil)
	if err != nil {
		t.Fatal(err)
	}

	// Rotation: the host takes another key from now on.
	if _, err := h.Run(t.Context(), "ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", "/run/rotated"); err != nil {
		t.Fatal(err)
	}
	authorized := h.Path("/etc/ssh/authorized_keys")
	if err := os.WriteFile(authorized, []byte(read(t, h.Path("/run/rotated.pub"))), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Get(patient(t), provider.Ref{ID: in.ID, Owner: s.Owner}); err != nil {
		t.Errorf("the connection that is there: %v", err)
	}
	dials := tp.dials.Load()
	drop := func() {
		t.Helper()
		if _, err := h.Run(t.Context(), "sh", "-c", "for p in $(pgrep -P $(cat /run/sshd.pid)); do kill $p; done"); err != nil {
			t.Fatal(err)
		}
	}
	drop()
	_, err = fails(t, 10*time.Second, func(ctx context.Context) error {
		_, err := p.Get(ctx, provider.Ref{ID: in.ID, Owner: s.Owner})
		if err != nil && fault.Of(err) == fault.Unavailable {
			return nil // the end of the old connection was seen first
		}
		return err
	})
	t.Logf("the old key: %s: %v", fault.Of(err), err)
	if fault.Of(err) != fault.Permanent || !strings.Contains(err.Error(), "authorized_keys") {
		t.Errorf("%s: %v", fault.Of(err), err)
	}
	rotated := maps.Clone(files)
	rotated["id"] = read(t, h.Path("/run/rotated"))
	mount.write(t, rotated)
	got, err := p.Get(patient(t), provider.Ref{ID: in.ID, Owner: s.Owner})
	if err != nil || got.State != provider.Running || got.ID != in.ID {
		t.Errorf("%+v, %v", got, err)
	}
	if tp.dials.Load() <= dials {
		t.Error("there was no new connection")
	}
	if err := gone(patient(t), p, provider.Ref{ID: in.ID, Owner: s.Owner}); err != nil {
		t.Error(err)
	}
	end()
}

// libvirt's own programs take what the provider made: AppArmor's helper opens
// overlay, base and seed to QEMU, and the schema knows every element.
func TestRealAppArmorAcceptsADefinedDomain(t *testing.T) {
	f, n := quickFleet(t, 1)
	end := f.beside(t)
	f.image(t, "tiny", libvirthost.Images(t).Tiny) // qcow2 on qcow2, UEFI
	h := f.hosts[0]
	p := f.open(t)
	s := specOf(newOwner("armoured"), h.Name())
	s.UserData = provider.Secret("#cloud-config\n")
	n.know(t, s.Owner)
	in, err := running(patient(t), p, s, nil)
	if err != nil {
		t.Fatal(err)
	}
	names := domain.NamesOf(s.Owner)
	for flags, file := range map[string]string{"--inactive": "/run/inactive.xml", "--security-info": "/run/active.xml"} {
		text, err := h.Virsh(t.Context(), "dumpxml", names.Domain, flags)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(h.Path(file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := h.Run(t.Context(), "virt-xml-validate", file, "domain"); err != nil {
			t.Errorf("%s: %v: %s", flags, err, out)
		}
		out, err := h.Run(t.Context(), "sh", "-c", "/usr/lib/libvirt/virt-aa-helper --dryrun -c -u libvirt-"+domain.UUIDOf(s.Owner)+" <"+file+" 2>&1")
		if err != nil {
			t.Fatalf("%s: %v\n%s\n%s", flags, err, out, text)
		}
		var base string
		for _, v := range must(h.Volumes(t.Context(), "default")) {
			if strings.HasPrefix(v, "fleetdesk-image-") && strings.HasSuffix(v, ".qcow2") {
				base = v
			}
		}
		rights := map[string]string{}
		for line := range strings.Lines(out) {
			if path, right, ok := strings.Cut(strings.TrimSpace(line), `" `); ok {
				rights[strings.TrimPrefix(path, `"`)] = strings.TrimSuffix(right, ",")
			}
		}
		const dir = "/var/lib/libvirt/images/"
		for path, want := range map[string]string{names.Overlay: "rwk", names.Seed: "rk", base: "rk"} {
			if got := rights[dir+path]; got != want {
				t.Errorf("%s: %s has the rights %q, want %q; all:\n%s", flags, path, got, want, out)
			}
		}
	}
	if err := gone(patient(t), p, provider.Ref{ID: in.ID, Owner: s.Owner}); err != nil {
		t.Error(err)
	}
	end()
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
