package proxy

import (
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"fleetdesk/internal/core/fault"
)

// undertaking is what a pause holds back; they do not hold each other back.
type undertaking string

const (
	making   undertaking = "create"
	looking  undertaking = "get"
	removing undertaking = "delete"
	reading  undertaking = "references"
	// recording is writing an abandoned instance down.
	recording undertaking = "abandon"
)

// pauses remembers, for each Proxy in trouble, how often an undertaking failed
// and when it may be tried again. It is a pause, not a truth: it is lost on
// restart and void whenever the inputs change (the Proxy's UID and spec, a
// referenced Secret, the provider's config, a host that answers again), since
// what failed may work now.
type pauses struct {
	mu sync.Mutex
	of map[types.NamespacedName]map[undertaking]pause
}

type pause struct {
	inputs string
	class  fault.Class
	n      int
	next   time.Time
}

func newPauses() *pauses { return &pauses{of: map[types.NamespacedName]map[undertaking]pause{}} }

// due returns how long the undertaking must still wait; zero means now.
func (p *pauses) due(name types.NamespacedName, what undertaking, inputs string, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, ok := p.of[name][what]
	if !ok || at.inputs != inputs {
		return 0
	}
	return max(at.next.Sub(now), 0)
}

// failed notes a failure and returns the pause before the next try. Classes
// that pause alike count together: a host that answers now with a timeout, now
// not at all, is not asked each second.
func (p *pauses) failed(name types.NamespacedName, what undertaking, inputs string, err error, now time.Time) time.Duration {
	class := fault.Of(err)
	retry := class.Meaning().Retry
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.of[name][what]
	if at.inputs != inputs || at.class.Meaning().Retry != retry {
		at = pause{inputs: inputs}
	}
	at.n++
	at.class = class
	after := retry.After(at.n, rand.Float64())
	at.next = now.Add(after)
	if p.of[name] == nil {
		p.of[name] = map[undertaking]pause{}
	}
	p.of[name][what] = at
	return after
}

// last returns the class of the undertaking's last failure, "" for none.
func (p *pauses) last(name types.NamespacedName, what undertaking) fault.Class {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.of[name][what].class
}

// clear forgets undertakings that succeeded; none given means all.
func (p *pauses) clear(name types.NamespacedName, what ...undertaking) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range what {
		delete(p.of[name], w)
	}
	if len(what) == 0 || len(p.of[name]) == 0 {
		delete(p.of, name)
	}
}

// repairRetry paces the repairs of one Proxy: an instance that stops or
// vanishes as soon as it runs must not cost a machine a second.
var repairRetry = fault.Retry{Min: 2 * time.Second, Max: 10 * time.Minute}

// steady is how long an instance must have run for its next fault to be the
// first again.
const steady = 5 * time.Minute

// repairs counts how often each Proxy's instance was started or made again.
type repairs struct {
	mu sync.Mutex
	of map[types.NamespacedName]repair
}

type repair struct {
	uid     types.UID
	n       int
	began   time.Time
	ongoing bool
}

func newRepairs() *repairs { return &repairs{of: map[types.NamespacedName]repair{}} }

// begin asks to begin a repair. It returns the pause before it may begin, zero
// when it begins now or has begun, and how many came before it without a
// steady time between.
func (r *repairs) begin(name types.NamespacedName, uid types.UID, now time.Time) (after time.Duration, before int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.of[name]
	if rec.uid != uid {
		rec = repair{uid: uid}
	}
	if rec.ongoing {
		return 0, rec.n - 1
	}
	if now.Sub(rec.began) > steady+repairRetry.After(rec.n, 0) {
		rec.n = 0
	}
	if rec.n > 0 {
		if after := rec.began.Add(repairRetry.After(rec.n, 0)).Sub(now); after > 0 {
			return after, rec.n
		}
	}
	rec.n++
	rec.began, rec.ongoing = now, true
	r.of[name] = rec
	return 0, rec.n - 1
}

// ended notes that the instance runs and reports whether a repair led there.
func (r *repairs) ended(name types.NamespacedName) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, ok := r.of[name]
	was := rec.ongoing
	rec.ongoing = false
	if ok {
		r.of[name] = rec
	}
	return was
}

func (r *repairs) clear(name types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.of, name)
}

// absences remembers since when Delete has answered, for each Proxy, that its
// host has left the configuration. Any other answer, and another configuration,
// end that.
type absences struct {
	mu sync.Mutex
	of map[types.NamespacedName]absence
}

type absence struct {
	uid   types.UID
	host  string
	epoch uint64
	began time.Time
}

func newAbsences() *absences { return &absences{of: map[types.NamespacedName]absence{}} }

// since notes such an answer and returns when the first of them came.
func (a *absences) since(name types.NamespacedName, is absence, now time.Time) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.of[name]
	if was.began.IsZero() || was.uid != is.uid || was.host != is.host || was.epoch != is.epoch {
		is.began = now
		a.of[name] = is
		return now
	}
	return was.began
}

func (a *absences) clear(name types.NamespacedName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.of, name)
}

// slots bounds the provider calls that run at once against one host, so that a
// mute host never takes all workers. Whoever finds none free comes back.
type slots struct {
	most int
	mu   sync.Mutex
	used map[slot]int
}

type slot struct{ provider, host string }

func newSlots(workers int) *slots {
	return &slots{most: max(workers/4, 1), used: map[slot]int{}}
}

func (s *slots) take(provider, host string) (release func(), ok bool) {
	at := slot{provider, host}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used[at] >= s.most {
		return nil, false
	}
	s.used[at]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.used[at]--; s.used[at] == 0 {
			delete(s.used, at)
		}
	}, true
}
