package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
)

// unmarshal reads the body of a request. huma calls it twice: first into an
// any, to compare it with the schema, then into the struct. The first time it
// refuses objects in which a name stands twice, also in another case: the two
// readings could take different ones.
func unmarshal(data []byte, v any) error {
	if _, first := v.(*any); first {
		if err := namesOnce(data); err != nil {
			return err
		}
	}
	return json.Unmarshal(data, v)
}

// maxDepth bounds how deep a body's values are nested; none of ours comes near.
const maxDepth = 64

// namesOnce wants each name at most once in each object. What is no JSON is
// left to json.Unmarshal.
func namesOnce(data []byte) error {
	type level struct {
		names map[string]bool // nil in an array
		value bool            // whether a value comes next in an object
	}
	var open []level
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	for {
		t, err := d.Token()
		if err != nil {
			return nil //nolint:nilerr // the end, or what json.Unmarshal says better
		}
		top := len(open) - 1
		if top >= 0 && open[top].names != nil && !open[top].value {
			if name, ok := t.(string); ok {
				folded := strings.Map(fold, name)
				if open[top].names[folded] {
					return fmt.Errorf("%.40q stands twice in one object", name)
				}
				open[top].names[folded], open[top].value = true, true
				continue
			}
		}
		if top >= 0 {
			open[top].value = false
		}
		if len(open) == maxDepth {
			return fmt.Errorf("more than %d levels deep", maxDepth)
		}
		switch t {
		case json.Delim('{'):
			open = append(open, level{names: map[string]bool{}})
		case json.Delim('['):
			open = append(open, level{})
		case json.Delim('}'), json.Delim(']'):
			open = open[:top]
		}
	}
}

// fold maps all cases of a letter to one, as encoding/json does when it looks
// for a name's field.
func fold(r rune) rune {
	for {
		next := unicode.SimpleFold(r)
		if next <= r {
			return next
		}
		r = next
	}
}
