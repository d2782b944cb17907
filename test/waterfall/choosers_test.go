package waterfall_test

import (
	"math/rand/v2"
	"time"
)

// plain chooses from the list and forgets the answers, as most tools do.
type plain struct{}

func (plain) hear(moment, int, int, any, outcome) {}

// atRandom takes any proxy.
type atRandom struct {
	plain
	draw *rand.Rand
	n    int
}

func newRandom(r *run) chooser {
	return &atRandom{draw: rand.New(rand.NewPCG(r.seed, 3)), n: len(r.proxies)}
}

func (c *atRandom) choose(moment, int, int) (int, any, bool) { return c.draw.IntN(c.n), nil, true }

// inTurn takes one after another, whichever site it is for: the list of
// upstreams of a load balancer.
type inTurn struct {
	plain
	n, at int
}

func newRoundRobin(r *run) chooser { return &inTurn{n: len(r.proxies)} }

func (c *inTurn) choose(moment, int, int) (int, any, bool) {
	c.at++
	return (c.at - 1) % c.n, nil, true
}

// leastRecent takes the one that was used longest ago for the site. With memory
// it leaves out what was banned or failed for a fixed time, and with a delay
// what was used a moment ago: what a careful person writes in an afternoon.
type leastRecent struct {
	memory, delay moment
	used, bad     [][]moment // by site and proxy
}

const longAgo = -1 << 40 * time.Nanosecond

func newLeastRecent(memory, delay moment) func(*run) chooser {
	return func(r *run) chooser {
		c := &leastRecent{memory: memory, delay: delay}
		for range r.sites {
			used, bad := make([]moment, len(r.proxies)), make([]moment, len(r.proxies))
			for i := range used {
				used[i], bad[i] = longAgo, longAgo
			}
			c.used, c.bad = append(c.used, used), append(c.bad, bad)
		}
		return c
	}
}

func (c *leastRecent) choose(now moment, _, site int) (int, any, bool) {
	best := -1
	for i, used := range c.used[site] {
		if now-used < c.delay || now < c.bad[site][i] {
			continue
		}
		if best < 0 || used < c.used[site][best] {
			best = i
		}
	}
	if best < 0 {
		return 0, nil, false
	}
	c.used[site][best] = now
	return best, nil, true
}

func (c *leastRecent) hear(now moment, through, site int, _ any, o outcome) {
	if c.memory > 0 && o != good {
		c.bad[site][through] = now + c.memory
	}
}

// oracle knows what each site has on each address, and what becomes of a request
// through each proxy. It takes the address that the site has heard least of.
type oracle struct {
	plain
	*run
}

func newOracle(r *run) chooser { return oracle{run: r} }

func (c oracle) choose(now moment, n, site int) (int, any, bool) {
	best, least := -1, 0
	for address, proxies := range c.behind {
		record := &c.records[site][address]
		if !record.lets(&c.sites[site], now) {
			continue
		}
		heard := 0
		for _, at := range record.last {
			if now-at < window {
				heard++
			}
		}
		if best >= 0 && heard >= least {
			continue
		}
		for _, p := range proxies {
			if _, isLost := c.chance(n, p); !isLost {
				best, least = p, heard
				break
			}
		}
	}
	return best, nil, best >= 0
}
