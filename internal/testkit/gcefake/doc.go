// Package gcefake is the part of Google Compute Engine that the gcp provider
// speaks to: an HTTP server with the REST calls for instances, their disks,
// operations, unmanaged instance groups, zones, regions and machine types, and
// the token endpoint of service-account keys.
//
// Requests are decoded strictly into the official client's own structs (a field
// that the API does not have is refused), and answers are made of the same
// structs. Changes are operations that go from PENDING over RUNNING to DONE and
// carry errors inside an HTTP 200, as the real ones do. Lists have pages. What
// the real API refuses is refused where that is cheap to tell: names, labels,
// sizes of metadata, and machine types, images, networks and service accounts
// that do not exist.
//
// Each instance that runs is a forward proxy with loopback addresses of its own,
// in a real process ([Options.Command]) or in this one: traffic really flows,
// and leaves by the instance's address.
//
// The knobs of faults.go play what goes wrong: a zone that is broken, mute or
// full, quotas, rate limits, lists that are stale, answers that are lost, errors
// inside operations, waits that do not wait, a project that vanishes, redirects,
// pre-emption, keys that are revoked, a token endpoint that is away.
package gcefake
