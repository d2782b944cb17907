package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ProxyPool is a set of Proxies of its namespace that are handed out together,
// and how they rest between uses. The desk knows it as "<namespace>.<name>".
//
// A pool named "default" is in every namespace that has Proxies, with all of
// them, also without such an object; an object of that name sets its times.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=pxp,categories=fleetdesk
// +kubebuilder:printcolumn:name="Proxies",type=integer,JSONPath=`.status.proxies`
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name="Exit IPs",type=integer,JSONPath=`.status.exitIPs`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Scope",type=string,JSONPath=`.spec.scope`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule=`self.metadata.name != "default" || !has(self.spec) || !has(self.spec.selector) || (!has(self.spec.selector.matchExpressions) || size(self.spec.selector.matchExpressions) == 0) && (!has(self.spec.selector.matchLabels) || size(self.spec.selector.matchLabels) == 0)`,message="the pool default has every Proxy of its namespace: leave its selector out, or name the pool otherwise",fieldPath=".spec.selector"
type ProxyPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +kubebuilder:default={}
	// +optional
	Spec   ProxyPoolSpec   `json:"spec,omitempty"`
	Status ProxyPoolStatus `json:"status,omitempty"`
}

// ProxyPoolList is a list of ProxyPools.
//
// +kubebuilder:object:root=true
type ProxyPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ProxyPool `json:"items"`
}

// ProxyPoolSpec is the pool that somebody wants.
type ProxyPoolSpec struct {
	// selector chooses Proxies of this namespace by their labels; without one
	// the pool has all of them.
	//
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// leaseTime bounds how long one holder has a proxy without renewing.
	//
	// +kubebuilder:default={}
	// +optional
	LeaseTime LeaseTime `json:"leaseTime,omitempty"`

	// cooldown is the rest after each use: for the target that the lease named,
	// or of the whole proxy when it named none. At most 720h.
	//
	// +kubebuilder:default="0s"
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('720h')",message="cooldown must be at most 720h"
	// +optional
	Cooldown Duration `json:"cooldown,omitempty"`

	// banCooldown is the rest for a target that banned the proxy.
	//
	// +kubebuilder:default={}
	// +optional
	BanCooldown BanCooldown `json:"banCooldown,omitempty"`

	// scope is what rests after a use or a ban: the proxy alone (key), or every
	// proxy that leaves by the same address (exitIP), since to a target they
	// are one.
	//
	// +kubebuilder:default=key
	// +optional
	Scope Scope `json:"scope,omitempty"`

	// inFlight is how many uses of a proxy (with scope exitIP: of an exit IP) for
	// one target may be under way at once; without it, or with 0, any number. A
	// quick pick counts until it is reported, or for leaseTime.default.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	// +optional
	InFlight int32 `json:"inFlight,omitempty"`

	// newShare is how many of a hundred picks for a target go first to proxies
	// that came into the pool since and were never used for it; the others wait
	// for their turn at the end of the line. Default 10.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=10
	// +optional
	NewShare *int32 `json:"newShare,omitempty"`

	// targets is what rests count by: the host of a target, or its site, which
	// is the registrable domain by the public suffix list (www.shop.example.com
	// and example.com are one site).
	//
	// +kubebuilder:default=Host
	// +optional
	Targets TargetsBy `json:"targets,omitempty"`

	// leaks is whether the pool has proxies that tell sites by headers that they
	// are proxies. Refuse leaves them out, and those of which no origin told yet.
	//
	// +kubebuilder:default=Allow
	// +optional
	Leaks LeakPolicy `json:"leaks,omitempty"`

	// drainTimeout is how long a deleted Proxy waits for its lease to end before
	// its machine is removed all the same; of a Proxy's pools the longest
	// counts. At most 24h.
	//
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('24h')",message="drainTimeout must be at most 24h"
	// +optional
	DrainTimeout Duration `json:"drainTimeout,omitempty"`
}

// LeaseTime bounds how long one holder has a proxy without renewing.
//
// +kubebuilder:validation:XValidation:rule="!has(self.default) || !has(self.max) || duration(self.default) <= duration(self.max)",message="default must not be above max"
type LeaseTime struct {
	// default is the time of a lease whose taker names none; 5s to 24h. When it
	// is left out: 10m, or max where that is shorter.
	//
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('5s') && duration(self) <= duration('24h')",message="default must be between 5s and 24h"
	// +optional
	Default Duration `json:"default,omitempty"`
	// max is the longest time that a taker may ask for; 5s to 24h.
	//
	// +kubebuilder:default="24h"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('5s') && duration(self) <= duration('24h')",message="max must be between 5s and 24h"
	// +optional
	Max Duration `json:"max,omitempty"`
}

// BanCooldown is the rest of a proxy for a target that banned it. It grows with
// each ban in a row: initial, initial × factor, initial × factor², up to max.
//
// +kubebuilder:validation:XValidation:rule="!has(self.initial) || !has(self.max) || duration(self.initial) <= duration(self.max)",message="initial must not be above max"
type BanCooldown struct {
	// initial is the rest after the first ban, at most 720h; 0s switches rests
	// after bans off.
	//
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('720h')",message="initial must be at most 720h"
	// +optional
	Initial Duration `json:"initial,omitempty"`
	// factor multiplies the rest for each further ban.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=2
	// +optional
	Factor int32 `json:"factor,omitempty"`
	// max bounds the rest, itself at most 720h.
	//
	// +kubebuilder:default="24h"
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('720h')",message="max must be at most 720h"
	// +optional
	Max Duration `json:"max,omitempty"`
}

// Scope is what rests after a use or a ban.
//
// +kubebuilder:validation:Enum=key;exitIP
type Scope string

// The scopes.
const (
	ScopeKey    Scope = "key"
	ScopeExitIP Scope = "exitIP"
)

// TargetsBy is what rests count by.
//
// +kubebuilder:validation:Enum=Host;Site
type TargetsBy string

// What rests count by.
const (
	TargetsByHost TargetsBy = "Host"
	TargetsBySite TargetsBy = "Site"
)

// LeakPolicy is whether a pool has proxies that tell sites what they are.
//
// +kubebuilder:validation:Enum=Allow;Refuse
type LeakPolicy string

// The policies.
const (
	LeaksAllow  LeakPolicy = "Allow"
	LeaksRefuse LeakPolicy = "Refuse"
)

// ProxyPoolStatus is what the operator knows of the pool.
type ProxyPoolStatus struct {
	// proxies is how many Proxies the pool has.
	//
	// +optional
	Proxies int32 `json:"proxies"`
	// ready is how many of them work: these are handed out unless somebody
	// holds them or they rest, which the desk knows.
	//
	// +optional
	Ready int32 `json:"ready"`
	// exitIPs is how many addresses the Ready ones leave by, as far as known.
	//
	// +optional
	ExitIPs int32 `json:"exitIPs,omitempty"`
	// refused is how many are left out because they leak, or may.
	//
	// +optional
	Refused int32 `json:"refused,omitempty"`
	// observedGeneration is the generation of the spec that this status answers.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions: Accepted.
	//
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
