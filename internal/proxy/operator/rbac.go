package operator

// What the operator may do in a cluster, from which config/rbac is generated:
// Proxies (those of ProxySets it makes and deletes) and their status, ProxySets
// (their finalizer) and their status, ProxyPools (read) and their status, ProxyProviders,
// which are its own, and their status, Secrets and ConfigMaps that Proxies refer to (read), Events, and in its own namespace the
// leader's Lease and the Secret of the first admin token.
//
// +kubebuilder:rbac:groups=crawl.example.com,resources=proxies,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=crawl.example.com,resources=proxysets,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=crawl.example.com,resources=proxypools,verbs=get;list;watch
// +kubebuilder:rbac:groups=crawl.example.com,resources=proxyproviders,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=crawl.example.com,resources=proxies/status;proxypools/status;proxyproviders/status;proxysets/status,verbs=update
// +kubebuilder:rbac:groups="",resources=secrets;configmaps,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=namespaces,resourceNames=kube-system,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups="",resources=secrets,namespace=fleetdesk-system,verbs=create
// +kubebuilder:rbac:groups="",resources=events,namespace=fleetdesk-system,verbs=create;patch
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,namespace=fleetdesk-system,verbs=get;create;update
