package probe

import (
	"slices"
	"time"
)

// farEnd is what is known, from all subjects together, of what one check asks
// for. "Somebody passed it" condemns those that fail, so only the same check
// counts: a far end that answers 503 passes for whoever expects that and is
// down for everybody else, one that takes a minute passes for the patient
// alone, and one whose certificate changed for those who know the new
// authority. Subjects that differ only in their timeouts have a farEnd each and
// hear of each other's passes by the time they took.
type farEnd struct {
	// check has its defaults filled in.
	check Check
	// refs counts the subjects.
	refs int
	// started and ended are the times of the newest probe that passed; zero
	// for none.
	started, ended time.Time
}

// hear takes note of a pass that took no longer than the check waits.
func (f *farEnd) hear(started, ended time.Time) {
	if started.After(f.started) && ended.Sub(started) <= f.check.Timeout {
		f.started, f.ended = started, ended
	}
}

// farEnds are the far ends of all subjects, by URL; the loop's lock guards them.
type farEnds map[string][]*farEnd

// join returns the far end of a check for one more subject. A new one knows
// what its siblings know.
func (fs farEnds) join(c Check) *farEnd {
	for _, f := range fs[c.URL] {
		if f.check.equal(c) {
			f.refs++
			return f
		}
	}
	fresh := &farEnd{check: c, refs: 1}
	for _, f := range fs[c.URL] {
		if f.check.sameTest(c) {
			fresh.hear(f.started, f.ended)
		}
	}
	fs[c.URL] = append(fs[c.URL], fresh)
	return fresh
}

// leave takes one subject off a far end; the last one's is forgotten.
func (fs farEnds) leave(f *farEnd) {
	if f.refs--; f.refs > 0 {
		return
	}
	url := f.check.URL
	fs[url] = slices.DeleteFunc(fs[url], func(o *farEnd) bool { return o == f })
	if len(fs[url]) == 0 {
		delete(fs, url)
	}
}

// passed tells a far end, and those that it speaks for, of a probe that passed.
func (fs farEnds) passed(f *farEnd, started, ended time.Time) {
	if started.After(f.started) {
		f.started, f.ended = started, ended
	}
	for _, o := range fs[f.check.URL] {
		if o != f && o.check.sameTest(f.check) {
			o.hear(started, ended)
		}
	}
}
