package sqldb

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

// scanner is a row of either driver.
type scanner interface{ Scan(dest ...any) error }

// micros is a time as it is kept; the zero time is 0.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// moment is a kept time; 0 is the zero time.
func moment(micros int64) time.Time {
	if micros == 0 {
		return time.Time{}
	}
	return instant(micros)
}

func span(d time.Duration) int64 { return d.Microseconds() }

func duration(micros int64) time.Duration { return time.Duration(micros) * time.Microsecond }

// listed and names are a list of names as a text: no name has a comma.
func listed(names []string) string { return strings.Join(names, ",") }

func names(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

// pairs and pairsOf are texts by name as JSON.
func pairs(m map[string]string) string {
	if len(m) == 0 {
		return ""
	}
	b, _ := json.Marshal(m) //nolint:errchkjson // texts always can
	return string(b)
}

func pairsOf(s string) (map[string]string, error) {
	if s == "" {
		return nil, nil
	}
	var m map[string]string
	if err := json.Unmarshal([]byte(s), &m); err != nil {
		return nil, fault.Errorf(fault.Permanent, "a row's attributes cannot be read: restore the database from a backup: %w", err)
	}
	return m, nil
}

func past(all []lease.Past) string {
	var b strings.Builder
	for i, p := range all {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatInt(p.Fence, 10))
		b.WriteByte('=')
		b.WriteString(string(p.End))
	}
	return b.String()
}

func pastOf(s string) (all []lease.Past, err error) {
	if s == "" {
		return nil, nil
	}
	all = make([]lease.Past, 0, strings.Count(s, ",")+1)
	for one := range strings.SplitSeq(s, ",") {
		fence, end, _ := strings.Cut(one, "=")
		n, err := strconv.ParseInt(fence, 10, 64)
		if err != nil {
			return nil, fault.Errorf(fault.Permanent, "a row's past cannot be read: restore the database from a backup: %w", err)
		}
		all = append(all, lease.Past{Fence: n, End: lease.End(end)})
	}
	return all, nil
}

// matching and matchOf are conditions as JSON.
func matching(all []lease.Match) string {
	if len(all) == 0 {
		return ""
	}
	b, _ := json.Marshal(all) //nolint:errchkjson // texts always can
	return string(b)
}

func matchOf(s string) (all []lease.Match, err error) {
	if s == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(s), &all); err != nil {
		return nil, fault.Errorf(fault.Permanent, "a row's conditions cannot be read: restore the database from a backup: %w", err)
	}
	return all, nil
}

// uses and usesOf are uses in flight as fence=end=account, with commas between.
func uses(all []lease.InFlight) string {
	var b strings.Builder
	for i, u := range all {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatInt(u.Fence, 10))
		b.WriteByte('=')
		b.WriteString(strconv.FormatInt(micros(u.Ends), 10))
		b.WriteByte('=')
		b.WriteString(strconv.FormatUint(u.By, 36))
	}
	return b.String()
}

func usesOf(s string) (all []lease.InFlight, err error) {
	if s == "" {
		return nil, nil
	}
	for one := range strings.SplitSeq(s, ",") {
		fence, rest, _ := strings.Cut(one, "=")
		ends, by, _ := strings.Cut(rest, "=")
		n, err := strconv.ParseInt(fence, 10, 64)
		at, err2 := strconv.ParseInt(ends, 10, 64)
		who, err3 := strconv.ParseUint(by, 36, 64)
		all = append(all, lease.InFlight{Fence: n, Ends: moment(at), By: who})
		if err = cmp.Or(err, err2, err3); err != nil {
			return nil, fault.Errorf(fault.Permanent, "a row's uses cannot be read: restore the database from a backup: %w", err)
		}
	}
	return all, nil
}

var poolColumns = slices.Concat(
	columns(text, "name", "kind"),
	columns(boolean, "check_hook", "reset_hook"),
	columns(integer, "ttl", "max_ttl", "cooldown", "ban_initial"),
	columns(float, "ban_factor"),
	columns(integer, "ban_max"),
	columns(text, "scope"),
	columns(integer, "revision"),
	columns(text, "author"),
	columns(integer, "published", "in_flight", "new_share"),
	columns(boolean, "sites"),
)

func poolValues(p *lease.Pool) []any {
	return []any{
		p.Name, string(p.Kind), p.Hooks.Check, p.Hooks.Reset, span(p.TTL), span(p.MaxTTL), span(p.Cooldown), span(p.Ban.Initial),
		p.Ban.Factor, span(p.Ban.Max), string(p.Scope), p.Revision, p.By, micros(p.At),
		int64(p.InFlight), int64(p.NewShare), p.Sites,
	}
}

func scanPool(r scanner) (p lease.Pool, err error) {
	var ttl, maxTTL, cooldown, initial, most, at int64
	err = r.Scan(&p.Name, (*string)(&p.Kind), &p.Hooks.Check, &p.Hooks.Reset, &ttl, &maxTTL, &cooldown, &initial,
		&p.Ban.Factor, &most, (*string)(&p.Scope), &p.Revision, &p.By, &at, &p.InFlight, &p.NewShare, &p.Sites)
	p.TTL, p.MaxTTL, p.Cooldown, p.Ban.Initial, p.Ban.Max = duration(ttl), duration(maxTTL), duration(cooldown), duration(initial), duration(most)
	p.At = moment(at)
	return p, err
}

// The columns of a key: what says which row it is, its lists, what its
// controller knows, who took it out of use, what is settled when a lease begins,
// and what every write of the row may change.
var (
	keyID       = slices.Concat(columns(text, "name"), columns(integer, "version"))
	keyLists    = columns(text, "pools", "leaving")
	keyFacts    = slices.Concat(columns(boolean, "managed"), columns(text, "uid", "attributes", "exit_ip", "unfit"), columns(integer, "weight", "joined", "seat", "since"))
	keyDisabled = slices.Concat(
		columns(boolean, "disabled"),
		columns(text, "disabled_reason", "disabled_by"),
		columns(integer, "disabled_at"),
		columns(boolean, "disabled_auto"),
	)
	keyGrant = slices.Concat(
		columns(integer, "fence"),
		columns(text, "lease_pool", "target", "account", "holder"),
		columns(blob, "secret"),
		columns(text, "ticket"),
		columns(integer, "taken"),
		columns(boolean, "check_hook", "reset_hook"),
		columns(text, "past"),
	)
	keyState = slices.Concat(
		columns(integer, "ttl", "expires"),
		columns(boolean, "resetting", "unclaimed"),
		columns(text, "ended"),
		columns(integer, "ended_at"),
		columns(text, "ended_by"),
		columns(boolean, "needs_reset"),
		columns(integer, "reset_failures", "errors", "cool_until", "used_at", "free_at", "rank"),
	)
	keyColumns = slices.Concat(keyID, keyLists, keyFacts, keyDisabled, keyGrant, keyState)
)

// keyValues are values of the parts of a key, in their order.
type keyValues []any

func (v keyValues) id(k *lease.Key) keyValues { return append(v, k.Name, k.Version) }

func (v keyValues) lists(k *lease.Key) keyValues {
	return append(v, listed(k.Pools), listed(k.Leaving))
}

func (v keyValues) facts(k *lease.Key) keyValues {
	return append(v, k.Managed, k.UID, pairs(k.Attributes), k.ExitIP, k.Unfit, int64(k.Weight), micros(k.Joined), k.Seat, k.Since)
}

func (v keyValues) disabled(k *lease.Key) keyValues {
	d := lease.Disabled{}
	if k.Disabled != nil {
		d = *k.Disabled
	}
	return append(v, k.Disabled != nil, d.Reason, d.By, micros(d.At), d.Auto)
}

func (v keyValues) grant(k *lease.Key) keyValues {
	l := leaseOf(k)
	return append(v, l.Fence, l.Pool, l.Target, l.Account, l.Holder, l.Secret[:], l.Ticket, micros(l.Taken), l.Hooks.Check, l.Hooks.Reset, past(k.Past))
}

func (v keyValues) state(k *lease.Key) keyValues {
	l := leaseOf(k)
	return append(v, span(l.TTL), micros(l.Expires), l.Resetting, l.Unclaimed, string(l.End), micros(l.EndedAt), l.EndedBy,
		k.NeedsReset, int64(k.ResetFailures), int64(k.Errors), micros(k.CoolUntil), micros(k.UsedAt), micros(k.FreeAt()), rank(k))
}

func leaseOf(k *lease.Key) lease.Lease {
	if k.Lease == nil {
		return lease.Lease{}
	}
	return *k.Lease
}

// rank is the key's as it is kept. A key that was never used comes before all
// others, also where errors made its rank later than the zero time.
func rank(k *lease.Key) int64 { return k.Rank().UnixMicro() }

// spot is what a row said when it was read: where other tables have the key
// (what a program of another version wrote there may differ from what this one
// would), and what need not be written again.
type spot struct {
	pools, leaving []string
	free, rank     int64
	// expires is 0 for a key whose lease does not run.
	expires  int64
	grant    lease.Lease // see settled
	past     string
	disabled *lease.Disabled
}

// settled is what does not change while the lease lives.
func settled(k *lease.Key) lease.Lease {
	l := leaseOf(k)
	return lease.Lease{
		Fence: l.Fence, Pool: l.Pool, Target: l.Target, Account: l.Account, Holder: l.Holder, Secret: l.Secret, Ticket: l.Ticket,
		Taken: l.Taken, Hooks: l.Hooks,
	}
}

// sameDisabled and sameGrant report whether the key has these parts as it was
// read.
func (s *spot) sameDisabled(k *lease.Key) bool {
	return (k.Disabled == nil) == (s.disabled == nil) && (k.Disabled == nil || *k.Disabled == *s.disabled)
}

func (s *spot) sameGrant(k *lease.Key) bool { return settled(k) == s.grant && past(k.Past) == s.past }

// scanKey reads a key without its bars, and its spot.
func scanKey(r scanner) (k lease.Key, at spot, err error) {
	var (
		l                                            lease.Lease
		d                                            lease.Disabled
		disabled                                     bool
		pools, leaving, attributes                   string
		secret                                       []byte
		disabledAt, ttl, taken, expires, ended, cool int64
		used, joined                                 int64
	)
	err = r.Scan(
		&k.Name, &k.Version, &pools, &leaving, &k.Managed, &k.UID, &attributes, &k.ExitIP, &k.Unfit, &k.Weight, &joined, &k.Seat, &k.Since,
		&disabled, &d.Reason, &d.By, &disabledAt, &d.Auto,
		&l.Fence, &l.Pool, &l.Target, &l.Account, &l.Holder, &secret, &l.Ticket, &taken, &l.Hooks.Check, &l.Hooks.Reset, &at.past,
		&ttl, &expires, &l.Resetting, &l.Unclaimed, (*string)(&l.End), &ended, &l.EndedBy,
		&k.NeedsReset, &k.ResetFailures, &k.Errors, &cool, &used, &at.free, &at.rank,
	)
	if err != nil {
		return k, at, err
	}
	k.Pools, k.Leaving = names(pools), names(leaving)
	at.pools, at.leaving = k.Pools, k.Leaving
	if k.Attributes, err = pairsOf(attributes); err != nil {
		return k, at, err
	}
	if k.Past, err = pastOf(at.past); err != nil {
		return k, at, err
	}
	if disabled {
		d.At = moment(disabledAt)
		k.Disabled, at.disabled = &d, &lease.Disabled{Reason: d.Reason, By: d.By, At: d.At, Auto: d.Auto}
	}
	if l.Fence != 0 {
		copy(l.Secret[:], secret)
		l.TTL, l.Taken, l.Expires, l.EndedAt = duration(ttl), moment(taken), moment(expires), moment(ended)
		k.Lease = &l
		at.expires, at.grant = runs(&k), settled(&k)
	}
	k.CoolUntil, k.UsedAt, k.Joined = moment(cool), moment(used), moment(joined)
	return k, at, nil
}

// onlyKey reads a key without its bars.
func onlyKey(r scanner) (lease.Key, error) {
	k, _, err := scanKey(r)
	return k, err
}

// runs is when the key's running lease ends by itself; 0 when there is none.
func runs(k *lease.Key) int64 {
	if k.Lease == nil || k.Lease.End != "" {
		return 0
	}
	return micros(k.Lease.Expires)
}

var (
	memberColumns = slices.Concat(columns(text, "pool", "key"), columns(boolean, "leaving"), columns(text, "exit_ip"), columns(integer, "seat"))
	readyID       = slices.Concat(columns(text, "pool"), columns(integer, "free_at", "rank"), columns(text, "key"))
	readyState    = slices.Concat(columns(integer, "held_until"), columns(boolean, "auto_disabled"), columns(text, "exit_ip"))
	readyColumns  = slices.Concat(readyID, readyState)
	readyMove     = slices.Concat(
		columns(text, "pool"),
		[]column{{"was_free_at", integer, "free_at"}, {"was_rank", integer, "rank"}},
		columns(text, "key"), columns(integer, "free_at", "rank"), readyState,
	)
	runningColumns = slices.Concat(columns(integer, "expires"), columns(text, "key"))
	runningMove    = slices.Concat([]column{{"was_expires", integer, "expires"}}, columns(text, "key"), columns(integer, "expires"))
)

// readyValues is what of a key is beside its place among those of a pool.
func readyValues(k *lease.Key) []any {
	return []any{runs(k), k.Disabled != nil && k.Disabled.Auto, k.ExitIP}
}

var ticketColumns = slices.Concat(
	columns(text, "id", "digest"),
	columns(integer, "seq"),
	columns(text, "pool", "target", "account", "holder", "wanted"),
	columns(boolean, "runs_hooks"),
	columns(integer, "since", "live_until", "place_until"),
	columns(text, "granted_key"),
	columns(integer, "granted_fence", "kept"),
	columns(text, "matching"),
)

func ticketValues(t *lease.Ticket) []any {
	return []any{
		t.ID, t.Digest, t.Seq, t.Pool, t.Target, t.Account, t.Holder, pairs(t.Where), t.RunsHooks,
		micros(t.Since), micros(t.LiveUntil), micros(t.PlaceUntil), t.Granted.Key, t.Granted.Fence, micros(t.Kept), matching(t.Match),
	}
}

func scanTicket(r scanner) (t lease.Ticket, err error) {
	var wanted, match string
	var since, live, place, kept int64
	err = r.Scan(&t.ID, &t.Digest, &t.Seq, &t.Pool, &t.Target, &t.Account, &t.Holder, &wanted, &t.RunsHooks,
		&since, &live, &place, &t.Granted.Key, &t.Granted.Fence, &kept, &match)
	if err != nil {
		return t, err
	}
	t.Since, t.LiveUntil, t.PlaceUntil, t.Kept = moment(since), moment(live), moment(place), moment(kept)
	if t.Match, err = matchOf(match); err != nil {
		return t, err
	}
	t.Where, err = pairsOf(wanted)
	return t, err
}

var (
	cooldownID      = columns(text, "scope", "id", "target")
	cooldownColumns = slices.Concat(cooldownID, columns(integer, "until", "strikes", "banned_until", "forget", "turn"), columns(text, "uses"))
)

func cooldownValues(c *lease.Cooldown) []any {
	return []any{string(c.Scope), c.ID, c.Target, micros(c.Until), int64(c.Strikes), micros(c.BannedUntil), micros(c.Forget), micros(c.Turn), uses(c.Uses)}
}

func scanCooldown(r scanner) (c lease.Cooldown, err error) {
	var until, banned, forget, turn int64
	var flying string
	err = r.Scan((*string)(&c.Scope), &c.ID, &c.Target, &until, &c.Strikes, &banned, &forget, &turn, &flying)
	if err != nil {
		return c, err
	}
	c.Until, c.BannedUntil, c.Forget, c.Turn = moment(until), moment(banned), moment(forget), moment(turn)
	c.Uses, err = usesOf(flying)
	return c, err
}

var changeColumns = slices.Concat(
	columns(text, "pool", "id", "verb", "keys", "account", "holder"),
	columns(integer, "began", "until"),
)

func changeValues(c *lease.Change) []any {
	return []any{c.Pool, c.ID, c.Verb, listed(c.Keys), c.Account, c.Holder, micros(c.Began), micros(c.Until)}
}

func scanChange(r scanner) (c lease.Change, err error) {
	var keys string
	var began, until int64
	err = r.Scan(&c.Pool, &c.ID, &c.Verb, &keys, &c.Account, &c.Holder, &began, &until)
	c.Keys, c.Began, c.Until = names(keys), moment(began), moment(until)
	return c, err
}

// keptEvent is an event in the list of its transaction.
type keptEvent struct {
	Seq     int64  `json:"seq"`
	Kind    string `json:"kind"`
	Pool    string `json:"pool,omitempty"`
	Key     string `json:"key,omitempty"`
	Lease   string `json:"lease,omitempty"`
	Account string `json:"account,omitempty"`
}

func eventList(all []lease.Event) string {
	kept := make([]keptEvent, len(all))
	for i, e := range all {
		kept[i] = keptEvent{e.Seq, e.Kind, e.Pool, e.Key, e.Lease, e.Account}
	}
	b, _ := json.Marshal(kept) //nolint:errchkjson // texts and numbers always can
	return string(b)
}

func eventsOf(list string, at time.Time) ([]lease.Event, error) {
	var kept []keptEvent
	if err := json.Unmarshal([]byte(list), &kept); err != nil {
		return nil, fault.Errorf(fault.Permanent, "a row's events cannot be read: restore the database from a backup: %w", err)
	}
	all := make([]lease.Event, len(kept))
	for i, e := range kept {
		all[i] = lease.Event{Seq: e.Seq, At: at, Kind: e.Kind, Pool: e.Pool, Key: e.Key, Lease: e.Lease, Account: e.Account}
	}
	return all, nil
}
