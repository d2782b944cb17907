// Package provider is the contract between the operator and whatever makes
// machines: libvirt hosts, clouds, clusters, processes.
//
// docs/providers.md states each MUST as a numbered clause (P-CRE-1 …) with the
// reaction of the reconciler that it protects; the conformance suite
// providertest has a subtest for each, and a provider is not done until it
// passes. Specs that cross the contract are neutral: no Kubernetes type is in
// them, so that a provider runs without a cluster.
//
// Errors carry a class of core/fault; [Class] reads it, and an error that
// nobody classed is Transient.
package provider
