// Package arch holds the rules of the tree: who may import whom, which folder
// alone may touch which door of the machine, and what must be written down.
// All of it is in its tests.
//
// rules in table_test.go is the whole law, one table with a reason in each
// row. What another folder may do is asked of `go list -json` over every Go
// module of the repository, without build tags and with -tags=integration; the
// tests in broken_test.go write small trees that break each rule and see it
// caught.
//
// To add a folder: give it a row in the floors (or let it fall under one), a
// row in docs/architecture.md and a package comment. To add a provider: a
// floor that names its SDK, and a door for that SDK. A row that names a folder
// which is gone, and an exception that excuses nothing, fail too, so rows are
// written when their folder is.
package arch
