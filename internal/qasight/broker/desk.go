package broker

import (
	"context"
	"math"

	"fleetdesk/client"
	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/pool"
)

// desk is a broker over whatever its client speaks to.
type desk struct {
	client *client.Client
	place  Place
	// follow has Prepare publish what differs.
	follow bool
	// origins is nil where lists are not told apart by the file that they are from.
	origins *origins
	close   func() error
}

func (d *desk) faulty(err error) error { return Explain(d.place.Server, err) }

func (d *desk) Place() Place { return d.place }

func (d *desk) Close() error { return d.close() }

// prepareTries bounds how often a list is looked at that others write to. The last
// try publishes whatever they wrote: each checkout's own list is right for it.
const prepareTries = 5

func (d *desk) Prepare(ctx context.Context, p pool.Pool) error {
	for try := 1; ; try++ {
		v, err := d.Pool(ctx, p.Name)
		missing := fault.Of(err) == fault.NotFound && fault.CodeOf(err) == "pool"
		switch {
		case missing && !d.follow:
			return fault.WithCode(fault.Errorf(fault.NotFound,
				"pool %s was never published to %s: an admin runs `qasight pool publish %s`", p.Name, d.place, p.Name), "pool")
		case err != nil && !missing:
			return err
		}
		published := v.Published()
		if !missing && len(p.Differences(published.Pool)) == 0 {
			return nil
		}
		if !d.follow {
			return runnable(p, published.Pool)
		}
		revision := &published.Revision
		if try == prepareTries {
			revision = nil
		}
		if _, err = d.Publish(ctx, p, revision); fault.CodeOf(err) != "revision" {
			return err
		}
	}
}

// runnable refuses a published pool with a hook that nobody here could run.
func runnable(file, published pool.Pool) error {
	for _, h := range []struct {
		name        string
		there, here bool
	}{{"on_check", published.Check, file.Check}, {"on_reset", published.Reset, file.Reset}} {
		if h.there && !h.here {
			return fault.WithCode(fault.Errorf(fault.Conflict,
				"pool %s was published with %s, which this file does not have: use the file that was published, or have an admin publish this one", file.Name, h.name), "hooks")
		}
	}
	return nil
}

func (d *desk) Take(ctx context.Context, name string, o client.TakeOptions) (*Lease, error) {
	l, err := d.client.Take(ctx, name, o)
	if err != nil {
		return nil, d.faulty(err)
	}
	return &Lease{l, d.place.Server}, nil
}

func (d *desk) Resume(ctx context.Context, id string, secret client.Secret) (*Lease, error) {
	l, err := d.client.Resume(ctx, id, secret)
	if err != nil {
		return nil, d.faulty(err)
	}
	return &Lease{l, d.place.Server}, nil
}

func (d *desk) Lease(ctx context.Context, id string) (client.LeaseInfo, error) {
	info, err := d.client.LeaseInfo(ctx, id)
	return info, d.faulty(err)
}

// pageSize is how much is asked for at once.
const pageSize = 500

func (d *desk) Pool(ctx context.Context, name string) (View, error) {
	var v View
	for cursor := ""; ; {
		page, err := d.client.Pool(ctx, name, client.Page{Limit: pageSize, Cursor: cursor})
		if err != nil {
			return View{}, d.faulty(err)
		}
		if cursor == "" {
			v.PoolStatus = page.PoolStatus
		}
		v.Members = append(v.Members, page.Items...)
		if cursor = page.Next; cursor == "" {
			v.Ours, v.Origin = d.origins.of(name, v.Revision)
			return v, nil
		}
	}
}

func (d *desk) Pools(ctx context.Context) ([]client.PoolStatus, error) {
	var all []client.PoolStatus
	for p, err := range d.client.AllPools(ctx) {
		if err != nil {
			return nil, d.faulty(err)
		}
		all = append(all, p)
	}
	return all, nil
}

func (d *desk) Waiters(ctx context.Context, name string) ([]client.Waiter, error) {
	var all []client.Waiter
	for w, err := range d.client.AllWaiters(ctx, name) {
		if err != nil {
			return nil, d.faulty(err)
		}
		all = append(all, w)
	}
	return all, nil
}

func (d *desk) Publish(ctx context.Context, p pool.Pool, revision *int64) (client.Pool, error) {
	r := p.Request()
	r.IfRevision = revision
	done, err := d.client.Publish(ctx, p.Name, r)
	if err == nil {
		d.origins.note(p.Name, done.Revision)
	}
	return done, d.faulty(err)
}

func (d *desk) Disable(ctx context.Context, name, key, reason string) (client.Key, error) {
	k, err := d.client.Disable(ctx, name, key, client.DisableRequest{Reason: reason})
	return k, d.faulty(err)
}

func (d *desk) Enable(ctx context.Context, name, key string) (client.Key, error) {
	k, err := d.client.Enable(ctx, name, key)
	return k, d.faulty(err)
}

func (d *desk) Force(ctx context.Context, name, key string, r client.ForceRequest) (client.Key, error) {
	k, err := d.client.ForceRelease(ctx, name, key, r)
	return k, d.faulty(err)
}

func (d *desk) Begin(ctx context.Context, name string, r client.ChangeRequest) (*Change, error) {
	ch, err := d.client.BeginChange(ctx, name, r)
	if err != nil {
		return nil, d.faulty(err)
	}
	return &Change{d.client, d.place.Server, name, ch.ID, r.TTL}, nil
}

func (d *desk) Append(ctx context.Context, e action.Entry) (action.Entry, error) {
	if err := e.Validate(); err != nil {
		return action.Entry{}, err
	}
	kept, err := d.client.AddActionEntry(ctx, client.NewActionEntry{
		Action: e.Action, Phase: string(e.Phase), Pool: e.Pool, Key: e.Key, Verb: string(e.Verb),
		User: e.User, Host: e.Host, Command: e.Command, OK: e.OK, Detail: e.Detail,
	})
	if err != nil {
		return action.Entry{}, d.faulty(err)
	}
	return entry(kept), nil
}

func entry(e client.ActionEntry) action.Entry {
	return action.Entry{
		Seq: e.Seq, Action: e.Action, Phase: action.Phase(e.Phase), Pool: e.Pool, Key: e.Key, Verb: action.Verb(e.Verb),
		User: e.User, Host: e.Host, Command: e.Command, OK: e.OK, Detail: e.Detail, Time: e.Time,
	}
}

func (d *desk) Entries(ctx context.Context, m Match, limit int) ([]action.Entry, error) {
	return d.actions(ctx, client.ActionQuery{Pool: m.Pool, Key: m.Key, Action: m.Action}, limit)
}

func (d *desk) Open(ctx context.Context, name string) ([]action.Entry, error) {
	return d.actions(ctx, client.ActionQuery{Pool: name, Open: true}, math.MaxInt)
}

// maxActions is the most entries that a page can have.
const maxActions = 100

// actions reads pages until there are limit entries, or no more.
func (d *desk) actions(ctx context.Context, q client.ActionQuery, limit int) ([]action.Entry, error) {
	all := []action.Entry{}
	for len(all) < limit {
		q.Limit = min(limit-len(all), maxActions)
		page, err := d.client.Actions(ctx, q)
		if err != nil {
			return nil, d.faulty(err)
		}
		for _, e := range page.Items {
			all = append(all, entry(e))
		}
		if q.Cursor = page.Next; q.Cursor == "" {
			break
		}
	}
	return all, nil
}
