package sweep

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"fleetdesk/internal/proxy/provider"
)

// view is all that one sweep has read.
type view struct {
	now          time.Time
	provider     string
	installation string
	grace        time.Duration
	dryRun       bool
	hosts        []provider.HostList
	owners       map[string]bool
	page         Page
	// leftovers are nil for a provider that knows of none; leftoversErr says
	// why they could not be listed at all.
	leftovers    []provider.HostLeftovers
	leftoversErr error
	bars         bars
}

// thing names what was found, over all sweeps. The UID is part of it: an id
// that changed hands is another thing.
type thing struct{ host, what, id, uid string }

// sighting is how long and how often something was seen as what it is: an
// abandoned instance whose record is struck out is an orphan only since then.
type sighting struct {
	as    kind
	first time.Time
	times int
	// tried is when its removal last failed, or was left unfinished.
	tried time.Time
}

// kind is what something was seen as.
type kind int

const (
	orphan kind = iota
	left
	unreadable
	unused
)

// memory is what a provider's earlier sweeps left behind. The rules never change
// it in place.
type memory struct {
	seen map[thing]sighting
	// released are orphans, by id, that a person let pass the fuse.
	released map[string]bool
	// offers are the sets that the fuse held back last, the newest at the end.
	offers []offer
	// lately is when the removal of an orphan, by id, began that nobody had
	// released; only those of the last grace count.
	lately map[string]time.Time
}

// offer is a set of orphans that a person may release by its hash.
type offer struct {
	hash string
	ids  []string
}

// maxOffers bounds the sets that a late release may still name.
const maxOffers = 8

// act is what a sweep has to do about a finding.
type act int

const (
	nothing act = iota
	// removeOrphan and removeAbandoned remove an instance.
	removeOrphan
	removeAbandoned
	removeLeftover
	// strike asks Get, and takes the record of an abandoned instance away that a
	// person named, when nothing is there.
	strike
)

// finding is an item with what is to be done about it. Its verdict is Due while
// that is not done.
type finding struct {
	Item
	act      act
	instance provider.Instance
	leftover provider.Leftover
	// asked: a person named this abandoned instance.
	asked bool
	// released: it passed the fuse because a person released it.
	released bool
	// tried is when its removal last failed, or was left unfinished.
	tried time.Time
}

func (f *finding) thing() thing { return thing{f.Host, f.What, f.ID, f.UID} }

// plan is what a sweep makes of a view.
type plan struct {
	findings []finding
	// instances is how many instances the hosts that answered have.
	instances  int
	unlisted   []HostError
	hash, fuse string
	// held are the ids of the set that the fuse holds back.
	held []string
	// silent are the hosts that did not say what they have, of instances or of
	// other things.
	silent map[silence]bool
	// allWhole: there are hosts, and the list of each is whole.
	allWhole bool
}

// silence is a host that did not say what instances it has, or what else.
type silence struct {
	host      string
	instances bool
}

// judge decides what becomes of each thing in the view. What it keeps in mind
// replaces m.
func judge(v view, m memory) (plan, memory) {
	j := judging{v: v, m: m, whole: wholeHosts(v.hosts), was: map[thing]bool{}}
	j.next = memory{seen: map[thing]sighting{}, released: map[string]bool{}, offers: m.offers, lately: map[string]time.Time{}}
	for id, at := range m.lately {
		if v.now.Sub(at) < v.grace {
			j.next.lately[id] = at
		}
	}
	j.silent = map[silence]bool{}
	j.allWhole = len(j.whole) > 0
	for _, whole := range j.whole {
		j.allWhole = j.allWhole && whole
	}
	for host, whole := range j.whole {
		if !whole {
			j.silent[silence{host, true}], j.silent[silence{host, false}] = true, true
		}
	}
	for t, s := range m.seen {
		// What was learned of a host that does not answer stays as it was.
		if whole, listed := j.whole[t.host]; listed && !whole {
			j.next.seen[t] = s
		}
	}
	for _, h := range v.hosts {
		if h.Err != nil {
			j.unlist(h.Host, h.Err)
		}
		if j.whole[h.Host] {
			j.host(h)
		}
	}
	j.fuse()
	j.abandoned()
	j.leftovers()
	j.sort()
	return j.plan, j.next
}

type judging struct {
	plan
	v     view
	m     memory
	next  memory
	whole map[string]bool
	// was holds what this sweep has met: a list may say a thing twice.
	was map[thing]bool
	// readable counts the instances that are ours for certain.
	readable int
	// met are the UIDs and ids of the instances on whole hosts.
	metUID, metID map[string]bool
	// nameless: an instance was met of which nobody can say whose it is.
	nameless bool
}

// wholeHosts says of each host whether its list is whole.
func wholeHosts(rows []provider.HostList) map[string]bool {
	whole := make(map[string]bool, len(rows))
	for _, h := range rows {
		before, seen := whole[h.Host]
		whole[h.Host] = h.Err == nil && (before || !seen)
	}
	return whole
}

func (j *judging) unlist(host string, err error) {
	for _, u := range j.unlisted {
		if u.Host == host {
			return
		}
	}
	j.unlisted = append(j.unlisted, HostError{Host: host, Err: err})
}

// host judges the instances of one host whose list is whole.
func (j *judging) host(h provider.HostList) {
	if j.metUID == nil {
		j.metUID, j.metID = map[string]bool{}, map[string]bool{}
	}
	for _, in := range h.Instances {
		torn := in.State == provider.Unknown || in.Owner.UID == "" || in.ID == ""
		if in.Owner.Installation != j.v.installation && (in.Owner.Installation != "" || !torn) {
			// Somebody else's: not even counted.
			continue
		}
		f := finding{instance: in, Item: Item{
			What: Instance, Host: h.Host, ID: in.ID,
			Namespace: in.Owner.Namespace, Name: in.Owner.Name, UID: in.Owner.UID,
		}}
		if j.was[f.thing()] {
			continue
		}
		j.was[f.thing()] = true
		j.instances++
		j.metID[in.ID] = true
		if in.Owner.UID != "" {
			j.metUID[in.Owner.UID] = true
		}
		j.nameless = j.nameless || in.Owner.UID == ""
		if !torn {
			j.readable++
		}
		j.instance(f, torn)
	}
}

// instance judges one instance.
func (j *judging) instance(f finding, torn bool) {
	_, written := j.v.page.Abandoned[f.UID]
	elsewhere, other := j.v.page.Elsewhere[f.UID]
	owned := j.v.owners[f.UID]
	as := left
	switch {
	case torn && owned:
		// The Proxy's own condition tells of it.
		return
	case torn:
		as, f.Verdict = unreadable, Unreadable
		f.Message = "whose it is cannot be said: look at it on its host"
		if m := f.instance.Message; m != "" {
			f.Message += " (" + m + ")"
		}
	case written && owned:
		f.Left, f.Verdict, f.Message = true, Abandoned, "its Proxy still exists"
	case written:
		f.Left, f.Verdict, f.Message = true, Abandoned, "it was left to a person"
		if f.asked = slices.Contains(j.v.page.Remove, f.UID); f.asked {
			f.act, f.Verdict, f.Message = removeAbandoned, Due, "a person asked for its removal"
			j.hold(&f)
		}
	case owned:
		return
	case other:
		f.Left, f.Verdict, f.Message = true, Abandoned, writtenIn(elsewhere)
	default:
		as, f.act = orphan, removeOrphan
	}
	j.see(&f, as)
	if f.act == removeOrphan {
		j.ripe(&f, f.instance.Created)
	}
	j.findings = append(j.findings, f)
}

// writtenIn says that the other provider's object has the record.
func writtenIn(other string) string {
	return fmt.Sprintf("it was left to a person, and is written down in ProxyProvider %s", other)
}

// see counts a sighting and gives the item its Since.
func (j *judging) see(f *finding, as kind) {
	s, ok := j.m.seen[f.thing()]
	if !ok || s.as != as {
		s = sighting{as: as, first: j.v.now}
	}
	s.times++
	j.next.seen[f.thing()] = s
	f.Since, f.tried = s.first, s.tried
}

// ripe makes a finding Due once its grace has passed and it was seen twice, and
// Waiting until then.
func (j *judging) ripe(f *finding, created time.Time) {
	s := j.next.seen[f.thing()]
	from := s.first
	// A time that has not come yet is of a clock that is wrong, and says nothing.
	if created.After(from) && !created.After(j.v.now) {
		from = created
	}
	switch {
	case j.v.now.Sub(from) < j.v.grace:
		f.act, f.Verdict = nothing, Waiting
		f.Message = "goes not before " + from.Add(j.v.grace).UTC().Format(time.RFC3339)
	case s.times < 2:
		f.act, f.Verdict, f.Message = nothing, Waiting, "was seen once only"
	default:
		f.Verdict = Due
		if j.v.dryRun {
			f.Message = "a dry run removes nothing"
		}
	}
}

// hold keeps back a Due finding on a host where another operator's claim, or
// the lack of our own, forbids removals. In a dry run it is only said.
func (j *judging) hold(f *finding) {
	if j.v.dryRun {
		f.act, f.Message = nothing, "a dry run removes nothing"
		return
	}
	if why := j.v.bars.why(f.Host); why != "" {
		f.act, f.Verdict, f.Message = nothing, Held, why
	}
}

// abandoned judges the records whose instances no list shows.
func (j *judging) abandoned() {
	for _, uid := range slices.Sorted(maps.Keys(j.v.page.Abandoned)) {
		rec := j.v.page.Abandoned[uid]
		if j.metUID[uid] {
			continue
		}
		f := finding{
			Item:     Item{What: Instance, Host: rec.Host, ID: rec.ProviderID, UID: uid, Left: true, Verdict: Abandoned},
			instance: provider.Instance{ID: rec.ProviderID, Host: rec.Host, Owner: provider.Owner{Installation: j.v.installation, UID: uid}},
			asked:    slices.Contains(j.v.page.Remove, uid),
		}
		j.vanished(&f, rec)
		if j.v.dryRun {
			f.act = nothing
		}
		j.see(&f, left)
		j.findings = append(j.findings, f)
	}
}

// vanished decides about one such record. However long its instance is on no
// list, it stays until a person names it: a host's name may lead to another
// machine, and a store may not be mounted.
func (j *judging) vanished(f *finding, rec AbandonedInstance) {
	whole, listed := j.whole[rec.Host]
	// One that cannot be read may be the one that is missed.
	maybe := rec.ProviderID == "" && j.nameless || rec.ProviderID != "" && j.metID[rec.ProviderID]
	switch {
	case j.v.owners[f.UID]:
		f.Message = "its Proxy still exists"
	case maybe:
		f.Message = "an instance that cannot be read may be it"
	case rec.Host != "" && !listed:
		f.Message = "its host is not in the configuration, so nobody looks"
		if f.asked && !j.v.dryRun {
			f.Verdict = Failed
			f.Message = fmt.Sprintf("host %q is not in the configuration: put it back, or remove the machine by hand and take the record out of the ProxyProvider's status", rec.Host)
		}
	case rec.Host != "" && !whole:
		f.Message = "its host did not answer"
	case rec.Host == "" && !j.allWhole:
		f.Message = "not every host answered"
	case f.asked:
		f.act, f.Message = strike, "it is on no list"
	default:
		f.Message = fmt.Sprintf("not found there; when it is gone for good, take its record away: "+
			"kubectl annotate proxyprovider %s crawl.example.com/remove-abandoned=%s --overwrite", j.v.provider, f.UID)
	}
}

// leftovers judges what the provider's Cleaner listed.
func (j *judging) leftovers() {
	rows := map[string]bool{}
	for _, h := range j.v.leftovers {
		before, seen := rows[h.Host]
		rows[h.Host] = h.Err == nil && (before || !seen)
		if h.Err != nil {
			j.unlist(h.Host, h.Err)
		}
	}
	for host := range j.whole {
		if whole, listed := rows[host]; j.v.leftoversErr != nil || listed && !whole {
			j.silent[silence{host, false}] = true
		}
	}
	for t, s := range j.m.seen {
		whole, listed := rows[t.host]
		// j.whole: a host that has left the configuration is forgotten.
		if _, known := j.whole[t.host]; t.what != Instance && known && (j.v.leftoversErr != nil || listed && !whole) {
			j.next.seen[t] = s
		}
	}
	for _, h := range j.v.leftovers {
		if !rows[h.Host] || !j.whole[h.Host] {
			continue
		}
		for _, l := range h.Leftovers {
			l.Host = h.Host
			what := l.What
			if what == "" || what == Instance {
				// Only what is listed as an instance is one.
				what = "leftover"
			}
			f := finding{act: removeLeftover, leftover: l, Item: Item{What: what, Host: h.Host, ID: l.ID}}
			if l.ID == "" || j.was[f.thing()] {
				continue
			}
			j.was[f.thing()] = true
			j.see(&f, unused)
			if j.ripe(&f, time.Time{}); f.Verdict == Due {
				j.hold(&f)
			}
			j.findings = append(j.findings, f)
		}
	}
}

// byPlace is the order of a report's items.
func byPlace(a, b Item) int {
	return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.What, b.What), cmp.Compare(a.ID, b.ID), cmp.Compare(a.UID, b.UID))
}

func (j *judging) sort() {
	slices.SortFunc(j.findings, func(a, b finding) int { return byPlace(a.Item, b.Item) })
	slices.SortFunc(j.unlisted, func(a, b HostError) int { return cmp.Compare(a.Host, b.Host) })
}

// kept are the UIDs of which nothing is a leftover.
func (v view) kept() []string {
	kept := maps.Clone(v.owners)
	if kept == nil {
		kept = map[string]bool{}
	}
	for uid := range v.page.Abandoned {
		kept[uid] = true
	}
	for uid := range v.page.Elsewhere {
		kept[uid] = true
	}
	maps.DeleteFunc(kept, func(uid string, is bool) bool { return !is || uid == "" })
	return slices.Sorted(maps.Keys(kept))
}
