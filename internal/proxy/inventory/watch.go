package inventory

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

const (
	// tellPause is the time between two rounds of telling what watches said: an
	// instance that flaps wakes its Proxy no more often.
	tellPause = 200 * time.Millisecond
	// A watch that ends early is started again after watchMin, and ever later up
	// to watchMax while it keeps ending.
	watchMin, watchMax = time.Second, time.Minute
	// watchGrace is how long a watch that was told to end may take.
	watchGrace = time.Second
)

// news is what watches said and nobody was told yet. It is no larger than what
// the inventory knows: a change of anything else only asks for a listing.
type news struct {
	owners  map[subject]provider.Owner
	refresh map[string]bool
}

// subject is a Proxy of a provider.
type subject struct{ provider, uid string }

// heard takes over what a watch said, in constant time. The instance is stale
// from now on; what it is, the owner finds out by Get. Where that is not
// enough, a listing is asked for: for what is not known here, for a host that
// is taken for down though it speaks, and while a listing is under way that may
// have looked before.
func (i *Inventory) heard(name string, c provider.Change) {
	i.mu.Lock()
	defer i.mu.Unlock()
	s := i.providers[name]
	if s == nil {
		return // it has left
	}
	at := place{c.Host, c.UID}
	r, known := s.instances[at]
	known = known && !r.gone && c.UID != ""
	if known {
		r.stale, r.asked = time.Now(), false
		s.instances[at] = r
		i.news.owners[subject{name, c.UID}] = r.instance.Owner
	}
	h := s.hosts[c.Host]
	if !known || s.busy || s.err != nil || (h != nil && h.err != nil) {
		i.news.refresh[name] = true
	}
	select {
	case i.ring <- struct{}{}:
	default:
	}
}

// tell passes on what watches said, at once and then at most each tellPause.
func (i *Inventory) tell(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-i.ring:
		}
		owners, refresh := i.collect()
		for _, name := range refresh {
			i.Refresh(name)
		}
		for _, o := range owners {
			i.o.Changed(o)
		}
		pause := time.NewTimer(tellPause)
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
	}
}

// collect takes the news. Of a Proxy that has more than one instance a listing
// is asked for too: nobody asks Get for the twin.
func (i *Inventory) collect() (owners []provider.Owner, refresh []string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for of, o := range i.news.owners {
		owners = append(owners, o)
		if s := i.providers[of.provider]; s != nil && len(s.elsewhere("", of.uid)) > 1 {
			i.news.refresh[of.provider] = true
		}
	}
	for name := range i.news.refresh {
		refresh = append(refresh, name)
	}
	clear(i.news.owners)
	clear(i.news.refresh)
	return owners, refresh
}

// watch is one provider's, while that provider is in force.
type watch struct {
	epoch uint64
	stop  context.CancelFunc
}

// watches keeps one watch running for each provider in force that has one, and
// ends those of providers that left or were replaced.
func (i *Inventory) watches(ctx context.Context, held map[string]watch, group *sync.WaitGroup) {
	names := i.o.Providers.Names()
	for name, w := range held {
		if !slices.Contains(names, name) {
			w.stop()
			delete(held, name)
		}
	}
	for _, name := range names {
		epoch := i.o.Providers.Epoch(name) // before Lookup: an older one is only looked at again
		w, had := held[name]
		if had && w.epoch == epoch {
			continue
		}
		if had {
			w.stop()
			delete(held, name)
		}
		p, err := i.o.Providers.Lookup(name)
		if err != nil {
			continue // broken; a later epoch is not
		}
		ctx, stop := context.WithCancel(ctx)
		held[name] = watch{epoch, stop}
		if watcher, ok := provider.As[provider.Watcher](p); ok {
			group.Go(func() { i.follow(ctx, name, epoch, watcher) })
		}
	}
}

// follow runs a provider's watch until ctx ends, and starts it again when it
// ends before.
func (i *Inventory) follow(ctx context.Context, name string, epoch uint64, w provider.Watcher) {
	log := i.o.Log.With("provider", name)
	pause, said := watchMin, ""
	for {
		began := time.Now()
		err := i.watchOnce(ctx, log, name, w)
		if ctx.Err() != nil || i.o.Providers.Epoch(name) != epoch {
			return
		}
		if time.Since(began) >= watchMax {
			pause, said = watchMin, ""
		}
		level := slog.LevelDebug
		if text := fmt.Sprint(err); text != said {
			level, said = slog.LevelWarn, text
		}
		log.Log(ctx, level, "a provider's watch ended and is started again; listings go on", "error", err, "retry", pause.String())
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		pause = min(2*pause, watchMax)
		i.Refresh(name) // nobody told what changed meanwhile
	}
}

// watchOnce runs a watch until it ends, and no longer than watchGrace after
// ctx: one that does not heed ctx must not hold the operator.
func (i *Inventory) watchOnce(ctx context.Context, log *slog.Logger, name string, w provider.Watcher) error {
	ended := make(chan error, 1)
	go func() {
		err := fault.New(fault.Permanent, "it did not return; this is a defect of the provider")
		defer func() {
			if v := recover(); v != nil {
				err = fault.Errorf(fault.Permanent, "it panicked (%T); this is a defect of the provider", v)
			}
			ended <- err
		}()
		err = w.Watch(ctx, i.o.Installation, func(c provider.Change) {
			if ctx.Err() == nil {
				i.heard(name, c)
			}
		})
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	grace := time.NewTimer(watchGrace)
	defer grace.Stop()
	select {
	case err := <-ended:
		return err
	case <-grace.C:
		log.Warn("a provider's watch does not end when it is told to; it is left alone")
		return ctx.Err()
	}
}
