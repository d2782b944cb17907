package poolcmd

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/drift"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/qasight/cli/command"
	"fleetdesk/internal/qasight/config"
)

// statusReport is what `pool status --json` prints.
type statusReport struct {
	Project string `json:"project"`
	File    string `json:"file"`
	// Server is the team server; "" with a local lease database, which is then
	// Database.
	Server   string `json:"server,omitempty"`
	Database string `json:"database,omitempty"`
	// StoreError says why lease states are not known; "" when they are.
	StoreError string       `json:"storeError,omitempty"`
	Pools      []poolReport `json:"pools"`
	// Findings are those of no pool of the file.
	Findings []finding `json:"findings"`
	// ExitCode is the command's.
	ExitCode int `json:"exitCode"`

	// storeExit is the code that StoreError means.
	storeExit int
}

// poolReport is one pool of the file.
type poolReport struct {
	Name string `json:"name"`
	// Provider is whether the pool has one: without it, what exists is not known.
	Provider bool `json:"provider"`
	// Prefix is what the names of this pool's machines begin with.
	Prefix string `json:"namePrefix,omitempty"`
	// Checked is whether the pool has an on_check, so that --check runs it.
	Checked bool `json:"onCheck"`
	// List is how the provider's list went; nil without a provider.
	List *listReport `json:"list,omitempty"`
	// Revision counts the published lists, PublishedBy and Published (RFC 3339)
	// tell of the last one; absent where nothing was published.
	Revision    int64     `json:"revision,omitempty"`
	PublishedBy string    `json:"publishedBy,omitempty"`
	Published   time.Time `json:"published,omitzero"`
	// Differences are how the file differs from what was published to the team
	// server.
	Differences []string `json:"differences,omitempty"`
	// Waiting counts the requests that wait, and Waiters are they.
	Waiting int             `json:"waiting"`
	Waiters []client.Waiter `json:"waiters,omitempty"`
	// Change is a person's change that is under way, without its id.
	Change *client.Change `json:"change,omitempty"`
	// Actions are those without an end.
	Actions []actionReport `json:"actions,omitempty"`
	// Keys are the file's items in their order, and then, by name, keys that the
	// pool has besides.
	Keys []keyReport `json:"keys"`
	// Leftovers exist and are on no list, by name.
	Leftovers []leftoverReport `json:"leftovers,omitempty"`
	// Findings are why the pool needs a look.
	Findings []finding `json:"findings"`
}

type listReport struct {
	// Names counts what exists.
	Names   int            `json:"names"`
	Seconds client.Seconds `json:"seconds"`
	// Error says why it is not known what exists; "" when it is.
	Error string `json:"error,omitempty"`
}

type keyReport struct {
	Name string `json:"name"`
	// Item is whether the file lists it.
	Item bool `json:"item"`
	// Exists is present, missing or ?.
	Exists drift.State `json:"exists"`
	// State is the lease state: one of client.Key's, not-published, or ?.
	State       string           `json:"state"`
	SecondsLeft client.Seconds   `json:"secondsLeft,omitempty"`
	Pools       []string         `json:"pools,omitempty"`
	Leaving     []string         `json:"leaving,omitempty"`
	Lease       *client.KeyLease `json:"lease,omitempty"`
	Disabled    *client.Disabled `json:"disabled,omitempty"`
	Bars        []client.Bar     `json:"bars,omitempty"`
	Unhealthy   string           `json:"unhealthy,omitempty"`
	NeedsReset  bool             `json:"needsReset,omitempty"`
	// Check is how on_check went; nil when it did not run.
	Check *checkReport `json:"check,omitempty"`

	key client.Key
}

type actionReport struct {
	Action  string    `json:"action"`
	Verb    string    `json:"verb"`
	Key     string    `json:"key,omitempty"`
	User    string    `json:"user"`
	Host    string    `json:"host,omitempty"`
	Started time.Time `json:"started"`
	// UnderWay is whether it belongs to the change that is under way.
	UnderWay bool `json:"underWay,omitempty"`
}

type leftoverReport struct {
	Name string `json:"name"`
	// Ours is whether it has name_prefix: sweep may remove it then.
	Ours bool `json:"ours"`
	// Held is whether somebody holds it all the same.
	Held bool `json:"held,omitempty"`
}

// finding is one reason for a look.
type finding struct {
	// Code is one of the codes below.
	Code string `json:"code"`
	Key  string `json:"key,omitempty"`
	Text string `json:"text"`
}

// The codes of findings.
const (
	findList        = "list"
	findMissing     = "missing"
	findLeftover    = "leftover"
	findDisabled    = "disabled"
	findCheck       = "check"
	findDiffers     = "differs"
	findUnpublished = "unpublished"
	findAction      = "action"
)

// listed is how a pool's list went.
type listed struct {
	names []string
	took  time.Duration
	err   error
}

// poolLook is all that was seen of a pool; report puts it together.
type poolLook struct {
	cfg *config.Pool
	// list is nil without a provider.
	list *listed
	// sight is nil when the store did not answer.
	sight   *sight
	waiters []client.Waiter
	// open are the started entries of the pool's actions without an end.
	open []action.Entry
}

// compare is the difference between the pool's list and the world.
func (l *poolLook) compare(file *config.File) drift.Answer {
	q := drift.Question{Wanted: l.cfg.Items}
	if l.list == nil || l.list.err != nil {
		return drift.Compare(q)
	}
	q.World, q.Prefix = drift.Exactly(l.list.names), l.cfg.Provider.Prefix
	items := make(map[string]bool, len(l.cfg.Items))
	for _, n := range l.cfg.Items {
		items[n] = true
	}
	for _, n := range l.list.names {
		if items[n] {
			continue
		}
		if len(file.Lists(n)) > 0 {
			q.Elsewhere = append(q.Elsewhere, n)
		}
		if l.sight == nil {
			continue
		}
		k := l.sight.keys[n]
		if k.Lease != nil {
			q.Used = append(q.Used, n)
		}
		// What the local database lists is the file as it was.
		if !l.sight.local && len(k.Pools) > 0 {
			q.Elsewhere = append(q.Elsewhere, n)
		}
	}
	return drift.Compare(q)
}

// report puts together what was seen.
func (l *poolLook) report(file *config.File) poolReport {
	r := poolReport{Name: l.cfg.Name, Provider: l.cfg.Provider != nil, Checked: l.cfg.Hooks.Check != "", Waiters: l.waiters, Waiting: len(l.waiters), Keys: []keyReport{}, Findings: []finding{}}
	if r.Provider {
		r.Prefix = l.cfg.Provider.Prefix
		r.List = &listReport{Names: len(l.list.names), Seconds: client.SecondsOf(l.list.took)}
		if err := l.list.err; err != nil {
			r.List.Error = err.Error()
			r.find(findList, "", "%v", err)
		}
	}
	answer := l.compare(file)
	for _, w := range answer.Wanted {
		k := client.Key{Name: w.Name, State: stateUnknown}
		if l.sight != nil {
			k = l.sight.key(l.cfg.Name, w.Name)
		}
		r.Keys = append(r.Keys, newKeyReport(k, w.State, true))
	}
	if l.sight != nil {
		l.stored(&r)
	}
	for _, k := range r.Keys {
		if k.Exists == drift.Missing && k.Item {
			r.find(findMissing, k.Name, "is missing: the list does not show it; take it out of the file, or have it made: `qasight pool add %s %s`", r.Name, k.Name)
		}
		if d := k.Disabled; d != nil {
			r.find(findDisabled, k.Name, "is disabled by %s: %s; when it is mended: `qasight pool enable %s %s`", d.By, d.Reason, r.Name, k.Name)
		}
	}
	for _, left := range answer.Leftovers {
		r.leftover(left)
	}
	return r
}

func newKeyReport(k client.Key, exists drift.State, item bool) keyReport {
	return keyReport{
		Name: k.Name, Item: item, Exists: exists, State: k.State, SecondsLeft: k.SecondsLeft, Pools: k.Pools, Leaving: k.Leaving,
		Lease: k.Lease, Disabled: k.Disabled, Bars: k.Bars, Unhealthy: k.Unhealthy, NeedsReset: k.NeedsReset, key: k,
	}
}

// stored adds what the store says of the pool.
func (l *poolLook) stored(r *poolReport) {
	v, known := l.sight.views[l.cfg.Name]
	if known {
		l.besides(r)
		if v.Change != nil {
			change := *v.Change
			change.ID = "" // it would let others end the change
			r.Change = &change
		}
		r.Revision, r.PublishedBy, r.Published = v.Revision, v.PublishedBy, v.PoolStatus.Published
	}
	if !l.sight.local {
		switch r.Differences = nil; {
		case !known:
			r.find(findUnpublished, "", "was never published: nobody can take its keys; an admin runs `qasight pool publish %s`", r.Name)
		default:
			r.Differences = l.cfg.Differences(v.Published().Pool)
			if n := len(r.Differences); n > 0 {
				r.find(findDiffers, "", "the file differs from what was published (revision %d by %s): an admin runs `qasight pool publish %s`, or take the file that was published",
					v.Revision, v.PublishedBy, r.Name)
			}
		}
	}
	for _, e := range l.open {
		a := newActionReport(e, r.Change)
		r.Actions = append(r.Actions, a)
		if !a.UnderWay {
			r.find(findAction, e.Key, "%s", a.text())
		}
	}
}

// besides adds the keys that the pool has and the file does not list: those on
// the team server's list, and those that somebody holds.
func (l *poolLook) besides(r *poolReport) {
	items := map[string]bool{}
	for _, k := range r.Keys {
		items[k.Name] = true
	}
	// The world says of them what it says of others.
	var names []string
	for _, k := range l.sight.views[l.cfg.Name].Members {
		if !items[k.Name] && (!l.sight.local || k.Lease != nil) {
			names = append(names, k.Name)
		}
	}
	q := drift.Question{Wanted: slices.Sorted(slices.Values(names))}
	if l.list != nil && l.list.err == nil {
		q.World = drift.Exactly(l.list.names)
	}
	for _, w := range drift.Compare(q).Wanted {
		r.Keys = append(r.Keys, newKeyReport(l.sight.keys[w.Name], w.State, false))
	}
}

func newActionReport(e action.Entry, change *client.Change) actionReport {
	a := actionReport{Action: e.Action, Verb: string(e.Verb), Key: e.Key, User: e.User, Host: e.Host, Started: e.Time}
	// What a change that lives has begun is not over yet. Both times are the
	// store's; that of the change is cut to seconds.
	if change != nil && !e.Time.Before(change.Began) && (e.Key == "" || slices.Contains(change.Keys, e.Key)) {
		a.UnderWay = true
	}
	return a
}

func (a actionReport) text() string {
	of := a.Verb
	if a.Key != "" {
		of += " of " + a.Key
	}
	on := ""
	if a.Host != "" {
		on = " on " + a.Host
	}
	return fmt.Sprintf("%s, begun by %s%s at %s, has no end, so its outcome is unknown: see what became of it, then `qasight pool log --resolve %s --note TEXT`",
		of, a.User, on, a.Started.Local().Format("2006-01-02 15:04:05"), a.Action)
}

func (r *poolReport) leftover(l drift.Leftover) {
	r.Leftovers = append(r.Leftovers, leftoverReport{Name: l.Name, Ours: l.Whose == drift.Ours, Held: l.Use == drift.Busy})
	r.find(findLeftover, l.Name, "%s", leftoverText(r.Leftovers[len(r.Leftovers)-1], r.Name, r.Prefix))
}

func leftoverText(l leftoverReport, pool, prefix string) string {
	text := "is left over: "
	switch {
	case l.Ours:
		text += "ours to sweep (`qasight pool sweep " + pool + "`)"
	case prefix == "":
		text += "not ours by name (the provider has no name_prefix)"
	default:
		text += "not ours by name (it does not begin with " + prefix + ")"
	}
	if l.Held {
		text += ", once nobody holds it"
	}
	return text
}

func (r *poolReport) find(code, key, format string, args ...any) {
	r.Findings = append(r.Findings, finding{code, key, fmt.Sprintf(format, args...)})
}

// looks are the keys with a finding.
func (r *poolReport) looks() map[string]bool {
	out := map[string]bool{}
	for _, f := range r.Findings {
		if f.Key != "" {
			out[f.Key] = true
		}
	}
	return out
}

// failed is whether the list failed.
func (r *poolReport) failed() bool { return r.List != nil && r.List.Error != "" }

// counts is how many keys there are by lease state and by existence.
func (r *poolReport) counts() (states map[string]int, exist map[drift.State]int) {
	states, exist = map[string]int{}, map[drift.State]int{}
	for _, k := range r.Keys {
		states[k.State]++
		exist[k.Exists]++
	}
	return states, exist
}

// code is the exit code. A store that does not answer wins over a list that
// failed: then nothing is known of any pool's leases, and what has the code 3 is
// said all the same. A list that failed wins over what needs a look.
func (s *statusReport) code() int {
	code := command.ExitOK
	if len(s.Findings) > 0 {
		code = command.ExitLook
	}
	for i := range s.Pools {
		r := &s.Pools[i]
		switch {
		case r.failed():
			code = command.ExitList
		case len(r.Findings) > 0:
			code = cmp.Or(code, command.ExitLook)
		}
	}
	if s.StoreError != "" {
		code = s.storeExit
	}
	return code
}

// free reports whether a check may run on the key: an item that nobody has, that
// everybody may take now, and that is not missing.
func (k *keyReport) free() bool {
	return k.Item && k.State == string(lease.Free) && k.Exists != drift.Missing
}
