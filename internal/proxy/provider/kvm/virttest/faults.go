package virttest

import (
	"context"
	"maps"
	"strings"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/link"
)

// faults are what a test has a host do wrong, and what was called.
type faults struct {
	broken bool
	dial   error
	// hung are the RPCs (all: "") that wait before they do anything, silent
	// those whose answer does not come. The channel is closed to go on.
	hung, silent map[string]chan struct{}
	planned      []*plan
	onCall       func(rpc string) error
	onDone       func(rpc string) error
	onUpload     func(u Upload) error
	stall        *stall
	latency      time.Duration
	calls        map[string]int
}

// plan is an error for one call to come.
type plan struct {
	rpc string
	// nth counts down to the call that fails.
	nth  int
	err  error
	done bool
}

type stall struct {
	after uint64
	over  chan struct{}
}

func newFaults() faults {
	return faults{hung: map[string]chan struct{}{}, silent: map[string]chan struct{}{}, calls: map[string]int{}}
}

// publicName is an RPC's name as libvirt's public API and traces have it:
// virDomainCreate for DomainCreate.
func publicName(rpc string) string {
	if rpc == "" || strings.HasPrefix(rpc, "vir") {
		return rpc
	}
	return "vir" + rpc
}

// Break takes the host off the net: open links end, calls on them and dials
// fail as Unavailable. What runs on the host goes on.
func (h *Host) Break() {
	h.mu.Lock()
	h.faults.broken = true
	h.mu.Unlock()
	h.DropLinks()
}

// Mend ends what Break, FailDials, Mute, MuteAnswers, Hang, StallUploads and
// Slow did.
func (h *Host) Mend() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults.broken, h.faults.dial, h.faults.latency = false, nil, 0
	for _, m := range []map[string]chan struct{}{h.faults.hung, h.faults.silent} {
		for k, c := range m {
			close(c)
			delete(m, k)
		}
	}
	h.speak()
	if h.faults.stall != nil {
		close(h.faults.stall.over)
		h.faults.stall = nil
	}
}

// DropLinks ends every open link, as a restart of the daemon does: the next
// dial works, and guests go on.
func (h *Host) DropLinks() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.links {
		c.end(errGone(h.name))
		h.hush(c)
	}
	clear(h.links)
}

func errGone(host string) error {
	return fault.Errorf(fault.Unavailable, "host %s: the connection to libvirt ended", host)
}

// FailDials lets dials fail with err until Mend. A [*link.DialError] is
// returned as given; another error is put into one at the stage TCP.
func (h *Host) FailDials(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults.dial = err
}

// Mute lets every call hang before it does anything, until its context or its
// link ends, or until Mend; then those that still wait are done. Dials work.
func (h *Host) Mute() { h.Hang("") }

// Hang is Mute for one RPC ("DomainCreate").
func (h *Host) Hang(rpc string) { h.set(h.faults.hung, rpc) }

// MuteAnswers lets calls of that RPC ("" for all) be done while their answers
// do not come, until Mend.
func (h *Host) MuteAnswers(rpc string) { h.set(h.faults.silent, rpc) }

func (h *Host) set(m map[string]chan struct{}, rpc string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if rpc = publicName(rpc); m[rpc] == nil {
		m[rpc] = make(chan struct{})
	}
}

// Slow lets every call take that long.
func (h *Host) Slow(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults.latency = d
}

// FailNext lets the next call of that RPC ("DomainCreate" or
// "virDomainCreate"; "" for whatever comes) fail with err, undone. Several are
// used up in their order.
func (h *Host) FailNext(rpc string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 1
	for _, p := range h.faults.planned {
		if !p.done && p.rpc == publicName(rpc) && p.nth >= n {
			n = p.nth + 1
		}
	}
	h.faults.planned = append(h.faults.planned, &plan{rpc: publicName(rpc), nth: n, err: err})
}

// FailKth lets the k-th call from now of that RPC ("" counts all) fail with
// err, undone; the first is 1.
func (h *Host) FailKth(rpc string, k int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults.planned = append(h.faults.planned, &plan{rpc: publicName(rpc), nth: k, err: err})
}

// OnCall sets a hook that gets the public name of each call before it is done;
// its error is returned in the call's place. It may cancel contexts: then the
// call is not done. Nil takes it away.
func (h *Host) OnCall(f func(rpc string) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults.onCall = f
}

// OnDone is OnCall after the call was done: its error takes the answer's
// place, and a context cancelled in it drops the answer. It is not asked about
// calls that failed.
func (h *Host) OnDone(f func(rpc string) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults.onDone = f
}

// Upload is how far an upload is.
type Upload struct {
	Pool, Volume string
	// Accepted counts the bytes that are in the volume.
	Accepted uint64
}

// OnUpload sets a hook that is asked before each packet of an upload is
// accepted; its error ends the upload, and what was accepted stays.
func (h *Host) OnUpload(f func(u Upload) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults.onUpload = f
}

// StallUploads lets every upload hang once it has accepted that many bytes,
// until its context or link ends or Mend is called.
func (h *Host) StallUploads(after uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults.stall = &stall{after, make(chan struct{})}
}

// Calls returns how often each RPC was called, by public name.
func (h *Host) Calls() map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.faults.calls)
}

// ResetCalls sets all counts to zero.
func (h *Host) ResetCalls() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.faults.calls)
}

// due counts a call and returns the error that was planned for it. mu is held.
func (f *faults) due(rpc string) error {
	f.calls[rpc]++
	var err error
	for _, p := range f.planned {
		if p.done || p.rpc != "" && p.rpc != rpc {
			continue
		}
		if p.nth--; p.nth <= 0 {
			p.done = true
			if err == nil {
				err = p.err
			}
		}
	}
	return err
}

func (f *faults) waits(m map[string]chan struct{}, rpc string) chan struct{} {
	if c := m[""]; c != nil {
		return c
	}
	return m[rpc]
}

// Dialer dials hosts in memory by their names.
type Dialer struct{ Hosts map[string]*Host }

var _ link.Dialer = (*Dialer)(nil)

// Dial opens a link. A name without a host is Permanent; a broken host is
// Unavailable at the stage TCP.
func (d *Dialer) Dial(ctx context.Context, host string) (link.Link, error) {
	fail := func(err error) (link.Link, error) {
		return nil, &link.DialError{Host: host, Stage: link.StageTCP, Err: err}
	}
	if err := ctx.Err(); err != nil {
		return fail(ctxError(ctx, "dialling"))
	}
	h := d.Hosts[host]
	if h == nil {
		return fail(fault.Errorf(fault.Permanent, "there is no host %q", host))
	}
	h.mu.Lock()
	broken, err := h.faults.broken, h.faults.dial
	h.mu.Unlock()
	switch {
	case err != nil:
		if de, ok := err.(*link.DialError); ok {
			return nil, de
		}
		return fail(err)
	case broken:
		return fail(fault.New(fault.Unavailable, "connect: connection refused"))
	}
	return h.Link(), nil
}
