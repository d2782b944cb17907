package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Proxy is one egress proxy: a machine that a provider makes, that the
// operator checks and repairs, and whose address is handed out.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=px,categories=fleetdesk
// +kubebuilder:printcolumn:name="Provider",type=string,JSONPath=`.spec.provider`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Address",type=string,JSONPath=`.status.address`
// +kubebuilder:printcolumn:name="Port",type=integer,JSONPath=`.status.port`,priority=1
// +kubebuilder:printcolumn:name="Exit IP",type=string,JSONPath=`.status.exitIP`
// +kubebuilder:printcolumn:name="Shared",type=integer,JSONPath=`.status.exitIPShared`,priority=1
// +kubebuilder:printcolumn:name="Leaks",type=string,JSONPath=`.status.leaks`,priority=1
// +kubebuilder:printcolumn:name="Host",type=string,JSONPath=`.status.host`,priority=1
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule=`self.spec.provider == oldSelf.spec.provider`,message="provider is immutable: create another Proxy, then delete this one",fieldPath=".spec.provider"
// +kubebuilder:validation:XValidation:rule=`(has(self.spec.placement) && has(self.spec.placement.image) ? self.spec.placement.image : "") == (has(oldSelf.spec.placement) && has(oldSelf.spec.placement.image) ? oldSelf.spec.placement.image : "")`,message="placement.image is immutable: create another Proxy, then delete this one",fieldPath=".spec.placement"
type Proxy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   ProxySpec   `json:"spec"`
	Status ProxyStatus `json:"status,omitempty"`
}

// ProxyList is a list of Proxies.
//
// +kubebuilder:object:root=true
type ProxyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Proxy `json:"items"`
}

// ProxySpec is the proxy that somebody wants.
type ProxySpec struct {
	// provider names an entry of the operator's providers config. Immutable.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Provider string `json:"provider"`

	// placement says where the machine is made and from what.
	//
	// +optional
	Placement *Placement `json:"placement,omitempty"`

	// resources is the machine's size; what is left out is the provider's default.
	//
	// +optional
	Resources *Resources `json:"resources,omitempty"`

	// cloudInit is handed to the machine byte for byte, in any cloud-init
	// format. It is never parsed.
	//
	// +optional
	CloudInit *CloudInit `json:"cloudInit,omitempty"`

	// port is where the proxy listens. A provider that must choose another one
	// says so in status.port, which is authoritative.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +kubebuilder:default=3128
	// +optional
	Port int32 `json:"port,omitempty"`

	// protocol is what clients speak to the proxy.
	//
	// +kubebuilder:default=http
	// +optional
	Protocol Protocol `json:"protocol,omitempty"`

	// authSecretRef names a Secret of this namespace with the keys "username"
	// and "password" (type kubernetes.io/basic-auth) that clients of this proxy
	// present.
	//
	// +optional
	AuthSecretRef *LocalSecretRef `json:"authSecretRef,omitempty"`

	// healthCheck is the request sent through the proxy.
	//
	// +kubebuilder:default={}
	// +optional
	HealthCheck HealthCheck `json:"healthCheck,omitempty"`
}

// Protocol is what clients speak to a proxy.
//
// +kubebuilder:validation:Enum=http;https;socks5
type Protocol string

// The protocols of a Proxy.
const (
	ProtocolHTTP   Protocol = "http"
	ProtocolHTTPS  Protocol = "https"
	ProtocolSOCKS5 Protocol = "socks5"
)

// Placement says where a machine is made and from what, in the provider's own
// terms.
type Placement struct {
	// image is a key of the provider's images, or a direct URL, family or
	// reference. Immutable.
	//
	// +kubebuilder:validation:MaxLength=2048
	// +optional
	Image string `json:"image,omitempty"`
	// host is the provider's host; when empty the provider chooses, and
	// status.host keeps the choice.
	//
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Host string `json:"host,omitempty"`
	// zone is the provider's zone.
	//
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Zone string `json:"zone,omitempty"`
	// nodeSelector narrows the nodes of a provider that has nodes.
	//
	// +kubebuilder:validation:MaxProperties=32
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
}

// Resources is a machine's size in Kubernetes quantities.
type Resources struct {
	// +kubebuilder:validation:XValidation:rule="type(self) == string ? quantity(self).isGreaterThan(quantity('0')) : self > 0",message="cpus must be above 0"
	// +optional
	CPUs *resource.Quantity `json:"cpus,omitempty"`
	// +kubebuilder:validation:XValidation:rule="type(self) == string ? quantity(self).isGreaterThan(quantity('0')) : self > 0",message="memory must be above 0"
	// +optional
	Memory *resource.Quantity `json:"memory,omitempty"`
	// +kubebuilder:validation:XValidation:rule="type(self) == string ? quantity(self).isGreaterThan(quantity('0')) : self > 0",message="disk must be above 0"
	// +optional
	Disk *resource.Quantity `json:"disk,omitempty"`
}

// CloudInit is user-data for the machine; exactly one source is given.
//
// +kubebuilder:validation:XValidation:rule="[has(self.inline), has(self.secretRef), has(self.configMapRef)].filter(x, x).size() == 1",message="give exactly one of inline, secretRef and configMapRef"
type CloudInit struct {
	// inline is the data itself. Binary data (gzip) comes from a Secret or ConfigMap.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=262144
	// +optional
	Inline string `json:"inline,omitempty"`
	// +optional
	SecretRef *KeyRef `json:"secretRef,omitempty"`
	// +optional
	ConfigMapRef *KeyRef `json:"configMapRef,omitempty"`
}

// KeyRef is one key of a Secret or ConfigMap of the same namespace.
type KeyRef struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key"`
}

// LocalSecretRef names a Secret of the same namespace.
type LocalSecretRef struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// HealthCheck is the request sent through the proxy, and when its answers
// change the verdict.
//
// +kubebuilder:validation:XValidation:rule="!has(self.timeout) || !has(self.interval) || duration(self.timeout) <= duration(self.interval)",message="timeout must not be above interval"
type HealthCheck struct {
	// url is requested through the proxy. Default: the operator's
	// --health-check-url, else its own origin endpoint; with neither the check
	// is shallow and says so.
	//
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:Pattern=`^https?://[^\s]+$`
	// +optional
	URL string `json:"url,omitempty"`
	// expectedStatus is the HTTP status that means the proxy works.
	//
	// +kubebuilder:validation:Minimum=100
	// +kubebuilder:validation:Maximum=599
	// +kubebuilder:default=204
	// +optional
	ExpectedStatus int32 `json:"expectedStatus,omitempty"`
	// interval is the time from one check to the next, such as 30s; 1s to 24h.
	//
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="interval must be between 1s and 24h"
	// +optional
	Interval Duration `json:"interval,omitempty"`
	// timeout bounds one check, such as 5s; at most the interval. Default: 5s,
	// or the interval where that is shorter.
	//
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('100ms') && duration(self) <= duration('5m')",message="timeout must be between 100ms and 5m"
	// +optional
	Timeout Duration `json:"timeout,omitempty"`
	// failureThreshold is how many failures in a row make the proxy Unhealthy.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=3
	// +optional
	FailureThreshold int32 `json:"failureThreshold,omitempty"`
	// successThreshold is how many passes in a row make it healthy again.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=1
	// +optional
	SuccessThreshold int32 `json:"successThreshold,omitempty"`
}

// Duration is a time span as text: 500ms, 30s, 5m, 1h30m.
//
// +kubebuilder:validation:MaxLength=32
// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
type Duration string

// Phase sums a Proxy up in one word.
//
// +kubebuilder:validation:Enum=Pending;Provisioning;Ready;Unhealthy;Failed;Terminating
type Phase string

// The phases of a Proxy.
const (
	PhasePending      Phase = "Pending"
	PhaseProvisioning Phase = "Provisioning"
	PhaseReady        Phase = "Ready"
	PhaseUnhealthy    Phase = "Unhealthy"
	PhaseFailed       Phase = "Failed"
	PhaseTerminating  Phase = "Terminating"
)

// ProxyStatus is what the operator knows of the proxy.
type ProxyStatus struct {
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// providerID names the instance at its provider.
	//
	// +optional
	ProviderID string `json:"providerID,omitempty"`
	// host is where the instance is made; written before it is made, so that a
	// crash cannot put a second one elsewhere.
	//
	// +optional
	Host string `json:"host,omitempty"`
	// address and port are how clients reach the proxy.
	//
	// +optional
	Address string `json:"address,omitempty"`
	// +optional
	Port int32 `json:"port,omitempty"`
	// exitIP is the address that origins see, as the health URL tells it: the first
	// one at once, another when two checks in a row are told the same.
	//
	// +optional
	ExitIP string `json:"exitIP,omitempty"`
	// exitIPShared is how many other Proxies of the namespace leave by the same
	// address: to a site they are one.
	//
	// +optional
	ExitIPShared int32 `json:"exitIPShared,omitempty"`
	// leaks are the headers with which the proxy tells sites that it is one, as
	// the origin last saw them: of Forwarded, Via, X-Forwarded-For and their
	// like. Absent while no origin told; empty when there are none.
	//
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=64
	// +listType=set
	// +optional
	Leaks *[]string `json:"leaks,omitempty"`
	// latencyMilliseconds is how long a request through the proxy takes to its
	// first byte, rounded up to 125, 250, 500, 1000, 2000, 4000 or 8000; absent
	// while unknown.
	//
	// +optional
	LatencyMilliseconds int32 `json:"latencyMilliseconds,omitempty"`
	// checksPassedPercent is how many of the last checks passed, rounded down to
	// 0, 25, 50, 75, 90 or 100; absent while unknown.
	//
	// +optional
	ChecksPassedPercent *int32 `json:"checksPassedPercent,omitempty"`
	// appliedSpec is a hash of the parts of the spec that the instance is made
	// from, stored before it is made; a live spec with another hash sets the
	// condition Outdated.
	//
	// +optional
	AppliedSpec string `json:"appliedSpec,omitempty"`
	// appliedSecret is the version of the Secret of authSecretRef that the
	// instance was made with.
	//
	// +optional
	AppliedSecret string `json:"appliedSecret,omitempty"`
	// provisioningSince is when making the instance began; absent while it runs.
	//
	// +optional
	ProvisioningSince *metav1.Time `json:"provisioningSince,omitempty"`
	// observedGeneration is the generation of the spec that this status answers.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions: Provisioned, Healthy, Ready, Outdated.
	//
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
