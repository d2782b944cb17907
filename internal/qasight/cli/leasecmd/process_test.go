package leasecmd_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/qasight/broker/brokertest"
	"fleetdesk/internal/qasight/pool"
)

// stubborn is a command that ignores TERM, with a grandchild that does so too; each
// writes the time (ns) into a file again and again, and the first one its number.
const stubborn = `trap '' TERM INT HUP
echo $$ >pid
sh -c 'trap "" TERM INT HUP; echo $$ >pid2; while :; do date +%s%N >b2.new; mv b2.new beat2; sleep 0.02; done' &
while :; do date +%s%N >b1.new; mv b1.new beat1; sleep 0.02; done`

const oneKey = `project: shop
pools:
  vms:
    items: [vm-1]
    lease_ttl: 6s
    on_reset: date +%s%N >reset.new; mv reset.new reset; echo "$QASIGHT_LEASE" >>resets
`

// Whoever kills exec with -9 frees no key while its command may live: another exec
// that waits for the key starts after the first one's processes are gone, and
// after the reset.
func TestExecKilled(t *testing.T) {
	t.Parallel()
	p := newProject(t, oneKey)
	p.write("stubborn.sh", stubborn)
	first := p.start("exec", "vms", "--", "sh", "./stubborn.sh")
	eventually(t, "both processes beat", func() bool { return p.number("beat1") > 0 && p.number("beat2") > 0 })
	second := p.start("exec", "vms", "--", "sh", "-c", "date +%s%N >started; echo $QASIGHT_LEASE")
	b := p.broker()
	eventually(t, "the second one waits", func() bool {
		w, err := b.Waiters(t.Context(), "vms")
		return err == nil && len(w) == 1
	})
	lease := key(t, b, "vms", "vm-1").Lease
	first.signal(syscall.SIGKILL)
	first.wait()
	second.ends(0)
	started := p.number("started")
	if started <= p.number("beat1") || started <= p.number("beat2") {
		t.Errorf("the second command started at %d, the first one's processes lived until %d and %d", started, p.number("beat1"), p.number("beat2"))
	}
	if alive(p.number("pid")) || alive(p.number("pid2")) {
		t.Error("a process of the first command is alive")
	}
	resets := strings.Fields(p.read("resets"))
	if id := strings.TrimSpace(second.stdout()); len(resets) != 2 || resets[0] != id || resets[1] != id || id == lease.ID {
		t.Errorf("the resets ran under %v, the command under %q, before it was %s", resets, id, lease.ID)
	}
	if k := key(t, b, "vms", "vm-1"); k.State != "free" {
		t.Errorf("in the end the key is %s", k.State)
	}
}

// When the supervisor is killed with -9, exec itself ends the command's group, and
// resets and gives back the key.
func TestExecSupervisorKilled(t *testing.T) {
	t.Parallel()
	p := newProject(t, oneKey)
	p.write("stubborn.sh", stubborn)
	r := p.start("exec", "vms", "--", "sh", "./stubborn.sh")
	eventually(t, "both processes beat", func() bool { return p.number("beat1") > 0 && p.number("beat2") > 0 })
	if err := syscall.Kill(r.supervisor(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.ends(137)
	if alive(p.number("pid")) || alive(p.number("pid2")) {
		t.Error("a process of the command is alive")
	}
	if reset := p.number("reset"); reset <= p.number("beat1") || reset <= p.number("beat2") {
		t.Errorf("it was reset at %d, while the command lived until %d and %d", reset, p.number("beat1"), p.number("beat2"))
	}
	if k := key(t, p.broker(), "vms", "vm-1"); k.State != "free" {
		t.Errorf("in the end the key is %s", k.State)
	}
}

// An admin's end of the lease stops the command soon, and nothing touches the key
// after that.
func TestExecForced(t *testing.T) {
	t.Parallel()
	p := newProject(t, strings.Replace(oneKey, "6s", "10m", 1))
	p.write("stubborn.sh", stubborn)
	r := p.start("exec", "vms", "--", "sh", "./stubborn.sh")
	eventually(t, "both processes beat", func() bool { return p.number("beat1") > 0 && p.number("beat2") > 0 })
	b := p.broker()
	forced := time.Now()
	if _, err := b.Force(t.Context(), "vms", "vm-1", client.ForceRequest{Reason: "needed"}); err != nil {
		t.Fatal(err)
	}
	r.ends(76, "qasight: the command was stopped, since lease vm-1~", "of vm-1 was lost after it was kept for", "was ended by an admin")
	if took := time.Since(forced); took > 12*time.Second {
		t.Errorf("it was stopped %s after the lease's end", took)
	}
	if alive(p.number("pid")) || alive(p.number("pid2")) || p.exists("reset") {
		t.Errorf("a process of the command is alive, or the lost key was reset (%v)", p.exists("reset"))
	}
	if k := key(t, b, "vms", "vm-1"); k.State != "needs-reset" {
		t.Errorf("in the end the key is %s", k.State)
	}
}

// When the team server goes away for good, the command is stopped before its lease
// ends.
func TestExecServerGone(t *testing.T) {
	t.Parallel()
	memory := brokertest.NewMemory()
	server, _ := memory.Serve(t)
	admin := server.Open(t, "root", nil)
	t.Cleanup(func() { _ = admin.Close() })
	if _, err := admin.Publish(t.Context(), pool.Pool{Name: "vms", Items: []string{"vm-1"}, TTL: 6 * time.Second, Reset: true}, nil); err != nil {
		t.Fatal(err)
	}
	p := newProject(t, "server: "+server.URL+"\n"+oneKey)
	p.env = append(p.env, "QASIGHT_TOKEN="+string(server.Token("ann")))
	p.write("stubborn.sh", stubborn)
	r := p.start("exec", "vms", "--", "sh", "./stubborn.sh")
	eventually(t, "both processes beat", func() bool { return p.number("beat1") > 0 && p.number("beat2") > 0 })
	server.Stop()
	stopped := time.Now()
	r.ends(76, "qasight: the command was stopped, since lease vm-1~", "of vm-1 was lost after it was kept for")
	for _, beat := range []string{"beat1", "beat2"} {
		if lived := time.Unix(0, p.number(beat)).Sub(stopped); lived > 6*time.Second {
			t.Errorf("a process lived for %s after the last renewal that was possible, of a lease of 6s", lived)
		}
	}
	if alive(p.number("pid")) || alive(p.number("pid2")) || p.exists("reset") {
		t.Errorf("a process of the command is alive, or the lost key was reset (%v)", p.exists("reset"))
	}
}

// Each signal that asks to end reaches the command, whose end is exec's; the key is
// reset and given back afterwards.
func TestExecSignals(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT} {
		t.Run(s.String()+" while it runs", func(t *testing.T) {
			t.Parallel()
			p := newProject(t, oneKey)
			r := p.start("exec", "vms", "--", "sh", "-c", `for s in TERM INT HUP QUIT; do trap "echo $s >got; exit 21" $s; done; touch ready; while :; do sleep 0.02; done`)
			eventually(t, "it runs", func() bool { return p.exists("ready") })
			r.signal(s)
			r.ends(21)
			if got := strings.TrimSpace(p.read("got")); "SIG"+got != signalName(s) || !p.exists("reset") {
				t.Errorf("the command got %q; reset: %v", got, p.exists("reset"))
			}
			if k := key(t, p.broker(), "vms", "vm-1"); k.State != "free" {
				t.Errorf("in the end the key is %s", k.State)
			}
		})
		t.Run(s.String()+" while it waits", func(t *testing.T) {
			t.Parallel()
			p := newProject(t, oneKey)
			b := p.broker()
			first := p.start("exec", "vms", "--", "sh", "-c", "touch ready; while ! test -e go; do sleep 0.02; done")
			eventually(t, "the first one runs", func() bool { return p.exists("ready") })
			r := p.start("exec", "vms", "--", "touch", "ran")
			eventually(t, "it waits", func() bool {
				w, err := b.Waiters(t.Context(), "vms")
				return err == nil && len(w) == 1
			})
			r.signal(s)
			r.ends(128+int(s), "while it waited for a key of vms: no key is held")
			p.write("go", "")
			first.ends(0)
			if p.exists("ran") {
				t.Error("the command ran without a key")
			}
		})
	}
}

func signalName(s syscall.Signal) string {
	return map[syscall.Signal]string{
		syscall.SIGTERM: "SIGTERM", syscall.SIGINT: "SIGINT", syscall.SIGHUP: "SIGHUP", syscall.SIGQUIT: "SIGQUIT",
	}[s]
}

// While on_reset runs after the command, the first signal is remembered, and the
// second one ends it: then the next taker resets the key.
func TestExecSecondSignal(t *testing.T) {
	t.Parallel()
	p := newProject(t, `project: shop
pools:
  vms:
    items: [vm-1]
    lease_ttl: 1m
    on_reset: touch resetting; sleep 600
`)
	r := p.start("exec", "vms", "--", "sh", "-c", "exit 33")
	eventually(t, "it resets", func() bool { return p.exists("resetting") })
	r.signal(syscall.SIGTERM)
	eventually(t, "it heard the first one", func() bool { return strings.Contains(r.stderr(), "a second signal stops its on_reset") })
	r.signal(syscall.SIGINT)
	r.ends(33, "told to end (terminated): vm-1 is given back first", "on_reset of vm-1 was stopped: it is run again before the next use")
	if k := key(t, p.broker(), "vms", "vm-1"); k.State != "needs-reset" {
		t.Errorf("in the end the key is %s", k.State)
	}
}

// A key that is lost while it is reset after the command is let go of: that is no
// success, and the command's own failure stays what it is.
func TestExecForcedInReset(t *testing.T) {
	for own, want := range map[string]int{"0": 76, "3": 3} {
		t.Run(own, func(t *testing.T) {
			t.Parallel()
			p := newProject(t, `project: shop
pools:
  vms: {items: [vm-1], on_reset: touch resetting; sleep 600}
`)
			r := p.start("exec", "vms", "--", "sh", "-c", "exit "+own)
			eventually(t, "it resets", func() bool { return p.exists("resetting") })
			b := p.broker()
			if _, err := b.Force(t.Context(), "vms", "vm-1", client.ForceRequest{Reason: "needed"}); err != nil {
				t.Fatal(err)
			}
			r.ends(want, "qasight: lease vm-1~", "was lost after it was kept for")
			if strings.Contains(r.stderr(), "the command was stopped") {
				t.Errorf("it said %q", r.stderr())
			}
			if k := key(t, b, "vms", "vm-1"); k.State != "needs-reset" {
				t.Errorf("the key is %s", k.State)
			}
		})
	}
}

// A take that is ended in the middle of a check gives the key back and leaves
// nothing behind.
func TestTakeSignalled(t *testing.T) {
	t.Parallel()
	p := newProject(t, `project: shop
pools:
  vms: {items: [vm-1], on_check: touch checking; sleep 600, on_reset: touch reset}
`)
	r := p.start("take", "vms")
	eventually(t, "it checks", func() bool { return p.exists("checking") })
	r.signal(syscall.SIGTERM)
	r.ends(128+15, "while it waited for a key of vms: no key is held")
	if k := key(t, p.broker(), "vms", "vm-1"); k.State != "free" || p.exists("reset") || r.stdout() != "" {
		t.Errorf("the key is %s; reset: %v; it printed %q", k.State, p.exists("reset"), r.stdout())
	}
	if files := glob(t, p.path("state/qasight/shop/leases/*")); len(files) != 0 {
		t.Errorf("it left %v", files)
	}
}

// A release that is ended twice leaves the reset to the next taker.
func TestReleaseSecondSignal(t *testing.T) {
	t.Parallel()
	p := newProject(t, `project: shop
pools:
  vms: {items: [vm-1], on_reset: touch resetting; sleep 600}
`)
	p.start("take", "vms").ends(0)
	r := p.start("release", "vm-1")
	eventually(t, "it resets", func() bool { return p.exists("resetting") })
	r.signal(syscall.SIGTERM)
	eventually(t, "it heard the first one", func() bool { return strings.Contains(r.stderr(), "a second signal stops its on_reset") })
	r.signal(syscall.SIGTERM)
	r.ends(128+15, "on_reset of vm-1 was stopped: it is run again before the next use")
	if k := key(t, p.broker(), "vms", "vm-1"); k.State != "needs-reset" {
		t.Errorf("the key is %s", k.State)
	}
	if files := glob(t, p.path("state/qasight/shop/leases/*")); len(files) != 0 {
		t.Errorf("it left %v", files)
	}
}

// A reader of exec's messages that went away changes nothing.
func TestExecClosedPipe(t *testing.T) {
	t.Parallel()
	p := newProject(t, `project: shop
pools:
  vms:
    items: [vm-1]
    on_check: echo checked; echo checked >&2; touch checked
    on_reset: for i in 1 2 3; do echo resetting; sleep 0.05; done; touch reset
`)
	closed := p.startClosed("exec", "vms", "--", "sh", "-c", "touch ran; exit 6")
	if code := closed.wait(); code != 6 || !p.exists("ran") || !p.exists("checked") || !p.exists("reset") {
		t.Errorf("it ended with %d; ran %v, checked %v, reset %v", code, p.exists("ran"), p.exists("checked"), p.exists("reset"))
	}
}
