package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// module writes a module of test packages and returns its folder.
func module(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	files["go.mod"] = "module example.com/m\n\ngo 1.26\n"
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func testFile(body string) string {
	return "package p\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nvar _ = os.Exit\n\n" + body
}

func TestLane(t *testing.T) {
	t.Parallel()
	type row struct {
		Passed, Failed, Skipped int
		Verdict                 string
	}
	const test = "func TestA(t *testing.T) { %s }\n"
	body := func(s string) string { return testFile(strings.Replace(test, "%s", s, 1)) }

	cases := map[string]struct {
		reason string
		files  map[string]string
		step   step
		ci     bool
		root   bool // the lane needs root and does not have it
		want   row
		shows  []string
		hides  []string
	}{
		"passes": {
			reason: "each test and subtest counts, and what passes stays quiet",
			files:  map[string]string{"a_test.go": body(`t.Log("chatter"); t.Run("sub", func(*testing.T) {})`)},
			want:   row{2, 0, 0, "ok"},
			hides:  []string{"chatter"},
		},
		"fails": {
			reason: "a failing test's output is shown whole",
			files:  map[string]string{"a_test.go": body(`t.Log("first"); t.Error("second")`)},
			want:   row{0, 1, 0, "FAILED"},
			shows:  []string{"first", "second", "--- example.com/m TestA"},
		},
		"panics": {
			reason: "a test that never ended failed, and what it said is shown",
			files:  map[string]string{"a_test.go": body(`panic("boom")`)},
			want:   row{0, 1, 0, "FAILED"},
			shows:  []string{"boom"},
		},
		"exits": {
			reason: "a package that fails without a failed test is one failure",
			files: map[string]string{
				"a_test.go": body(``) + "func TestMain(m *testing.M) { m.Run(); println(\"leak\"); os.Exit(3) }\n",
			},
			want:  row{1, 1, 0, "FAILED"},
			shows: []string{"leak"},
		},
		"does not build": {
			reason: "a compiler's message is shown and the other package still counts",
			files: map[string]string{
				"a/a_test.go": testFile("func TestA(t *testing.T) { undefinedName() }\n"),
				"b/b_test.go": body(``),
			},
			want:  row{1, 1, 0, "FAILED"},
			shows: []string{"undefinedName"},
		},
		"one fails and one exits": {
			reason: "a package that fails without a failed test counts beside one that has some",
			files: map[string]string{
				"a/a_test.go": body(`t.Error("no")`),
				"b/b_test.go": body(``) + "func TestMain(m *testing.M) { m.Run(); os.Exit(3) }\n",
			},
			want: row{1, 2, 0, "FAILED"},
		},
		"nothing ran": {
			reason: "a lane without tests proves nothing",
			files:  map[string]string{"a.go": "package p\n"},
			want:   row{0, 1, 0, "FAILED"},
			shows:  []string{"no test ran"},
		},
		"skips at home": {
			reason: "a skip is listed with its reason and does no harm",
			files:  map[string]string{"a_test.go": body(`t.Skip("no such machine")`)},
			want:   row{0, 0, 1, "ok"},
			shows:  []string{"skipped: example.com/m TestA", "no such machine"},
		},
		"skips in CI": {
			reason: "a skip that nobody allowed would pass for a pass",
			files:  map[string]string{"a_test.go": body(`t.Skip("no such machine")`)},
			ci:     true,
			want:   row{0, 1, 0, "FAILED"},
			shows:  []string{"CI does not allow it: example.com/m TestA", "no such machine"},
		},
		"may skip in CI": {
			reason: "skips.txt names it",
			files:  map[string]string{"a_test.go": testFile("func TestForeign(t *testing.T) { t.Skip() }\n")},
			ci:     true,
			want:   row{0, 0, 1, "ok"},
		},
		"may skip elsewhere": {
			reason: "a row of skips.txt is about one package",
			files:  map[string]string{"sub/a_test.go": testFile("func TestForeign(t *testing.T) { t.Skip() }\n")},
			ci:     true,
			want:   row{0, 1, 0, "FAILED"},
		},
		"command fails": {
			reason: "both streams of a failing command are shown",
			step:   step{argv: []string{"sh", "-c", "echo to stdout; echo to stderr >&2; exit 1"}},
			want:   row{0, 1, 0, "FAILED"},
			shows:  []string{"to stdout", "to stderr"},
		},
		"formatter finds something": {
			reason: "gofumpt -l exits 0 whatever it finds",
			step:   step{argv: []string{"echo", "badly_formatted.go"}, kind: silent},
			want:   row{0, 1, 0, "FAILED"},
			shows:  []string{"badly_formatted.go"},
		},
		"no such command": {
			reason: "a lane that cannot start failed",
			step:   step{argv: []string{"no-such-command"}},
			want:   row{0, 1, 0, "FAILED"},
		},
		"root at home": {
			reason: "without root the lane is skipped and says so",
			step:   step{argv: []string{"true"}},
			root:   true,
			want:   row{0, 0, 1, "skipped"},
		},
		"root in CI": {
			reason: "CI has root, or tests less than it says",
			step:   step{argv: []string{"true"}},
			root:   true,
			ci:     true,
			want:   row{0, 1, 0, "FAILED"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := tc.step
			dir := t.TempDir()
			if tc.files != nil {
				dir = module(t, tc.files)
				s = goTest("", "./...")
			}
			var out bytes.Buffer
			r := runner{
				root: dir, logs: filepath.Join(dir, "logs"), ci: tc.ci, isRoot: !tc.root, out: &out,
				allowed: []skip{{"example.com/m", "TestFor*", "it needs a foreign machine"}},
			}
			res := r.lane(t.Context(), lane{name: "x", deadline: time.Minute, needsRoot: tc.root, steps: []step{s}})
			got := row{res.passed, res.failed, res.skipped, res.verdict}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: (-want +got)\n%s\n%s", tc.reason, diff, out.String())
			}
			for _, s := range tc.shows {
				if !strings.Contains(out.String(), s) {
					t.Errorf("%s: output lacks %q:\n%s", tc.reason, s, out.String())
				}
			}
			for _, s := range tc.hides {
				if strings.Contains(out.String(), s) {
					t.Errorf("%s: output shows %q:\n%s", tc.reason, s, out.String())
				}
			}
		})
	}
}

func TestDeadlineEndsTheWholeGroup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var out bytes.Buffer
	r := runner{root: dir, logs: filepath.Join(dir, "logs"), out: &out}
	// The shell's child would hold the output open for a minute.
	s := step{argv: []string{"sh", "-c", "sleep 60 & wait"}}
	start := time.Now()
	res := r.lane(t.Context(), lane{name: "x", deadline: 200 * time.Millisecond, steps: []step{s}})
	if res.verdict != "FAILED" || !strings.Contains(out.String(), "deadline") {
		t.Errorf("a lane past its deadline fails and says so: %+v\n%s", res, out.String())
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("the child was waited for: %s", took)
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	code := report(&out, []result{
		{"format", counts{2, 0, 0}, "ok", 3 * time.Second},
		{"unit", counts{310, 2, 1}, "FAILED", 247 * time.Second},
	})
	want := `
    lane  result  passed  failed  skipped  time
  format      ok       2       0        0  0:03
    unit  FAILED     310       2        1  4:07
     all             312       2        1  4:10

312 passed, 2 failed, 1 skipped
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if code != 1 {
		t.Errorf("exit code %d, want 1: a lane failed", code)
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	all := []lane{{name: "unit"}, {name: "lint", checkOnly: true}}
	cases := map[string]struct {
		reason string
		args   []string
		want   []string
		err    bool
	}{
		"test":     {"lint is no test", []string{"test"}, []string{"unit"}, false},
		"check":    {"check is everything", []string{"check"}, []string{"unit", "lint"}, false},
		"one":      {"a name picks one lane", []string{"test", "lint"}, []string{"lint"}, false},
		"typo":     {"a typo must not pass as an empty run", []string{"test", "unti"}, nil, true},
		"no suite": {"a suite is needed", nil, nil, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := choose(all, tc.args)
			if diff := cmp.Diff(tc.want, names(got)); diff != "" || (err != nil) != tc.err {
				t.Errorf("%s: err %v (-want +got)\n%s", tc.reason, err, diff)
			}
		})
	}
}

func TestParseSkips(t *testing.T) {
	t.Parallel()
	if _, err := parseSkips(skipList); err != nil {
		t.Errorf("skips.txt: %v", err)
	}
	for text, reason := range map[string]string{
		"fleetdesk/a TestB\n":          "a row without a reason",
		"fleetdesk/a Test[ some why\n": "a pattern that can never match",
	} {
		if _, err := parseSkips(text); err == nil {
			t.Errorf("%s passed: %q", reason, text)
		}
	}
}

func TestStoppedRunCountsWhatWasCutOff(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	tl := newTally(&log)
	stream := `{"Action":"run","Package":"p","Test":"TestA"}` + "\n" +
		`{"Action":"output","Package":"p","Test":"TestA","Output":"half way\n"}` + "\n" + `{"Action":"pa`
	if _, err := tl.Write([]byte(stream)); err != nil {
		t.Fatal(err)
	}
	tl.close()
	if tl.failed != 1 || !strings.Contains(tl.failures.String(), "half way") {
		t.Errorf("%d failed, want 1 with its output: %s", tl.failed, tl.failures.String())
	}
}

func TestMakeVariablesStayBehind(t *testing.T) {
	t.Parallel()
	got := withoutMake([]string{"A=1", "MAKEFLAGS=-j8 --jobserver-auth=3,4", "MAKELEVEL=1"})
	if diff := cmp.Diff([]string{"A=1"}, got); diff != "" {
		t.Errorf("a make below would look for a job server that is not there (-want +got)\n%s", diff)
	}
}

func TestRunRefusesABadCommandLine(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if code := run(context.Background(), []string{"tset"}, false, &out); code != 2 {
		t.Errorf("exit code %d, want 2", code)
	}
	if !strings.Contains(out.String(), "usage: lanes test|check") {
		t.Errorf("no usage: %s", out.String())
	}
}
