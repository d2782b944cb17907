package gcefake

import (
	"maps"
	"net/http"
	"sync"

	"golang.org/x/time/rate"
	compute "google.golang.org/api/compute/v1"
	"google.golang.org/api/googleapi"
)

// faults are what goes wrong now.
type faults struct {
	broken    map[string]bool
	mute      map[string]chan struct{}
	exhausted map[string]bool
	denied    map[string]bool
	// granted are the permissions there are; nil for all.
	granted  map[string]bool
	disabled bool
	limit    *rate.Limiter
	// next are answers to the next call of a method, inside what the next
	// operation of a kind ends with, lost how many answers of a method get lost.
	next   map[string]*googleapi.Error
	inside map[string]*failure
	lost   map[string]int
	// frozen keeps operations PENDING until it is closed.
	frozen chan struct{}
	// hasty has waits for operations answer at once.
	hasty bool
	// clashing has inserts refuse a disk that is there at once.
	clashing bool
	// instant ends them in the call that begins them.
	instant bool
	// stale are what lists of instances in a zone show, whatever is there, and
	// warned are zones whose lists say that they are not whole.
	stale  map[string][]*compute.Instance
	warned map[string]bool
	// down are zones that say so of themselves.
	down map[string]bool
	// ungrouped are zones whose lists of instance groups are empty.
	ungrouped map[string]bool
	// elsewhere is where all calls are redirected to.
	elsewhere string
	// hidden is a project that cannot be seen any more.
	hidden bool
	// token is what the token endpoint answers instead.
	token *Answer
}

// Answer is what the token endpoint says in place of its own answer; with no
// status it breaks the connection off.
type Answer struct {
	Status               int
	Type, Body, Location string
}

func (f *faults) init() {
	f.broken, f.mute, f.exhausted, f.denied = map[string]bool{}, map[string]chan struct{}{}, map[string]bool{}, map[string]bool{}
	f.next, f.inside, f.lost = map[string]*googleapi.Error{}, map[string]*failure{}, map[string]int{}
	f.stale, f.warned = map[string][]*compute.Instance{}, map[string]bool{}
	f.ungrouped, f.down = map[string]bool{}, map[string]bool{}
}

// mend ends what keeps callers waiting.
func (f *faults) mend() {
	for zone, c := range f.mute {
		close(c)
		delete(f.mute, zone)
	}
}

// set runs change under the lock and returns what runs undo under it, once.
func (s *Server) set(change, undo func()) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		undo()
	}
}

// BreakZone has every call that names the zone fail with 503, until mend.
func (s *Server) BreakZone(zone string) (mend func()) {
	return s.set(func() { s.faults.broken[zone] = true }, func() { delete(s.faults.broken, zone) })
}

// Down has the zone say of itself that it is down, until mend.
func (s *Server) Down(zone string) (mend func()) {
	return s.set(func() { s.faults.down[zone] = true }, func() { delete(s.faults.down, zone) })
}

// MuteZone has every call that names the zone hang, until mend.
func (s *Server) MuteZone(zone string) (mend func()) {
	c := make(chan struct{})
	return s.set(func() { s.faults.mute[zone] = c }, func() {
		if s.faults.mute[zone] == c {
			close(c)
			delete(s.faults.mute, zone)
		}
	})
}

// Exhaust has the zone run out of machines: inserts and starts end with
// ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS inside the operation.
func (s *Server) Exhaust(zone string) (mend func()) {
	return s.set(func() { s.faults.exhausted[zone] = true }, func() { delete(s.faults.exhausted, zone) })
}

// Quota sets a region's limit for a metric: INSTANCES, CPUS,
// PREEMPTIBLE_CPUS (which Spot machines take), IN_USE_ADDRESSES.
func (s *Server) Quota(region, metric string, limit float64) (mend func()) {
	s.mu.Lock()
	was, had := s.quotas[region][metric]
	s.mu.Unlock()
	return s.set(func() { s.quotas[region][metric] = limit }, func() {
		if s.quotas[region][metric] = was; !had {
			delete(s.quotas[region], metric)
		}
	})
}

// Limit has the API answer at most that many calls a second; what is above is
// refused with 403 rateLimitExceeded or 429, in turn.
func (s *Server) Limit(perSecond float64, burst int) (mend func()) {
	return s.set(func() { s.faults.limit = newLimiter(perSecond, burst) }, func() { s.faults.limit = nil })
}

// Deny takes a permission away.
func (s *Server) Deny(permission string) (mend func()) {
	return s.set(func() { s.faults.denied[permission] = true }, func() { delete(s.faults.denied, permission) })
}

// Grant leaves those permissions and no others.
func (s *Server) Grant(permissions ...string) {
	granted := map[string]bool{}
	for _, p := range permissions {
		granted[p] = true
	}
	s.set(func() { s.faults.granted = granted }, nil)
}

// forbidden is the refusal of a call without a permission; nil with it.
func (s *Server) forbidden(permissions ...string) *googleapi.Error {
	for _, p := range permissions {
		if s.faults.denied[p] || s.faults.granted != nil && !s.faults.granted[p] {
			return problem(http.StatusForbidden, "forbidden", "Required '%s' permission for 'projects/%s'", p, s.o.Project)
		}
	}
	return nil
}

// HideProject has every call answer that there is no such project, as for one
// that was shut down or may not be seen any more, until mend. What runs goes on.
func (s *Server) HideProject() (mend func()) {
	return s.set(func() { s.faults.hidden = true }, func() { s.faults.hidden = false })
}

// Redirect has every call be redirected to that address, until mend.
func (s *Server) Redirect(address string) (mend func()) {
	return s.set(func() { s.faults.elsewhere = address }, func() { s.faults.elsewhere = "" })
}

// DisableAPI is a project in which the Compute Engine API is not enabled.
func (s *Server) DisableAPI() (mend func()) {
	return s.set(func() { s.faults.disabled = true }, func() { s.faults.disabled = false })
}

// FailNext has the next call of a method ("instances.insert") fail with that
// status, reason and text.
func (s *Server) FailNext(method string, status int, reason, text string) {
	s.set(func() { s.faults.next[method] = problem(status, reason, "%s", text) }, nil)
}

// FailInside has the next operation of a kind ("insert", "start", "delete") end
// with an error inside.
func (s *Server) FailInside(kind, code, text string) {
	s.FailInsideWith(kind, 0, code, text)
}

// FailInsideWith is FailInside with the HTTP status that goes with the error.
func (s *Server) FailInsideWith(kind string, status int, code, text string) {
	s.set(func() { s.faults.inside[kind] = &failure{code, text, status} }, nil)
}

// LoseAnswers has the next n calls of a method do what they do and lose the
// answer.
func (s *Server) LoseAnswers(method string, n int) {
	s.set(func() { s.faults.lost[method] = n }, nil)
}

// Freeze has operations that begin now stay PENDING, until thaw.
func (s *Server) Freeze() (thaw func()) {
	c := make(chan struct{})
	var once sync.Once
	s.set(func() { s.faults.frozen = c }, nil)
	return func() {
		once.Do(func() {
			s.set(func() { s.faults.frozen = nil }, nil)
			close(c)
		})
	}
}

// Instant has operations that begin now be DONE in the answer that begins them.
func (s *Server) Instant() (mend func()) {
	return s.set(func() { s.faults.instant = true }, func() { s.faults.instant = false })
}

// RefuseDisks has an insert whose disk is there already be refused with 409, and
// not inside its operation, until mend.
func (s *Server) RefuseDisks() (mend func()) {
	return s.set(func() { s.faults.clashing = true }, func() { s.faults.clashing = false })
}

// HastyWaits has waits for operations answer at once with what there is, as the
// API does when it is overloaded, until mend.
func (s *Server) HastyWaits() (mend func()) {
	return s.set(func() { s.faults.hasty = true }, func() { s.faults.hasty = false })
}

// StaleLists has lists of a zone's instances show what is there now, whatever
// happens, until mend.
func (s *Server) StaleLists(zone string) (mend func()) {
	return s.set(func() {
		now := []*compute.Instance{}
		for _, m := range s.zones[zone].instances {
			in := m.in
			now = append(now, &in)
		}
		s.faults.stale[zone] = now
	}, func() { delete(s.faults.stale, zone) })
}

// StaleGroups has lists of a zone's instance groups be empty, until mend.
func (s *Server) StaleGroups(zone string) (mend func()) {
	return s.set(func() { s.faults.ungrouped[zone] = true }, func() { delete(s.faults.ungrouped, zone) })
}

// WarnLists has lists of a zone's instances carry a warning: a part of the zone
// did not answer.
func (s *Server) WarnLists(zone string) (mend func()) {
	return s.set(func() { s.faults.warned[zone] = true }, func() { delete(s.faults.warned, zone) })
}

// RevokeKey ends the service account's key and all tokens: the API answers 401,
// the token endpoint invalid_grant.
func (s *Server) RevokeKey() { s.set(s.keys.revoke, nil) }

// ExpireTokens ends all tokens; the key stays good.
func (s *Server) ExpireTokens() { s.set(func() { clear(s.keys.tokens) }, nil) }

// BreakTokens has the token endpoint answer so, until mend; the API and the
// tokens that there are stay good.
func (s *Server) BreakTokens(a Answer) (mend func()) {
	return s.set(func() { s.faults.token = &a }, func() { s.faults.token = nil })
}

// Calls are the calls so far by method, those that were refused among them.
func (s *Server) Calls() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.calls)
}

// Refused is how many calls the rate limit refused.
func (s *Server) Refused() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refused
}

// Instances are copies of a zone's instances.
func (s *Server) Instances(zone string) []compute.Instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []compute.Instance
	for _, m := range s.zones[zone].instances {
		out = append(out, m.in)
	}
	return out
}

// Disks are copies of a zone's disks.
func (s *Server) Disks(zone string) []compute.Disk {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []compute.Disk
	for _, d := range s.zones[zone].disks {
		out = append(out, *d)
	}
	return out
}

// SetStatus puts an instance into a status; what is not RUNNING has no proxy,
// and RUNNING starts one.
func (s *Server) SetStatus(zone, name, status string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.zones[zone].instances[name]
	if !ok {
		return notFound("instances/" + name)
	}
	if status == "RUNNING" {
		return s.run(m)
	}
	m.halt()
	m.in.Status = status
	return nil
}

// Preempt stops an instance as Compute Engine takes a Spot machine back.
func (s *Server) Preempt(zone, name string) error { return s.SetStatus(zone, name, "TERMINATED") }

// Vanish removes an instance with its disk.
func (s *Server) Vanish(zone, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(s.zones[zone], name)
}

// Change changes an instance's record in any way, until mend.
func (s *Server) Change(zone, name string, change func(*compute.Instance)) (mend func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.zones[zone].instances[name]
	if !ok {
		return func() {}
	}
	was := m.in
	change(&m.in)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if m, ok := s.zones[zone].instances[name]; ok {
			m.in.Labels, m.in.Description = was.Labels, was.Description
		}
	}
}

// Plant puts an instance of somebody else there, running, with a disk of its
// name.
func (s *Server) Plant(zone string, in compute.Instance) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.machine(zone, in)
	s.zones[zone].instances[in.Name] = m
	s.zones[zone].disks[in.Name] = s.disk(zone, in.Name, in.Labels, s.link(zone, "instances", in.Name))
	return s.run(m)
}

// LeaveDisk puts a disk there that nothing uses, and returns its number.
func (s *Server) LeaveDisk(zone, name string, labels map[string]string) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.disk(zone, name, labels)
	s.zones[zone].disks[name] = d
	return d.Id
}

// UseDisk has something use a disk, until mend.
func (s *Server) UseDisk(zone, name string) (mend func()) {
	return s.set(func() { s.zones[zone].disks[name].Users = []string{s.link(zone, "instances", "somebody")} }, func() {
		if d := s.zones[zone].disks[name]; d != nil {
			d.Users = nil
		}
	})
}

// RemoveDisk removes a disk.
func (s *Server) RemoveDisk(zone, name string) {
	s.set(func() { delete(s.zones[zone].disks, name) }, nil)
}

// PlantGroup puts an unmanaged instance group there.
func (s *Server) PlantGroup(zone string, g compute.InstanceGroup) {
	s.set(func() { g.Id = s.id(); s.zones[zone].groups[g.Name] = &g }, nil)
}

// Groups are copies of a zone's instance groups.
func (s *Server) Groups(zone string) []compute.InstanceGroup {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []compute.InstanceGroup
	for _, g := range s.zones[zone].groups {
		out = append(out, *g)
	}
	return out
}
