package config

import (
	_ "embed"
	"slices"
)

// schemaFile is made of the table of fields by this package's tests:
// go test ./internal/qasight/config -run Schema -update
//
//go:embed schema.json
var schemaFile []byte

// Schema returns the JSON schema (2020-12) of the file, for editors. It accepts
// whatever Parse does, and refuses what a schema can: rules between fields, and
// names that are there twice in YAML, are Parse's alone.
func Schema() []byte { return slices.Clone(schemaFile) }
