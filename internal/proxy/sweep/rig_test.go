package sweep_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/fake"
	"fleetdesk/internal/proxy/sweep"
)

const (
	ours     = "kube-uid/ns"
	interval = time.Minute
	grace    = 10 * time.Minute
)

// book is a Book in memory; hooks run after the answer was made up, as if the
// world moved on behind it.
type book struct {
	mu        sync.Mutex
	owners    map[string]bool
	abandoned map[string]sweep.AbandonedInstance
	elsewhere map[string]string
	release   string
	remove    []string
	struck    []string
	reads     map[string]int
	fail      map[string]error
	after     map[string]func()
	before    map[string]func()
}

func newBook() *book {
	return &book{
		owners: map[string]bool{}, abandoned: map[string]sweep.AbandonedInstance{}, elsewhere: map[string]string{}, reads: map[string]int{},
		fail: map[string]error{}, after: map[string]func(){}, before: map[string]func(){},
	}
}

func (b *book) begin(method string) error {
	b.mu.Lock()
	b.reads[method]++
	hook, err := b.before[method], b.fail[method]
	b.mu.Unlock()
	if hook != nil {
		hook()
	}
	return err
}

func (b *book) end(method string) {
	b.mu.Lock()
	hook := b.after[method]
	b.mu.Unlock()
	if hook != nil {
		hook()
	}
}

func (b *book) Owners(context.Context) (map[string]bool, error) {
	if err := b.begin("Owners"); err != nil {
		return nil, err
	}
	defer b.end("Owners")
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.owners), nil
}

func (b *book) Page(context.Context, string) (sweep.Page, error) {
	if err := b.begin("Page"); err != nil {
		return sweep.Page{}, err
	}
	defer b.end("Page")
	b.mu.Lock()
	defer b.mu.Unlock()
	return sweep.Page{Abandoned: maps.Clone(b.abandoned), Elsewhere: maps.Clone(b.elsewhere), Release: b.release, Remove: slices.Clone(b.remove)}, nil
}

func (b *book) Strike(_ context.Context, _ string, uids []string) error {
	if err := b.begin("Strike"); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.struck = append(b.struck, uids...)
	for _, uid := range uids {
		delete(b.abandoned, uid)
	}
	return nil
}

// do changes the book under its lock.
func (b *book) do(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

// providers is a set of providers that a test may change.
type providers struct {
	mu  sync.Mutex
	set map[string]provider.Provider
	err error
	// epochs count, by name, how often one was put in another's place.
	epochs map[string]uint64
}

func (p *providers) Names() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.set))
}

func (p *providers) Lookup(name string) (provider.Provider, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return nil, p.err
	}
	if in, ok := p.set[name]; ok {
		return in, nil
	}
	return nil, fault.Errorf(fault.NotFound, "no provider %q", name)
}

func (p *providers) Epoch(name string) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.epochs[name]
}

// put puts one in force under the name.
func (p *providers) put(name string, in provider.Provider) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set[name] = in
	p.epochs[name]++
}

// bench is one operator's sweeper over a fake of two hosts.
type bench struct {
	t *testing.T
	*book
	fake    *fake.Provider
	in      *providers
	s       *sweep.Sweeper
	reg     *prometheus.Registry
	mu      sync.Mutex
	events  []string
	gone    []string
	changed int
	// cancel tells the sweeper to end, and stop waits for it.
	cancel context.CancelFunc
	stop   func()
}

// setup is what a test may set before the sweeper starts.
type setup struct {
	holder  string
	wrap    func(p provider.Provider) provider.Provider
	options func(o *sweep.Options)
	// hook, if any, runs before each step of the provider.
	hook func(step string) error
	book *book
}

// bubbleClock is a clock of the bubble: the machine's does not follow it.
func bubbleClock() func() time.Duration {
	began := time.Now()
	return func() time.Duration { return time.Since(began) }
}

// begin starts a sweeper; it must be called within a bubble.
func begin(t *testing.T, p *fake.Provider, s setup) *bench {
	t.Helper()
	b := &bench{t: t, book: s.book, fake: p, reg: prometheus.NewRegistry()}
	if b.book == nil {
		b.book = newBook()
	}
	var top provider.Provider = p
	if s.wrap != nil {
		top = s.wrap(p)
	}
	b.in = &providers{set: map[string]provider.Provider{"fake": top}, epochs: map[string]uint64{}}
	o := sweep.Options{
		Providers: b.in, Book: b.book, Installation: ours, Holder: "holder00" + s.holder,
		Interval: interval, Grace: grace, Metrics: b.reg, Log: slog.New(slog.DiscardHandler), Elapsed: bubbleClock(),
		Changed: func(string) { b.mu.Lock(); defer b.mu.Unlock(); b.changed++ },
		Removed: func(_ string, in provider.Instance) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.gone = append(b.gone, in.Owner.UID)
		},
		Event: func(name string, warning bool, reason, message string) {
			b.mu.Lock()
			defer b.mu.Unlock()
			kind := "Normal"
			if warning {
				kind = "Warning"
			}
			b.events = append(b.events, strings.Join([]string{name, kind, reason, message}, " "))
		},
	}
	if s.options != nil {
		s.options(&o)
	}
	var err error
	if b.s, err = sweep.New(o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if s.hook != nil {
		ctx = provider.WithStepHook(ctx, s.hook)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Time goes on only when the test waits: it has set its scene by then.
		time.Sleep(time.Nanosecond)
		if err := b.s.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	b.cancel, b.stop = cancel, func() { cancel(); <-done }
	t.Cleanup(b.stop)
	return b
}

func newFake() *fake.Provider { return fake.New(fake.Options{Hosts: []string{"h1", "h2"}}) }

func owner(uid string) provider.Owner {
	return provider.Owner{Installation: ours, Namespace: "ns", Name: "n-" + uid, UID: uid}
}

// fleet puts n owned instances on h1.
func (b *bench) fleet(n int) {
	for i := range n {
		uid := fmt.Sprintf("own-%02d", i)
		b.fake.Plant("h1", owner(uid))
		b.do(func() { b.owners[uid] = true })
	}
}

// pass lets time go on and everything settle.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (b *bench) report() sweep.Report {
	b.t.Helper()
	r, ok := b.s.Report("fake")
	if !ok {
		b.t.Fatal("there is no report")
	}
	return r
}

// item returns the report's item of that UID or leftover's id.
func (b *bench) item(id string) sweep.Item {
	for _, it := range b.report().Items {
		if it.UID == id || it.ID == id {
			return it
		}
	}
	return sweep.Item{}
}

// has tells whether the back end still has an instance of that UID.
func (b *bench) has(uid string) bool {
	return slices.ContainsFunc(b.fake.Machines(), func(in provider.Instance) bool { return in.Owner.UID == uid })
}

// told are the events of that reason.
func (b *bench) told(reason string) (out []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.events {
		if strings.Fields(e)[2] == reason {
			out = append(out, e)
		}
	}
	return out
}

func (b *bench) allEvents() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.events)
}

func (b *bench) goneUIDs() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.gone)
}

func (b *bench) changes() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}

func (b *book) struckUIDs() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.struck)
}

func (b *book) readsOf(method string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reads[method]
}

func (b *bench) metric(name string) (map[string]float64, bool) {
	families, err := b.reg.Gather()
	if err != nil {
		b.t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			slices.Sort(labels)
			out[strings.Join(labels, ",")] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return out, len(out) > 0
}

// logged is the fake with a log of its calls, and hooks that run before them.
type logged struct {
	*fake.Provider
	lm    sync.Mutex
	calls []string
	// before is given how many such calls began, this one among them.
	before map[string]func(n int)
	// inside and most count the calls that run at once, by method.
	inside, most map[string]int
	// swap, if any, changes what Get and Delete answer.
	swapGet    func(in provider.Instance, err error) (provider.Instance, error)
	swapDelete func(st provider.State, err error) (provider.State, error)
}

// around makes l the decorator of p.
func (l *logged) around(p provider.Provider) provider.Provider {
	l.Provider = p.(*fake.Provider)
	return l
}

func (l *logged) enter(method string) (leave func()) {
	l.lm.Lock()
	if l.inside == nil {
		l.inside, l.most = map[string]int{}, map[string]int{}
	}
	l.calls = append(l.calls, method)
	n := 0
	for _, c := range l.calls {
		if c == method {
			n++
		}
	}
	l.inside[method]++
	l.most[method] = max(l.most[method], l.inside[method])
	hook := l.before[method]
	l.lm.Unlock()
	if hook != nil {
		hook(n)
	}
	return func() {
		l.lm.Lock()
		defer l.lm.Unlock()
		l.inside[method]--
	}
}

func (l *logged) log() []string {
	l.lm.Lock()
	defer l.lm.Unlock()
	return slices.Clone(l.calls)
}

func (l *logged) mostOf(method string) int {
	l.lm.Lock()
	defer l.lm.Unlock()
	return l.most[method]
}

func (l *logged) Claim(ctx context.Context, c provider.Claim) ([]provider.HostClaims, error) {
	defer l.enter("Claim")()
	return l.Provider.Claim(ctx, c)
}

func (l *logged) ListByTag(ctx context.Context, installation string) ([]provider.HostList, error) {
	defer l.enter("ListByTag")()
	return l.Provider.ListByTag(ctx, installation)
}

func (l *logged) Leftovers(ctx context.Context, installation string, keep []string) ([]provider.HostLeftovers, error) {
	defer l.enter("Leftovers")()
	return l.Provider.Leftovers(ctx, installation, keep)
}

func (l *logged) Get(ctx context.Context, ref provider.Ref) (provider.Instance, error) {
	defer l.enter("Get")()
	in, err := l.Provider.Get(ctx, ref)
	if l.swapGet != nil {
		return l.swapGet(in, err)
	}
	return in, err
}

func (l *logged) Delete(ctx context.Context, ref provider.Ref) (provider.State, error) {
	defer l.enter("Delete")()
	if l.swapDelete != nil {
		if st, err := l.swapDelete("", nil); st != "" || err != nil {
			return st, err
		}
	}
	return l.Provider.Delete(ctx, ref)
}
