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

// ConditionProvider of a Proxy is there, and False, while the check of its
// provider or of its host finds something wrong: what the proxy does by itself
// goes on, and what it needs from there may not.
const ConditionProvider = "ProviderReachable"

// Condition types of a ProxyProvider.
const (
	// ConditionConfigured: what the providers file says of it is in force.
	ConditionConfigured = "Configured"
	// ConditionReachable: every host is well.
	ConditionReachable = "Reachable"
	// ConditionClean: there are no leftovers that wait for a person.
	ConditionClean = "Clean"
)

// ConditionAccepted of a ProxyPool: the desk hands its Proxies out under its
// name. Its message says what to mend when it is not so.
const ConditionAccepted = "Accepted"

// ConditionSettled of a ProxySet: there are as many Proxies as wanted, all of
// them made from the present template and working, and none is to be replaced.
// Its message says what it waits for.
const ConditionSettled = "Settled"

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

	// ReasonOK of a ProxyProvider's conditions: it is so.
	ReasonOK = "OK"
	// ReasonFileRefused: the providers file cannot be used; what it said before
	// is in force.
	ReasonFileRefused = "FileRefused"
	// ReasonSectionRefused: the provider's section cannot be used, and the
	// provider is disabled.
	ReasonSectionRefused = "SectionRefused"
	// ReasonRemoved: the providers file does not have it any more.
	ReasonRemoved = "Removed"
	// ReasonNotChecked: no check has ended yet.
	ReasonNotChecked = "NotCheckedYet"
	// ReasonNoCheck: this kind of provider has no check.
	ReasonNoCheck = "NoCheck"
	// ReasonCheckFailed: the check itself failed.
	ReasonCheckFailed = "CheckFailed"
	// ReasonHostsInTrouble: one or more hosts are not well.
	ReasonHostsInTrouble = "HostsInTrouble"
	// ReasonNotSwept: no sweep has ended yet.
	ReasonNotSwept = "NotSweptYet"
	// ReasonSweepFailed: the sweep could not look.
	ReasonSweepFailed = "SweepFailed"
	// ReasonSweepHeld: a sweep would remove so much that a person must say yes.
	ReasonSweepHeld = "SweepHeld"
	// ReasonDryRun: there are leftovers, and sweeps only report them.
	ReasonDryRun = "DryRun"
	// ReasonIdentityConflict: another live operator has this installation's
	// identity.
	ReasonIdentityConflict = "IdentityConflict"
	// ReasonAbandoned: instances were left to a person.
	ReasonAbandoned = "Abandoned"
	// ReasonOrphans: there are orphans, which go when their grace has passed.
	ReasonOrphans = "Orphans"

	// ReasonSettled of a ProxySet: nothing is to be done.
	ReasonSettled = "Settled"
	// ReasonScaling: Proxies are being made, or given up, to reach the number.
	ReasonScaling = "Scaling"
	// ReasonUpdating: Proxies are being replaced, since the template changed.
	ReasonUpdating = "Updating"
	// ReasonRotating: Proxies are being replaced for their age or for bans.
	ReasonRotating = "Rotating"
	// ReasonNotReady: Proxies do not work, and replacing them would not help.
	ReasonNotReady = "NotReady"
	// ReasonHeldBack: replacing waits for what its message names.
	ReasonHeldBack = "HeldBack"

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
		ReasonNameTaken, ReasonPending, ReasonOK, ReasonFileRefused, ReasonSectionRefused,
		ReasonRemoved, ReasonNotChecked, ReasonNoCheck, ReasonCheckFailed,
		ReasonHostsInTrouble, ReasonNotSwept, ReasonSweepFailed, ReasonSweepHeld,
		ReasonDryRun, ReasonIdentityConflict, ReasonAbandoned, ReasonOrphans,
		ReasonSettled, ReasonScaling, ReasonUpdating, ReasonRotating, ReasonNotReady, ReasonHeldBack,
		ReasonNotFound, ReasonConflict,
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
	// AbandonedFinalizer keeps a ProxyProvider while instances are written down
	// in it that were left to a person.
	AbandonedFinalizer = "crawl.example.com/abandoned"
	// ReleaseSweepAnnotation on a ProxyProvider, with the hash of its sweep's
	// report, lets the next sweep remove what the fuse holds back.
	ReleaseSweepAnnotation = "crawl.example.com/release-sweep"
	// RemoveAbandonedAnnotation on a ProxyProvider lists UIDs of abandoned
	// instances, separated by commas, that the next sweep shall remove.
	RemoveAbandonedAnnotation = "crawl.example.com/remove-abandoned"
	// SetFinalizer keeps a ProxySet until its Proxies are gone.
	SetFinalizer = "crawl.example.com/proxies"
	// TemplateLabel of a ProxySet's Proxy is a hash of the template that it was
	// made from.
	TemplateLabel = "crawl.example.com/template"
	// DefaultPool is the pool that a namespace has without a ProxyPool.
	DefaultPool = "default"
	// AuthUsernameKey and AuthPasswordKey are the keys of an authSecretRef.
	AuthUsernameKey = "username"
	AuthPasswordKey = "password"
)
