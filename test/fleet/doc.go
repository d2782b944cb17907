// Package fleet holds the operator's promises of crash safety against the whole
// of it: an operator that is killed at each of its effects, on the scripted
// provider in this process, and on real ones as a process that kill -9 ends;
// two installations on one back end; a Kubernetes API that is slow and goes
// away. A checker reads the back ends themselves.
package fleet
