package humanrun

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"fleetdesk/client"
	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/config"
)

// sight is what the broker knows, of all pools.
type sight struct {
	place broker.Place
	views map[string]broker.View
	// pools has the pools of each key, holders who holds it, and open the action on
	// it that has no end.
	pools   map[string][]string
	holders map[string]string
	open    map[string]action.Entry
}

// look reads all pools and all unfinished actions. In a local database the lists of
// the file's own pools follow the file before anything runs: as long as that has
// not happened, which ahead says, the file's are asked and not theirs.
func look(ctx context.Context, b broker.Looker, f *config.File, ahead bool) (*sight, error) {
	s := &sight{
		views: map[string]broker.View{}, pools: map[string][]string{}, holders: map[string]string{}, open: map[string]action.Entry{},
	}
	if b == nil {
		return s, nil
	}
	s.place = b.Place()
	all, err := b.Pools(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		v, err := b.Pool(ctx, p.Name)
		switch {
		case fault.Of(err) == fault.NotFound && fault.CodeOf(err) == "pool":
			continue // it went away meanwhile, and its keys with it
		case err != nil:
			return nil, err
		}
		_, err = f.Pool(p.Name)
		// What another checkout of the project published is not this file's to
		// overrule in silence.
		s.add(v, ahead && s.place.Server == "" && err == nil && v.Ours)
	}
	entries, err := b.Open(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if _, have := s.open[e.Key]; !have && e.Key != "" {
			s.open[e.Key] = e
		}
	}
	return s, nil
}

// add takes a pool over; with ours its list is the file's to say.
func (s *sight) add(v broker.View, ours bool) {
	s.views[v.Name] = v
	for _, k := range v.Members {
		if !ours && slices.Contains(k.Pools, v.Name) {
			s.pools[k.Name] = append(s.pools[k.Name], v.Name)
		}
		if h := holder(k); h != "" {
			s.holders[k.Name] = h
		}
	}
}

// holder says who holds a key; "" for nobody.
func holder(k client.Key) string {
	switch {
	case k.Lease != nil && k.Lease.Holder != "":
		return oneLine(fmt.Sprintf("%s (%s, lease %s)", k.Lease.Account, k.Lease.Holder, k.Lease.ID))
	case k.Lease != nil:
		return fmt.Sprintf("%s (lease %s)", k.Lease.Account, k.Lease.ID)
	case k.State == "held" || k.State == "resetting":
		return "somebody"
	}
	return ""
}

// published refuses, with a team server, a pool that is not the one of the file.
func (s *sight) published(p *config.Pool) error {
	if s.place.Server == "" {
		return nil
	}
	v, known := s.views[p.Name]
	if !known {
		return refuse(CodeUnpublished, "pool %s was never published to %s, so what is in use there is not known: an admin runs `qasight pool publish %s` first",
			p.Name, s.place, p.Name)
	}
	if d := p.Differences(v.Published().Pool); len(d) > 0 {
		return refuse(CodeDiffers, "pool %s is not what was published to %s: take the file that was published, or have an admin run `qasight pool publish %s` first\n  %s",
			p.Name, s.place, p.Name, strings.Join(d, "\n  "))
	}
	return nil
}

// creatable refuses a name that cannot be created for a pool; the text goes after
// the name.
func (s *sight) creatable(f *config.File, pool, key string, listed []string) error {
	other := func(p string) bool { return p == pool }
	if _, found := slices.BinarySearch(listed, key); found {
		return refuse(CodeExists, "exists already: the list shows it")
	}
	if in := slices.DeleteFunc(f.Lists(key), other); len(in) > 0 {
		return refuse(CodeInPool, "is an item of pool %s in %s: a key that is to be created is in no other pool", in[0], f.Path)
	}
	if in := slices.DeleteFunc(slices.Clone(s.pools[key]), other); len(in) > 0 {
		return refuse(CodeInPool, "is in pool %s of the %s: a key that is to be created is in no other pool", in[0], s.place)
	}
	return s.idle(key)
}

// destroyable refuses a name that must not be destroyed; the text goes after the
// name.
func (s *sight) destroyable(f *config.File, prefix, key string, listed []string) error {
	if prefix == "" || !strings.HasPrefix(key, prefix) {
		return refuse(CodePrefix, "does not begin with name_prefix %q", prefix)
	}
	if in := f.Lists(key); len(in) > 0 {
		return refuse(CodeInPool, "is an item of pool %s in %s: take it out of items first", in[0], f.Path)
	}
	if in := s.pools[key]; len(in) > 0 {
		return refuse(CodeInPool, "is in pool %s of the %s%s", in[0], s.place, s.wayOut(f, in[0]))
	}
	if err := s.idle(key); err != nil {
		return err
	}
	if _, found := slices.BinarySearch(listed, key); !found {
		return refuse(CodeNotListed, "does not exist: the list does not show it")
	}
	return nil
}

// wayOut says what to do about a pool's list that has a key in the way.
func (s *sight) wayOut(f *config.File, pool string) string {
	v := s.views[pool]
	if _, err := f.Pool(pool); err == nil && s.place.Server == "" && !v.Ours {
		from := "another checkout of this project"
		if v.Origin != "" {
			from = v.Origin
		}
		return fmt.Sprintf(", whose list was published from %s: take it out of items there, or, when this file is the right one, run `qasight pool publish %s` here first", from, pool)
	}
	return ": it must be taken out there first (a pool that nobody has in a file any more: with `items: []`)"
}

// idle refuses a key that is held or has an unfinished action.
func (s *sight) idle(key string) error {
	if who, held := s.holders[key]; held {
		return refuse(CodeHeld, "is held by %s: wait until it is given back, or ask for it", who)
	}
	if e, open := s.open[key]; open {
		return refuse(CodeOpen, "%s", s.openText(e))
	}
	return nil
}

// scalar is a text as a YAML value.
func scalar(s string) string {
	plain := s != ""
	for i, r := range s {
		ok := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./ ", r)
		if !ok || i == 0 && (r == '-' || r == ' ') {
			plain = false
		}
	}
	if plain && !strings.HasSuffix(s, " ") {
		return s
	}
	return strconv.Quote(s)
}

// ItemLines are the lines that put keys on a pool's list in the file.
func ItemLines(keys []string) []string {
	out := make([]string, 0, len(keys))
	for _, k := range keys {
		out = append(out, "      - "+yamlName(k))
	}
	return out
}

// yamlName quotes what YAML could take for something else than a text.
func yamlName(k string) string {
	if strings.ContainsFunc(k, func(r rune) bool { return r >= 'g' && r <= 'z' || r >= 'G' && r <= 'Z' }) {
		switch strings.ToLower(k) {
		case "null", "true", "yes", "no", "on", "off", "y", "n":
		default:
			return k
		}
	}
	return strconv.Quote(k)
}
