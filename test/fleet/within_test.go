//go:build !integration

package fleet_test

// within puts around all tests what they need of the machine: nothing here.
func within(m tests) tests { return m }
