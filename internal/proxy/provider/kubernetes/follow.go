package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"fleetdesk/internal/core/fault"
)

const (
	// firstPause and longestPause are between two tries to listen; a list that is
	// asked for meanwhile has it tried at once.
	firstPause   = 250 * time.Millisecond
	longestPause = 30 * time.Second
	// watchSpan is how long one watch is asked for; the server may end it sooner.
	watchSpan = 5 * time.Minute
	// page is how many objects are listed by one call.
	page = 500
	// maxPages bounds a list that has no end.
	maxPages = 1000
)

// follower is an informer: it lists once, watches from there, and lists again
// when the watch is lost for good. Unlike client-go's it can say at any moment
// whether its watch stands, which is what makes a list whole, and it takes in
// what the provider's own calls have seen: a list after a Create shows it.
//
// Versions of objects are compared as numbers, as Kubernetes allows; where they
// are none the watch alone is believed.
type follower struct {
	src     source
	connect func(context.Context) (*conn, error)
	limit   time.Duration
	// told is called with each object that changed or went, heard when all may
	// have changed. Both are called by one goroutine.
	told  func(watch.EventType, metav1.Object)
	heard func()
	// failed is told why listening failed, once for each text.
	failed func(error)

	once sync.Once
	kick chan struct{}

	mu      sync.Mutex
	objects map[string]metav1.Object
	// gone are objects that our calls saw gone, until the watch knows it too.
	gone map[types.UID]bool
	// since are what our calls took in since a whole list was last asked for, by
	// name, high is the version up to which list and watch have told everything.
	since map[string]metav1.Object
	high  string
	up    bool
	// turned is closed, and made anew, when up changes or a try has failed.
	turned chan struct{}
	// err is why the last try failed, losses how many have.
	err    error
	losses int
	stop   context.CancelFunc
}

func newFollower(p *Provider, src source) *follower {
	f := &follower{
		src: src, connect: p.connected, limit: p.limit, kick: make(chan struct{}, 1),
		objects: map[string]metav1.Object{}, gone: map[types.UID]bool{}, turned: make(chan struct{}),
	}
	f.told, f.heard = p.listeners()
	said := ""
	f.failed = func(err error) {
		err = p.failed("watch "+src.what, err)
		if text := err.Error(); text != said {
			said = text
			p.log.Warn("kubernetes: the cluster does not tell of changes; it is asked again", "provider", p.name, "host", p.host, "class", string(fault.Of(err)), "error", err)
		}
	}
	return f
}

// start begins to listen, once.
func (f *follower) start(p *Provider) {
	f.once.Do(func() {
		ctx, cancel := context.WithCancel(context.Background())
		p.group.Go(func() { f.run(ctx) })
		p.group.Go(func() {
			<-p.done
			cancel()
		})
	})
}

// run listens until ctx ends.
func (f *follower) run(ctx context.Context) {
	pause := firstPause
	for ctx.Err() == nil {
		began := time.Now()
		err := f.round(ctx)
		f.set(false, err)
		if ctx.Err() != nil {
			return
		}
		if err != nil && !errors.Is(err, errDoubted) {
			f.failed(err)
		}
		if time.Since(began) > longestPause {
			pause = firstPause
		}
		wait := time.NewTimer(pause*4/5 + rand.N(pause*2/5))
		select {
		case <-ctx.Done():
		case <-f.kick:
			pause = firstPause
		case <-wait.C:
			pause = min(2*pause, longestPause)
		}
		wait.Stop()
	}
}

// errDoubted ends a round that is no longer believed.
var errDoubted = errors.New("all is listed anew")

// round lists, and watches until that is lost.
func (f *follower) round(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f.mu.Lock()
	f.stop = cancel
	f.mu.Unlock()
	select { // what was asked for before this round is done by it
	case <-f.kick:
	default:
	}
	c, err := f.connect(ctx)
	if err != nil {
		return err
	}
	go func() { // a new kubeconfig ends the round
		select {
		case <-c.over:
			cancel()
		case <-ctx.Done():
		}
	}()
	version, err := f.refill(ctx, c)
	if err != nil {
		return err
	}
	for first := true; ; first = false {
		w, err := f.open(ctx, c, version)
		if err != nil {
			return err
		}
		f.set(true, nil)
		f.heard()
		began := time.Now()
		version, err = f.drain(ctx, w, version)
		w.Stop()
		switch {
		case ctx.Err() != nil:
			return errDoubted
		case err != nil:
			return err
		case time.Since(began) < time.Second && !first:
			return errDoubted // a watch that ends at once is none
		}
		// It ended by the server's will, or by a lost connection: it goes on from
		// where it was, so nothing is missed.
		f.set(false, errDoubted)
	}
}

// refill lists all, page by page.
func (f *follower) refill(ctx context.Context, c *conn) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, f.limit)
	defer cancel()
	all := map[string]metav1.Object{}
	f.begin()
	o := metav1.ListOptions{LabelSelector: selectManaged, Limit: page}
	for range maxPages {
		items, meta, err := f.src.list(ctx, c, o)
		if err != nil {
			return "", err
		}
		for _, obj := range items {
			all[obj.GetName()] = lean(obj)
		}
		if version = meta.ResourceVersion; meta.Continue == "" {
			f.replace(all, version)
			return version, nil
		}
		o.Continue = meta.Continue
	}
	return "", fault.Errorf(fault.Permanent, "there are more than %d %s", page*maxPages, f.src.what)
}

// open begins a watch; the server has the limit of a call to accept it.
func (f *follower) open(ctx context.Context, c *conn, version string) (watch.Interface, error) {
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(f.limit, cancel)
	seconds := int64((watchSpan + rand.N(watchSpan)).Seconds())
	w, err := f.src.watch(ctx, c, metav1.ListOptions{
		LabelSelector: selectManaged, ResourceVersion: version, AllowWatchBookmarks: true, TimeoutSeconds: &seconds,
	})
	if err == nil && !late.Stop() {
		w.Stop()
		err = context.DeadlineExceeded
	}
	if err != nil {
		late.Stop()
		cancel()
		return nil, err
	}
	return bounded{w, cancel}, nil
}

// drain takes events in until there are no more; it returns the last version.
func (f *follower) drain(ctx context.Context, w watch.Interface, version string) (string, error) {
	for {
		select {
		case <-ctx.Done():
			return version, ctx.Err()
		case ev, ok := <-w.ResultChan():
			if !ok {
				return version, nil
			}
			if ev.Type == watch.Error {
				err := apierrors.FromObject(ev.Object)
				if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
					err = errDoubted // as happens to every watch: all is listed anew
				}
				return version, err
			}
			obj, is := ev.Object.(metav1.Object)
			if !is {
				return version, fmt.Errorf("the watch told of a %T", ev.Object)
			}
			version = obj.GetResourceVersion()
			if ev.Type == watch.Bookmark {
				f.reached(version)
				continue
			}
			f.event(ev.Type, lean(obj))
			f.told(ev.Type, obj)
		}
	}
}

// bounded is a watch that ends its context with it.
type bounded struct {
	watch.Interface
	cancel context.CancelFunc
}

func (b bounded) Stop() { b.Interface.Stop(); b.cancel() }

// lean drops what is long and nobody reads.
func lean(obj metav1.Object) metav1.Object {
	obj.SetManagedFields(nil)
	return obj
}

// all is what there is of an installation, by name.
func (f *follower) all(tag string) map[string]metav1.Object {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make(map[string]metav1.Object)
	for name, obj := range f.objects {
		if _, says := ownerOf(obj); says != strange && obj.GetLabels()[labelInstallation] == tag {
			out[name] = obj
		}
	}
	return out
}

// names are those of what there is of an installation.
func (f *follower) names(tag string) map[string]bool {
	out := map[string]bool{}
	for name := range f.all(tag) {
		out[name] = true
	}
	return out
}

// standing reports whether the watch stands.
func (f *follower) standing() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.up
}

// set says whether the watch stands; err is why it does not.
func (f *follower) set(up bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	lost := err != nil && !errors.Is(err, errDoubted)
	if lost || up {
		f.err = err
	}
	if lost {
		f.losses++
	}
	if f.up != up || lost {
		f.up = up
		close(f.turned)
		f.turned = make(chan struct{})
	}
}

// await returns when the watch stands, or why it does not: when ctx ends, or
// when it was tried anew since the call began, and failed.
func (f *follower) await(ctx context.Context) error {
	f.mu.Lock()
	losses := f.losses
	f.mu.Unlock()
	for {
		f.mu.Lock()
		up, turned, err := f.up, f.turned, f.err
		// The first may have been tried before the call began.
		again := f.losses-losses >= 2
		f.mu.Unlock()
		switch {
		case up:
			return nil
		case again:
			return err
		}
		f.again()
		select {
		case <-turned:
		case <-ctx.Done():
			if err != nil {
				return err
			}
			return ctx.Err()
		}
	}
}

// again has a pause between two tries end.
func (f *follower) again() {
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

// doubt ends the round, and begins another.
func (f *follower) doubt() {
	f.set(false, nil)
	f.mu.Lock()
	stop := f.stop
	f.mu.Unlock()
	if stop != nil {
		stop()
	}
}
