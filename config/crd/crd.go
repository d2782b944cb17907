// Package crd carries the generated CustomResourceDefinitions, so that a
// program can install them without files beside it.
package crd

import "embed"

// Bases holds the YAML files of the definitions under bases/.
//
//go:embed bases/*.yaml
var Bases embed.FS
