package seed

import "io"

// AgentScript is the script as it is.
func AgentScript() string { return agentScript }

// WriteReader makes an image with one file that is read from r.
func WriteReader(r io.Reader) ([]byte, error) { return write([]file{{"user-data", r}}) }

// StagingFault is how a failure of the staging is told.
func StagingFault(err error) error { return stagingFault(err) }

// BoundaryFor is how a boundary is chosen.
func BoundaryFor(parts ...[]byte) string { return boundaryFor(parts...) }
