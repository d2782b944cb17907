package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// ProxySet keeps a number of alike Proxies: it makes them from a template,
// replaces them when the template changes, when they are old or when targets
// ban them, and gives up those that are too many. It never replaces one because
// its provider is away or its configuration is wrong.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:resource:shortName=pxs,categories=fleetdesk
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=`.spec.replicas`
// +kubebuilder:printcolumn:name="Current",type=integer,JSONPath=`.status.replicas`
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=`.status.readyReplicas`
// +kubebuilder:printcolumn:name="Updated",type=integer,JSONPath=`.status.updatedReplicas`
// +kubebuilder:printcolumn:name="Banned",type=integer,JSONPath=`.status.bannedReplicas`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Settled")].reason`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Settled")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule=`size(self.metadata.name) <= 52`,message="the name must have at most 52 characters: its Proxies' names add eleven"
type ProxySet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   ProxySetSpec   `json:"spec"`
	Status ProxySetStatus `json:"status,omitempty"`
}

// ProxySetList is a list of ProxySets.
//
// +kubebuilder:object:root=true
type ProxySetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ProxySet `json:"items"`
}

// ProxySetSpec is the set that somebody wants.
//
// +kubebuilder:validation:XValidation:rule=`has(self.template.metadata) && has(self.template.metadata.labels) && self.selector.matchLabels.all(k, k in self.template.metadata.labels && self.template.metadata.labels[k] == self.selector.matchLabels[k])`,message="the selector does not match the template: give the template's labels those of selector.matchLabels",fieldPath=".selector"
type ProxySetSpec struct {
	// replicas is how many Proxies there are to be.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	// +kubebuilder:default=1
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`

	// selector is by which labels the set's Proxies are found, for autoscalers
	// and people; it must match the template's labels. Which Proxies are the
	// set's own is told by their owner alone. Immutable.
	//
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="selector is immutable: make another ProxySet, then delete this one"
	Selector SetSelector `json:"selector"`

	// template is what the Proxies are made from.
	Template ProxyTemplate `json:"template"`

	// update bounds how fast Proxies are replaced, for whatever reason.
	//
	// +kubebuilder:default={}
	// +optional
	Update ProxySetUpdate `json:"update,omitempty"`

	// rotation replaces Proxies that work; without it none is.
	//
	// +optional
	Rotation *Rotation `json:"rotation,omitempty"`
}

// SetSelector finds the Proxies of a set by labels.
type SetSelector struct {
	// matchLabels are labels with their values, one at least.
	//
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=16
	MatchLabels map[string]LabelValue `json:"matchLabels"`
}

// LabelValue is the value of a label.
//
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$`
type LabelValue string

// ProxyTemplate is a Proxy without a name.
type ProxyTemplate struct {
	// +optional
	Metadata ProxyTemplateMeta `json:"metadata,omitempty"`
	Spec     ProxySpec         `json:"spec"`
}

// ProxyTemplateMeta is what the Proxies carry.
//
// +kubebuilder:validation:XValidation:rule="!has(self.labels) || self.labels.all(k, k.matches('^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",message="a label's name has letters, digits, '-', '_' and '.', at most 63, and may follow a DNS name and '/'",fieldPath=".labels"
// +kubebuilder:validation:XValidation:rule="!has(self.labels) || self.labels.all(k, !k.startsWith('crawl.example.com/'))",message="labels of crawl.example.com/ are the operator's own: leave them out",fieldPath=".labels"
// +kubebuilder:validation:XValidation:rule="!has(self.annotations) || self.annotations.all(k, k.matches('^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",message="an annotation's name has letters, digits, '-', '_' and '.', at most 63, and may follow a DNS name and '/'",fieldPath=".annotations"
// +kubebuilder:validation:XValidation:rule="!has(self.annotations) || self.annotations.all(k, !k.startsWith('crawl.example.com/'))",message="annotations of crawl.example.com/ ask something of one Proxy, such as to leave its machine behind: leave them out",fieldPath=".annotations"
type ProxyTemplateMeta struct {
	// +kubebuilder:validation:MaxProperties=64
	// +optional
	Labels map[string]LabelValue `json:"labels,omitempty"`
	// +kubebuilder:validation:MaxProperties=64
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// ProxySetUpdate bounds replacements: there are never fewer Ready Proxies than
// replicas − maxUnavailable because of them, nor more Proxies than replicas +
// maxSurge, those that are being deleted counted until they are gone. Where
// percentages make both 0, one may be missing.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.maxUnavailable) && has(self.maxSurge) && (self.maxUnavailable == 0 || self.maxUnavailable == '0%') && (self.maxSurge == 0 || self.maxSurge == '0%'))",message="maxUnavailable and maxSurge must not both be 0: nothing could ever be replaced"
type ProxySetUpdate struct {
	// maxUnavailable is how many may be missing while Proxies are replaced: a
	// number, or a percentage of replicas, rounded down. With 0 a replacement is
	// Ready before the old one goes.
	//
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^(100|[0-9]{1,2})%$`
	// +kubebuilder:validation:XValidation:rule="type(self) == string || self >= 0 && self <= 10000",message="maxUnavailable must be a number from 0 to 10000, or a percentage up to 100%"
	// +kubebuilder:default=0
	// +optional
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// maxSurge is how many more than replicas there may be meanwhile: a number,
	// or a percentage of replicas, rounded up.
	//
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^(100|[0-9]{1,2})%$`
	// +kubebuilder:validation:XValidation:rule="type(self) == string || self >= 0 && self <= 10000",message="maxSurge must be a number from 0 to 10000, or a percentage up to 100%"
	// +kubebuilder:default=1
	// +optional
	MaxSurge *intstr.IntOrString `json:"maxSurge,omitempty"`
}

// Rotation replaces Proxies that work.
//
// +kubebuilder:validation:XValidation:rule="has(self.maxAge) || has(self.byBan)",message="name maxAge, byBan or both"
type Rotation struct {
	// maxAge is how old a Proxy becomes, counted from its creation; 10m to
	// 8760h.
	//
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10m') && duration(self) <= duration('8760h')",message="maxAge must be between 10m and 8760h: making a machine takes minutes"
	// +optional
	MaxAge Duration `json:"maxAge,omitempty"`
	// jitter is by how many percent of maxAge a Proxy's own age limit is shorter
	// at most, so that Proxies of one age do not all go at once.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=50
	// +kubebuilder:default=10
	// +optional
	Jitter *int32 `json:"jitter,omitempty"`
	// byBan replaces Proxies whose exit IP is banned.
	//
	// +optional
	ByBan *RotationByBan `json:"byBan,omitempty"`
}

// RotationByBan replaces Proxies whose exit IP is banned by targets, unless the
// replacement would leave by the same address.
type RotationByBan struct {
	// targets is how many targets must ban the exit IP at the same time.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	// +kubebuilder:default=3
	// +optional
	Targets int32 `json:"targets,omitempty"`
	// perHour is how many Proxies are replaced for bans in an hour at most.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	// +kubebuilder:default=4
	// +optional
	PerHour int32 `json:"perHour,omitempty"`
}

// BanDecision is the decision to replace a Proxy because targets ban it.
type BanDecision struct {
	// proxy is its name, exitIP the address that it left by as far as known.
	//
	// +kubebuilder:validation:MaxLength=253
	Proxy string `json:"proxy"`
	// +kubebuilder:validation:MaxLength=45
	// +optional
	ExitIP string `json:"exitIP,omitempty"`
	// at is when it was decided.
	At metav1.Time `json:"at"`
}

// SetLabel of a ProxySet's Proxy is the set's name, for people and for finding
// them. Whose a Proxy is, its owner says alone.
const SetLabel = "crawl.example.com/set"

// ProxySetStatus is what the operator knows of the set.
type ProxySetStatus struct {
	// replicas is how many Proxies there are, those that are being deleted left
	// out; readyReplicas how many of them work, updatedReplicas how many are made
	// from the present template, bannedReplicas how many have an exit IP that so
	// many targets ban as rotation.byBan names (3 without it).
	//
	// +optional
	Replicas int32 `json:"replicas"`
	// +optional
	ReadyReplicas int32 `json:"readyReplicas"`
	// +optional
	UpdatedReplicas int32 `json:"updatedReplicas"`
	// +optional
	BannedReplicas int32 `json:"bannedReplicas"`
	// terminatingReplicas is how many are being deleted.
	//
	// +optional
	TerminatingReplicas int32 `json:"terminatingReplicas,omitempty"`
	// selector is the spec's as text, for autoscalers.
	//
	// +optional
	Selector string `json:"selector,omitempty"`
	// banned are the decisions of the last hour to replace a Proxy for bans, and
	// earlier ones whose replacement leaves by the same address, which is banned
	// still: for that one no other is replaced.
	//
	// +kubebuilder:validation:MaxItems=1000
	// +listType=atomic
	// +optional
	Banned []BanDecision `json:"banned,omitempty"`
	// observedGeneration is the generation of the spec that this status answers.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions: Settled.
	//
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
