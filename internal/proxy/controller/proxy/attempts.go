package proxy

import (
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"fleetdesk/internal/core/fault"
)

// attempts remembers, for each Proxy under repair, how often its provider
// failed and when it may be asked again. It is a pause, not a truth: it is lost
// on restart and dropped whenever the inputs change (spec, referenced Secret,
// provider config), since what failed may work now.
type attempts struct {
	mu sync.Mutex
	of map[types.UID]attempt
}

type attempt struct {
	inputs string
	class  fault.Class
	n      int
	next   time.Time
}

func newAttempts() *attempts { return &attempts{of: map[types.UID]attempt{}} }

// due returns how long the Proxy must still wait; zero means now.
func (a *attempts) due(uid types.UID, inputs string, now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, ok := a.of[uid]
	if !ok {
		return 0
	}
	if at.inputs != inputs {
		delete(a.of, uid)
		return 0
	}
	return max(at.next.Sub(now), 0)
}

// failed notes a failure and returns the pause before the next try.
func (a *attempts) failed(uid types.UID, inputs string, err error, now time.Time) time.Duration {
	class := fault.Of(err)
	a.mu.Lock()
	defer a.mu.Unlock()
	at := a.of[uid]
	if at.inputs != inputs || at.class != class {
		at = attempt{inputs: inputs, class: class}
	}
	at.n++
	pause := class.Meaning().Retry.After(at.n, rand.Float64())
	at.next = now.Add(pause)
	a.of[uid] = at
	return pause
}

// clear forgets a Proxy: it works, or it is gone.
func (a *attempts) clear(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.of, uid)
}
