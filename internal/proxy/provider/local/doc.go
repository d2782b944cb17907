// Package local is the provider whose instances are forward-proxy processes on
// this machine: the embedded default, and what the examples and end-to-end
// tests run on.
//
// Each instance is a child process of our own binary ([Serve]). It listens on,
// and leaves by, an IPv4 address of its own in 127.64.0.0/10 that is derived
// from the Proxy's UID, so that an origin on this machine can tell the proxies
// apart. Leaving by that address works for targets in 127.0.0.0/8 only: a
// loopback source cannot be routed out, so for every other target the kernel
// chooses the source as for any process, and all local proxies then share the
// machine's own exit IP.
//
// # What is on disk
//
// StateDir holds one folder for each instance, named by the Proxy's UID and a
// hash of the installation:
//
//	state.json    what the instance shall be: owner, address, port, run
//	deleted.json  the same file after its removal has begun (a tombstone)
//	auth.json     salt and hash of the credentials, never the password
//	child.json    who runs: written by the child when it is ready
//	lock          locked by the child for its whole life
//	log           the child's output, at most about 256 KiB, emptied at start
//
// and beside them .ops with a lock file for each call that changes an instance,
// .alloc, and .claims with a file for each operator that uses the directory.
//
// "Alive" means that somebody holds the lock, never that a pid exists: the
// parent takes the lock before it starts the child and the child inherits the
// open file, so there is no moment at which a living child does not hold it,
// and the kernel drops it however the child ends. A folder copied elsewhere
// carries no lock, so that an operator on a copied state directory cannot take
// the original's processes for its own. A child ends by itself when its
// state.json vanishes or names another run. Whoever runs the operator under
// systemd needs KillMode=process, or the unit's stop takes the proxies along.
//
// Resources of the spec are ignored: a process has no size to choose.
package local
