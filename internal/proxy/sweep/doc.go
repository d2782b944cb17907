// Package sweep takes away what nobody owns any more: instances whose Proxy
// does not exist, and other things that nothing uses.
//
// What may go is decided by rules without I/O, over what one sweep has read
// and what earlier sweeps left in memory: [judge] for the things, claims for
// other operators with the same identity. A [Sweeper] reads, asks the rules,
// and looks at each thing once more before it removes it.
//
// The order of reads is a safety matter: claims, instances, Proxies, what is
// written down. A Proxy lets its finalizer go only after its abandoned instance
// was written down, so whoever is missing among the Proxies is either written
// down by then or really gone; read the other way round, one that went between
// the two would look like an orphan. An instance is made only for a Proxy that
// exists, so the Proxies are read after the instances.
package sweep
