package fleet_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	"fleetdesk/config/crd"
	"fleetdesk/internal/platform/obs"
	"fleetdesk/internal/proxy/provider/local"
	"fleetdesk/internal/testkit/kube"
)

// drillFor is how long the random drills go on.
var drillFor = flag.Duration("for", 15*time.Second, "how long random drills go on")

// cluster is the API server of the tests that are not told otherwise.
var cluster = kube.Shared(kube.Options{CRDs: crd.Bases})

// TestMain also is the main function of an operator that is killed, and of its
// local proxies.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		var run func(context.Context) error
		switch os.Args[1] {
		case "local-proxy":
			run = func(ctx context.Context) error { return local.Serve(ctx, os.Args[2:], os.Stderr) }
		case "operator":
			run = func(ctx context.Context) error { return child(ctx, os.Args[2]) }
		}
		if run != nil {
			if err := run(context.Background()); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			return
		}
	}
	ctrl.SetLogger(obs.Logr(slog.New(slog.DiscardHandler)))
	os.Exit(within(cluster.Around(m)).Run())
}

// tests is what runs all tests, such as a *testing.M.
type tests interface{ Run() int }
