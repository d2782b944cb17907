// Package quietetcd keeps the etcd client inside the API server from writing
// to standard error.
//
// The API server makes that client's logger in the init function of a package
// of its own, from etcd's default configuration, and offers no way to choose
// another one; each stop then prints a page of "retrying of unary invoker
// failed". So the default must change before that init function runs. Go
// initialises packages in the order of their import paths as soon as what
// they import is initialised, and this path sorts before k8s.io; a test in
// controlplane looks at what a stopping server prints.
//
// Nothing is lost: what the client fails at, the API server reports.
package quietetcd

import "go.etcd.io/etcd/client/pkg/v3/logutil"

//nolint:gochecknoinits // the only moment before the other package's init; see above
func init() {
	logutil.DefaultZapLoggerConfig.OutputPaths = []string{"/dev/null"}
	logutil.DefaultZapLoggerConfig.ErrorOutputPaths = []string{"/dev/null"}
}
