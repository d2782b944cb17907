package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"sync/atomic"
)

// counts are tests, with their subtests; a step without tests counts as one.
type counts struct{ passed, failed, skipped int }

func (c *counts) add(d counts) {
	c.passed += d.passed
	c.failed += d.failed
	c.skipped += d.skipped
}

// skip is a test that did not run, and what it said.
type skip struct{ pkg, test, why string }

// event is a line of `go test -json`; see `go doc test2json`.
type event struct {
	Action, Package, Test, Output string
	// ImportPath is set instead of Package on build output.
	ImportPath string
	// FailedBuild names the package whose build output explains a failure.
	FailedBuild string
}

// tally reads one stream of events. It keeps the output of what still runs and
// of what failed, and nothing else.
type tally struct {
	counts
	skips    []skip
	packages int
	// failures is the output of all that failed, in full.
	failures bytes.Buffer

	running map[testID]*bytes.Buffer
	order   []testID
	builds  map[string]*bytes.Buffer
	// broken counts the failed tests of each package that still runs.
	broken map[string]int
	// partial is the beginning of a line whose end has not come yet.
	partial []byte
	log     io.Writer

	// What another goroutine may read meanwhile.
	packagesSeen, testsSeen atomic.Int64
}

type testID struct{ pkg, test string }

func newTally(log io.Writer) *tally {
	return &tally{
		log:     log,
		running: map[testID]*bytes.Buffer{},
		builds:  map[string]*bytes.Buffer{},
		broken:  map[string]int{},
	}
}

// line reads one line and returns the text that a person would have seen. A
// line that is no event (a tool's complaint) is kept as a failure's text.
func (t *tally) line(raw []byte) string {
	var e event
	if len(raw) == 0 {
		return "\n"
	}
	if raw[0] != '{' || json.Unmarshal(raw, &e) != nil {
		t.failures.Write(raw)
		t.failures.WriteByte('\n')
		return string(raw) + "\n"
	}
	t.event(e)
	return e.Output
}

func (t *tally) event(e event) {
	id := testID{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		b := t.builds[e.ImportPath]
		if b == nil {
			b = &bytes.Buffer{}
			t.builds[e.ImportPath] = b
		}
		b.WriteString(e.Output)
	case "output":
		t.buffer(id).WriteString(e.Output)
	case "run":
		t.buffer(id)
	case "pass", "fail", "skip":
		if e.Test == "" {
			t.endPackage(e)
			return
		}
		switch e.Action {
		case "pass":
			t.passed++
		case "skip":
			t.skipped++
			t.skips = append(t.skips, skip{e.Package, e.Test, reason(t.buffer(id).String())})
		case "fail":
			t.fail(id)
		}
		t.drop(id)
	}
}

// endPackage closes a package's books. Tests that never ended were cut off by
// a panic, an exit or the deadline, and count as failed; a package that failed
// without a failed test (it did not build, it leaked) counts as one.
func (t *tally) endPackage(e event) {
	t.packages++
	own := testID{e.Package, ""}
	if e.Action == "fail" {
		for _, id := range slices.Clone(t.order) {
			if id.pkg == e.Package && id.test != "" {
				t.fail(id)
				t.drop(id)
			}
		}
		if b := t.builds[e.FailedBuild]; b != nil {
			t.failures.Write(b.Bytes())
		}
		t.failures.Write(t.buffer(own).Bytes())
		if t.broken[e.Package] == 0 {
			t.failed++
		}
	}
	t.drop(own)
	delete(t.broken, e.Package)
}

// close accounts for packages whose end never came: the command was stopped.
func (t *tally) close() {
	if len(t.partial) > 0 {
		t.line(t.partial)
	}
	for len(t.order) > 0 {
		t.endPackage(event{Action: "fail", Package: t.order[0].pkg})
	}
}

func (t *tally) fail(id testID) {
	t.failed++
	t.broken[id.pkg]++
	fmt.Fprintf(&t.failures, "--- %s %s\n", id.pkg, id.test)
	t.failures.Write(t.buffer(id).Bytes())
}

func (t *tally) buffer(id testID) *bytes.Buffer {
	b := t.running[id]
	if b == nil {
		b = &bytes.Buffer{}
		t.running[id] = b
		t.order = append(t.order, id)
	}
	return b
}

func (t *tally) drop(id testID) {
	delete(t.running, id)
	t.order = slices.DeleteFunc(t.order, func(o testID) bool { return o == id })
}

// reason takes what a skipped test said out of its output: the lines that the
// test framework did not write.
func reason(output string) string {
	var said []string
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
			said = append(said, line)
		}
	}
	return strings.Join(said, " ")
}

// Write takes the next piece of the stream and copies the text of its whole
// lines to log.
func (t *tally) Write(piece []byte) (int, error) {
	t.partial = append(t.partial, piece...)
	for {
		line, rest, whole := bytes.Cut(t.partial, []byte("\n"))
		if !whole {
			return len(piece), nil
		}
		if _, err := io.WriteString(t.log, t.line(line)); err != nil {
			return 0, err
		}
		t.partial = rest
		t.packagesSeen.Store(int64(t.packages))
		t.testsSeen.Store(int64(t.passed + t.failed + t.skipped))
	}
}

// parseSkips reads skips.txt: package, pattern of the test's name, reason.
func parseSkips(text string) ([]skip, error) {
	var out []skip
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) < 3 {
			return nil, fmt.Errorf("skips.txt line %d: want a package, a test and a reason, have %q", n, line)
		}
		if _, err := path.Match(fields[1], ""); err != nil {
			return nil, fmt.Errorf("skips.txt line %d: pattern %q: %w", n, fields[1], err)
		}
		out = append(out, skip{fields[0], fields[1], strings.Join(fields[2:], " ")})
	}
	return out, nil
}

// refuse turns the skips that no row allows into failures and returns them.
func refuse(c counts, skips, allowed []skip) (counts, []skip) {
	var refused []skip
	for _, s := range skips {
		ok := slices.ContainsFunc(allowed, func(a skip) bool {
			match, err := path.Match(a.test, s.test)
			return err == nil && match && a.pkg == s.pkg
		})
		if !ok {
			refused = append(refused, s)
		}
	}
	c.skipped -= len(refused)
	c.failed += len(refused)
	return c, refused
}
