// Package gcp makes proxies as virtual machines of Google Compute Engine.
//
// An instance is one Compute Engine instance with one boot disk, which goes with
// it. Its name is derived from the installation and the Proxy's UID, so that a
// second one cannot be; labels carry both for lists, and the description the
// whole owner for people and for reading back. The place of an instance is its
// zone.
//
// Every change is an operation of Compute Engine: begun by one call, awaited
// within the step's bound, and joined by the next call when it takes longer. An
// operation that ended says inside whether it failed.
//
// docs/gcp-provider.md is the page for people: states, permissions, zones,
// Spot, claims.
package gcp
