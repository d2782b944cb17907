// Package guard has the decorators of the provider contract: what holds for
// every provider whatever its code does. [Deadline] ends calls and classes
// errors, [Metrics] counts, [Trace] logs, [ReadOnly] forbids.
//
// A decorator lists every method of the contract and embeds nothing, so that a
// new method cannot slip through it. Through [provider.As] it has the optional
// interfaces (provider.Checker and the others, io.Closer) of the inner
// provider, no more and no less.
package guard
