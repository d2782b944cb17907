package lease_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
)

// The model says again what a desk does, in the plainest way: a list of keys, a
// list of waiters, and nothing that is fast. It shares no code with the rules.

type modelPool struct {
	cooldown  time.Duration
	ban       []time.Duration // the first, the second, … rest; the last one stays
	forgiven  time.Duration   // after that long without a ban it counts from the first
	ttl, most time.Duration
}

type modelLease struct {
	fence                int64
	ticket, pool, target string
	ttl                  time.Duration
	until                time.Time
	unclaimed            bool
	born                 time.Time
	fetched              bool   // the request came again
	end                  string // as the code says it; "" while it runs
	secret               lease.Hash
	account              string
}

type modelKey struct {
	name     string
	pools    []string
	lease    *modelLease
	past     []*modelLease
	used     time.Time
	cool     time.Time
	disabled bool
	errors   int
}

type modelTicket struct {
	id, pool, target string
	seq              int // 0 when it does not wait
	live, place      time.Time
	granted          *modelLease
	key              string
	kept             time.Time
}

type modelRest struct {
	until, banned time.Time
	strikes       int
}

type model struct {
	now     time.Time
	pools   map[string]modelPool
	keys    []*modelKey
	tickets map[string]*modelTicket
	rests   map[string]*modelRest // by key and target
	seq     int
}

func (m *model) key(name string) *modelKey {
	i := slices.IndexFunc(m.keys, func(k *modelKey) bool { return k.name == name })
	return m.keys[i]
}

// pass lets time pass: leases end.
func (m *model) pass(d time.Duration) {
	m.now = m.now.Add(d)
	for _, k := range m.keys {
		if k.running() && !m.now.Before(k.lease.until) {
			k.stop(map[bool]string{false: "expired", true: "unclaimed"}[k.lease.unclaimed], k.lease.until)
		}
	}
}

func (k *modelKey) running() bool { return k.lease != nil && k.lease.end == "" }

func (k *modelKey) stop(how string, at time.Time) {
	k.lease.end = how
	if at.After(k.used) {
		k.used = at
	}
}

// can reports whether somebody who asks for a target could have the key now.
func (m *model) can(k *modelKey, pool, target string) bool {
	if !slices.Contains(k.pools, pool) || k.running() || k.disabled || m.now.Before(k.cool) {
		return false
	}
	r := m.rests[k.name+" "+target]
	return target == "" || r == nil || !m.now.Before(r.until)
}

// best is the key that is used least recently of those that can be had.
func (m *model) best(without map[string]bool, pool, target string) *modelKey {
	var best *modelKey
	rank := func(k *modelKey) time.Time {
		if k.errors == 0 {
			return k.used
		}
		return k.used.Add(time.Minute << min(k.errors-1, 6))
	}
	for _, k := range m.keys { // by name
		if !without[k.name] && m.can(k, pool, target) && (best == nil || rank(k).Before(rank(best))) {
			best = k
		}
	}
	return best
}

// queue is the live waiters of a pool in their order.
func (m *model) queue(pool string) []*modelTicket {
	var q []*modelTicket
	for _, t := range m.tickets {
		if t.pool == pool && t.granted == nil && m.now.Before(t.live) {
			q = append(q, t)
		}
	}
	slices.SortFunc(q, func(a, b *modelTicket) int { return cmp.Compare(a.seq, b.seq) })
	return q
}

// answer is what a take is told.
type answer struct {
	key      string
	code     string
	replayed bool
	position int
	ahead    int
}

func (m *model) take(op lease.Take, fence func() int64) answer {
	t := m.tickets[op.Ticket]
	switch {
	case t == nil:
	case t.granted == nil && m.now.After(t.place), t.granted != nil && m.now.After(t.kept):
		t = nil
	case t.granted != nil:
		k := m.key(t.key)
		if k.lease == t.granted && k.lease.end == "unclaimed" {
			t = nil
			break
		}
		if t.granted.end != "" {
			return answer{code: m.ended(k, t.granted)}
		}
		if t.granted.unclaimed {
			t.granted.unclaimed, t.granted.until = false, m.now.Add(t.granted.ttl)
		}
		t.granted.fetched = true
		return answer{key: k.name, replayed: true}
	}
	ahead, aside := 0, map[string]bool{}
	for _, other := range m.queue(op.Pool) {
		if other.id == op.Ticket || t != nil && other.seq > t.seq {
			continue
		}
		ahead++
		if k := m.best(aside, other.pool, other.target); k != nil {
			aside[k.name] = true
		}
	}
	if k := m.best(aside, op.Pool, op.Target); k != nil {
		if k.lease != nil {
			k.past = append(k.past, k.lease)
		}
		ttl := cmp.Or(op.TTL, m.pools[op.Pool].ttl)
		k.lease = &modelLease{fence: fence(), ticket: op.Ticket, pool: op.Pool, target: op.Target, ttl: ttl, born: m.now, until: m.now.Add(ttl), secret: op.Secret, account: op.Account}
		k.used = m.now
		switch {
		case op.Keep:
			m.tickets[op.Ticket] = &modelTicket{id: op.Ticket, pool: op.Pool, granted: k.lease, key: k.name, kept: m.now.Add(10 * time.Minute)}
		case t != nil:
			delete(m.tickets, op.Ticket)
		}
		return answer{key: k.name}
	}
	if !op.Wait {
		if t != nil && m.now.Before(t.live) {
			t.live = m.now
		}
		return answer{ahead: ahead}
	}
	if t == nil {
		m.seq++
		t = &modelTicket{id: op.Ticket, pool: op.Pool, target: op.Target, seq: m.seq}
		m.tickets[op.Ticket] = t
	}
	t.live, t.place = m.now.Add(5*time.Second), m.now.Add(15*time.Second)
	return answer{position: ahead + 1, ahead: ahead}
}

// ended is the code for who asks for a lease that runs no more.
func (m *model) ended(k *modelKey, l *modelLease) string {
	how := l.end
	if k.lease != l {
		if i := slices.Index(k.past, l); i < len(k.past)-8 { // a row remembers eight
			how = "expired"
		}
		if k.running() && how != "released" {
			return "lease_lost"
		}
	}
	return "lease_" + how
}

// use checks a proof.
func (m *model) use(p lease.Proof) (*modelKey, *modelLease, string) {
	k := m.key(p.ID.Key)
	i := slices.IndexFunc(k.past, func(l *modelLease) bool { return l.fence == p.ID.Fence })
	switch {
	case i >= 0:
		return k, nil, m.ended(k, k.past[i])
	case k.lease == nil || k.lease.fence != p.ID.Fence:
		return k, nil, "lease"
	case k.lease.account != p.Account:
		return k, nil, "not_owner"
	case k.lease.secret != p.Secret:
		return k, nil, "secret"
	case k.lease.end != "":
		return k, nil, "lease_" + k.lease.end
	}
	return k, k.lease, ""
}

func (m *model) renew(op lease.Renew) string {
	_, l, code := m.use(op.Proof)
	if code != "" {
		return code
	}
	if op.TTL != 0 {
		if op.TTL > m.pools[l.pool].most {
			return "ttl"
		}
		l.ttl = op.TTL
	}
	l.until, l.unclaimed = m.now.Add(l.ttl), false
	return ""
}

func (m *model) release(op lease.Release) string {
	k, l, code := m.use(op.Proof)
	switch code {
	case "":
	case "lease_released":
		return ""
	default:
		return code
	}
	if op.Outcome == lease.Banned && l.target == "" {
		return "target"
	}
	k.stop("released", m.now)
	if rest := m.pools[l.pool].cooldown; rest > 0 && l.target == "" {
		k.cool = m.now.Add(rest)
	} else if rest > 0 {
		m.rest(k.name, l.target, m.now.Add(rest))
	}
	switch op.Outcome {
	case lease.Banned:
		m.ban(k.name, l.pool, l.target)
	case lease.Failed:
		k.errors++
	default:
		k.errors = 0
	}
	return ""
}

func (m *model) rest(key, target string, until time.Time) *modelRest {
	id := key + " " + target
	if m.rests[id] == nil {
		m.rests[id] = &modelRest{}
	}
	if until.After(m.rests[id].until) {
		m.rests[id].until = until
	}
	return m.rests[id]
}

func (m *model) ban(key, pool, target string) {
	r, p := m.rest(key, target, time.Time{}), m.pools[pool]
	if m.now.Before(r.banned) {
		return
	}
	if r.strikes > 0 && m.now.After(r.banned.Add(p.forgiven)) {
		r.strikes = 0
	}
	r.strikes++
	r.banned = m.now.Add(p.ban[min(r.strikes, len(p.ban))-1])
	m.rest(key, target, r.banned)
}

func (m *model) sweep() {
	maps.DeleteFunc(m.tickets, func(_ string, t *modelTicket) bool {
		return t.granted == nil && t.place.Before(m.now) || t.granted != nil && t.kept.Before(m.now)
	})
}

// desk is a Memory and its model, and what they were told.
type desk struct {
	*rapid.T
	memory *leasetest.Memory
	model  *model
	proofs []lease.Proof
	fence  int64
	// holds are leases by key as their holders know them.
	holds map[string]lease.Lease
}

func newDesk(t *rapid.T) *desk {
	d := &desk{T: t, holds: map[string]lease.Lease{}}
	d.model = &model{
		now: time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC), tickets: map[string]*modelTicket{}, rests: map[string]*modelRest{},
		pools: map[string]modelPool{
			"p": {cooldown: 7 * time.Second, ban: []time.Duration{10 * time.Second, 20 * time.Second, 25 * time.Second}, forgiven: 25 * time.Second, ttl: 20 * time.Second, most: time.Minute},
			"q": {ban: []time.Duration{time.Minute}, forgiven: time.Minute, ttl: 30 * time.Second, most: 30 * time.Second},
		},
		keys: []*modelKey{
			{name: "a", pools: []string{"p"}}, {name: "b", pools: []string{"p"}}, {name: "c", pools: []string{"p", "q"}}, {name: "d", pools: []string{"q"}},
		},
	}
	d.memory = leasetest.NewMemory(leasetest.Options{Now: func() time.Time { return d.model.now }})
	p := lease.Pool{Name: "p", TTL: 20 * time.Second, MaxTTL: time.Minute, Cooldown: 7 * time.Second, Ban: lease.Ban{Initial: 10 * time.Second, Factor: 2, Max: 25 * time.Second}}
	q := lease.Pool{Name: "q", TTL: 30 * time.Second, MaxTTL: 30 * time.Second, Ban: lease.Ban{Initial: time.Minute, Factor: 1, Max: time.Minute}}
	d.do(lease.Publish{Pool: p, Items: []string{"a", "b", "c"}})
	d.do(lease.Publish{Pool: q, Items: []string{"c", "d"}})
	return d
}

func (d *desk) do(op lease.Op) lease.Result {
	all, err := d.memory.Do(context.Background(), []lease.Op{op})
	if err != nil {
		d.Fatalf("Do: %v", err)
	}
	return all[0]
}

func (d *desk) same(what string, want, have any) {
	if want != have {
		d.Fatalf("%s: the model says %+v, the desk %+v", what, want, have)
	}
}

func (d *desk) takes() {
	tickets := []string{"1", "2", "3", "4", "5", "keep 1", "keep 2", "keep 3"}
	id := rapid.SampledFrom(tickets).Draw(d.T, "ticket")
	op := lease.Take{Ticket: id, Account: "ann", Secret: lease.HashOf(id), Keep: len(id) > 1, Wait: rapid.Bool().Draw(d.T, "wait")}
	if t := d.model.tickets[id]; t != nil && t.granted == nil { // a request that waits asks for the same again
		op.Pool, op.Target = t.pool, t.target
	} else if t != nil {
		op.Pool, op.Target = t.granted.pool, t.granted.target
	} else {
		op.Pool = rapid.SampledFrom([]string{"p", "q"}).Draw(d.T, "pool")
		op.Target = rapid.SampledFrom([]string{"", "x.example", "y.example"}).Draw(d.T, "target")
	}
	op.Digest = op.Pool + op.Target
	if rapid.IntRange(0, 3).Draw(d.T, "own time") == 0 {
		op.TTL = 5 * time.Second
	}
	res := d.do(op)
	want := d.model.take(op, func() int64 {
		if res.Lease == nil {
			return 0
		}
		return res.Lease.Fence
	})
	have := answer{code: fault.CodeOf(res.Err), replayed: res.Replayed}
	if res.Err == nil && res.Key != nil {
		have.key = res.Key.Name
	}
	if res.Busy != nil {
		have.position, have.ahead = res.Busy.Position, res.Busy.Ahead
		d.due(op, res)
	}
	d.same(fmt.Sprintf("take %+v", op), want, have)
	if res.Err != nil || res.Busy != nil {
		return
	}
	proof := lease.Proof{ID: res.Key.ID(), Secret: op.Secret, Account: op.Account}
	if !res.Replayed {
		// Whoever had the key before knows that it is over: this needs no model.
		if l, ok := d.holds[res.Key.Name]; ok && res.Now.Before(l.Expires) {
			d.Fatalf("key %s went to %s while %d held it until %v", res.Key.Name, proof.ID, l.Fence, l.Expires)
		}
		if res.Lease.Fence <= d.fence {
			d.Fatalf("fence %d after %d", res.Lease.Fence, d.fence)
		}
		d.fence = res.Lease.Fence
		d.proofs = append(d.proofs, proof)
	}
	d.holds[res.Key.Name] = *res.Lease
}

// due checks that whoever comes back when it is told to does not come too late:
// nothing comes free by time before that.
func (d *desk) due(op lease.Take, res lease.Result) {
	m := d.model
	for _, k := range m.keys {
		if !slices.Contains(k.pools, op.Pool) || k.disabled {
			continue
		}
		at := k.cool
		if k.running() && k.lease.until.After(at) {
			at = k.lease.until
		}
		if r := m.rests[k.name+" "+op.Target]; op.Target != "" && r != nil && r.until.After(at) {
			at = r.until
		}
		if at.After(m.now) && (res.Busy.Due.IsZero() || res.Busy.Due.After(at)) {
			d.Fatalf("key %s comes free at %v, but %s is told %v", k.name, at, op.Ticket, res.Busy.Due)
		}
	}
}

func (d *desk) proof() lease.Proof {
	if len(d.proofs) == 0 {
		d.Skip("nobody took anything yet")
	}
	p := d.proofs[len(d.proofs)-1-min(len(d.proofs)-1, rapid.IntRange(0, 12).Draw(d.T, "lease"))]
	switch rapid.IntRange(0, 15).Draw(d.T, "forge") {
	case 0:
		p.Secret = lease.HashOf("forged")
	case 1:
		p.Account = "bob"
	case 2:
		p.ID.Fence = 1 << 40
	}
	return p
}

func (d *desk) renews() {
	op := lease.Renew{Proof: d.proof(), TTL: rapid.SampledFrom([]time.Duration{0, 0, 10 * time.Second, 40 * time.Second}).Draw(d.T, "ttl")}
	res := d.do(op)
	d.same(fmt.Sprintf("renew %s", op.ID), d.model.renew(op), fault.CodeOf(res.Err))
	if res.Err == nil {
		d.holds[op.ID.Key] = *res.Lease
	}
}

func (d *desk) releases() {
	op := lease.Release{Proof: d.proof(), Outcome: rapid.SampledFrom([]lease.Outcome{lease.OK, lease.OK, lease.Banned, lease.Failed}).Draw(d.T, "outcome")}
	res := d.do(op)
	d.same(fmt.Sprintf("release %s", op.ID), d.model.release(op), fault.CodeOf(res.Err))
	if l, ok := d.holds[op.ID.Key]; ok && res.Err == nil && l.Fence == op.ID.Fence {
		delete(d.holds, op.ID.Key)
	}
}

func (d *desk) unclaims() {
	p := d.proof()
	res := d.do(lease.Unclaim{ID: p.ID, Secret: p.Secret})
	want := "lease"
	if k := d.model.key(p.ID.Key); k.running() && k.lease.fence == p.ID.Fence && k.lease.secret == p.Secret {
		want = ""
		renewed := !k.lease.unclaimed && !k.lease.until.Equal(k.lease.born.Add(k.lease.ttl))
		if !renewed && !k.lease.fetched {
			if at := d.model.now.Add(5 * time.Second); at.Before(k.lease.until) {
				k.lease.until = at
			}
			k.lease.unclaimed = true
		}
		d.holds[k.name] = *res.Lease
	}
	d.same("unclaim", want, fault.CodeOf(res.Err))
}

func (d *desk) leaves() {
	op := lease.Leave{Ticket: rapid.SampledFrom([]string{"1", "2", "3", "4", "5", "keep 1"}).Draw(d.T, "ticket"), Forget: rapid.Bool().Draw(d.T, "forget")}
	d.do(op)
	switch t := d.model.tickets[op.Ticket]; {
	case t == nil || t.granted != nil:
	case op.Forget:
		delete(d.model.tickets, op.Ticket)
	default:
		t.live, t.place = d.model.now, d.model.now.Add(15*time.Second)
	}
}

func (d *desk) lives() {
	op := lease.Live{Tickets: rapid.SliceOfDistinct(rapid.SampledFrom([]string{"1", "2", "3", "4", "5", "keep 1", "keep 2"}), rapid.ID).Draw(d.T, "tickets")}
	d.do(op)
	for _, id := range op.Tickets {
		if t := d.model.tickets[id]; t != nil && t.granted == nil {
			t.live, t.place = d.model.now.Add(5*time.Second), d.model.now.Add(15*time.Second)
		}
	}
}

func (d *desk) manages() {
	k := rapid.SampledFrom(d.model.keys).Draw(d.T, "key")
	code := ""
	var op lease.Op
	switch rapid.IntRange(0, 3).Draw(d.T, "what") {
	case 0:
		op = lease.Disable{Key: k.name}
		k.disabled = true
	case 1, 2:
		op = lease.Enable{Key: k.name}
		k.disabled, k.errors = false, 0
	case 3:
		op = lease.Force{Key: k.name}
		if code = "not_held"; k.running() {
			code = ""
			k.stop("forced", d.model.now)
			delete(d.holds, k.name)
		}
	}
	d.same(fmt.Sprintf("%T of %s", op, k.name), code, fault.CodeOf(d.do(op).Err))
}

func (d *desk) lifts() {
	k := rapid.SampledFrom(d.model.keys).Draw(d.T, "key")
	op := lease.Lift{Key: k.name, Target: rapid.SampledFrom([]string{"", "x.example"}).Draw(d.T, "target")}
	d.do(op)
	if op.Target == "" {
		k.cool = time.Time{}
		delete(d.model.rests, k.name+" y.example")
	}
	delete(d.model.rests, k.name+" x.example")
}

// agrees compares everything that can be read.
func (d *desk) agrees() {
	ctx, m := context.Background(), d.model
	for _, k := range m.keys {
		keys, err := d.memory.Key(ctx, k.name)
		if err != nil {
			d.Fatal(err)
		}
		have := &keys.Keys[0]
		d.same("who holds "+k.name, k.running(), have.Held(keys.Now))
		if k.lease == nil {
			continue
		}
		settled := have.Settle(keys.Now)
		d.same("the lease of "+k.name, fmt.Sprint(k.lease.fence, k.lease.end, k.lease.until), fmt.Sprint(settled.Lease.Fence, settled.Lease.End, settled.Lease.Expires))
		d.same("the last use of "+k.name, k.used, settled.UsedAt)
		// No key stays with a lease that is over, and none is lost before.
		if l, ok := d.holds[k.name]; ok && keys.Now.Before(l.Expires) && (!have.Held(keys.Now) || have.Lease.Fence != l.Fence) {
			d.Fatalf("lease %d of key %s was lost before %v", l.Fence, k.name, l.Expires)
		}
	}
	for pool := range m.pools {
		var want, have []string
		for _, t := range m.queue(pool) {
			want = append(want, t.id)
		}
		queue, err := d.memory.Queue(ctx, pool, 0, 100)
		if err != nil {
			d.Fatal(err)
		}
		for _, t := range queue {
			if t.Live(m.now) {
				have = append(have, t.ID)
			}
		}
		d.same("the queue of "+pool, fmt.Sprint(want), fmt.Sprint(have))
	}
}

// What the desk does is what the model does, whatever is done in which order.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := newDesk(t)
		at := func(f func(d *desk)) func(*rapid.T) { return func(t *rapid.T) { d.T = t; f(d) } }
		t.Repeat(map[string]func(*rapid.T){
			"take": at((*desk).takes), "take again": at((*desk).takes), "take more": at((*desk).takes), "renew": at((*desk).renews),
			"release": at((*desk).releases), "release more": at((*desk).releases), "unclaim": at((*desk).unclaims), "leave": at((*desk).leaves),
			"live": at((*desk).lives), "manage": at((*desk).manages), "lift": at((*desk).lifts),
			"sweep": at(func(d *desk) { d.do(lease.Sweep{Limit: 100}); d.model.sweep() }),
			"time": at(func(d *desk) {
				d.model.pass(rapid.SampledFrom([]time.Duration{time.Millisecond, time.Second, 4 * time.Second, 5 * time.Second, 11 * time.Second, 15 * time.Second, time.Minute, 11 * time.Minute}).Draw(d.T, "step"))
			}),
			"": at((*desk).agrees),
		})
	})
}
