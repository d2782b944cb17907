// Package e2e drives the built programs as real processes, as their users do.
// The binaries come from `make standalone kube-assets`.
package e2e
