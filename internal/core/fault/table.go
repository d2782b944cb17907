package fault

import "time"

// Meaning is one row of the table: what a class means wherever it surfaces.
type Meaning struct {
	Class Class
	// Retry says how a loop tries again.
	Retry Retry
	// Reason is the condition reason in objects' status (CamelCase).
	Reason string
	// HTTPStatus is the status code of a problem document.
	HTTPStatus int
	// ExitCode is the exit code of a command that ends with this class.
	ExitCode int
	// Label is the value of the metric label "class".
	Label string
	// Summary is one sentence for documents and problem titles.
	Summary string
}

// Retry bounds the pause before the next try: it starts at Min, doubles up to
// Max, and each pause is shortened at random by up to half so that many
// failures do not come back together. Max is never zero: nothing is retried
// in a hot loop.
type Retry struct {
	Min, Max time.Duration
}

// After returns the pause before try number n (the first retry is 1), with
// jitter in [0,1) drawn by the caller.
func (r Retry) After(n int, jitter float64) time.Duration {
	d := r.Min
	for i := 1; i < n && d < r.Max; i++ { // ends after a few doublings
		d *= 2
	}
	if d > r.Max {
		d = r.Max
	}
	return d - time.Duration(jitter*float64(d)/2)
}

var (
	soon = Retry{Min: time.Second, Max: 2 * time.Minute}
	long = Retry{Min: time.Minute, Max: 30 * time.Minute}
	// slow is for what only a person can mend: the change itself triggers the
	// next try, and this is the safety net behind it.
	slow = Retry{Min: 10 * time.Minute, Max: 10 * time.Minute}
)

var table = [...]Meaning{
	{NotFound, soon, "NotFound", 404, 1, "not_found", "It does not exist."},
	{Conflict, soon, "Conflict", 409, 1, "conflict", "It exists already or changed meanwhile."},
	{Invalid, slow, "Invalid", 400, 2, "invalid", "The request is wrong and must be changed."},
	{Denied, slow, "Denied", 403, 77, "denied", "This caller may not do it."},
	{Permanent, slow, "PermanentError", 500, 1, "permanent", "It failed and needs a person's change."},
	{Quota, long, "QuotaExceeded", 429, 75, "quota", "A limit is reached."},
	{Transient, soon, "TransientError", 503, 75, "transient", "It failed for now and is tried again."},
	{Timeout, soon, "Timeout", 504, 75, "timeout", "No answer came in time."},
	{Unavailable, soon, "Unavailable", 503, 69, "unavailable", "The other side does not answer."},
	{Unsupported, slow, "Unsupported", 501, 2, "unsupported", "It cannot do this."},
}

// Table returns every class with its meaning, in the order of the
// declarations. The caller owns the slice.
func Table() []Meaning {
	t := table
	return t[:]
}

// Meaning returns the row of a class; an unknown class means [Transient], as an
// unclassed error does.
func (c Class) Meaning() Meaning {
	transient := Meaning{}
	for _, m := range table {
		if m.Class == c {
			return m
		}
		if m.Class == Transient {
			transient = m
		}
	}
	return transient
}
