// Package providertest is the conformance suite of the provider contract: one
// subtest for each numbered clause of docs/providers.md, run against every
// provider, the fake and the decorated ones.
//
// A back end describes itself by a [Harness] and calls [Run]. The suite drives
// Create and Delete by repeated calls, as the reconciler does, interrupts them
// at every step with provider.WithStepHook, and looks at the back end through
// the harness for what an interrupted call left behind.
package providertest
