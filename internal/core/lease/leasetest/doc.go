// Package leasetest holds what tests of leases share: [RunStore] is the suite
// that every [lease.Store] passes, [RunDesk] the one that everything passes
// which hands leases out (the service, the API through its client, a broker),
// and [Memory] is a store in memory that passes them.
package leasetest
