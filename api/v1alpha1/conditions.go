package v1alpha1

// Condition types of a Proxy.
const (
	// ConditionProvisioned: the instance exists and runs.
	ConditionProvisioned = "Provisioned"
	// ConditionHealthy: requests through the proxy succeed.
	ConditionHealthy = "Healthy"
	// ConditionReady: the proxy may be handed out. Its message is the first
	// thing to read when something is wrong.
	ConditionReady = "Ready"
	// ConditionOutdated: the spec changed since the instance was made; the
	// change applies at the next rebuild.
	ConditionOutdated = "Outdated"
)

// ConditionAccepted of a ProxyPool: the desk hands its Proxies out under its
// name. Its message says what to mend when it is not so.
const ConditionAccepted = "Accepted"

// Reasons of conditions: a closed list. [Reasons] returns all of them.
const (
	// ReasonReady: it works.
	ReasonReady = "Ready"
	// ReasonProvisioned: the instance runs.
	ReasonProvisioned = "Provisioned"
	// ReasonProvisioning: the instance is being made.
	ReasonProvisioning = "Provisioning"
	// ReasonRebuilding: the instance was gone and is being made again.
	ReasonRebuilding = "Rebuilding"
	// ReasonStopped: the instance exists, does not run, and is being started.
	ReasonStopped = "InstanceStopped"
	// ReasonImpaired: the instance is broken in a way that starting does not mend.
	ReasonImpaired = "InstanceImpaired"
	// ReasonUnknown: the instance exists and its provider cannot read it.
	ReasonUnknown = "InstanceUnknown"
	// ReasonInstanceDeleting: the instance is being removed by its provider.
	ReasonInstanceDeleting = "InstanceDeleting"
	// ReasonTerminating: the Proxy is being deleted.
	ReasonTerminating = "Terminating"
	// ReasonProviderNotFound: the providers config has no such provider.
	ReasonProviderNotFound = "ProviderNotFound"
	// ReasonProviderBroken: the provider's section of the config does not work.
	ReasonProviderBroken = "ProviderBroken"
	// ReasonReferenceNotFound: a Secret or ConfigMap, or a key of it, is missing.
	ReasonReferenceNotFound = "ReferenceNotFound"
	// ReasonNotProbed: no check has ended yet.
	ReasonNotProbed = "NotProbedYet"
	// ReasonProbePassed: requests through the proxy succeed.
	ReasonProbePassed = "ProbePassed"
	// ReasonShallowProbePassed: the proxy answers; no URL was there to fetch through it.
	ReasonShallowProbePassed = "ShallowProbePassed"
	// ReasonProbeFailed: requests through the proxy fail.
	ReasonProbeFailed = "ProbeFailed"
	// ReasonProbeInconclusive: the checked URL itself does not answer.
	ReasonProbeInconclusive = "ProbeInconclusive"
	// ReasonDraining: the Proxy is being deleted and waits for its lease to end.
	ReasonDraining = "Draining"
	// ReasonDuplicate: a second instance of this Proxy is elsewhere.
	ReasonDuplicate = "DuplicateInstance"
	// ReasonDeletionPending: the provider has been deleting for long.
	ReasonDeletionPending = "DeletionPending"
	// ReasonSecretChanged: the Secret of authSecretRef changed since the
	// instance was made with it.
	ReasonSecretChanged = "SecretChanged"
	// ReasonSpecChanged: the spec differs from what the instance was made from.
	ReasonSpecChanged = "SpecChanged"
	// ReasonUpToDate: the instance was made from the present spec.
	ReasonUpToDate = "UpToDate"

	// ReasonAccepted: the pool is in force.
	ReasonAccepted = "Accepted"
	// ReasonInvalidSelector: the pool's selector cannot be read.
	ReasonInvalidSelector = "InvalidSelector"
	// ReasonNameTaken: a published list of the desk has the pool's name.
	ReasonNameTaken = "NameTaken"
	// ReasonPending: the desk does not know of it yet.
	ReasonPending = "Pending"

	// The reasons of the error classes (core/fault), for a provider's errors.
	ReasonNotFound    = "NotFound"
	ReasonConflict    = "Conflict"
	ReasonInvalid     = "Invalid"
	ReasonDenied      = "Denied"
	ReasonPermanent   = "PermanentError"
	ReasonQuota       = "QuotaExceeded"
	ReasonTransient   = "TransientError"
	ReasonTimeout     = "Timeout"
	ReasonUnavailable = "Unavailable"
	ReasonUnsupported = "Unsupported"
)

// Reasons returns every reason that a condition can have.
func Reasons() []string {
	return []string{
		ReasonReady, ReasonProvisioned, ReasonProvisioning, ReasonRebuilding,
		ReasonStopped, ReasonImpaired, ReasonUnknown, ReasonInstanceDeleting,
		ReasonTerminating, ReasonProviderNotFound, ReasonProviderBroken,
		ReasonReferenceNotFound, ReasonNotProbed, ReasonProbePassed,
		ReasonShallowProbePassed, ReasonProbeFailed, ReasonProbeInconclusive,
		ReasonDraining, ReasonDuplicate, ReasonDeletionPending, ReasonSecretChanged,
		ReasonSpecChanged, ReasonUpToDate, ReasonAccepted, ReasonInvalidSelector,
		ReasonNameTaken, ReasonPending, ReasonNotFound, ReasonConflict,
		ReasonInvalid, ReasonDenied, ReasonPermanent, ReasonQuota,
		ReasonTransient, ReasonTimeout, ReasonUnavailable, ReasonUnsupported,
	}
}

// Names that objects carry.
const (
	// Finalizer keeps a Proxy until its instance is gone.
	Finalizer = "crawl.example.com/instance"
	// SkipCleanupAnnotation with the value "true" on a Proxy under deletion
	// lets it go at once and leaves its instance to a person.
	SkipCleanupAnnotation = "crawl.example.com/skip-cleanup"
	// DefaultPool is the pool that a namespace has without a ProxyPool.
	DefaultPool = "default"
	// AuthUsernameKey and AuthPasswordKey are the keys of an authSecretRef.
	AuthUsernameKey = "username"
	AuthPasswordKey = "password"
)
