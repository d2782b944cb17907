package local

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"fleetdesk/internal/core/fault"
)

// haltWorkers bounds how many processes are ended at once.
const haltWorkers = 16

// Halt ends the processes of an installation's instances and keeps all else:
// they are Stopped afterwards, and Create starts them again at the same
// addresses. It is for an operator that is asked to leave nothing running, and
// has stopped creating. It returns how many processes it ended; one that could
// not be ended does not keep the others.
func (p *Provider) Halt(ctx context.Context, installation string) (ended int, err error) {
	names, err := p.folders()
	if err != nil {
		return 0, err
	}
	var n atomic.Int64
	var group errgroup.Group
	group.SetLimit(haltWorkers)
	for _, name := range names {
		if _, tag, _ := splitFolder(name); tag != TagOf(installation) {
			continue
		}
		group.Go(func() error {
			release, err := p.exclusive(ctx, name)
			if err != nil {
				return err
			}
			defer release()
			dir := p.dir(name)
			if alive, err := p.alive(dir); err != nil || !alive {
				return err
			}
			gone, err := p.quit(ctx, dir, name)
			if err == nil && !gone {
				err = fault.Errorf(fault.Timeout, "the proxy process in %s does not end", dir)
			}
			if err == nil {
				n.Add(1)
			}
			return err
		})
	}
	err = group.Wait()
	return int(n.Load()), err
}
