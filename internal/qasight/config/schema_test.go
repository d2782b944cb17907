package config_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"fleetdesk/internal/qasight/config"
)

var update = flag.Bool("update", false, "write schema.json anew")

func TestSchemaIsThatOfTheTableOfFields(t *testing.T) {
	want, err := config.MakeSchema()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("schema.json", want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(have)); diff != "" {
		t.Errorf("schema.json is not what the fields make (-want +got); go test ./internal/qasight/config -run Schema -update writes it:\n%s", diff)
	}
	if !*update && !bytes.Equal(have, config.Schema()) {
		t.Error("Schema is not the file schema.json")
	}
}

// A caller that changes what it got must not change what the next one gets.
func TestSchemaIsTheCallersOwn(t *testing.T) {
	config.Schema()[0] = 'x'
	if !json.Valid(config.Schema()) {
		t.Error("a caller's change is seen by the next")
	}
}

func compiled(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(config.Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("qasight.schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("qasight.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// instance is a file as an editor's schema checker sees it.
func instance(t *testing.T, text string) any {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	out, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestSchemaAcceptsWhatParseDoes(t *testing.T) {
	s := compiled(t)
	for name, tc := range good() {
		t.Run(name, func(t *testing.T) {
			parse(t, tc.text)
			if err := s.Validate(instance(t, tc.text)); err != nil {
				t.Errorf("%s: %v", tc.reason, err)
			}
		})
	}
}

func TestSchemaRefusesWhatItCan(t *testing.T) {
	s := compiled(t)
	seen := 0
	for name, tc := range bad() {
		if !tc.schema {
			continue
		}
		seen++
		t.Run(name, func(t *testing.T) {
			if err := s.Validate(instance(t, tc.text)); err == nil {
				t.Errorf("%s: the schema accepts it:\n%s", tc.reason, tc.text)
			}
		})
	}
	if seen < 20 {
		t.Errorf("only %d bad samples are for the schema", seen)
	}
}

// Editors show these texts, and they are the only docs that some people read.
func TestSchemaExplainsEveryField(t *testing.T) {
	var root map[string]any
	if err := json.Unmarshal(config.Schema(), &root); err != nil {
		t.Fatal(err)
	}
	fields := 0
	var walk func(path string, v any)
	walk = func(path string, v any) {
		m, ok := v.(map[string]any)
		if !ok {
			return
		}
		if props, ok := m["properties"].(map[string]any); ok && m["type"] == "object" {
			if m["additionalProperties"] != false {
				t.Errorf("%s takes unknown fields", path)
			}
			for name, p := range props {
				fields++
				if doc, _ := p.(map[string]any)["description"].(string); len(doc) < 15 {
					t.Errorf("%s/%s is explained by %q", path, name, doc)
				}
				walk(path+"/"+name, p)
			}
		}
		walk(path+"/*", m["additionalProperties"])
	}
	walk("", root)
	if fields != 4+7+7+3 {
		t.Errorf("the schema has %d fields", fields)
	}
}
