// Package humanrun runs the provider commands of a pool's owner, and holds the
// rules of who may have them run, when, and on what. Nothing but a command that a
// person types imports it.
//
// [List] looks at what exists. [Make] makes a [Plan] of a person's change out of
// what the file, the broker and the list say, or refuses it; it runs nothing
// besides the list. [Apply] does what a plan says as long as it stays true, one
// key after the other, each command logged before it runs.
package humanrun

import (
	"slices"
	"strings"
)

// Place is where provider commands run.
type Place struct {
	// Dir is their folder, Environ their environment; QASIGHT_POOL,
	// QASIGHT_KEY and QASIGHT_VERB are added to it.
	Dir     string
	Environ []string
	// Hide are texts that are replaced in what is kept of their output.
	Hide []string
}

// environ is the environment of one command. What another lease left in the
// person's environment is not a provider command's; a list has an empty key.
func (at Place) environ(pool, key, verb string) []string {
	env := slices.DeleteFunc(slices.Clone(at.Environ), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		switch name {
		case "QASIGHT_KEY", "QASIGHT_POOL", "QASIGHT_VERB", "QASIGHT_LEASE", "QASIGHT_FENCE":
			return true
		}
		return false
	})
	return append(env, "QASIGHT_POOL="+pool, "QASIGHT_KEY="+key, "QASIGHT_VERB="+verb)
}

// minHidden is the length of the shortest text that is hidden, as in package proc.
const minHidden = 6

// hide replaces the secret texts in a text.
func (at Place) hide(text string) string {
	for _, secret := range at.Hide {
		if secret = strings.TrimSpace(secret); len(secret) >= minHidden {
			text = strings.ReplaceAll(text, secret, "***")
		}
	}
	return text
}

func sortedNames(names []string) []string {
	names = slices.Clone(names)
	slices.Sort(names)
	if names == nil {
		names = []string{}
	}
	return names
}
