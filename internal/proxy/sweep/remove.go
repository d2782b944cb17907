package sweep

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

const (
	// maxRemovals bounds what one sweep sets out to remove; workers is how many
	// instances it removes at once.
	maxRemovals = 100
	workers     = 4
	// deleteTries is how often a sweep calls Delete for an instance that takes
	// a while to stop, deletePause the time between.
	deleteTries = 3
	deletePause = 2 * time.Second
)

const notThisTurn = "its turn did not come in this sweep"

// pick returns what this sweep sets out to do: what a person asked for first,
// then the oldest orphans, then leftovers; and behind all of them, so that they
// keep nobody from a turn, what was tried in vain, the longest ago first. What is
// beyond the bound stays Due.
func (p *plan) pick() (instances, leftovers []*finding) {
	var todo []*finding
	for i := range p.findings {
		if p.findings[i].act != nothing {
			todo = append(todo, &p.findings[i])
		}
	}
	rank := func(f *finding) int {
		return slices.Index([]act{removeAbandoned, removeOrphan, removeLeftover, strike}, f.act)
	}
	slices.SortStableFunc(todo, func(a, b *finding) int {
		return cmp.Or(a.tried.Compare(b.tried), cmp.Compare(rank(a), rank(b)), a.Since.Compare(b.Since))
	})
	for i, f := range todo {
		switch {
		case i >= maxRemovals:
			if f.act != strike {
				f.Message = notThisTurn
			}
			f.act = nothing
		case f.act == removeLeftover:
			leftovers = append(leftovers, f)
		default:
			instances = append(instances, f)
		}
	}
	return instances, leftovers
}

// remove does what the plan sets out to do and writes down how it went.
func (w *work) remove(ctx context.Context) {
	instances, leftovers := w.plan.pick()
	r := &remover{work: w}
	queue := make(chan *finding, len(instances))
	for _, f := range instances {
		queue <- f
	}
	close(queue)
	var group sync.WaitGroup
	for range min(workers, len(instances)) {
		group.Go(func() {
			for f := range queue {
				if f.act == strike {
					r.missing(ctx, f)
					continue
				}
				r.instance(ctx, f)
			}
		})
	}
	group.Wait()
	for _, f := range leftovers {
		r.leftover(ctx, f)
	}
	r.strike(ctx)
	for i := range w.plan.findings {
		f := &w.plan.findings[i]
		if s, ok := w.sh.memory.seen[f.thing()]; ok && f.act != nothing && (f.Verdict == Failed || f.Verdict == Removing) {
			s.tried = time.Now()
			w.sh.memory.seen[f.thing()] = s
		}
	}
}

// remover removes; its methods may run side by side, each for a finding of its
// own.
type remover struct {
	*work
	// mu guards the work's fresh and its memory.
	mu sync.Mutex
}

// expired says why nothing more may be removed in this sweep.
func (w *work) expired(ctx context.Context) string {
	if ctx.Err() != nil || w.period > 0 && w.s.o.Elapsed()-w.claimedAt > w.period {
		return notThisTurn
	}
	return ""
}

// refresh reads the Proxies and the page again when they are too old to remove
// by; its error stays for the sweep.
func (r *remover) refresh(ctx context.Context) error {
	now := r.s.o.Elapsed()
	switch {
	case r.fresh.err != nil:
	case now-r.fresh.at > freshFor:
		r.fresh.err = r.read(ctx)
	case now-r.fresh.pageAt > pageFreshFor:
		r.fresh.err = r.readPage(ctx)
	}
	return r.fresh.err
}

// unwanted looks again whether nobody owns the instance, in the Proxies and the
// page as read not long ago. When somebody does, or it cannot be said, the
// finding tells so.
func (r *remover) unwanted(ctx context.Context, f *finding) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.refresh(ctx); err != nil {
		f.Message = fmt.Sprintf("it stays for now: %v", err)
		return false
	}
	elsewhere, other := r.fresh.page.Elsewhere[f.UID]
	_, left := r.fresh.page.Abandoned[f.UID]
	switch {
	case r.fresh.owners[f.UID]:
		f.Verdict, f.Message = Waiting, "its Proxy exists"
	case left && f.act == removeOrphan:
		f.Verdict, f.Message, f.Left = Abandoned, "it was left to a person", true
	case other && f.act == removeOrphan:
		f.Verdict, f.Message, f.Left = Abandoned, writtenIn(elsewhere), true
	case f.released && r.fresh.page.Release == "":
		f.Verdict, f.Message = Held, "its release was taken back"
	case f.act == removeAbandoned && (!left || !slices.Contains(r.fresh.page.Remove, f.UID)):
		f.Verdict, f.Message = Abandoned, "its removal is not asked for any more"
	default:
		return true
	}
	return false
}

// instance removes one instance after a last look at it.
func (r *remover) instance(ctx context.Context, f *finding) {
	if why := r.expired(ctx); why != "" {
		f.Message = why
		return
	}
	if !r.unwanted(ctx, f) {
		return
	}
	ref := provider.Ref{ID: f.ID, Owner: f.instance.Owner, Host: f.Host}
	in, err := r.get(ctx, ref)
	switch {
	case fault.Of(err) == fault.NotFound:
		r.gone(f, "was gone already")
		return
	case err != nil && ctx.Err() != nil:
		f.Message = notThisTurn
		return
	case err != nil:
		f.Verdict, f.Message = Failed, fmt.Sprintf("it could not be looked at: %v", err)
		return
	case in.State == provider.Unknown:
		f.Verdict, f.Message = Unreadable, "it cannot be read any more: look at it on its host"
		return
	case in.ID != f.ID || in.Owner != f.instance.Owner:
		f.Verdict, f.Message = Failed, "the host has something else under this name than it listed"
		return
	}
	r.delete(ctx, f, ref)
}

func (r *remover) get(ctx context.Context, ref provider.Ref) (provider.Instance, error) {
	ctx, cancel := context.WithTimeout(ctx, provider.StepLimit)
	defer cancel()
	return r.p.Get(ctx, ref)
}

// delete calls Delete until nothing is left, but not for long.
func (r *remover) delete(ctx context.Context, f *finding, ref provider.Ref) {
	if f.act == removeOrphan && !f.released {
		// Before the call: what its answer does not say may be gone as well.
		r.mu.Lock()
		r.sh.memory.lately[f.ID] = time.Now()
		r.mu.Unlock()
	}
	for try := range deleteTries {
		if try > 0 && !pause(ctx, deletePause) || r.expired(ctx) != "" {
			break
		}
		call, cancel := context.WithTimeout(ctx, provider.StepLimit)
		state, err := r.p.Delete(call, ref)
		cancel()
		f.Verdict, f.Message = Removing, "its removal goes on in the next sweep"
		switch {
		case err != nil && ctx.Err() != nil:
			return
		case err != nil:
			f.Verdict, f.Message = Failed, fmt.Sprintf("it could not be removed: %v", err)
			return
		case state == provider.Gone:
			r.gone(f, "")
			return
		case state == provider.Abandoned:
			f.Verdict, f.Message = Failed, "its host has just left the configuration: put it back, or remove the machine by hand"
			return
		case state != provider.Deleting:
			f.Verdict, f.Message = Failed, fmt.Sprintf("its provider answered %s to its removal", state)
			return
		}
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// gone notes that nothing of an instance is left, and tells it at once: what
// was removed must be known even when the operator ends in this sweep.
func (r *remover) gone(f *finding, message string) {
	f.Verdict, f.Message = Removed, message
	r.s.o.Removed(r.name, f.instance)
	r.removed(f)
}

// missing asks for an abandoned instance that no list shows: a list's silence
// is a question, and Get answers it.
func (r *remover) missing(ctx context.Context, f *finding) {
	if r.expired(ctx) != "" {
		return
	}
	_, err := r.get(ctx, provider.Ref{ID: f.ID, Owner: f.instance.Owner, Host: f.Host})
	switch {
	case fault.Of(err) == fault.NotFound:
		f.Verdict, f.Message = Removed, "it is gone"
	case ctx.Err() != nil:
	case err == nil:
		f.Message = "it is on no list and yet there: the next sweep looks again"
	case f.asked:
		f.Verdict, f.Message = Failed, fmt.Sprintf("it could not be looked for: %v", err)
	default:
		f.Message = fmt.Sprintf("it could not be looked for: %v", err)
	}
}

// strike takes the records of abandoned instances away of which nothing is
// left. One with another instance that is still there, or may be on a host that
// did not answer, stays for the next sweep.
func (r *remover) strike(ctx context.Context) {
	gone, stays := map[string]*finding{}, map[string]bool{}
	for i := range r.plan.findings {
		f := &r.plan.findings[i]
		switch {
		case f.UID == "":
		case f.Left && f.Verdict == Removed && (f.act == strike || r.plan.allWhole):
			gone[f.UID] = f
		default:
			stays[f.UID] = true
		}
	}
	var uids []string
	for uid := range gone {
		if !stays[uid] {
			uids = append(uids, uid)
		}
	}
	if len(uids) == 0 {
		return
	}
	slices.Sort(uids)
	call, cancel := context.WithTimeout(ctx, r.limit())
	defer cancel()
	if err := r.s.o.Book.Strike(call, r.name, uids); err != nil {
		r.s.o.Log.Warn("records of abandoned instances that are gone could not be taken away; the next sweep tries again",
			"provider", r.name, "class", string(fault.Of(err)), "error", err)
		return
	}
	for _, uid := range uids {
		if f := gone[uid]; f.act == strike {
			r.struck(f)
		}
	}
}

// leftover removes one thing that is no instance.
func (r *remover) leftover(ctx context.Context, f *finding) {
	if why := r.expired(ctx); why != "" {
		f.Message = why
		return
	}
	c, ok := provider.As[provider.Cleaner](r.p)
	if !ok {
		return
	}
	if err := r.refresh(ctx); err != nil {
		f.Message = fmt.Sprintf("it stays for now: %v", err)
		return
	}
	for _, uid := range (view{page: r.fresh.page}).kept() {
		if _, known := slices.BinarySearch(r.keep, uid); !known {
			// Whose it is was judged without knowing of that one.
			f.Message = notThisTurn
			return
		}
	}
	call, cancel := context.WithTimeout(ctx, provider.StepLimit)
	err := c.RemoveLeftover(call, r.s.o.Installation, f.leftover)
	cancel()
	switch {
	case err == nil:
		f.Verdict, f.Message = Removed, ""
		r.removed(f)
	case fault.Of(err) == fault.Conflict:
		// Its grace starts anew.
		delete(r.sh.memory.seen, f.thing())
		f.Verdict, f.Message = Waiting, fmt.Sprintf("it is in use: %v", err)
	case ctx.Err() != nil:
		f.Message = notThisTurn
	default:
		f.Verdict, f.Message = Failed, fmt.Sprintf("it could not be removed: %v", err)
	}
}
