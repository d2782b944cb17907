package fake_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"fleetdesk/internal/proxy/provider/fake"
	"fleetdesk/internal/proxy/provider/providertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const limit = 300 * time.Millisecond

func TestConformance(t *testing.T) {
	hosts := []string{"h1", "h2", "h3"}
	p := fake.New(fake.Options{Hosts: hosts, StepLimit: limit})
	providertest.Run(t, providertest.ForFake(p, hosts, limit))
	if left := p.Machines(); len(left) > 0 {
		t.Errorf("the suite left %d machines: %+v", len(left), left)
	}
}

func TestConformanceOneHostOneCall(t *testing.T) {
	p := fake.New(fake.Options{StagesPerCall: 5, StepLimit: limit})
	providertest.Run(t, providertest.ForFake(p, []string{"fake-1"}, limit))
}
