package operator

import (
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"fleetdesk/api/v1alpha1"
	wire "fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/proxy/deskkeys"
)

// chosen tells the client API how Proxies are named and chosen: what takers wish
// becomes conditions on the attributes that package deskkeys gives each key.
type chosen struct{}

// Key implements api.Selection.
func (chosen) Key(namespace, name string) string { return deskkeys.KeyName(namespace, name) }

// Parts implements api.Selection.
func (chosen) Parts(key string) (namespace, name string, ok bool) { return deskkeys.Parts(key) }

// DefaultPool implements api.Selection.
func (chosen) DefaultPool(namespace string) string {
	return deskkeys.PoolName(namespace, v1alpha1.DefaultPool)
}

// Match implements api.Selection.
func (chosen) Match(w wire.Wish) ([]lease.Match, error) {
	all, err := matchLabels(w.Selector)
	if err != nil {
		return nil, err
	}
	for _, f := range []struct{ attribute, value string }{
		{deskkeys.AttrProtocol, w.Scheme}, {deskkeys.AttrProvider, w.Provider}, {deskkeys.AttrRegion, w.Region},
	} {
		if f.value != "" {
			all = append(all, lease.Match{Attribute: f.attribute, Op: lease.In, Values: []string{f.value}})
		}
	}
	return all, nil
}

// matchLabels reads a label selector, one requirement after another: the parser
// knows no positions, so where the first one stands that it refuses is ours to
// say.
func matchLabels(selector string) ([]lease.Match, error) {
	if at := strings.IndexFunc(selector, unicode.IsControl); at >= 0 { // the parser ends at a NUL, and says nothing
		return nil, fault.WithCode(fault.Errorf(fault.Invalid, "at character %d: a control character", at+1), deskkeys.CodeSelector)
	}
	var all []lease.Match
	for begin := 0; begin < len(selector); {
		one := selector[begin : begin+requirement(selector[begin:])]
		refused := func(why string) error {
			return fault.WithCode(fault.Errorf(fault.Invalid, "at character %d: %.80q %s", begin+1, strings.TrimSpace(one), why), deskkeys.CodeSelector)
		}
		parsed, err := labels.Parse(one)
		var requirements labels.Requirements
		if err == nil {
			requirements, _ = parsed.Requirements()
		}
		if len(requirements) != 1 {
			return nil, refused("is no requirement: write name=value, name!=value, name in (a,b), name notin (a,b), name or !name")
		}
		m, ok := matchOf(&requirements[0])
		if !ok {
			return nil, refused("compares numbers, which proxies cannot be chosen by")
		}
		all = append(all, m)
		begin += len(one) + 1
		if begin == len(selector) { // behind a comma
			return nil, fault.WithCode(fault.Errorf(fault.Invalid, "at character %d: a requirement is missing behind the comma", begin+1), deskkeys.CodeSelector)
		}
	}
	return all, nil
}

// requirement is the length of the first requirement: up to a comma that stands
// in no parentheses.
func requirement(s string) int {
	depth := 0
	for i := range len(s) {
		switch {
		case s[i] == '(':
			depth++
		case s[i] == ')':
			depth--
		case s[i] == ',' && depth <= 0:
			return i
		}
	}
	return len(s)
}

func matchOf(r *labels.Requirement) (lease.Match, bool) {
	m := lease.Match{Attribute: deskkeys.AttrLabel + r.Key()}
	switch r.Operator() {
	case selection.Equals, selection.DoubleEquals, selection.In:
		m.Op = lease.In
	case selection.NotEquals, selection.NotIn:
		m.Op = lease.NotIn
	case selection.Exists:
		m.Op = lease.Exists
		return m, true
	case selection.DoesNotExist:
		m.Op = lease.Absent
		return m, true
	case selection.GreaterThan, selection.LessThan:
		return m, false
	}
	m.Values = r.ValuesUnsorted()
	return m, m.Op != ""
}
