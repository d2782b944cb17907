package waterfall_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// moment is a time of the simulation, from its beginning.
type moment = time.Duration

// outcome is how a wanted request ended.
type outcome int

const (
	good outcome = iota
	// banned: the site refused the address.
	banned
	// failed: the proxy gave no answer in time.
	failed
	// refused: no proxy was to be had.
	refused
	outcomes
)

// proxy is one machine.
type proxy struct {
	name    string
	address int
	// A slow one's answers take seconds.
	slow bool
	// down are the times in which it answers nothing, in order.
	down []span
}

type span struct{ from, to moment }

func (p *proxy) isDown(at moment) bool {
	for _, s := range p.down {
		if s.from <= at && at < s.to {
			return true
		}
	}
	return false
}

// site is an origin. It bans an address that asks more than limit times within
// window, or keeps more than atOnce requests open.
type site struct {
	host   string
	limit  int
	weight float64 // how often it is asked for
}

const (
	window = time.Minute
	atOnce = 2
	// The first ban lasts banFor. A request during a ban begins it anew, twice as
	// long, up to banMost; an hour without one is forgiven.
	banFor  = 5 * time.Minute
	banMost = time.Hour

	// patience is how long a crawler waits for an answer.
	patience = 15 * time.Second
)

// record is what a site knows of an address.
type record struct {
	last   []moment // requests that were let in, the newest last; at most limit
	open   int
	until  moment // end of the ban
	length moment // of the last ban
}

// lets reports whether the site would answer a request now. It changes nothing.
func (r *record) lets(s *site, now moment) bool {
	return now >= r.until && r.open < atOnce && (len(r.last) < s.limit || now-r.last[0] >= window)
}

// ask is a request to the site from the address.
func (r *record) ask(s *site, now moment) outcome {
	switch {
	case now < r.until:
		r.length = min(2*r.length, banMost)
		r.until = now + r.length
		return banned
	case !r.lets(s, now):
		if now-r.until > time.Hour || r.length == 0 {
			r.length = banFor
		}
		r.until = now + r.length
		return banned
	}
	if r.last = append(r.last, now); len(r.last) > s.limit {
		r.last = r.last[1:]
	}
	return good
}

// world is what is the same for all who choose: sites, proxies and the requests
// that are wanted.
type world struct {
	seed     uint64
	sites    []site
	proxies  []proxy
	behind   [][]int // proxies of each address
	requests []request
}

type request struct {
	at   moment
	site int
}

// households are how many proxies leave by one address: twenty stand alone,
// and the largest router has fourteen behind it.
var households = []struct{ addresses, proxies int }{{20, 1}, {8, 2}, {6, 4}, {4, 8}, {2, 14}}

const (
	sites = 8
	// slowShare and badShare are how many of a hundred proxies are slow, and
	// how many go down now and then.
	slowShare, badShare = 8, 8
	// lost is how many of a thousand requests fail for no reason at all.
	lost = 2
)

// newWorld makes the world of a seed. The load is what is wanted of the busiest
// site, as a share of what it gives all addresses together.
func newWorld(seed uint64, load float64, length moment) *world {
	w := &world{seed: seed}
	draw := rand.New(rand.NewPCG(seed, 1))
	for i := range sites {
		w.sites = append(w.sites, site{
			host: fmt.Sprintf("site-%d.example.com", i+1), limit: []int{6, 8, 10}[i%3],
			weight: 1 / math.Sqrt(float64(i+1)),
		})
	}
	for _, h := range households {
		for range h.addresses {
			for range h.proxies {
				w.proxies = append(w.proxies, proxy{address: len(w.behind)})
			}
			w.behind = append(w.behind, nil)
		}
	}
	// Nobody profits from the order of the list.
	draw.Shuffle(len(w.proxies), func(i, j int) { w.proxies[i], w.proxies[j] = w.proxies[j], w.proxies[i] })
	for i := range w.proxies {
		p := &w.proxies[i]
		p.name = fmt.Sprintf("crawl.proxy-%03d", i)
		p.slow = draw.IntN(100) < slowShare
		w.behind[p.address] = append(w.behind[p.address], i)
		if draw.IntN(100) >= badShare {
			continue
		}
		for at := between(draw, 0, 10*time.Minute); at < length; {
			end := at + between(draw, time.Minute, 5*time.Minute)
			p.down = append(p.down, span{at, end})
			at = end + between(draw, 5*time.Minute, 15*time.Minute)
		}
	}
	w.want(rand.New(rand.NewPCG(seed, 2)), load, length)
	return w
}

// want draws the requests: the times between them are exponential, the site of
// each is drawn by weight.
func (w *world) want(draw *rand.Rand, load float64, length moment) {
	sum := 0.0
	for _, s := range w.sites {
		sum += s.weight
	}
	busiest := w.sites[0]
	perSecond := load * w.capacity() / window.Seconds() * sum / busiest.weight
	for at := moment(0); ; {
		at += moment(draw.ExpFloat64()/perSecond*1e6) * time.Microsecond
		if at >= length {
			return
		}
		x, site := draw.Float64()*sum, 0
		for site < len(w.sites)-1 && x >= w.sites[site].weight {
			x -= w.sites[site].weight
			site++
		}
		w.requests = append(w.requests, request{at, site})
	}
}

// capacity is how many requests a window the busiest site gives all addresses.
func (w *world) capacity() float64 { return float64(len(w.behind) * w.sites[0].limit) }

func between(draw *rand.Rand, from, to moment) moment {
	return from + moment(draw.Int64N(int64((to-from)/time.Microsecond)))*time.Microsecond
}

// chance is what befalls request n through a proxy, whoever chose it: how long
// it takes and whether it is lost.
func (w *world) chance(n, through int) (took moment, isLost bool) {
	p := &w.proxies[through]
	draw := rand.New(rand.NewPCG(w.seed<<32|uint64(n), uint64(through)))
	took = between(draw, 200*time.Millisecond, 1500*time.Millisecond)
	if p.slow {
		took = between(draw, 4*time.Second, 12*time.Second)
	}
	isLost = draw.IntN(1000) < lost || p.isDown(w.requests[n].at)
	if isLost {
		took = patience
	}
	return took, isLost
}
