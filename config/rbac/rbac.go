// Package rbac carries the generated roles, so that tests run the operator
// under the very rights that are shipped.
package rbac

import "embed"

// Files holds role.yaml: a ClusterRole and a Role of the operator's namespace.
//
//go:embed role.yaml
var Files embed.FS
