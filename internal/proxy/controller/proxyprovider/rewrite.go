package proxyprovider

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
)

const (
	// writeTries bounds how often a write that others overtook is made again.
	writeTries = 20
	// writeTimeout bounds all of them together.
	writeTimeout = 20 * time.Second
)

// book is how the callers of this process write to one provider's abandoned
// instances: whoever has the turn writes for all who wait, so that a thousand
// Proxies let go together are a few writes, and none overtakes another for ever.
type book struct {
	turn  chan struct{} // whoever fills it
	users int           // callers that have it; with the last one it goes

	mu      sync.Mutex
	waiting []*entry
}

// entry is one change. It may be applied several times, each time to the list
// as it is stored then.
type entry struct {
	apply func(instances) (instances, error)
	// adds: it may make the list longer.
	adds bool

	err  error
	done chan struct{} // closed when err is the answer
}

func (b *book) add(es ...*entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = append(b.waiting, es...)
}

func (b *book) take() []*entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	batch := b.waiting
	b.waiting = nil
	return batch
}

func (b *book) drop(e *entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = slices.DeleteFunc(b.waiting, func(other *entry) bool { return other == e })
}

// open returns the book of a provider, to be closed again.
func (r *Reconciler) open(name string) *book {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.books[name]
	if b == nil {
		b = &book{turn: make(chan struct{}, 1)}
		r.books[name] = b
	}
	b.users++
	return b
}

func (r *Reconciler) close(name string, b *book) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b.users--; b.users == 0 {
		delete(r.books, name)
	}
}

// rewrite makes one change of a provider's abandoned instances. After an error
// it may have been made all the same, as with every write.
func (r *Reconciler) rewrite(ctx context.Context, name string, e *entry) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	e.done = make(chan struct{})
	b := r.open(name)
	defer r.close(name, b)
	b.add(e)
	select {
	case <-e.done:
		return e.err
	case <-ctx.Done():
		b.drop(e) // unless it is being written just now
		return fault.Errorf(fault.Timeout, "others of this operator are writing to it: %w", ctx.Err())
	case b.turn <- struct{}{}:
		defer func() { <-b.turn }()
	}
	select {
	case <-e.done: // the one before wrote for us
		return e.err
	default:
	}
	batch := b.take()
	err := r.commit(ctx, name, batch)
	if ctx.Err() != nil && err != nil {
		// Our time is over, not theirs: the next one has the turn.
		b.add(slices.DeleteFunc(batch, func(other *entry) bool { return other == e })...)
		return err
	}
	for _, other := range batch {
		if err != nil {
			other.err = err
		}
		close(other.done)
	}
	return e.err
}

// commit reads the object as it is stored, applies the batch, and writes it;
// again when somebody else wrote in between. What a single entry of the batch
// ran into is that entry's error.
func (r *Reconciler) commit(ctx context.Context, name string, batch []*entry) error {
	var err error
	for n := range writeTries {
		o := &v1alpha1.ProxyProvider{}
		err = r.o.Reader.Get(ctx, types.NamespacedName{Name: name}, o)
		if apierrors.IsNotFound(err) {
			o, err = nil, nil
		}
		if err == nil {
			err = r.apply(ctx, o, name, batch)
		}
		if !overtaken(err) {
			break
		}
		pause := time.Duration(rand.Float64() * float64(min(n+1, 10)) * float64(20*time.Millisecond))
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	switch {
	case err == nil, fault.Classed(err):
		return err
	case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded):
		return fault.Errorf(fault.Timeout, "the Kubernetes API did not take it in time: %w", err)
	case overtaken(err):
		return fault.Errorf(fault.Transient, "others wrote to it %d times in between: %w", writeTries, err)
	case apierrors.IsRequestEntityTooLargeError(err):
		return fault.Errorf(fault.Quota, "it is full: %s: %w", r.makeRoom(name, nil), err)
	}
	return unreadable("the Kubernetes API refuses", err)
}

// overtaken: somebody else wrote, made or removed the object since it was read.
func overtaken(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}

// apply makes the changes of a batch to an object; nil is one that is missing.
func (r *Reconciler) apply(ctx context.Context, o *v1alpha1.ProxyProvider, name string, batch []*entry) error {
	var list instances
	if o != nil {
		if r.foreign(o) {
			return r.refuseForeign(o)
		}
		list = slices.Clone(o.Status.Abandoned)
	}
	adds := false
	for _, e := range batch {
		if list, e.err = e.apply(list); e.err == nil && e.adds {
			adds = true
		}
	}
	switch {
	case o == nil && len(list) == 0:
		return nil
	case o == nil:
		o = &v1alpha1.ProxyProvider{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{v1alpha1.AbandonedFinalizer}}}
		r.putMark(o)
		if err := r.o.Client.Create(ctx, o); err != nil {
			return err
		}
	case adds && !controllerutil.ContainsFinalizer(o, v1alpha1.AbandonedFinalizer):
		if !o.DeletionTimestamp.IsZero() {
			return fault.New(fault.Transient, "the object is being deleted, and a finalizer of somebody else keeps it: remove that finalizer, and it is made anew")
		}
		// First, so that a record is never in an object that may just vanish.
		if err := r.setFinalizer(ctx, o, true); err != nil {
			return err
		}
	}
	if slices.Equal(list, o.Status.Abandoned) {
		return nil
	}
	o.Status.Abandoned = list
	return r.o.Client.Status().Update(ctx, o)
}
