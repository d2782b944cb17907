package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ProxyProvider shows one provider of the operator's providers file: whether
// its hosts answer, and what the last sweep for leftovers found. The operator
// writes it; nobody needs to. It is the first place to look when nothing is
// being created.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=pxprov,categories=fleetdesk
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.status.kind`
// +kubebuilder:printcolumn:name="Configured",type=string,JSONPath=`.status.conditions[?(@.type=="Configured")].status`
// +kubebuilder:printcolumn:name="Reachable",type=string,JSONPath=`.status.conditions[?(@.type=="Reachable")].status`
// +kubebuilder:printcolumn:name="Hosts",type=string,JSONPath=`.status.hostsOK`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.reason`
// +kubebuilder:printcolumn:name="Orphans",type=integer,JSONPath=`.status.sweep.orphans`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
type ProxyProvider struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Status ProxyProviderStatus `json:"status,omitempty"`
}

// ProxyProviderList is a list of ProxyProviders.
//
// +kubebuilder:object:root=true
type ProxyProviderList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ProxyProvider `json:"items"`
}

// ProxyProviderStatus is what the operator knows of the provider.
type ProxyProviderStatus struct {
	// kind is the provider's kind: local, kvm, and so on.
	//
	// +optional
	Kind string `json:"kind,omitempty"`
	// reason is the one word that says how it is: OK, or the reason of the
	// first thing to mend.
	//
	// +optional
	Reason string `json:"reason,omitempty"`
	// message says more of reason, and what to do.
	//
	// +optional
	Message string `json:"message,omitempty"`
	// hostsOK is how many of the hosts are well, as in "2/3".
	//
	// +optional
	HostsOK string `json:"hostsOK,omitempty"`
	// hosts are the rows of the last check; at most 500, those in trouble first.
	// One writer replaces them as a whole: the bookkeeping that Kubernetes adds
	// to each entry of a list by keys would outgrow what it is about.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=500
	// +optional
	Hosts []ProviderHost `json:"hosts,omitempty"`
	// sweep is what the last sweep for leftovers found.
	//
	// +optional
	Sweep *SweepReport `json:"sweep,omitempty"`
	// abandoned are instances whose Proxies went without them. The sweep leaves
	// them alone until a person asks for their removal.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2000
	// +optional
	Abandoned []AbandonedInstance `json:"abandoned,omitempty"`
	// conditions: Configured, Reachable, Clean.
	//
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ProviderHost is one host or zone of a provider, as of its last check.
type ProviderHost struct {
	// host is its name in the providers file.
	Host string `json:"host"`
	// reason is OK, or one of the provider's documented reasons.
	Reason string `json:"reason"`
	// message says more, and what to do.
	//
	// +optional
	Message string `json:"message,omitempty"`
	// version is the far side's own.
	//
	// +optional
	Version string `json:"version,omitempty"`
	// freeBytes is the free space of its storage.
	//
	// +optional
	FreeBytes int64 `json:"freeBytes,omitempty"`
	// lastCheck is when this was found out.
	LastCheck metav1.Time `json:"lastCheck"`
	// since is when the reason became what it is.
	Since metav1.Time `json:"since"`
}

// SweepReport is what one sweep found and did. An orphan is an instance with
// this installation's tag whose Proxy does not exist any more.
type SweepReport struct {
	// time is when the sweep ended.
	Time metav1.Time `json:"time"`
	// dryRun: it would not have removed anything.
	//
	// +optional
	DryRun bool `json:"dryRun,omitempty"`
	// instances is how many instances the hosts that answered have.
	Instances int32 `json:"instances"`
	// orphans is how many of them are orphans that were not abandoned.
	Orphans int32 `json:"orphans"`
	// removed is how many instances and other leftovers this sweep removed.
	Removed int32 `json:"removed"`
	// leftovers is how many things other than instances nothing uses.
	Leftovers int32 `json:"leftovers"`
	// unlisted are hosts that did not answer: nothing was removed there.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=50
	// +optional
	Unlisted []string `json:"unlisted,omitempty"`
	// hash names the set of orphans that the fuse holds back. The annotation
	// crawl.example.com/release-sweep with this value lets the sweep remove it.
	//
	// +optional
	Hash string `json:"hash,omitempty"`
	// items are the first 50 things found, and what becomes of each.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=50
	// +optional
	Items []SweepItem `json:"items,omitempty"`
	// message sums it up, for people.
	//
	// +optional
	Message string `json:"message,omitempty"`
}

// SweepItem is one thing that a sweep found.
type SweepItem struct {
	// what it is: instance, image, disk, and so on.
	What string `json:"what"`
	// host is where it is.
	Host string `json:"host"`
	// id names it: a providerID, or the name of a volume.
	ID string `json:"id"`
	// proxy is the namespace and name in an instance's tag.
	//
	// +optional
	Proxy string `json:"proxy,omitempty"`
	// verdict is what becomes of it: Waiting, Due, Removed, Removing, Failed,
	// Held, Abandoned, Unreadable.
	Verdict string `json:"verdict"`
	// message says why.
	//
	// +optional
	Message string `json:"message,omitempty"`
}

// AbandonedInstance is an instance that was left to a person.
type AbandonedInstance struct {
	// uid is the Proxy's.
	UID string `json:"uid"`
	// proxy is the Proxy's namespace and name.
	Proxy string `json:"proxy"`
	// providerID names the instance; empty when none was known.
	//
	// +optional
	ProviderID string `json:"providerID,omitempty"`
	// host is where it was placed; empty when it was not placed.
	//
	// +optional
	Host string `json:"host,omitempty"`
	// reason says who or what let it go.
	Reason string `json:"reason"`
	// time is when.
	Time metav1.Time `json:"time"`
}
