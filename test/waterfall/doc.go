// Package waterfall simulates crawlers, proxies and sites that ban by rate, on a
// clock of its own, and counts how many of the wanted requests get a good answer
// when proxies are chosen at random, in turn, by the engine of this project, or
// by somebody who knows everything. `make waterfall` prints the table of
// docs/waterfall.md.
package waterfall
