package config

import (
	"bytes"
	"encoding/json"
	"time"

	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/qasight/pool"
)

// MakeSchema makes the JSON schema of the table of fields: what schema.json must
// be.
func MakeSchema() ([]byte, error) {
	s := schemaOf(format())
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = FileName
	s["description"] = "The pools of a project. Made from the table of fields that the program reads the file by."
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(s)
	return b.Bytes(), err
}

func schemaOf(s *section) map[string]any {
	properties, required := map[string]any{}, []string{}
	for _, f := range s.fields {
		p := schemaOfField(f)
		p["description"] = f.doc
		if f.kind == duration {
			p["description"] = f.doc + " From " + pool.Short(time.Duration(f.low)) + " to " + pool.Short(time.Duration(f.high)) + "."
		}
		properties[f.name] = p
		if f.required {
			required = append(required, f.name)
		}
	}
	out := map[string]any{"type": "object", "additionalProperties": false, "properties": properties, "required": required}
	if _, ok := s.field("allow"); ok {
		var rules []any
		for _, v := range everyVerb() {
			rules = append(rules, map[string]any{
				"if": map[string]any{
					"required":   []string{"allow"},
					"properties": map[string]any{"allow": map[string]any{"contains": map[string]any{"const": v}}},
				},
				"then": map[string]any{"required": needs(Verb(v))},
			})
		}
		out["allOf"] = rules
	}
	return out
}

func schemaOfField(f field) map[string]any {
	const grammar = "^[A-Za-z0-9][A-Za-z0-9._-]*$"
	// What stands without quotes may be a number to YAML, and is a name to us.
	nameOf := func(most int) map[string]any {
		return map[string]any{"type": []string{"string", "number", "boolean"}, "pattern": grammar, "maxLength": most}
	}
	out := map[string]any{}
	switch f.kind {
	case name:
		out = nameOf(lease.MaxFixedName)
	case prefix:
		out = nameOf(maxPrefix)
	case address:
		out["type"], out["pattern"] = "string", `^[hH][tT][tT][pP][sS]?://[^/?#@\s]+/?$`
	case command:
		out["type"], out["pattern"], out["maxLength"] = "string", `\S`, maxCommand
	case duration:
		out["type"], out["pattern"] = "string", durationForm
		out["default"] = f.preset
	case count:
		out["type"], out["minimum"], out["maximum"] = "integer", f.low, f.high
		if f.preset != "" {
			out["default"] = json.Number(f.preset)
		}
	case names:
		out["type"], out["items"], out["uniqueItems"], out["maxItems"] = "array", nameOf(lease.MaxFixedName), true, f.high
	case verbs:
		out["type"], out["items"], out["uniqueItems"] = "array", map[string]any{"enum": everyVerb()}, true
	case single:
		out = schemaOf(f.section)
	case many:
		out["type"], out["additionalProperties"] = "object", schemaOf(f.section)
		out["propertyNames"] = map[string]any{"pattern": grammar, "maxLength": lease.MaxFixedName}
		out["minProperties"], out["maxProperties"] = f.low, f.high
	}
	return out
}

// OtherSystem is what Find asks before it goes up.
func OtherSystem(a, b string) bool { return otherSystem(a, b) }
