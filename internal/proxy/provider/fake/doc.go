// Package fake is a provider in memory: it keeps state, makes machines by
// several steps on several hosts, and can be told to fail, to hang, or to lose
// a machine. It passes the conformance suite; tests of everything above the
// contract use it in place of a real provider.
//
// It has all optional interfaces. Its hosts tell of what the knobs do (Stop,
// Vanish, Impair, Corrupt, Plant) and of what another Provider over the same
// back end does, as long as they can be heard: a host that is broken, mute or
// deafened by CutEvents tells nothing, and "anything may have changed" when it
// can be heard again. Claims and leftovers lie on the hosts, where a Provider
// of Reopen finds them; PlantClaim and Litter put some there. A test that must
// see a Provider without one of these interfaces wraps it in a type that lists
// what it shall have.
package fake
