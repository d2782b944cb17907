package fleet_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/config/crd"
	"fleetdesk/internal/proxy/operator"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/testkit/kube"
)

// Two installations, each in a cluster of its own, live on one back end whose
// hosts break and go mute and whose machines stop and vanish. Their operators
// are killed at random points; the API of one is slow, then away. In the end
// each Proxy has one machine, and each machine is a Proxy's, abandoned, or
// somebody else's.
func TestDrill(t *testing.T) {
	t.Parallel()
	hosts := []string{"h1", "h2", "h3"}
	backend := scripted(t, hosts...)
	worlds := []*world{
		newWorld(t, cluster, backend),
		newWorld(t, kube.Start(t, kube.Options{CRDs: crd.Bases}), backend),
	}
	foreign := provider.Owner{Installation: "somebody/else", Namespace: "theirs", Name: "theirs", UID: "11111111-2222-3333-4444-555555555555"}
	theirs := backend.Plant("h1", foreign)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))

	var sides []*side
	for _, w := range worlds {
		stop := w.watchDoubles()
		defer stop()
		s := &side{world: w, random: random, abandonedUIDs: map[string]bool{}}
		s.relay, s.way = through(t, w.cfg)
		s.start()
		sides = append(sides, s)
		for range 8 {
			s.add()
		}
	}
	faults := map[string]int{}
	for end := time.Now().Add(*drillFor); time.Now().Before(end); {
		s := sides[random.IntN(len(sides))]
		faults[s.fault(hosts)]++
		time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
	}
	for _, s := range sides {
		s.calm()
	}
	for _, s := range sides {
		for name := range s.names {
			s.until(nil, name+" in the end", func() string { return s.runs(name) })
		}
		s.until(nil, "nothing left over", func() string { return s.left() })
		for uid := range s.abandonedUIDs {
			if !s.written()[uid] {
				t.Errorf("abandoned instance of %s is written down nowhere", uid)
			}
		}
		s.op.stop()
	}
	if in, err := backend.Get(t.Context(), provider.Ref{ID: theirs.ID, Owner: foreign, Host: "h1"}); err != nil || in.State != provider.Running {
		t.Errorf("somebody else's machine was touched: %+v %v", in, err)
	}
	kills := 0
	for _, s := range sides {
		kills += s.kills
	}
	t.Logf("DRILL operator.kills %d", kills)
	for _, name := range slices.Sorted(maps.Keys(faults)) {
		t.Logf("DRILL operator.fault.%s %d", name, faults[name])
	}
	t.Logf("DRILL operator.leaks 0")
}

// side is one installation in a drill.
type side struct {
	*world
	random *rand.Rand
	relay  *relay
	way    *rest.Config
	op     *op
	kills  int
	serial int
	names  map[string]bool
	// abandonedUIDs are Proxies that went without their machines.
	abandonedUIDs map[string]bool
}

// start starts the operator, which dies at a random point.
func (s *side) start() {
	s.op = s.world.start(newKiller(1+s.random.Int64N(150)), func(_ *operator.Options, cfg *rest.Config) { cfg.Host = s.way.Host })
}

// revive starts the next operator when the last one was killed.
func (s *side) revive() bool {
	if s.op.k.alive() == nil {
		return false
	}
	s.op.stop()
	s.kills++
	s.start()
	return true
}

func (s *side) add() {
	if s.names == nil {
		s.names = map[string]bool{}
	}
	s.serial++
	name := fmt.Sprintf("p%d", s.serial)
	s.create(name)
	s.names[name] = true
}

// some is one of the Proxies, at random.
func (s *side) some() string {
	names := slices.Sorted(maps.Keys(s.names))
	return names[s.random.IntN(len(names))]
}

// machine calls f with a machine of this side, at random; another operator may
// have removed it meanwhile.
func (s *side) machine(f func(id string)) {
	all := s.machines()
	if len(all) == 0 {
		return
	}
	defer func() { _ = recover() }() // the knobs panic for what is gone
	f(all[s.random.IntN(len(all))].ID)
}

// fault does one thing at random and returns what.
func (s *side) fault(hosts []string) string {
	if s.revive() {
		return "kill"
	}
	host := hosts[s.random.IntN(len(hosts))]
	short := time.Duration(50+s.random.IntN(400)) * time.Millisecond
	switch s.random.IntN(9) {
	case 0:
		name := s.some()
		s.delete(name)
		delete(s.names, name)
		s.add()
		return "replace"
	case 1:
		s.machine(s.backend.Stop)
		return "stop"
	case 2:
		s.machine(s.backend.Vanish)
		return "vanish"
	case 3:
		mend := s.backend.Break(host, nil)
		time.AfterFunc(short, mend)
		return "broken_host"
	case 4:
		mend := s.backend.Mute(host)
		time.AfterFunc(short, mend)
		return "mute_host"
	case 5:
		s.relay.Slow(20 * time.Millisecond)
		time.AfterFunc(3*short, func() { s.relay.Slow(0) })
		return "slow_api"
	case 6:
		s.relay.Cut(true)
		time.AfterFunc(short, func() { s.relay.Cut(false) })
		return "api_away"
	case 7:
		s.op.k.kill()
		return "kill_order"
	default:
		s.abandon()
		return "abandon"
	}
}

// abandon deletes a Proxy without its machine.
func (s *side) abandon() {
	name := s.some()
	px := s.get(name)
	px.Annotations = map[string]string{v1alpha1.SkipCleanupAnnotation: "true"}
	if err := s.client.Update(s.t.Context(), px); err != nil {
		return // the operator wrote in between
	}
	s.delete(name)
	delete(s.names, name)
	if px.Status.ProviderID != "" {
		s.abandonedUIDs[string(px.UID)] = true
	}
	s.add()
}

// calm ends all faults, and gives the side an operator that lives.
func (s *side) calm() {
	time.Sleep(time.Second) // the last of them undo themselves
	s.relay.Slow(0)
	s.relay.Cut(false)
	s.op.k.kill()
	s.op.stop()
	s.op = s.world.start(nil)
}

// left is empty when every machine of this side is a Proxy's, or abandoned.
func (s *side) left() (missing string) {
	live := map[string]bool{}
	for name := range s.names {
		if px := s.get(name); px != nil {
			live[string(px.UID)] = true
		}
	}
	written := s.written()
	for _, m := range s.machines() {
		if !live[m.Owner.UID] && !written[m.Owner.UID] {
			return fmt.Sprintf("%+v", m)
		}
	}
	return ""
}
