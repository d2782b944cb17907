package local_test

import (
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"fleetdesk/internal/proxy/provider"
)

// Halt leaves nothing running of its installation, touches no other, and
// loses nothing: what it stopped starts again as it was.
func TestHalt(t *testing.T) {
	dir := t.TempDir()
	p := open(t, dir)
	one, frozen, foreign := specOf("one"), specOf("frozen"), specOf("foreign")
	foreign.Owner.Installation = "another"
	was := create(t, p, one)
	create(t, p, frozen)
	create(t, p, foreign)
	_, pidfd := only(t, dirOf(dir, frozen.Owner))
	if err := unix.PidfdSendSignal(pidfd, syscall.SIGSTOP, nil, 0); err != nil {
		t.Fatal(err)
	}
	for round, want := range []int{2, 0} {
		if n, err := p.Halt(t.Context(), one.Owner.Installation); err != nil || n != want {
			t.Errorf("Halt, round %d = %d, %v; want %d", round, n, err, want)
		}
	}
	for uid, want := range map[provider.Owner]provider.State{one.Owner: provider.Stopped, frozen.Owner: provider.Stopped, foreign.Owner: provider.Running} {
		if in, err := p.Get(t.Context(), provider.Ref{Owner: uid}); err != nil || in.State != want {
			t.Errorf("%s = %+v, %v; want %s", uid.UID, in, err, want)
		}
	}
	if again := create(t, p, one); again.ID != was.ID || again.Address != was.Address || again.Port != was.Port {
		t.Errorf("started again as %+v, was %+v", again, was)
	}
	for _, o := range []provider.Owner{one.Owner, frozen.Owner, foreign.Owner} {
		gone(t, p, o)
	}
}
