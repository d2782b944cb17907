package action

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
)

const (
	// MinID and MaxID bound the length of an action's id, in bytes.
	MinID, MaxID = 16, 64
	// MaxWho bounds a user and a host, in bytes.
	MaxWho = 256
	// MaxText bounds a command and a detail, in bytes.
	MaxText = 64 << 10
	// MaxKeys bounds the keys of an [OpenQuery].
	MaxKeys = 1000
)

// Codes of errors (see fault.WithCode). What is Invalid has the codes of
// core/lease: "name" and "text".
const (
	// CodeAction: there is no such action.
	CodeAction = "action"
	// CodeExists: the id is another action's.
	CodeExists = "action_exists"
	// CodeDiffers: the entry does not tell of the action that was started.
	CodeDiffers = "action_differs"
	// CodeEnded: the action has its end already.
	CodeEnded = "action_ended"
)

// ValidID refuses, as Invalid, what is no id of an action.
func ValidID(id string) error {
	if len(id) < MinID || len(id) > MaxID || strings.ContainsFunc(id, notInID) || id[0] == '-' || id[0] == '_' {
		return fault.WithCode(fault.Errorf(fault.Invalid,
			"action id %.80q: use %d to %d letters, digits, - and _, a letter or digit first", id, MinID, MaxID), "name")
	}
	return nil
}

func notInID(r rune) bool {
	return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '-' || r == '_')
}

// Validate reports, as Invalid, what keeps an entry from being kept, whatever
// the log holds. It does not look at Seq and Time.
func (e Entry) Validate() error {
	if err := ValidID(e.Action); err != nil {
		return err
	}
	if err := lease.ValidName(e.Pool); err != nil {
		return fmt.Errorf("pool: %w", err)
	}
	switch e.Verb {
	case VerbCreate, VerbDestroy:
		if err := lease.ValidName(e.Key); err != nil {
			return fmt.Errorf("key: %w", err)
		}
	case VerbList:
		if e.Key != "" {
			return invalid("a %s is of no key, so the key %.80q must be empty", VerbList, e.Key)
		}
	default:
		return invalid("the verb %.40q is none of %s, %s, %s", string(e.Verb), VerbCreate, VerbDestroy, VerbList)
	}
	if e.User == "" {
		return invalid("the user is missing")
	}
	for _, who := range []struct{ what, text string }{{"user", e.User}, {"host", e.Host}} {
		if len(who.text) > MaxWho || strings.ContainsFunc(who.text, notPrinted) || !utf8.ValidString(who.text) {
			return invalid("the %s has more than %d bytes, holds a control character or is not UTF-8", who.what, MaxWho)
		}
	}
	for _, long := range []struct{ what, text string }{{"command", e.Command}, {"detail", e.Detail}} {
		if !fits(long.text) {
			return invalid("the %s has more than %d bytes, holds a NUL or is not UTF-8: cut it first", long.what, MaxText)
		}
	}
	switch e.Phase {
	case PhaseStarted:
		if e.OK != nil || e.Detail != "" {
			return invalid("a %s entry cannot know how it ends: ok must be null and detail empty", PhaseStarted)
		}
	case PhaseFinished:
		if e.OK == nil {
			return invalid("a %s entry says whether the command succeeded: ok must be true or false", PhaseFinished)
		}
	case PhaseResolved:
		if e.Command != "" {
			return invalid("a %s entry tells of no command: command must be empty", PhaseResolved)
		}
		return nil
	default:
		return invalid("the phase %.40q is none of %s, %s, %s", string(e.Phase), PhaseStarted, PhaseFinished, PhaseResolved)
	}
	if e.Command == "" {
		return invalid("the command is missing")
	}
	return nil
}

// Validate reports, as Invalid, a page that cannot be.
func (q Query) Validate() error {
	if q.Limit < 1 || q.Before < 0 {
		return invalid("limit %d, before %d: ask for at least one entry, before a number that is not negative", q.Limit, q.Before)
	}
	return nil
}

// Validate reports, as Invalid, a page that cannot be, or too many keys.
func (q OpenQuery) Validate() error {
	if q.Limit < 1 || q.After < 0 {
		return invalid("limit %d, after %d: ask for at least one entry, after a number that is not negative", q.Limit, q.After)
	}
	if len(q.Keys) > MaxKeys {
		return invalid("%d keys: ask for at most %d at once", len(q.Keys), MaxKeys)
	}
	return nil
}

func invalid(format string, args ...any) error {
	return fault.WithCode(fault.Errorf(fault.Invalid, format, args...), "text")
}

func notPrinted(r rune) bool { return r < ' ' || r == 0x7f }

// fits reports whether a text can be kept as it is.
func fits(text string) bool {
	return len(text) <= MaxText && utf8.ValidString(text) && strings.IndexByte(text, 0) < 0
}

// Cut makes a text fit for a command or a detail: bytes that are no UTF-8, and
// NULs, become U+FFFD, and of a text that is then longer than [MaxText] the middle
// is replaced by a mark that says how much is missing. A text that fits comes back
// as it is.
func Cut(text string) string {
	if fits(text) {
		return text
	}
	text = strings.ToValidUTF8(text, string(utf8.RuneError))
	text = strings.ReplaceAll(text, "\x00", string(utf8.RuneError))
	if len(text) <= MaxText {
		return text
	}
	const longestMark = 64
	half := (MaxText - longestMark) / 2
	head, tail := text[:half], text[len(text)-half:]
	for !utf8.ValidString(head) { // at most three bytes of a letter are left over
		head = head[:len(head)-1]
	}
	for !utf8.RuneStart(tail[0]) {
		tail = tail[1:]
	}
	return fmt.Sprintf("%s\n[… %d bytes were cut …]\n%s", head, len(text)-len(head)-len(tail), tail)
}
