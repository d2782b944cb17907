package controlplane

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/clusterroleaggregation"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	namespacecontroller "k8s.io/kubernetes/pkg/controller/namespace"
	serviceaccountcontroller "k8s.io/kubernetes/pkg/controller/serviceaccount"

	"fleetdesk/internal/core/fault"
)

// controllers are the running controllers.
type controllers struct{ group sync.WaitGroup }

// startControllers runs the four controllers without which an API server is
// not what its users expect: deletion of namespaces, garbage collection by
// owner, default service accounts, aggregation of cluster roles. They run
// until ctx ends.
func startControllers(ctx context.Context, loopback *rest.Config) (*controllers, error) {
	log := klog.FromContext(ctx)
	cfg := rest.CopyConfig(loopback)
	cfg.QPS, cfg.Burst = -1, -1 // the server is in this process and has its own fairness
	kc, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fault.Errorf(fault.Permanent, "controllers: %w", err)
	}
	mc, err := metadata.NewForConfig(cfg)
	if err != nil {
		return nil, fault.Errorf(fault.Permanent, "controllers: %w", err)
	}
	inf := informers.NewSharedInformerFactory(kc, 0)
	meta := metadatainformer.NewSharedInformerFactory(mc, 0)
	started := make(chan struct{})

	namespaces := namespacecontroller.NewNamespaceController(ctx, kc, mc,
		kc.Discovery().ServerPreferredNamespacedResources, inf.Core().V1().Namespaces(), 5*time.Minute, corev1.FinalizerKubernetes)
	accounts, err := serviceaccountcontroller.NewServiceAccountsController(log,
		inf.Core().V1().ServiceAccounts(), inf.Core().V1().Namespaces(), kc, serviceaccountcontroller.DefaultServiceAccountsControllerOptions())
	if err != nil {
		return nil, fault.Errorf(fault.Permanent, "controllers: %w", err)
	}
	roles := clusterroleaggregation.NewClusterRoleAggregation(inf.Rbac().V1().ClusterRoles(), kc.RbacV1())
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(kc.Discovery()))
	collector, err := garbagecollector.NewGarbageCollector(ctx, kc, mc, mapper,
		garbagecollector.DefaultIgnoredResources(), informerfactory.NewInformerFactory(inf, meta), started)
	if err != nil {
		return nil, fault.Errorf(fault.Permanent, "controllers: %w", err)
	}

	inf.Start(ctx.Done())
	meta.Start(ctx.Done())
	close(started)
	c := &controllers{}
	c.group.Go(func() { namespaces.Run(ctx, 2) })
	c.group.Go(func() { accounts.Run(ctx, 1) })
	c.group.Go(func() { roles.Run(ctx, 1) })
	c.group.Go(func() { collector.Run(ctx, 4, 30*time.Second) })
	c.group.Go(func() { collector.Sync(ctx, kc.Discovery(), 5*time.Second) })
	c.group.Go(func() { <-ctx.Done(); inf.Shutdown(); meta.Shutdown() })
	return c, nil
}

// wait reports whether all controllers ended within d.
func (c *controllers) wait(d time.Duration) bool {
	done := make(chan struct{})
	go func() { c.group.Wait(); close(done) }()
	select {
	case <-done:
		return true
	case <-time.After(d):
		return false
	}
}
