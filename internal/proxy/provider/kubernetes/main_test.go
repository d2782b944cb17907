package kubernetes_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"fleetdesk/internal/testkit/kube"
	"fleetdesk/internal/testkit/kubelet"
)

var cluster = kube.Shared(kube.Options{})

func TestMain(m *testing.M) {
	kubelet.Child(os.Args)
	goleak.VerifyTestMain(cluster.Around(m))
}
