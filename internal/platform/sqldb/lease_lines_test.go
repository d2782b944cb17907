package sqldb_test

import (
	"fmt"
	"testing"
	"time"

	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
	"fleetdesk/internal/platform/sqldb"
)

// Of the lines of requests that ask for ever other attributes few are kept, and one
// that goes and is made again in one transaction is one.
func TestLeaseFewLinesRemain(t *testing.T) {
	ofEach(t, func(t *testing.T, o sqldb.Options) {
		now := time.Date(2026, 11, 1, 10, 20, 30, 0, time.UTC)
		db := openWith(t, sqldb.WithClock(o, func(time.Time) time.Time { return now }))
		db.Wrap(leasetest.InLines)
		s := db.Leases()
		mustRun(t, s, []lease.Op{
			lease.OpenEpoch{},
			lease.PutPool{Epoch: 1, Pool: lease.Pool{Name: "m"}},
			lease.PutKey{Epoch: 1, Key: "m.a", UID: "1", Pools: []string{"m"}},
			lease.PutKey{Epoch: 1, Key: "m.b", UID: "1", Pools: []string{"m"}},
		})
		ask := func(n int) lease.Take {
			return lease.Take{Quick: true, Pool: "m", Target: "x.example", Account: "ann", Match: []lease.Match{{Attribute: fmt.Sprint("a", n), Op: lease.Absent}}}
		}
		waiter := lease.Take{Ticket: "w", Digest: "w", Pool: "m", Target: "x.example", Account: "ann", Wait: true, Match: []lease.Match{{Attribute: "none", Op: lease.Exists}}}
		mustRun(t, s, []lease.Op{waiter})
		for i := range 3 * lease.MaxAsks {
			now = now.Add(time.Millisecond)
			for _, r := range mustRun(t, s, []lease.Op{ask(i)}) { // which makes the waiter's line go, and then walks along it
				if r.Use == nil {
					t.Fatalf("round %d: %+v", i, r)
				}
			}
			var lines, twice, lost int
			for question, n := range map[string]*int{
				"SELECT count(*) FROM fleetdesk.lines":                                             &lines,
				"SELECT count(*) FROM fleetdesk.lines l JOIN fleetdesk.old_lines o ON o.no = l.no": &twice,
				"SELECT count(*) FROM fleetdesk.places p WHERE p.line NOT IN (SELECT l.no FROM fleetdesk.lines l) AND p.line NOT IN (SELECT o.no FROM fleetdesk.old_lines o)": &lost,
			} {
				if err := db.Count(t.Context(), question, n); err != nil {
					t.Fatal(err)
				}
			}
			if lines > lease.MaxAsks+1 || twice > 0 || lost > 0 {
				t.Fatalf("round %d: %d lines, %d of them old, %d places of none", i, lines, twice, lost)
			}
		}
	})
}
