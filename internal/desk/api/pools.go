package api

import (
	"context"
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/lease"
)

// firstWaiters is how many waiters are shown beside a pool's keys.
const firstWaiters = 10

type listPoolsInput struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"500" default:"100" doc:"Size of the page."`
	Cursor string `query:"cursor" maxLength:"1024" doc:"The field next of the page before."`
}

type listPoolsOutput struct{ Body client.PoolList }

func (s *server) listPools(ctx context.Context, in *listPoolsInput) (*listPoolsOutput, error) {
	after, err := decodeLeaseName(in.Cursor)
	if err != nil {
		return nil, err
	}
	all, err := s.opts.Desk.Pools(ctx, after, in.Limit+1)
	if err != nil {
		return nil, err
	}
	out := &listPoolsOutput{client.PoolList{Items: []client.PoolStatus{}}}
	for i := range all {
		if i == in.Limit {
			out.Body.Next = encodeName(all[i-1].Name)
			break
		}
		out.Body.Items = append(out.Body.Items, statusOnWire(ctx, &all[i]))
	}
	return out, nil
}

type getPoolInput struct {
	Pool   string `path:"pool" maxLength:"317" pattern:"^[A-Za-z0-9][A-Za-z0-9._-]*$" patternDescription:"letters, digits and . _ -, a letter or digit first" doc:"Name of the pool." example:"win"`
	Limit  int    `query:"limit" minimum:"1" maximum:"500" default:"100" doc:"Size of the page of keys."`
	Cursor string `query:"cursor" maxLength:"1024" doc:"The field next of the page before."`
}

type getPoolOutput struct{ Body client.PoolPage }

func (s *server) getPool(ctx context.Context, in *getPoolInput) (*getPoolOutput, error) {
	after, err := decodeLeaseName(in.Cursor)
	if err != nil {
		return nil, err
	}
	p, err := s.opts.Desk.Pool(ctx, in.Pool)
	if err != nil {
		return nil, err
	}
	keys, err := s.opts.Desk.Keys(ctx, in.Pool, after, in.Limit+1)
	if err != nil {
		return nil, err
	}
	out := &getPoolOutput{client.PoolPage{PoolStatus: statusOnWire(ctx, &p), Items: []client.Key{}, Waiters: []client.Waiter{}}}
	for i := range keys.Keys {
		if i == in.Limit {
			out.Body.Next = encodeName(keys.Keys[i-1].Name)
			break
		}
		out.Body.Items = append(out.Body.Items, keyOnWire(&keys.Keys[i], keys.Now))
	}
	if in.Cursor != "" {
		return out, nil
	}
	queue, err := s.opts.Desk.Queue(ctx, in.Pool, 0, firstWaiters)
	if err != nil {
		return nil, err
	}
	out.Body.Waiters, _ = waitersOnWire(queue, p.Now, 0)
	return out, nil
}

type listWaitersInput struct {
	Pool   string `path:"pool" maxLength:"317" pattern:"^[A-Za-z0-9][A-Za-z0-9._-]*$" patternDescription:"letters, digits and . _ -, a letter or digit first" doc:"Name of the pool." example:"win"`
	Limit  int    `query:"limit" minimum:"1" maximum:"500" default:"100" doc:"Size of the page."`
	Cursor string `query:"cursor" maxLength:"1024" doc:"The field next of the page before."`
}

type listWaitersOutput struct{ Body client.WaiterList }

func (s *server) listWaiters(ctx context.Context, in *listWaitersInput) (*listWaitersOutput, error) {
	after, before, err := decodePlace(in.Cursor)
	if err != nil {
		return nil, err
	}
	// The pool's own reading has the time of the database.
	p, err := s.opts.Desk.Pool(ctx, in.Pool)
	if err != nil {
		return nil, err
	}
	queue, err := s.opts.Desk.Queue(ctx, in.Pool, after, in.Limit+1)
	if err != nil {
		return nil, err
	}
	more := len(queue) > in.Limit
	queue = queue[:min(len(queue), in.Limit)]
	out := &listWaitersOutput{}
	out.Body.Items, before = waitersOnWire(queue, p.Now, before)
	if more {
		out.Body.Next = encodePlace(queue[len(queue)-1].Seq, before)
	}
	return out, nil
}

type publishInput struct {
	Pool string `path:"pool" maxLength:"128" pattern:"^[A-Za-z0-9][A-Za-z0-9._-]*$" patternDescription:"letters, digits and . _ -, a letter or digit first" doc:"Name of the pool." example:"win"`
	Body client.PublishRequest
}

type publishOutput struct{ Body client.Pool }

func (s *server) publishPool(ctx context.Context, in *publishInput) (*publishOutput, error) {
	b := &in.Body
	p := lease.Pool{
		Name: in.Pool, Kind: lease.Fixed, Hooks: lease.Hooks{Check: b.Hooks.Check, Reset: b.Hooks.Reset},
		TTL: b.TTL.Duration(), MaxTTL: b.MaxTTL.Duration(), Cooldown: b.Cooldown.Duration(),
		Scope: lease.Scope(b.Scope), By: principalOf(ctx).Account,
	}
	if b.Ban != nil {
		p.Ban = lease.Ban{Initial: b.Ban.Initial.Duration(), Factor: b.Ban.Factor, Max: b.Ban.Max.Duration()}
	}
	done, err := s.opts.Desk.Publish(ctx, lease.Publish{Pool: p, Items: b.Items, If: b.IfRevision})
	if err != nil {
		return nil, err
	}
	return &publishOutput{poolOnWire(&done)}, nil
}

type disableKeyInput struct {
	Pool string `path:"pool" maxLength:"317" pattern:"^[A-Za-z0-9][A-Za-z0-9._-]*$" patternDescription:"letters, digits and . _ -, a letter or digit first" doc:"Name of the pool." example:"win"`
	Key  string `path:"key" maxLength:"317" pattern:"^[A-Za-z0-9][A-Za-z0-9._-]*$" patternDescription:"letters, digits and . _ -, a letter or digit first" doc:"Name of the key." example:"win-01"`
	Body client.DisableRequest
}

type keyOutput struct{ Body client.Key }

func (s *server) disableKey(ctx context.Context, in *disableKeyInput) (*keyOutput, error) {
	return s.onKey(ctx, in.Pool, in.Key, func() (lease.Key, time.Time, error) {
		return s.opts.Desk.Disable(ctx, lease.Disable{Key: in.Key, Reason: in.Body.Reason, By: principalOf(ctx).Account})
	})
}

type enableKeyInput struct {
	Pool string `path:"pool" maxLength:"317" pattern:"^[A-Za-z0-9][A-Za-z0-9._-]*$" patternDescription:"letters, digits and . _ -, a letter or digit first" doc:"Name of the pool." example:"win"`
	Key  string `path:"key" maxLength:"317" pattern:"^[A-Za-z0-9][A-Za-z0-9._-]*$" patternDescription:"letters, digits and . _ -, a letter or digit first" doc:"Name of the key." example:"win-01"`
}

func (s *server) enableKey(ctx context.Context, in *enableKeyInput) (*keyOutput, error) {
	return s.onKey(ctx, in.Pool, in.Key, func() (lease.Key, time.Time, error) {
		return s.opts.Desk.Enable(ctx, lease.Enable{Key: in.Key, By: principalOf(ctx).Account})
	})
}

type forceReleaseInput struct {
	Pool string `path:"pool" maxLength:"317" pattern:"^[A-Za-z0-9][A-Za-z0-9._-]*$" patternDescription:"letters, digits and . _ -, a letter or digit first" doc:"Name of the pool." example:"win"`
	Key  string `path:"key" maxLength:"317" pattern:"^[A-Za-z0-9][A-Za-z0-9._-]*$" patternDescription:"letters, digits and . _ -, a letter or digit first" doc:"Name of the key." example:"win-01"`
	Body *client.ForceRequest
}

func (s *server) forceRelease(ctx context.Context, in *forceReleaseInput) (*keyOutput, error) {
	op := lease.Force{Key: in.Key, By: principalOf(ctx).Account}
	if in.Body != nil {
		op.Fence, op.Rest = in.Body.Fence, time.Duration(in.Body.Rest)*time.Second
		auditReason(ctx, in.Body.Reason)
	}
	return s.onKey(ctx, in.Pool, in.Key, func() (lease.Key, time.Time, error) { return s.opts.Desk.Force(ctx, op) })
}

// onKey changes a key of the pool, which may be one that is leaving it.
func (s *server) onKey(ctx context.Context, pool, key string, change func() (lease.Key, time.Time, error)) (*keyOutput, error) {
	if _, err := s.opts.Desk.Pool(ctx, pool); err != nil {
		return nil, err
	}
	have, err := s.opts.Desk.Key(ctx, key)
	if err != nil {
		return nil, err
	}
	if k := have.Keys[0]; !slices.Contains(k.Pools, pool) && !slices.Contains(k.Leaving, pool) {
		return nil, lease.NoKey(key)
	}
	k, now, err := change()
	if err != nil {
		return nil, err
	}
	return &keyOutput{keyOnWire(&k, now)}, nil
}

func poolOnWire(p *lease.Pool) client.Pool {
	targets := ""
	switch {
	case p.Sites:
		targets = "site"
	case p.Kind == lease.Managed:
		targets = "host"
	}
	return client.Pool{
		Name: p.Name, Kind: string(p.Kind),
		PoolSettings: client.PoolSettings{
			TTL: client.SecondsOf(p.TTL), MaxTTL: client.SecondsOf(p.MaxTTL), Cooldown: client.SecondsOf(p.Cooldown),
			Ban:   &client.BanCooldown{Initial: client.SecondsOf(p.Ban.Initial), Factor: p.Ban.Factor, Max: client.SecondsOf(p.Ban.Max)},
			Scope: string(p.Scope), Hooks: client.Hooks{Check: p.Hooks.Check, Reset: p.Hooks.Reset},
		},
		InFlight: p.InFlight, NewShare: p.NewShare, Targets: targets,
		Revision: p.Revision, PublishedBy: p.By, Published: timeOnWire(p.At),
	}
}

func statusOnWire(ctx context.Context, p *lease.PoolStatus) client.PoolStatus {
	w := client.PoolStatus{Pool: poolOnWire(&p.Pool), Keys: p.Keys, Free: p.Free, Held: p.Held, Waiting: p.Waiting}
	if p.Change != nil {
		ch := changeOnWire(ctx, p.Change, p.Now)
		w.Change = &ch
	}
	return w
}

// left is the time until t; 0 for one that is past, or that never comes.
func left(t, now time.Time) client.Seconds {
	if !t.After(now) || !t.Before(lease.Never()) {
		return 0
	}
	return client.SecondsOf(t.Sub(now))
}

func keyOnWire(k *lease.Key, now time.Time) client.Key {
	// What ended by time has ended, whether or not somebody wrote it down.
	settled := k.Settle(now)
	k = &settled
	w := client.Key{
		Name: k.Name, State: string(k.State(now)), SecondsLeft: left(k.FreeAt(), now), Pools: k.Pools, Leaving: k.Leaving, UID: k.UID,
		Attributes: k.Attributes, ExitIP: k.ExitIP, Unhealthy: k.Unfit, NeedsReset: k.NeedsReset, Errors: k.Errors,
	}
	if w.Pools == nil {
		w.Pools = []string{}
	}
	if w.Attributes == nil {
		w.Attributes = map[string]string{}
	}
	if k.Held(now) {
		l := k.Lease
		w.Lease = &client.KeyLease{
			ID: k.ID().String(), Pool: l.Pool, Account: l.Account, Holder: l.Holder, Target: l.Target, Taken: timeOnWire(l.Taken),
			SecondsLeft: left(l.Expires, now),
		}
	}
	if d := k.Disabled; d != nil {
		w.Disabled = &client.Disabled{Reason: d.Reason, By: d.By, At: timeOnWire(d.At), Auto: d.Auto}
	}
	for _, b := range k.Bars {
		if b.Action == "" && !now.Before(b.Until) {
			continue // it ended
		}
		bar := client.Bar{By: b.By, Action: b.Action}
		if b.Action == "" {
			bar.SecondsLeft = left(b.Until, now)
		}
		w.Bars = append(w.Bars, bar)
	}
	return w
}

// waitersOnWire numbers the live ones on from before, and returns the last
// number.
func waitersOnWire(queue []lease.Ticket, now time.Time, before int) (all []client.Waiter, last int) {
	all = []client.Waiter{}
	for i := range queue {
		t := &queue[i]
		w := client.Waiter{
			Account: t.Account, Holder: t.Holder, Target: t.Target, Constraints: t.Where,
			Waits: client.SecondsOf(max(0, now.Sub(t.Since))), Lost: !t.Live(now),
		}
		if !w.Lost {
			before++
			w.Position = before
		}
		if w.Constraints == nil {
			w.Constraints = map[string]string{}
		}
		all = append(all, w)
	}
	return all, before
}

// decodeLeaseName reads a cursor over names of pools and keys; see encodeName.
func decodeLeaseName(cursor string) (string, error) {
	if cursor == "" {
		return "", nil
	}
	name, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil || lease.ValidName(string(name)) != nil {
		return "", errCursor()
	}
	return string(name), nil
}

// A cursor over waiters is the place of the last one shown, and how many live
// ones were shown.
func encodePlace(seq int64, shown int) string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(seq, 10) + "/" + strconv.Itoa(shown)))
}

func decodePlace(cursor string) (seq int64, shown int, err error) {
	if cursor == "" {
		return 0, 0, nil
	}
	text, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	place, count, ok := strings.Cut(string(text), "/")
	seq, badSeq := strconv.ParseInt(place, 10, 64)
	shown, badShown := strconv.Atoi(count)
	if err != nil || !ok || badSeq != nil || badShown != nil || seq < 1 || shown < 0 || shown > lease.MaxQueue {
		return 0, 0, errCursor()
	}
	return seq, shown, nil
}
