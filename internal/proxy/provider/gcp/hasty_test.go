package gcp_test

import (
	"testing"
	"time"

	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/gcp"
	"fleetdesk/internal/testkit/gcefake"
)

// An API that does not wait, as it says it may when it is overloaded, is asked
// with pauses, and not as fast as it answers.
func TestWaitsThatAnswerAtOnce(t *testing.T) {
	t.Parallel() // it waits for most of its time
	w := newWorld(t, false, gcefake.Options{})
	defer w.HastyWaits()()
	thaw := w.Freeze()
	defer thaw()
	p, err := gcp.New(gcp.Options{Name: "cloud", Section: w.section, Secret: w.read, OperationWait: 3500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	s := specOf("hasty", w.Zones()[0])
	if in, err := p.Create(t.Context(), s); err != nil || in.State != provider.Provisioning {
		t.Errorf("Create = %+v, %v; want Provisioning", in, err)
	}
	// At 0, after 1 to 1.5, and after 3 to 4.5.
	if n := w.Calls()["zoneOperations.wait"]; n < 2 || n > 3 {
		t.Errorf("%d waits in 3.5 s; want two or three", n)
	}
	thaw()
	up(t, p, s)
}
