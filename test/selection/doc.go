// Package selection measures how the engine chooses proxies for targets: through
// the desk's service, on both databases, with many proxies, many targets and
// many bans. `make bench-select` prints its lines.
package selection
