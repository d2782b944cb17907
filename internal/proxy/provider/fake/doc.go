// Package fake is a provider in memory: it keeps state, makes machines by
// several steps on several hosts, and can be told to fail, to hang, or to lose
// a machine. It passes the conformance suite; tests of everything above the
// contract use it in place of a real provider.
package fake
