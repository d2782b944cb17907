// Package broker is where qasight's leases, changes and actions are kept: the
// local lease database of a project, or a team server. Everything above it sees
// one interface and does not know which of the two it is.
//
// Both are the same code from the wire on: the local database is served by the
// team server's own handler, called in this process, without a socket
// ([OpenLocal]). So every refusal, code and text is the same in both.
package broker

import (
	"context"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/action"
	"fleetdesk/internal/qasight/pool"
)

// Broker keeps pools, leases, changes and actions. Its methods may be called
// concurrently and honour ctx.
//
// Errors carry the class and code that the rules gave them (package fault),
// however far they travelled; the *client.Error stays in the chain, with what the
// server told besides. A store that does not answer is Unavailable or Timeout.
type Broker interface {
	Looker
	Leaser
	Keeper
	Changer
	Recorder
}

// Looker is a broker for those who only look.
type Looker interface {
	// Place says which broker this is.
	Place() Place
	Viewer
	History
	// Close ends what the broker runs here; again is harmless. Leases go on.
	Close() error
}

// Place is where a broker's data is.
type Place struct {
	// Server is the team server's URL; "" for a local database, whose file is
	// then Path.
	Server, Path string
	// Account is who this client is: known without asking for a local database,
	// "" for a team server.
	Account string
}

// String names it for people.
func (p Place) String() string {
	if p.Server != "" {
		return "team server " + p.Server
	}
	return "local lease database " + p.Path
}

// Leaser hands keys out.
type Leaser interface {
	// Prepare sees to it that keys of the file's pool can be taken. A local
	// database takes the file's list over. With a team server nothing is
	// changed: a pool that was never published is NotFound (code "pool"), one
	// published with a hook that the file does not have is Conflict (code
	// "hooks"), since nobody here could run it.
	Prepare(ctx context.Context, p pool.Pool) error
	// Take takes a key; see client.Client.Take. Who takes from a pool with hooks
	// runs them (package hooks).
	Take(ctx context.Context, pool string, o client.TakeOptions) (*Lease, error)
	// Resume returns a lease that another process took, and renews it.
	Resume(ctx context.Context, id string, secret client.Secret) (*Lease, error)
	// Lease looks at a lease by its id.
	Lease(ctx context.Context, id string) (client.LeaseInfo, error)
}

// Viewer looks, and changes nothing.
type Viewer interface {
	// Pool returns a pool with all of its keys, those too that are leaving it.
	// An unknown one is NotFound (code "pool").
	Pool(ctx context.Context, name string) (View, error)
	// Pools returns all pools, by name.
	Pools(ctx context.Context) ([]client.PoolStatus, error)
	// Waiters returns who waits for a pool's keys, in order.
	Waiters(ctx context.Context, pool string) ([]client.Waiter, error)
}

// Keeper is what admins do.
type Keeper interface {
	// Publish makes the pool what p says. Revision, when not nil, must be the
	// present one (0 for a pool that does not exist): else Conflict (code
	// "revision").
	Publish(ctx context.Context, p pool.Pool, revision *int64) (client.Pool, error)
	// Disable takes a key out of use, Enable puts it back, and Force ends its
	// lease. Its reason goes to a team server's audit log and nowhere else.
	Disable(ctx context.Context, pool, key, reason string) (client.Key, error)
	Enable(ctx context.Context, pool, key string) (client.Key, error)
	Force(ctx context.Context, pool, key string, r client.ForceRequest) (client.Key, error)
}

// Changer begins a person's changes.
type Changer interface {
	// Begin takes the change lock of a pool and bars the keys, at most
	// lease.MaxChangeKeys, from being leased. Errors: Conflict with the code
	// "change" while somebody else changes the pool or a key, and "held" for a
	// key in use.
	Begin(ctx context.Context, pool string, r client.ChangeRequest) (*Change, error)
}

// Recorder adds to the action log; see package action for what its entries tell.
type Recorder interface {
	// Append adds an entry; see action.Log. The account's name takes the place of
	// the entry's user. Only when it returns nil is the entry kept for sure.
	Append(ctx context.Context, e action.Entry) (action.Entry, error)
}

// History reads the action log.
type History interface {
	// Entries returns the newest entries, the newest first, at most limit of
	// those that match; an empty field of q does not narrow. Together they are fit
	// for action.Fold.
	Entries(ctx context.Context, q Match, limit int) ([]action.Entry, error)
	// Open returns the started entries of all actions without an end, the oldest
	// first; of all pools for "".
	Open(ctx context.Context, pool string) ([]action.Entry, error)
}

// Match selects entries; each field is exact.
type Match struct{ Pool, Key, Action string }

// View is a pool as it was read.
type View struct {
	client.PoolStatus
	// Members are its keys by name.
	Members []client.Key
	// Ours is whether the list was published from this project's file, as far as
	// that can matter: always with a team server, whose list is for all. In a local
	// database, which several checkouts share, Origin is the file that it was
	// published from, "" when that is not known.
	Ours   bool
	Origin string
}

// Published is what was published of it.
func (v View) Published() pool.Published {
	p := pool.Pool{
		Name: v.Name, TTL: v.TTL.Duration(), Cooldown: v.Cooldown.Duration(), Check: v.Hooks.Check, Reset: v.Hooks.Reset,
	}
	for _, k := range v.Members {
		if lists(k, v.Name) {
			p.Items = append(p.Items, k.Name)
		}
	}
	return pool.Published{Revision: v.Revision, By: v.PublishedBy, At: v.PoolStatus.Published, Pool: p}
}

// lists tells a key on the pool's list from one that is leaving it.
func lists(k client.Key, name string) bool {
	for _, p := range k.Pools {
		if p == name {
			return true
		}
	}
	return false
}

// Lease is a key that this process holds.
type Lease struct {
	lease *client.Lease
	// server is as in [Explain].
	server string
}

// Info is the lease as the broker described it last.
func (l *Lease) Info() client.LeaseInfo { return l.lease.Info() }

// ID is the lease's public id.
func (l *Lease) ID() string { return l.lease.ID() }

// Key is the key that it is a right to.
func (l *Lease) Key() string { return l.lease.Key() }

// Fence is the number by which a target tells it from older leases of the key.
func (l *Lease) Fence() int64 { return l.lease.Fence() }

// Secret renews and releases the lease, for handing it to another process.
func (l *Lease) Secret() client.Secret { return l.lease.Secret() }

// Left is how long the key may be used unless the lease is renewed; see
// client.Lease.Left.
func (l *Lease) Left() time.Duration { return l.lease.Left() }

// Renew extends the lease; see client.Lease.Renew.
func (l *Lease) Renew(ctx context.Context, r client.RenewRequest) error {
	return Explain(l.server, l.lease.Renew(ctx, r))
}

// Release gives the key back; see client.Lease.Release.
func (l *Lease) Release(ctx context.Context, r client.ReleaseRequest) (client.Released, error) {
	done, err := l.lease.Release(ctx, r)
	return done, Explain(l.server, err)
}

// KeepAlive renews the lease until ctx ends or it was released; see
// client.Lease.KeepAlive.
func (l *Lease) KeepAlive(ctx context.Context) error {
	return Explain(l.server, l.lease.KeepAlive(ctx))
}

// String is the public id.
func (l *Lease) String() string { return l.lease.ID() }

// Change is a person's change that was begun here.
type Change struct {
	client *client.Client
	server string
	pool   string
	id     string
	ttl    int64
}

// Renew keeps the change alive for the time that it was begun for. NotFound (code
// "change") says that it runs no more: somebody else may change the pool.
func (c *Change) Renew(ctx context.Context) error {
	_, err := c.client.RenewChange(ctx, c.pool, c.id, client.ChangeRenewal{TTL: c.ttl})
	return Explain(c.server, err)
}

// End ends the change; again is harmless. Bars of actions without an end stay.
func (c *Change) End(ctx context.Context) error {
	return Explain(c.server, c.client.EndChange(ctx, c.pool, c.id))
}
