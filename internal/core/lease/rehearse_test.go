package lease_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"fleetdesk/internal/core/lease"
)

// A transaction asks a few times, however many lines its takes go along and however
// much of them rests: three proxies leave by one address, and every target bans a
// fifth of those. Nor are many rows read for a take.
func TestTakesAskTogether(t *testing.T) {
	const keys, targets, takes = 600, 60, 40
	for name, one := range map[string]func(n int) lease.Take{
		"picks": func(n int) lease.Take {
			return lease.Take{Pool: "m", Target: fmt.Sprintf("%d.example", n*7919%targets), Account: "ann", Quick: true}
		},
		"leases": func(n int) lease.Take {
			op := take("m", fmt.Sprint("t", n))
			op.Target, op.TTL = fmt.Sprintf("%d.example", n*7919%targets), 10*time.Second
			return op
		},
		"one target": func(int) lease.Take {
			return lease.Take{Pool: "m", Target: "0.example", Account: "ann", Quick: true}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := &spy{}
			m, now := spied(s)
			ops := []lease.Op{lease.OpenEpoch{}, lease.PutPool{Epoch: 1, Pool: lease.Pool{
				Name: "m", Scope: lease.ScopeExitIP, Cooldown: time.Second, TTL: 10 * time.Second, MaxTTL: time.Minute,
				Ban: lease.Ban{Initial: 24 * time.Hour, Factor: 1, Max: 24 * time.Hour},
			}}}
			for i := range keys {
				ops = append(ops, lease.PutKey{Epoch: 1, Key: fmt.Sprintf("m%05d", i), UID: "1", Pools: []string{"m"}, ExitIP: fmt.Sprintf("2001:db8::%x", i/3+1)})
			}
			draw := rand.New(rand.NewPCG(1, 2))
			for n := range targets {
				for i := 0; i < keys; i += 3 {
					if draw.IntN(5) == 0 {
						ops = append(ops, lease.Report{Key: fmt.Sprintf("m%05d", i), Pool: "m", Target: fmt.Sprintf("%d.example", n), Outcome: lease.Banned})
					}
				}
			}
			do(t, m, ops...)
			rows, asked, most, n := 0, 0, 0, 0
			const rounds = 300
			for range rounds {
				s.loads, s.loaded = 0, 0
				ops := make([]lease.Op, takes)
				for i := range ops {
					ops[i] = one(n)
					n++
				}
				for i, r := range do(t, m, ops...) {
					if r.Key == nil {
						t.Fatalf("%+v got none", ops[i])
					}
				}
				rows, asked, most = rows+s.loaded, asked+s.loads, max(most, s.loads)
				*now = now.Add(time.Duration(takes) * time.Second * 60 / targets)
			}
			t.Logf("%.1f rows a take, %.2f questions a transaction, %d at most", float64(rows)/rounds/takes, float64(asked)/rounds, most)
			if most > 5 { // with the keys that are chosen
				t.Errorf("a transaction asked %d times", most)
			}
		})
	}
}
