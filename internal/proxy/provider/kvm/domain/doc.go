// Package domain holds the rules of a libvirt domain, without I/O: its names,
// its XML, the mark in its metadata, what its state means, which addresses are
// its own, and what a host says that it can run.
package domain
