// Command lanes runs the project's tests, lane by lane, and ends with a table
// of results and times and a last line "N passed, N failed".
//
//	lanes test            what needs neither root nor anything foreign
//	lanes check           that, and lint, drift, root lanes and smoke
//	lanes test unit e2e   these lanes only
//
// A lane that fails shows its output in full and the rest go on; the exit code
// is then 1. With CI set, a skipped test that skips.txt does not name fails
// its lane.
package main

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// wholeLimit bounds a run of all lanes on two cores with empty caches.
const wholeLimit = 45 * time.Minute

//go:embed skips.txt
var skipList string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Getenv("CI") != "", os.Stdout)
	stop()
	os.Exit(code)
}

// run plays the wanted lanes and returns the exit code: 0 all passed, 1 a lane
// failed, 2 the command line or skips.txt is wrong.
func run(ctx context.Context, args []string, ci bool, out io.Writer) int {
	wanted, err := choose(lanes(), args)
	if err != nil {
		fmt.Fprintln(out, err)
		return 2
	}
	allowed, err := parseSkips(skipList)
	if err != nil {
		fmt.Fprintln(out, err)
		return 2
	}
	root, err := filepath.Abs(".")
	if err != nil {
		fmt.Fprintln(out, err)
		return 2
	}
	ctx, cancel := context.WithTimeout(ctx, wholeLimit)
	defer cancel()

	r := runner{
		root:    root,
		logs:    filepath.Join(root, "bin", "logs"),
		ci:      ci,
		isRoot:  os.Geteuid() == 0,
		allowed: allowed,
		out:     out,
	}
	results := make([]result, 0, len(wanted))
	for _, l := range wanted {
		results = append(results, r.lane(ctx, l))
	}
	return report(out, results)
}
