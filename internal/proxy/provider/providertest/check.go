package providertest

import (
	"context"
	"slices"
	"sync"

	"fleetdesk/internal/proxy/provider"
)

func checkTests() []Subtest {
	return []Subtest{
		{Clauses: []string{"P-CHK-1"}, Title: "one row for each host, OK when well", Needs: []string{"Checker"}, run: checkWell},
		{Clauses: []string{"P-CHK-2"}, Title: "a broken host's row says so; the others are OK", Needs: []string{"Checker", "BreakHost"}, run: checkBroken},
		{Clauses: []string{"P-CHK-3"}, Title: "a mute host's row says so by the deadline", Needs: []string{"Checker", "MuteHost"}, run: checkMute},
		{Clauses: []string{"P-CHK-4"}, Title: "does not disturb a Create that runs", Needs: []string{"Checker"}, run: checkBeside},
	}
}

// well fails unless each host has one row, OK except for those named.
func (e env) well(rows []provider.HostHealth, err error, ill ...string) {
	e.Helper()
	if err != nil {
		e.Fatalf("Check: %v", err)
	}
	var hosts []string
	for _, r := range rows {
		hosts = append(hosts, r.Host)
		if sick := slices.Contains(ill, r.Host); sick == (r.Reason == "OK") || r.Reason == "" {
			e.Errorf("host %s: reason %q (%s); ill are %q", r.Host, r.Reason, r.Message, ill)
		}
	}
	want := slices.Sorted(slices.Values(e.h.Hosts))
	if slices.Sort(hosts); !slices.Equal(hosts, want) {
		e.Errorf("rows for %q; hosts are %q", hosts, want)
	}
}

func checkWell(e env) {
	ctx, cancel := e.call()
	defer cancel()
	rows, err := e.check(ctx)
	e.well(rows, err)
}

func checkBroken(e env) {
	for _, host := range e.h.Hosts {
		mend := e.until(e.h.BreakHost(e.T, host))
		ctx, cancel := e.call()
		rows, err := e.check(ctx)
		cancel()
		e.well(rows, err, host)
		mend()
	}
	checkWell(e)
}

func checkMute(e env) {
	host := e.h.Hosts[0]
	e.until(e.h.MuteHost(e.T, host))
	ctx, cancel := context.WithTimeout(context.Background(), shortDeadline)
	defer cancel()
	rows, err := e.check(ctx)
	e.well(rows, err, host)
}

// checkBeside checks without pause while instances are made: no call of Create
// may fail, not even for now.
func checkBeside(e env) {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer sync.OnceFunc(func() { close(stop) })()
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			ctx, cancel := e.call()
			_, err := e.check(ctx)
			cancel()
			if err != nil {
				e.Errorf("Check beside Create: %v", err)
				return
			}
		}
	})
	for range 3 {
		s := e.spec(e.owner(), "")
		err := e.rounds(func() (bool, error) {
			in, err := e.create(e.p, s)
			return err != nil || in.State == provider.Running, err
		})
		if err != nil {
			e.Errorf("Create beside Check: %v", err)
		}
	}
}
