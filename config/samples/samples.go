// Package samples carries the example objects and configuration, so that
// tests apply the very files that people copy.
package samples

import "embed"

// Files holds the YAML files of this folder.
//
//go:embed *.yaml
var Files embed.FS
