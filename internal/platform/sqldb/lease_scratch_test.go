package sqldb_test

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/platform/sqldb"
	"fleetdesk/internal/testkit/postgres"
)

func cpuOf(t *testing.T, db *sqldb.DB) time.Duration {
	rows, err := db.Pool().Query(t.Context(), "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for rows.Next() {
		var pid int
		_ = rows.Scan(&pid)
		pids = append(pids, pid)
	}
	total := 0
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')'):]))
		u, _ := strconv.Atoi(f[12])
		s, _ := strconv.Atoi(f[13])
		total += u + s
	}
	return time.Duration(total) * 10 * time.Millisecond
}

func own() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

func TestScratch(t *testing.T) {
	set := map[string]string{"track_wal_io_timing": "on"}
	explain := os.Getenv("EXPLAIN") != ""
	if explain {
		set = map[string]string{"shared_preload_libraries": "auto_explain", "auto_explain.log_min_duration": "0", "auto_explain.log_analyze": "on", "auto_explain.log_buffers": "on"}
	}
	s := postgres.Private(t, postgres.Options{Settings: set})
	url := s.Database(t)
	db := openURL(t, url)
	st := db.Leases()
	keys := 10000
	if k := os.Getenv("KEYS"); k != "" {
		keys, _ = strconv.Atoi(k)
	}
	fill(t, st, keys)
	secret := lease.HashOf("s")
	n := 0
	for _, size := range []int{128, 1} {
		for _, like := range []lease.Take{{}, {Keep: true}, {Keep: true, Target: "shop.example.com"}} {
			rounds := 400
			if size == 1 {
				rounds = 1500
			}
			var wb, ws float64
			_ = db.Pool().QueryRow(t.Context(), "SELECT wal_bytes, wal_sync_time FROM pg_stat_wal").Scan(&wb, &ws)
			began, backend, client := time.Now(), cpuOf(t, db), own()
			for range rounds {
				ops := make([]lease.Op, size)
				for i := range ops {
					n++
					take := like
					take.Ticket, take.Pool, take.Account, take.Secret = lease.TicketID("ann", fmt.Sprint(n)), "ns.pool", "ann", secret
					ops[i] = take
				}
				res := mustDo(t, st, ops...)
				for i := range ops {
					ops[i] = lease.Release{Proof: lease.Proof{ID: res[i].Key.ID(), Secret: secret, Account: "ann"}}
				}
				mustDo(t, st, ops...)
			}
			per := func(d time.Duration) time.Duration { return d / time.Duration(2*rounds*size) }
			wall, bc, cc := time.Since(began), cpuOf(t, db)-backend, own()-client
			var wb2, ws2 float64
			_ = db.Pool().QueryRow(t.Context(), "SELECT wal_bytes, wal_sync_time FROM pg_stat_wal").Scan(&wb2, &ws2)
			fmt.Printf("size %d keep %v target %q: wall %v, backend %v, client %v an op; sync %.2f ms, wal %.0f a tx\n", size, like.Keep, like.Target, per(wall), per(bc), per(cc), (ws2-ws)/float64(2*rounds), (wb2-wb)/float64(2*rounds))
		}
	}
	if explain {
		out, _ := exec.Command("sh", "-c", "cat /tmp/fleetdesk-pg-*/log").Output()
		_ = os.WriteFile("/tmp/ov/pglog", out, 0o644)
	}
}
