package config

import (
	_ "embed"
	"strings"
)

//go:embed template.yaml
var templateFile string

// Template is a commented file to begin with, for a project of that name, which
// must be valid. It and what is commented out in it pass Parse.
func Template(project string) []byte {
	return []byte(strings.ReplaceAll(templateFile, "PROJECT", project))
}
