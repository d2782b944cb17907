// Package proxy is the controller of Proxy objects: it makes each one's
// instance, follows it, repairs it, and removes it.
//
// A reconcile observes anew (what the inventory or a direct Get says now, what
// the probe says now), takes at most one bounded step at the provider, and
// writes status once. It never trusts a condition that an earlier reconcile
// wrote. Failures become conditions and a pause by their class; nothing is
// retried in a hot loop.
package proxy
