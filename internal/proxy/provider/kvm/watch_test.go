package kvm_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kvm"
	"fleetdesk/internal/proxy/provider/kvm/domain"
	"fleetdesk/internal/proxy/provider/kvm/link"
	"fleetdesk/internal/proxy/provider/kvm/virt"
	"fleetdesk/internal/proxy/provider/kvm/virttest"
)

// told keeps what a Watch told.
type told struct {
	mu   sync.Mutex
	all  []provider.Change
	more chan struct{}
	over chan error
}

// watching starts a Watch that ends with the test.
func watching(t testing.TB, p *kvm.Provider) *told {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	w := watchUntil(ctx, p)
	t.Cleanup(func() {
		cancel()
		if err := <-w.over; err != nil {
			t.Errorf("Watch: %v", err)
		}
	})
	return w
}

func watchUntil(ctx context.Context, p *kvm.Provider) *told {
	w := &told{more: make(chan struct{}, 1), over: make(chan error, 1)}
	go func() { w.over <- p.Watch(ctx, tag, w.note) }()
	return w
}

func (w *told) note(c provider.Change) {
	w.mu.Lock()
	w.all = append(w.all, c)
	w.mu.Unlock()
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// take returns what was told, and forgets it.
func (w *told) take() []provider.Change {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.all
	w.all = nil
	return all
}

// until waits for a change, and returns all that was told up to it.
func (w *told) until(t testing.TB, host, uid string) []provider.Change {
	t.Helper()
	var all []provider.Change
	timeout := time.After(20 * time.Second)
	for {
		all = append(all, w.take()...)
		if slices.Contains(all, provider.Change{Host: host, UID: uid}) {
			return all
		}
		select {
		case <-w.more:
		case <-timeout:
			t.Fatalf("nothing was told of %q on %s; only %+v", uid, host, all)
		}
	}
}

func domainOf(o provider.Owner) virt.Domain {
	return virt.Domain{Name: domain.NamesOf(o).Domain, UUID: domain.UUIDOf(o), ID: -1}
}

// sync waits until all that came before has been told, and returns it but for
// what was told of the host as a whole, which it has the host ask for.
func (w *told) sync(t testing.TB, h *virttest.Host, host string) []provider.Change {
	t.Helper()
	h.Emit(virt.DomainEvent{Kind: virt.EventsMissed})
	return slices.DeleteFunc(w.until(t, host, ""), func(c provider.Change) bool { return c.UID == "" })
}

func TestWatchTellsOfEachKindOfEvent(t *testing.T) {
	for name, happens := range map[string]func(h *virttest.Host, name string){
		"destroyed":     func(h *virttest.Host, n string) { h.SetState(n, virt.StateShutoff, virt.ShutoffDestroyed) },
		"shut down":     func(h *virttest.Host, n string) { h.StopDomain(n) },
		"shutting down": func(h *virttest.Host, n string) { h.SetState(n, virt.StateShutdown, 0) },
		"QEMU died":     func(h *virttest.Host, n string) { h.SetState(n, virt.StateShutoff, virt.ShutoffCrashed) },
		"the guest's kernel panicked": func(h *virttest.Host, n string) {
			h.SetState(n, virt.StateCrashed, 1)
		},
		"saved":         func(h *virttest.Host, n string) { h.SaveDomain(n) },
		"restarted":     func(h *virttest.Host, n string) { _ = h.RestartDomain(n) },
		"paused":        func(h *virttest.Host, n string) { h.PauseDomain(n, virt.PausedUser) },
		"the disk full": func(h *virttest.Host, n string) { h.PauseDomain(n, virt.PausedIOError) },
		"resumed":       func(h *virttest.Host, n string) { h.ResumeDomain(n) },
		"asleep":        func(h *virttest.Host, n string) { h.SetState(n, virt.StatePMSuspended, 0) },
		"undefined while it runs": func(h *virttest.Host, n string) {
			_ = h.Link().DomainUndefineFlags(context.Background(), h.Domains()[0].Domain, virt.UndefineNVRAM)
		},
		"removed":   func(h *virttest.Host, n string) { h.RemoveDomain(n) },
		"redefined": func(h *virttest.Host, _ string) { _ = h.PlantDomain(h.Domains()[0].XML, false) },
		"of a kind that came later": func(h *virttest.Host, _ string) {
			h.Emit(virt.DomainEvent{Domain: h.Domains()[0].Domain, Kind: 99})
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMem(t, "box-1")
			h := m.hosts["box-1"]
			s := m.spec("a", "box-1")
			up(t, m.open(t), s) // what a Create of its own does is no news
			p := m.open(t)
			if name == "resumed" {
				h.PauseDomain(domain.NamesOf(s.Owner).Domain, virt.PausedUser)
			}
			w := watching(t, p)
			w.until(t, "box-1", "")
			list(t, p)
			h.ResetCalls()
			happens(h, domain.NamesOf(s.Owner).Domain)
			for _, c := range w.until(t, "box-1", s.Owner.UID) {
				if c.UID != s.Owner.UID {
					t.Errorf("told of %+v as well", c)
				}
			}
			if calls := total(h); calls > 0 && name != "undefined while it runs" {
				t.Errorf("it cost %v", h.Calls())
			}
		})
	}
}

// total is how many calls a host had.
func total(h *virttest.Host) int {
	n := 0
	for _, c := range h.Calls() {
		n += c
	}
	return n
}

// What an event contradicts is not answered from memory any more.
func TestAnEventMakesVoidWhatIsKnown(t *testing.T) {
	for name, tc := range map[string]struct {
		kind virt.EventKind
		host bool // the whole host is told of
	}{
		"stopped":                  {virt.EventStopped, false},
		"crashed":                  {virt.EventCrashed, false},
		"undefined":                {virt.EventUndefined, false},
		"started by somebody else": {virt.EventStarted, false},
		"resumed":                  {virt.EventResumed, false},
		"missed":                   {virt.EventsMissed, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMem(t, "box-1")
			h := m.hosts["box-1"]
			h.Addresses(virttest.Fixed("192.0.2.20"))
			s := m.spec("a", "box-1")
			up(t, m.open(t), s)
			p := m.open(t)
			unaddressed(t, h) // else that of the metadata would do
			w := watching(t, p)
			w.until(t, "box-1", "")
			list(t, p)
			h.Addresses(virttest.Fixed("192.0.2.21"))
			if in := list(t, p); in.Address != "192.0.2.20" {
				t.Fatalf("a listing reads addresses each time: %+v", in)
			}
			ev := virt.DomainEvent{Domain: h.Domains()[0].Domain, Kind: tc.kind}
			uid := s.Owner.UID
			if tc.host {
				ev.Domain, uid = virt.Domain{}, ""
			}
			h.Emit(ev)
			w.until(t, "box-1", uid)
			if in := list(t, p); in.Address != "192.0.2.21" {
				t.Errorf("listed as %+v", in)
			}
		})
	}
	t.Run("defined", func(t *testing.T) {
		m := newMem(t, "box-1")
		h := m.hosts["box-1"]
		p := m.open(t)
		s := m.spec("a", "box-1")
		up(t, p, s)
		w := watching(t, p)
		w.until(t, "box-1", "")
		list(t, p)
		if err := h.PlantDomain(strings.Replace(h.Domains()[0].XML, "3128", "3129", 1), false); err != nil {
			t.Fatal(err)
		}
		h.StopDomain(domain.NamesOf(s.Owner).Domain) // the running one has its own
		w.until(t, "box-1", s.Owner.UID)
		w.sync(t, h, "box-1")
		if in := list(t, p); in.Port != 3129 {
			t.Errorf("listed as %+v", in)
		}
	})
}

// unaddressed takes the address out of the only domain's metadata.
func unaddressed(t testing.TB, h *virttest.Host) {
	t.Helper()
	d := h.Domains()[0]
	m, err := domain.ParseMark(d.LiveMetadata)
	if err != nil || m.Address == "" {
		t.Fatalf("%+v, %v", m, err)
	}
	m.Address, m.Run = "", 0
	text, err := m.Element()
	if err != nil {
		t.Fatal(err)
	}
	h.SetMetadata(d.Name, text)
}

// list returns the only instance of the only host.
func list(t testing.TB, p *kvm.Provider) provider.Instance {
	t.Helper()
	rows, err := p.ListByTag(t.Context(), tag)
	if err != nil || rows[0].Err != nil || len(rows[0].Instances) != 1 {
		t.Fatalf("%+v, %v", rows, err)
	}
	return rows[0].Instances[0]
}

// What the provider does by itself on behalf of a Create is no news.
func TestWatchIsSilentAboutOwnStarts(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	p := m.open(t)
	w := watching(t, p)
	w.until(t, "box-1", "")
	s := m.spec("a", "box-1")
	up(t, p, s)
	if all := w.sync(t, h, "box-1"); len(all) > 0 {
		t.Errorf("told of %+v", all)
	}
	// Nor is that it starts again what had stopped.
	h.StopDomain(domain.NamesOf(s.Owner).Domain)
	w.until(t, "box-1", s.Owner.UID)
	q := m.open(t)
	other := watching(t, q)
	other.until(t, "box-1", "")
	up(t, q, s)
	if all := other.sync(t, h, "box-1"); len(all) > 0 {
		t.Errorf("told of %+v", all)
	}
	w.sync(t, h, "box-1")
	// Yet an end is, whoever else works on it: here while a Create runs.
	h.OnCall(func(rpc string) error {
		if rpc == "virDomainGetState" {
			h.StopDomain(domain.NamesOf(s.Owner).Domain)
			h.OnCall(nil)
		}
		return nil
	})
	if _, err := p.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	w.until(t, "box-1", s.Owner.UID)
}

// Somebody else's thousand domains that start and stop cost no call, and what
// they make us keep is bounded.
func TestForeignEventsCostNothing(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	p := m.open(t)
	s := m.spec("a", "box-1")
	up(t, p, s)
	other := s.Owner
	other.Installation = "somebody/else"
	w := watching(t, p)
	w.until(t, "box-1", "")
	h.ResetCalls()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	const foreign, rounds = 1000, 10
	for r := range rounds {
		for i := range foreign {
			d := virt.Domain{Name: fmt.Sprint("web-", i), UUID: fmt.Sprintf("%08x-0000-4000-8000-%012x", i, r), ID: int32(i)}
			h.Emit(virt.DomainEvent{Domain: d, Kind: virt.EventStarted}, virt.DomainEvent{Domain: d, Kind: virt.EventStopped})
		}
		h.Emit(virt.DomainEvent{Domain: domainOf(other), Kind: virt.EventStopped})
	}
	took := time.Since(began)
	h.StopDomain(domain.NamesOf(s.Owner).Domain)
	timeout := time.After(20 * time.Second)
	var all []provider.Change
	for len(all) == 0 || !slices.ContainsFunc(all, func(c provider.Change) bool { return c.UID == s.Owner.UID || c.UID == "" }) {
		all = append(all, w.take()...)
		select {
		case <-w.more:
		case <-timeout:
			t.Fatal("neither the machine nor the host is told of")
		}
		all = append(all, w.take()...)
	}
	runtime.ReadMemStats(&after)
	t.Logf("%d foreign events, told in %v at %.0f a second: %+v, %d KiB more", 2*foreign*rounds, time.Since(began), 2*foreign*rounds/took.Seconds(), all, (int64(after.Sys)-int64(before.Sys))>>10)
	if n := total(h); n > 0 {
		t.Errorf("it cost %v", h.Calls())
	}
	if grown := int64(after.Sys) - int64(before.Sys); grown > 32<<20 {
		t.Errorf("%d MiB more", grown>>20)
	}
	for _, c := range all {
		if c.UID != "" && c.UID != s.Owner.UID {
			t.Errorf("told of %+v", c)
		}
	}
}

// An operator that starts anew knows no domain yet: it reads whose one is, once,
// and only where the name is of the installation's kind.
func TestUnknownDomainsAreReadOnce(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	s := m.spec("a", "box-1")
	up(t, m.open(t), s)
	p := m.open(t)
	w := watching(t, p)
	w.until(t, "box-1", "")
	h.ResetCalls()
	h.StopDomain(domain.NamesOf(s.Owner).Domain)
	w.until(t, "box-1", s.Owner.UID)
	w.sync(t, h, "box-1")
	if calls := h.Calls(); total(h) != 1 || calls["virDomainGetMetadata"] != 1 {
		t.Errorf("it cost %v", calls)
	}
	// One that is gone may have been anybody's.
	gone := m.spec("gone", "box-1").Owner
	h.Emit(virt.DomainEvent{Domain: domainOf(gone), Kind: virt.EventUndefined})
	w.until(t, "box-1", "")
	// A clone has a name like ours, and is not told of.
	const other = "ffffffff-1111-4222-8333-444444444444"
	clone := strings.NewReplacer(domain.UUIDOf(s.Owner), other, "<name>fd-", "<name>fd-x", domain.MACOf(s.Owner), "52:54:00:11:22:33").Replace(h.Domains()[0].XML)
	h.ResetCalls()
	for range 2 {
		if err := h.PlantDomain(clone, false); err != nil {
			t.Fatal(err)
		}
		if all := w.sync(t, h, "box-1"); len(all) > 0 {
			t.Errorf("told of a clone as %+v", all)
		}
	}
	if calls := h.Calls(); calls["virDomainGetMetadata"] != 1 {
		t.Errorf("a clone cost %v", calls)
	}
}

// A host that makes up domains with our kind of name makes us ask little.
func TestStrangersAreBounded(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	p := m.open(t)
	w := watching(t, p)
	w.until(t, "box-1", "")
	h.ResetCalls()
	for range 20 {
		for i := range 100 {
			o := m.spec(fmt.Sprint("x", i), "box-1").Owner
			h.Emit(virt.DomainEvent{Domain: domainOf(o), Kind: virt.EventStarted})
		}
	}
	w.until(t, "box-1", "")
	if calls := h.Calls(); calls["virDomainGetMetadata"] > 32 {
		t.Errorf("it cost %v", calls)
	}
}

// A connection that was lost is made again, the host is told of, and events
// come again.
func TestWatchGoesOnOverALostConnection(t *testing.T) {
	m := newMem(t, "box-1", "box-2")
	p := m.open(t)
	s := m.spec("a", "box-1")
	up(t, p, s)
	w := watching(t, p)
	for all := w.until(t, "box-1", ""); !slices.Contains(all, provider.Change{Host: "box-2"}); {
		all = append(all, w.until(t, "box-2", "")...)
	}
	h := m.hosts["box-1"]
	h.DropLinks()
	h.StopDomain(domain.NamesOf(s.Owner).Domain) // nobody hears it
	for _, c := range w.until(t, "box-1", "") {
		if c.Host != "box-1" {
			t.Errorf("told of %+v", c)
		}
	}
	h.RemoveDomain(domain.NamesOf(s.Owner).Domain)
	w.until(t, "box-1", s.Owner.UID)
	if n := h.Subscriptions(); n != 1 {
		t.Errorf("%d subscriptions", n)
	}
}

// bubble makes a provider over hosts in memory, within a bubble of its own time.
func bubble(t *testing.T, f func(t *testing.T, h *virttest.Host, p *kvm.Provider, log *lockedBuffer, dials func() int)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := virttest.NewHost("box-1")
		d := &countingDialer{Dialer: &virttest.Dialer{Hosts: map[string]*virttest.Host{"box-1": h}}}
		log := &lockedBuffer{}
		p, err := kvm.New(kvm.Options{Name: "home", Section: section(), Dialer: d, StepLimit: 5 * time.Second, Log: slog.New(slog.NewTextHandler(log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = p.Close() }()
		log.take()
		f(t, h, p, log, d.count)
	})
}

type countingDialer struct {
	link.Dialer
	mu sync.Mutex
	n  int
}

func (d *countingDialer) Dial(ctx context.Context, host string) (link.Link, error) {
	d.mu.Lock()
	d.n++
	d.mu.Unlock()
	return d.Dialer.Dial(ctx, host)
}

func (d *countingDialer) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.n
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// take returns the lines, and forgets them.
func (l *lockedBuffer) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, _ := io.ReadAll(&l.b)
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

// A host that is down for a day is dialled about once a minute, is logged once,
// and is noticed at once when somebody else reaches it.
func TestWatchOfAHostThatIsDown(t *testing.T) {
	bubble(t, func(t *testing.T, h *virttest.Host, p *kvm.Provider, log *lockedBuffer, dials func() int) {
		h.Break()
		ctx, cancel := context.WithCancel(t.Context())
		w := watchUntil(ctx, p)
		time.Sleep(24 * time.Hour)
		if n := dials(); n < 24*50 || n > 24*80 {
			t.Errorf("%d dials in a day", n)
		}
		if lines := log.take(); len(lines) != 1 || !strings.Contains(lines[0], "cannot be reached") {
			t.Errorf("logged: %q", lines)
		}
		if all := w.take(); len(all) > 0 {
			t.Errorf("told of %+v", all)
		}
		h.Mend()
		if _, err := p.ListByTag(t.Context(), tag); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		if all := w.take(); !slices.Equal(all, []provider.Change{{Host: "box-1"}}) {
			t.Errorf("told of %+v", all)
		}
		cancel()
		if err := <-w.over; err != nil {
			t.Error(err)
		}
	})
}

// A link that ends as soon as it is there is not made anew in a hot loop.
func TestWatchOfAHostThatFlaps(t *testing.T) {
	bubble(t, func(t *testing.T, h *virttest.Host, p *kvm.Provider, _ *lockedBuffer, dials func() int) {
		ctx, cancel := context.WithCancel(t.Context())
		h.OnDone(func(string) error { h.DropLinks(); return nil })
		w := watchUntil(ctx, p)
		time.Sleep(time.Hour)
		if n := dials(); n < 50 || n > 90 {
			t.Errorf("%d dials in an hour", n)
		}
		cancel()
		<-w.over
	})
}

// A daemon that refuses is said once, and asked again seldom; all else works.
func TestWatchOfADaemonThatRefuses(t *testing.T) {
	bubble(t, func(t *testing.T, h *virttest.Host, p *kvm.Provider, log *lockedBuffer, _ func() int) {
		h.OnCall(func(rpc string) error {
			if rpc == "virConnectDomainEventRegisterAny" {
				return virt.Fault(virt.CodeNoSupport, "this libvirt is too old for the call")
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		w := watchUntil(ctx, p)
		time.Sleep(time.Hour)
		said := 0
		for _, l := range log.take() {
			if strings.Contains(l, "does not tell of changes") {
				said++
			}
		}
		if n := h.Calls()["virConnectDomainEventRegisterAny"]; said != 1 || n > 90 {
			t.Errorf("said %d times, asked %d times", said, n)
		}
		h.OnCall(nil)
		time.Sleep(2 * time.Minute)
		if all := w.take(); !slices.Equal(all, []provider.Change{{Host: "box-1"}}) {
			t.Errorf("told of %+v", all)
		}
		cancel()
		<-w.over
	})
}

// A daemon that is mute holds up neither the calls to it nor the end.
func TestWatchOfAMuteHost(t *testing.T) {
	bubble(t, func(t *testing.T, h *virttest.Host, p *kvm.Provider, _ *lockedBuffer, _ func() int) {
		h.Mute()
		w := watchUntil(t.Context(), p)
		time.Sleep(time.Hour)
		if n := h.Calls()["virConnectDomainEventRegisterAny"]; n < 50 {
			t.Errorf("asked %d times in an hour: one that is not answered is for ever", n)
		}
		for range 40 {
			if _, err := p.Get(t.Context(), provider.Ref{Owner: provider.Owner{Installation: tag, UID: "u"}}); fault.Of(err) != fault.Timeout {
				t.Fatalf("%v; want Timeout, never a slot that is taken", err)
			}
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if err := <-w.over; err != nil {
			t.Error(err)
		}
	})
	bubble(t, func(t *testing.T, h *virttest.Host, p *kvm.Provider, _ *lockedBuffer, _ func() int) {
		ctx, cancel := context.WithCancel(t.Context())
		w := watchUntil(ctx, p)
		time.Sleep(time.Second)
		h.Mute() // it subscribed before
		time.Sleep(time.Hour)
		h.Mend()
		cancel()
		if err := <-w.over; err != nil || h.Subscriptions() > 0 {
			t.Errorf("%v, %d subscriptions", err, h.Subscriptions())
		}
	})
}

// A host where events are missed all the time is told of once a second.
func TestAWholeHostIsToldOfSeldom(t *testing.T) {
	bubble(t, func(t *testing.T, h *virttest.Host, p *kvm.Provider, _ *lockedBuffer, _ func() int) {
		ctx, cancel := context.WithCancel(t.Context())
		w := watchUntil(ctx, p)
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			h.Emit(virt.DomainEvent{Kind: virt.EventsMissed})
		}
		time.Sleep(2 * time.Second)
		if n := len(w.take()); n < 10 || n > 12 {
			t.Errorf("told %d times in twelve seconds", n)
		}
		cancel()
		<-w.over
	})
}

// Machines of another installation are no more ours than anybody else's, also
// when listings have read whose they are.
func TestAnotherInstallationIsNotToldOf(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	p := m.open(t)
	s := m.spec("a", "box-1")
	s.Owner.Installation = "somebody/else"
	up(t, m.open(t), s)
	if rows, err := p.ListByTag(t.Context(), tag); err != nil || len(rows[0].Instances) > 0 {
		t.Fatalf("%+v, %v", rows, err)
	}
	w := watching(t, p)
	w.until(t, "box-1", "")
	if _, err := p.ListByTag(t.Context(), tag); err != nil {
		t.Fatal(err)
	}
	h.StopDomain(domain.NamesOf(s.Owner).Domain)
	if all := w.sync(t, h, "box-1"); len(all) > 0 {
		t.Errorf("told of %+v", all)
	}
}

// Close neither waits for a Watch, whatever its caller does, nor leaves it.
func TestCloseEndsWatch(t *testing.T) {
	m := newMem(t, "box-1", "box-2")
	p := m.open(t)
	hold, held := make(chan struct{}), make(chan struct{}, 8)
	over := make(chan error)
	go func() {
		over <- p.Watch(context.WithoutCancel(t.Context()), tag, func(provider.Change) { held <- struct{}{}; <-hold })
	}()
	<-held
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	close(hold)
	if err := <-over; err != nil {
		t.Errorf("Watch: %v", err)
	}
	if err := p.Watch(t.Context(), tag, func(provider.Change) { t.Error("told after Close") }); err != nil {
		t.Errorf("Watch after Close: %v", err)
	}
}

// Many may watch one host, and take none of its calls' slots.
func TestManyWatches(t *testing.T) {
	m := newMem(t, "box-1")
	p := m.open(t)
	s := m.spec("a", "box-1")
	up(t, p, s)
	all := make([]*told, 40) // more than the calls that a host takes at once
	for i := range all {
		all[i] = watching(t, p)
		all[i].until(t, "box-1", "")
	}
	list(t, p)
	if _, err := p.Get(t.Context(), ref(s)); err != nil {
		t.Errorf("beside them: %v", err)
	}
	m.hosts["box-1"].StopDomain(domain.NamesOf(s.Owner).Domain)
	for _, w := range all {
		w.until(t, "box-1", s.Owner.UID)
	}
}

// A host that tells of what happens is asked for addresses seldom.
func TestListingsOfAWatchedHostReadAddressesSeldom(t *testing.T) {
	m := newMem(t, "box-1")
	h := m.hosts["box-1"]
	p := m.open(t)
	up(t, p, m.spec("a", "box-1"))
	reads := func(later time.Duration) int {
		m.advance(later)
		list(t, p)
		n := h.Calls()["virDomainInterfaceAddresses"]
		h.ResetCalls()
		return n
	}
	reads(0)
	if n := reads(2 * time.Minute); n == 0 {
		t.Error("unwatched: not read again after two minutes")
	}
	ctx, cancel := context.WithCancel(t.Context())
	w := watchUntil(ctx, p)
	w.until(t, "box-1", "")
	if n := reads(2 * time.Minute); n > 0 {
		t.Errorf("watched: read again after two minutes, with %d calls", n)
	}
	if n := reads(11 * time.Minute); n == 0 {
		t.Error("watched: not read again after eleven minutes")
	}
	cancel()
	<-w.over
	if n := reads(2 * time.Minute); n == 0 {
		t.Error("not watched any more: not read again after two minutes")
	}
}
