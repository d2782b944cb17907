package gcp

import (
	"encoding/base64"
	"errors"
	"strings"
	"unicode"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// quoting is an error with all that the API said; its text has a part of it.
type quoting struct {
	error
	all string
}

// Unwrap gives the error.
func (q *quoting) Unwrap() error { return q.error }

const (
	// leastQuote is the shortest line of user-data that is looked for; shorter
	// ones may be there by chance.
	leastQuote = 8
	// partQuote is how much of a longer one gives it away: the API cuts, too.
	partQuote = 24
)

// discreet hides the text of an error that quotes user-data: the API repeats
// what it does not like. It goes by all that the API said and not by what is
// shown of it, and by neither's spaces and quotes.
func discreet(err error, data provider.Secret) error {
	if err == nil {
		return nil
	}
	said := err.Error()
	var q *quoting
	if errors.As(err, &q) {
		said += " " + q.all
	}
	said = bare(said)
	quotes := func(part string) bool { return len(part) >= leastQuote && strings.Contains(said, part) }
	for _, line := range append(strings.Split(string(data), "\n"), base64.StdEncoding.EncodeToString(data)) {
		line = bare(line)
		n := min(len(line), partQuote)
		if quotes(line) || quotes(line[:n]) || quotes(line[len(line)-n:]) {
			return fault.New(fault.Of(err), "the API refuses the instance, and its words quote cloudInit, so that they are not shown here: look at the instance's operations in the project")
		}
	}
	return err
}

// bare is text without what differs between it and a quotation of it.
func bare(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) || strings.ContainsRune("\"'`\\", r) {
			return -1
		}
		return r
	}, s)
}
