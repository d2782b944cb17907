package humanrun

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/config"
)

// Verb is what a person asks for.
type Verb string

// The verbs.
const (
	// Add creates named keys.
	Add Verb = "add"
	// Remove destroys named keys that are in no pool.
	Remove Verb = "remove"
	// Sweep destroys leftovers: what exists, carries the pool's prefix and is in no
	// pool.
	Sweep Verb = "sweep"
)

// MaxKeys is how many keys one command may change.
const MaxKeys = lease.MaxChangeKeys

// Request is what a person asks for.
type Request struct {
	Verb Verb
	Pool string
	// Names are the keys to add or remove; none for a sweep.
	Names []string
	// ListIsEmpty says that the list is expected to be empty: only then may keys
	// be added to an empty one, which may as well come from a list that is broken.
	ListIsEmpty bool
}

// creates tells the verb of a provider that the request needs.
func (r Request) creates() bool { return r.Verb == Add }

func (r Request) allowed() config.Verb {
	if r.creates() {
		return config.Create
	}
	return config.Destroy
}

// World is what a plan is made of.
type World struct {
	// File is the project's file.
	File *config.File
	// Broker is looked at, and never changed; nil for a local database that does
	// not exist: nobody ever took a key.
	Broker broker.Looker
	At     Place
	// Actions is the value of TESTO_PROVIDER_ACTIONS.
	Actions string
}

// Plan is what would run: shown to the person first, and done as it was shown or
// not at all.
type Plan struct {
	Request
	// Keys are what would be created or destroyed, in this order; none is
	// nothing to do.
	Keys []string
	// Command is the provider's text for each of them, List that of its list, and
	// Timeout bounds each run.
	Command, List string
	Timeout       time.Duration
	// Prefix and MaxItems are the provider's bounds, Items the pool's list.
	Prefix   string
	MaxItems int
	Items    []string
	// Listed is what exists, sorted.
	Listed []string
	// Skipped are leftovers that do not qualify for a sweep, by name.
	Skipped []Skipped
	// Remaining counts the leftovers that qualify besides Keys.
	Remaining int
	// Place is the broker that was looked at.
	Place broker.Place

	// The rest of the file that a plan depends on.
	project, server, dir string
}

// Skipped is a leftover that stays, and why.
type Skipped struct {
	Key, Why string
	// Foreign is whether it lacks the pool's prefix.
	Foreign bool
}

// Codes of refusals (see fault.WithCode). CodeName, CodeTwice and CodeNoNames are
// Invalid, the others Conflict.
const (
	CodeOff         = "off"         // TESTO_PROVIDER_ACTIONS=0
	CodeNoProvider  = "no_provider" // the pool has none
	CodeNotAllowed  = "not_allowed" // the verb is not under allow
	CodeTooMany     = "too_many"    // more names than MaxKeys
	CodeName        = "name"        // no name of a key
	CodeTwice       = "twice"       // a name is there twice
	CodePrefix      = "prefix"      // a name lacks name_prefix
	CodeOverlap     = "overlap"     // two pools' prefixes overlap
	CodeUnpublished = "unpublished" // the team server does not know the pool
	CodeDiffers     = "differs"     // the file is not what was published
	CodeOpen        = "open"        // an action on the key has no end
	CodeExists      = "exists"      // the key to create is listed
	CodeInPool      = "in_pool"     // the key is in a pool
	CodeHeld        = "held"        // somebody holds the key
	CodeMaxItems    = "max_items"   // more keys than max_items
	CodeEmpty       = "list_empty"  // the list is empty, and nobody said that it is
	CodeNotEmpty    = "list_filled" // the list is said to be empty, and is not
	CodeNotListed   = "not_listed"  // the key to destroy does not exist
	CodeNoNames     = "no_names"    // no name was given
)

func refuse(code, format string, args ...any) error {
	return fault.WithCode(fault.Errorf(fault.Conflict, format, args...), code)
}

// Make makes the plan of a request. It runs the pool's list and no other command,
// and changes nothing. Errors: those of [List] and of the broker; Invalid for
// names that cannot be (codes "name" and "twice") and an unknown pool; Conflict
// with one of the codes above for whatever a rule refuses. A list that fails, and
// a broker that does not answer, are errors: nothing is planned on a guess.
func Make(ctx context.Context, w World, r Request) (Plan, error) {
	p, err := static(w.File, w.Actions, r, r.Names)
	if err != nil {
		return Plan{}, err
	}
	s, err := look(ctx, w.Broker, w.File, true)
	if err != nil {
		return Plan{}, err
	}
	if err := s.published(p); err != nil {
		return Plan{}, err
	}
	l, err := List(ctx, p, w.At)
	if err != nil {
		return Plan{}, err
	}
	return decide(w.File, p, r, s, l.Names)
}

// switchedOff reports whether the variable forbids provider commands.
func switchedOff(value string) bool {
	switch strings.ToLower(strings.TrimSpace(value)) {
	case "0", "false", "no", "off":
		return true
	}
	return false
}

// static holds a request to the rules that need neither broker nor list.
func static(f *config.File, actions string, r Request, names []string) (*config.Pool, error) {
	if switchedOff(actions) {
		return nil, refuse(CodeOff, "TESTO_PROVIDER_ACTIONS=%s is set, as in CI: no provider command runs for `qasight pool %s` here; "+
			"a person runs it where the variable is not set", strings.TrimSpace(actions), r.Verb)
	}
	p, err := f.Pool(r.Pool)
	if err != nil {
		return nil, err
	}
	if err := validNames(r, names); err != nil {
		return nil, err
	}
	v := r.allowed()
	switch {
	case p.Provider == nil:
		return nil, refuse(CodeNoProvider, "pool %s has no provider, so there is nothing to %s keys with: add to it in %s\n%s", p.Name, r.Verb, f.Path, sample(p, v))
	case !p.Provider.Allows(v) || command(p.Provider, v) == "" || p.Provider.Prefix == "" || r.creates() && p.Provider.MaxItems < 1:
		return nil, refuse(CodeNotAllowed, "%s is not allowed for pool %s: `qasight pool %s` needs in %s\n%s", v, p.Name, r.Verb, f.Path, sample(p, v))
	}
	if other, overlaps := f.OverlappingPrefix(p); overlaps {
		return nil, refuse(CodeOverlap, "name_prefix %q of pool %s and %q of pool %s overlap, so whose a machine is cannot be told: give one of them another prefix in %s",
			p.Provider.Prefix, p.Name, other.Provider.Prefix, other.Name, f.Path)
	}
	for _, n := range names {
		if !strings.HasPrefix(n, p.Provider.Prefix) {
			return nil, refuse(CodePrefix, "%s does not begin with name_prefix %q of pool %s: only such machines are touched", n, p.Provider.Prefix, p.Name)
		}
	}
	return p, nil
}

func validNames(r Request, names []string) error {
	if r.Verb != Sweep && len(names) == 0 {
		return fault.WithCode(fault.Errorf(fault.Invalid, "name the keys to %s", r.Verb), CodeNoNames)
	}
	for i, n := range names {
		if err := validKey(n); err != nil {
			return fault.WithCode(err, CodeName)
		}
		if slices.Contains(names[:i], n) {
			return fault.WithCode(fault.Errorf(fault.Invalid, "%s is there twice: name each key once", n), CodeTwice)
		}
	}
	if len(names) > MaxKeys {
		return refuse(CodeTooMany, "%d keys: one command changes at most %d; run it again for the others", len(names), MaxKeys)
	}
	return nil
}

func validKey(n string) error {
	if err := lease.ValidName(n); err != nil {
		return err
	}
	if len(n) > lease.MaxFixedName {
		return fault.Errorf(fault.Invalid, "the name %.32q… has %d bytes; at most %d are possible", n, len(n), lease.MaxFixedName)
	}
	return nil
}

func command(p *config.Provider, v config.Verb) string {
	if v == config.Create {
		return p.Create
	}
	return p.Destroy
}

// sample is what a pool needs for a verb, as lines of the file.
func sample(p *config.Pool, v config.Verb) string {
	list, text, prefix, most, allow := "./machines.sh list", "./machines.sh "+string(v), p.Name+"-", max(8, len(p.Items)), []string{}
	if have := p.Provider; have != nil {
		list = have.List
		if c := command(have, v); c != "" {
			text = c
		}
		if have.Prefix != "" {
			prefix = have.Prefix
		}
		if have.MaxItems > 0 {
			most = have.MaxItems
		}
		for _, a := range have.Allow {
			allow = append(allow, string(a))
		}
	}
	if !slices.Contains(allow, string(v)) {
		allow = append(allow, string(v))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "    provider:\n      list: %s\n      %s: %s\n      allow: [%s]\n      name_prefix: %s",
		scalar(list), v, scalar(text), strings.Join(allow, ", "), scalar(prefix))
	if v == config.Create {
		fmt.Fprintf(&b, "\n      max_items: %d", most)
	}
	return b.String()
}

// decide makes the plan of what is known.
func decide(f *config.File, p *config.Pool, r Request, s *sight, listed []string) (Plan, error) {
	plan := Plan{
		Request: r, Command: command(p.Provider, r.allowed()), List: p.Provider.List, Timeout: p.Provider.Timeout,
		Prefix: p.Provider.Prefix, MaxItems: p.Provider.MaxItems, Items: slices.Clone(p.Items), Listed: listed, Place: s.place,
		project: f.Project, server: f.Server, dir: f.Dir,
	}
	plan.Names = slices.Clone(r.Names)
	switch r.Verb {
	case Add:
		return plan, plan.add(f, s)
	case Remove:
		return plan, plan.remove(f, s)
	default:
		plan.sweep(f, s)
		return plan, nil
	}
}

func (p *Plan) add(f *config.File, s *sight) error {
	switch {
	case len(p.Listed) == 0 && !p.ListIsEmpty:
		return refuse(CodeEmpty, "the list of pool %s is empty, as that of a broken command would be: if nothing exists, say so with --list-is-empty", p.Pool)
	case len(p.Listed) > 0 && p.ListIsEmpty:
		return refuse(CodeNotEmpty, "--list-is-empty was given, and the list of pool %s shows %s: leave the flag out", p.Pool, names(p.Listed))
	}
	if err := each(p.Names, func(n string) error { return s.creatable(f, p.Pool, n, p.Listed) }); err != nil {
		return err
	}
	all := map[string]bool{}
	for _, some := range [][]string{p.Items, p.Listed, p.Names} {
		for _, n := range some {
			all[n] = true
		}
	}
	if len(all) > p.MaxItems {
		return refuse(CodeMaxItems, "pool %s could have %d keys then, and max_items is %d (its %d items, the %d that the list shows and the new ones, each counted once): "+
			"add fewer, or remove some first", p.Pool, len(all), p.MaxItems, len(p.Items), len(p.Listed))
	}
	p.Keys = slices.Clone(p.Names)
	return nil
}

func (p *Plan) remove(f *config.File, s *sight) error {
	p.Keys = slices.Clone(p.Names)
	return each(p.Names, func(n string) error { return s.destroyable(f, p.Prefix, n, p.Listed) })
}

func (p *Plan) sweep(f *config.File, s *sight) {
	for _, n := range p.Listed {
		if slices.Contains(p.Items, n) {
			continue
		}
		switch err := s.destroyable(f, p.Prefix, n, p.Listed); {
		case err != nil:
			p.Skipped = append(p.Skipped, Skipped{Key: n, Why: err.Error(), Foreign: fault.CodeOf(err) == CodePrefix})
		case len(p.Keys) < MaxKeys:
			p.Keys = append(p.Keys, n)
		default:
			p.Remaining++
		}
	}
}

// each asks about all names, and returns one error for all that were refused, with
// the code of the first.
func each(all []string, ask func(string) error) error {
	var texts []string
	code := ""
	for _, n := range all {
		if err := ask(n); err != nil {
			if code == "" {
				code = fault.CodeOf(err)
			}
			texts = append(texts, n+" "+err.Error())
		}
	}
	if code == "" {
		return nil
	}
	return refuse(code, "%s", strings.Join(texts, "\n"))
}

// names lists a few names for people.
func names(all []string) string {
	const most = 3
	if len(all) <= most+1 {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:most], ", "), len(all)-most)
}

// differences says how what would run now differs from what was shown, a line
// each.
func (p *Plan) differences(now *Plan) []string {
	var out []string
	sets := func(what string, before, after []string) {
		if gone := without(before, after); len(gone) > 0 {
			out = append(out, what+" no longer: "+names(gone))
		}
		if fresh := without(after, before); len(fresh) > 0 {
			out = append(out, what+" now: "+names(fresh))
		}
	}
	sets("in the list", p.Listed, now.Listed)
	sets("in items", p.Items, now.Items)
	sets("to be changed", p.Keys, now.Keys)
	sets("not qualified", skippedKeys(p.Skipped), skippedKeys(now.Skipped))
	texts := func(what, before, after string) {
		if before != after {
			out = append(out, fmt.Sprintf("%s was %q and is %q", what, before, after))
		}
	}
	texts("the command", p.Command, now.Command)
	texts("provider.list", p.List, now.List)
	texts("name_prefix", p.Prefix, now.Prefix)
	texts("max_items", fmt.Sprint(p.MaxItems), fmt.Sprint(now.MaxItems))
	texts("timeout", p.Timeout.String(), now.Timeout.String())
	texts("project", p.project, now.project)
	texts("server", p.server, now.server)
	texts("the folder", p.dir, now.dir)
	if len(out) == 0 && (!slices.Equal(p.Keys, now.Keys) || p.Remaining != now.Remaining) {
		out = append(out, "the order or number of what qualifies")
	}
	return out
}

func skippedKeys(all []Skipped) []string {
	var out []string
	for _, s := range all {
		out = append(out, s.Key)
	}
	return out
}

// without returns what of a is not in b.
func without(a, b []string) []string {
	in := make(map[string]bool, len(b))
	for _, n := range b {
		in[n] = true
	}
	var out []string
	for _, n := range a {
		if !in[n] {
			out = append(out, n)
		}
	}
	return out
}

// openText says what to do about an action without an end. One whose change shows
// life is not to be judged yet.
func (s *sight) openText(e action.Entry) string {
	wait := ", whose outcome is not known: "
	// Began has whole seconds.
	if c := s.views[e.Pool].Change; c != nil && !c.Began.After(e.Time) && slices.Contains(c.Keys, e.Key) {
		wait = ": wait first: it may still run; if its program was killed, the lock ends within a minute. Then "
	}
	return fmt.Sprintf("has an unfinished %s by %s since %s%slook at it, and then say so with `qasight pool log --resolve %s --note TEXT`",
		e.Verb, oneLine(e.User), e.Time.UTC().Format(time.RFC3339), wait, e.Action)
}

// Check holds a request to those rules alone that need neither the broker nor the
// list. It runs nothing; [Make] does the same first.
func Check(f *config.File, actions string, r Request) error {
	_, err := static(f, actions, r, r.Names)
	return err
}
