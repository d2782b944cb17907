package proxyset

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"fleetdesk/api/v1alpha1"
)

// book is what is remembered of one set between reconciles: what was done to
// its Proxies that the cache does not show yet. Nothing in it needs to survive:
// a set without a book is first looked at uncached.
type book struct {
	mu sync.Mutex
	// looked: the set was looked at uncached.
	looked bool
	// made are Proxies that exist as far as we know and were not seen yet: by
	// name, since when.
	made map[string]time.Time
	// deleted are Proxies whose deletion was asked, or seen, by us, and that the
	// cache may show as if nothing had happened.
	deleted map[types.UID]bool
	// lost are Proxies whose making was not answered: by name, since when. They
	// may come to be also after an uncached look did not find them.
	lost map[string]time.Time
	// refused is why the Kubernetes API did not make the last Proxy, of which
	// generation of the set; refusals counts such since it made one, and before
	// retry it is not asked for another one.
	refused    string
	generation int64
	refusals   int
	retry      time.Time
	// vain counts how often in a row Proxies of the template with that hash were
	// replaced although none had ever worked.
	vain     int
	template string
}

const (
	// refusedPause is how long no Proxy is made after the API did not make one,
	// longer each time, and maxRefusedPause the longest.
	refusedPause    = time.Second
	maxRefusedPause = time.Minute
	// lateAfter is how late an API server may carry a request out whose answer
	// was lost: what bounds one there by default.
	lateAfter = time.Minute
)

// seenAfter is how long a Proxy may be made without being seen before it is
// looked for uncached.
const seenAfter = 15 * time.Second

// books has one for each set that lives, by UID.
type books struct {
	mu   sync.Mutex
	of   map[types.UID]*book
	name map[types.NamespacedName]types.UID
}

func newBooks() *books {
	return &books{of: map[types.UID]*book{}, name: map[types.NamespacedName]types.UID{}}
}

// get returns a set's book; that of an earlier set of the name goes.
func (b *books) get(set types.NamespacedName, uid types.UID) *book {
	b.mu.Lock()
	defer b.mu.Unlock()
	if was, ok := b.name[set]; ok && was != uid {
		delete(b.of, was)
	}
	b.name[set] = uid
	if b.of[uid] == nil {
		b.of[uid] = &book{made: map[string]time.Time{}, lost: map[string]time.Time{}, deleted: map[types.UID]bool{}}
	}
	return b.of[uid]
}

func (b *books) forget(set types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.of, b.name[set])
	delete(b.name, set)
}

// seen is told of each Proxy that the cache has or had.
func (b *books) seen(set types.UID, proxy string) {
	b.mu.Lock()
	k := b.of[set]
	b.mu.Unlock()
	if k != nil {
		k.unmake(proxy)
	}
}

// make notes, before it is asked for, that a Proxy may exist from now on.
func (k *book) make(name string, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.made[name] = now
}

func (k *book) unmake(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.made, name)
	delete(k.lost, name)
}

// lose notes that it is not known whether a Proxy was made.
func (k *book) lose(name string, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lost[name] = now
}

// awaited says whether a Proxy may still come to be, and forgets those that
// cannot any more.
func (k *book) awaited(now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.DeleteFunc(k.lost, func(_ string, at time.Time) bool { return now.Sub(at) >= lateAfter })
	return len(k.lost) > 0
}

func (k *book) delete(uid types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.deleted[uid] = true
}

// doubt has the set looked at uncached before anything else is done to it: what
// became of a request is not known.
func (k *book) doubt() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.looked = false
}

// replacedUnborn notes that Proxies were replaced that never had worked.
func (k *book) replacedUnborn() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.vain++
}

// patience is how old a Proxy of the template with that hash is at least that is
// replaced although it never worked: twice as old each time that was in vain.
func (k *book) patience(template string, works bool) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if works || k.template != template {
		k.template, k.vain = template, 0
	}
	return min(maxUnborn, unbornAfter<<min(k.vain, 10))
}

// refuse notes why a Proxy of that generation was not made; "" when one was.
func (k *book) refuse(why string, generation int64, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refused = why
	if why == "" {
		k.refusals, k.retry = 0, time.Time{}
		return
	}
	if k.generation != generation {
		k.generation, k.refusals = generation, 0
	}
	if now.Before(k.retry) {
		return // another one of the same batch
	}
	k.retry = now.Add(min(maxRefusedPause, refusedPause<<min(k.refusals, 10)))
	k.refusals++
}

// paused is for how long no Proxy of that generation is to be made: what the
// API refused it mostly refuses again.
func (k *book) paused(generation int64, now time.Time) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.generation != generation {
		return 0
	}
	return max(0, k.retry.Sub(now))
}

func (k *book) refusal() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.refused
}

// stale says whether the set must be looked at uncached.
func (k *book) stale(now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.looked {
		return true
	}
	for _, at := range k.made {
		if now.Sub(at) > seenAfter {
			return true
		}
	}
	return false
}

// unseen returns what was made and not seen yet. It is asked before the cache is
// listed: what is seen in between is in neither otherwise.
func (k *book) unseen() map[string]time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.made)
}

// found takes over what an uncached look found: the set's Proxies by name, and
// whether they are being deleted. It returns those that the cache has not.
func (k *book) found(live map[string]bool, cached []*v1alpha1.Proxy, now time.Time) map[string]time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.looked = true
	clear(k.made)
	clear(k.deleted)
	for name := range live {
		k.made[name] = now
	}
	for _, px := range cached {
		delete(k.made, px.Name)
		if terminating, ok := live[px.Name]; terminating || !ok {
			k.deleted[px.UID] = true
		}
	}
	return maps.Clone(k.made)
}

// apply corrects what the cache said by what was done since, unseen being what
// it may not have had, and forgets what it shows by now.
func (k *book) apply(members []member, unseen map[string]time.Time) []member {
	k.mu.Lock()
	defer k.mu.Unlock()
	still := make(map[types.UID]bool, len(k.deleted))
	for i := range members {
		m := &members[i]
		delete(k.made, m.name)
		delete(unseen, m.name)
		if k.deleted[m.uid] && !m.terminating {
			still[m.uid] = true
			m.terminating, m.message = true, "its deletion was just asked for"
		}
	}
	k.deleted = still
	for name, at := range unseen {
		members = append(members, member{name: name, created: at, message: "it was just asked for"})
	}
	return members
}
