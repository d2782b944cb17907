package gcefake_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"fleetdesk/internal/testkit/gcefake"
)

// The test binary is also the proxy of an instance.
const proxyArg = "test-gce-proxy"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == proxyArg {
		os.Exit(gcefake.Proxy(os.Args[2:], os.Stdin))
	}
	goleak.VerifyTestMain(m)
}
