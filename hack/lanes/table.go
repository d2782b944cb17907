package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// lane is a group of steps with one deadline and one row in the final table.
type lane struct {
	name string
	// deadline bounds all steps together.
	deadline time.Duration
	// checkOnly lanes run in `make check` and not in `make test`.
	checkOnly bool
	// needsRoot lanes are skipped for other users; in CI that is a failure.
	needsRoot bool
	steps     []step
}

// step is one command of a lane.
type step struct {
	// dir is relative to the repository's top.
	dir string
	// argv is the command; the element "{packages}" stands for all packages
	// of the module in dir outside of test/.
	argv []string
	// env is added to the runner's own environment.
	env []string
	// kind says how to read the output.
	kind kind
}

type kind int

const (
	// plain: the exit code decides; the output is shown on failure.
	plain kind = iota
	// silent: any output on stdout is a failure too (gofumpt -l).
	silent
	// progress: what the command says on stderr is shown while it runs.
	progress
	// tests: `go test -json`; tests are counted one by one.
	tests
)

// lanes is the whole list, in the order in which they run: what is quick or
// explains later failures comes first. A lane that needs root sets needsRoot
// and checkOnly.
func lanes() []lane {
	return []lane{
		{
			// What it lists, `make fmt` mends.
			name: "format", deadline: 5 * time.Minute,
			steps: []step{
				{argv: []string{"make", "gofumpt"}, kind: progress},
				{argv: []string{"bin/tools/gofumpt", "-l", "."}, kind: silent},
			},
		},
		{
			name: "arch", deadline: 5 * time.Minute,
			steps: []step{goTest("", "./test/arch", "-count=1", "-skip", "^TestDocs")},
		},
		{
			name: "docs", deadline: 5 * time.Minute,
			steps: []step{goTest("", "./test/arch", "-count=1", "-run", "^TestDocs")},
		},
		{
			name: "build", deadline: 25 * time.Minute,
			steps: []step{{argv: []string{"make", "build", "kube-assets"}, kind: progress}},
		},
		{
			name: "vet", deadline: 10 * time.Minute,
			steps: []step{
				{argv: []string{"go", "vet", "./..."}, kind: plain},
				{argv: []string{"go", "vet", "-tags=integration", "./..."}, kind: plain},
				{dir: "standalone", argv: []string{"go", "vet", "./..."}, kind: plain},
				{dir: "hack/kvm/tinyguest", argv: []string{"go", "vet", "./..."}, kind: plain},
			},
		},
		{
			// The one place with cgo and the race detector: a build of its own
			// for everything the root module needs.
			name: "unit", deadline: 25 * time.Minute,
			steps: []step{race(goTest("", "{packages}", "-timeout=20m"))},
		},
		{
			name: "standalone", deadline: 10 * time.Minute,
			steps: []step{goTest("standalone", "./...")},
		},
		{
			// The small guest of the lane kvm, on this machine.
			name: "tinyguest", deadline: 5 * time.Minute,
			steps: []step{goTest("hack/kvm/tinyguest", "./...")},
		},
		{
			// Real processes: a cached result would prove nothing about bin/.
			name: "e2e", deadline: 10 * time.Minute,
			steps: []step{goTest("", "./test/e2e/...", "-count=1")},
		},
		{
			// Servers, clients and operators that are killed; `make drill-leases`
			// and `make drill-operator` are the long forms.
			name: "drill", deadline: 15 * time.Minute,
			steps: []step{
				goTest("", "./test/leases", "-count=1"),
				goTest("", "./test/fleet", "-count=1"),
				goTest("", "./test/selection", "./test/waterfall"),
			},
		},
		{
			name: "drift", deadline: 5 * time.Minute, checkOnly: true,
			steps: []step{{argv: []string{"make", "drift"}, kind: progress}},
		},
		{
			name: "lint", deadline: 15 * time.Minute, checkOnly: true,
			steps: []step{{argv: []string{"make", "lint"}, kind: progress}},
		},
		{
			// The programs of docs/crawlers.md, with Debian's curl, Python, Scrapy and
			// Chromium and npm's packages, which the first step installs.
			name: "crawlers", deadline: 15 * time.Minute, checkOnly: true,
			steps: []step{
				{argv: []string{"make", "setup-crawlers"}, kind: progress},
				goTest("", "-count=1", "-timeout=3m", "./test/crawlers"),
			},
		},
		{
			// Real sshd, libvirtd, QEMU and guests in namespaces. One package at a
			// time: each uses the whole machine.
			name: "kvm", deadline: 25 * time.Minute, checkOnly: true, needsRoot: true,
			steps: []step{
				{argv: []string{"make", "kvm-images"}, kind: progress},
				goTest("", "-tags=integration", "-count=1", "./internal/testkit/libvirthost"),
				goTest("", "-tags=integration", "-count=1", "-p=1", "-timeout=20m", "-run=^TestReal", "./internal/proxy/provider/kvm/...", "./test/fleet", "./test/e2e"),
			},
		},
		{
			name: "smoke", deadline: 10 * time.Minute, checkOnly: true,
			steps: []step{{argv: []string{"make", "smoke"}, kind: progress}},
		},
	}
}

func goTest(dir string, args ...string) step {
	return step{dir: dir, argv: append([]string{"go", "test", "-json"}, args...), kind: tests}
}

func race(s step) step {
	s.argv = slices.Insert(s.argv, 3, "-race")
	s.env = append(s.env, "CGO_ENABLED=1")
	return s
}

// choose reads the command line: a suite, and lane names to run only these.
func choose(all []lane, args []string) ([]lane, error) {
	usage := fmt.Errorf("usage: lanes test|check [lane…]; lanes are: %s", strings.Join(names(all), " "))
	if len(args) == 0 || (args[0] != "test" && args[0] != "check") {
		return nil, usage
	}
	for _, name := range args[1:] {
		if !slices.Contains(names(all), name) {
			return nil, fmt.Errorf("no lane is called %q; %w", name, usage)
		}
	}
	var wanted []lane
	for _, l := range all {
		switch {
		case len(args) > 1:
			if slices.Contains(args[1:], l.name) {
				wanted = append(wanted, l)
			}
		case args[0] == "check" || !l.checkOnly:
			wanted = append(wanted, l)
		}
	}
	return wanted, nil
}

func names(all []lane) []string {
	var out []string
	for _, l := range all {
		out = append(out, l.name)
	}
	return out
}
