// Package leases holds the promises of a lease against the whole stack: servers
// and clients as real processes that are killed at random, over a real
// database, and a checker that reads what the clients lived through. Its
// benchmarks measure the same stack.
package leases
