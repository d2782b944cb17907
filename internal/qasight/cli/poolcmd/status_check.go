package poolcmd

import (
	"context"
	"fmt"
	"strings"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/platform/proc"
	"fleetdesk/internal/qasight/cli/command"
	"fleetdesk/internal/qasight/config"
)

const (
	// maxChecks bounds the checks that run at once.
	maxChecks = 8
	// stale is how old a look may be for a check to begin on what it showed.
	stale = time.Second
	// maxLine bounds the last line of a check's output, in letters.
	maxLine = 200
)

// The outcomes of a check.
const (
	checkOK     = "ok"
	checkFailed = "failed"
	// checkDiscarded: the key was no longer free afterwards, or the store could
	// not say; what the check found says nothing of a free key.
	checkDiscarded = "discarded"
	// checkSkipped: the key was no longer free before it began.
	checkSkipped = "skipped"
)

// checkReport is how on_check went on a key.
type checkReport struct {
	// Outcome is ok, failed, discarded or skipped.
	Outcome string `json:"outcome"`
	// Reason says why it failed, or counts for nothing.
	Reason string `json:"reason,omitempty"`
	// Line is the last line of its output.
	Line    string         `json:"line,omitempty"`
	Code    int            `json:"code,omitempty"`
	Seconds client.Seconds `json:"seconds,omitempty"`
}

// runFunc is proc.Run.
type runFunc func(context.Context, proc.Command) (proc.Result, error)

// checker runs on_check on free keys. It holds no lease, so it looks at each key
// directly before and after.
type checker struct {
	f     *command.Factory
	file  *config.File
	store *storeLook
	run   runFunc
}

type checkJob struct {
	cfg   *config.Pool
	fresh *fresh
	key   *keyReport
}

// all checks every free key of the pools, and adds a finding for each that fails.
// The error is the store's, when it stopped answering.
func (c *checker) all(ctx context.Context, looks []poolLook, reports []poolReport, p func(total int) *progress) error {
	var jobs []checkJob
	for i := range reports {
		if looks[i].cfg.Hooks.Check == "" {
			continue
		}
		at := &fresh{store: c.store, pool: looks[i].cfg.Name}
		for j := range reports[i].Keys {
			if k := &reports[i].Keys[j]; k.free() {
				jobs = append(jobs, checkJob{looks[i].cfg, at, k})
			}
		}
	}
	line := p(len(jobs))
	defer line.close()
	errs := make([]error, len(jobs))
	each(len(jobs), maxChecks, func(i int) {
		if ctx.Err() != nil {
			return // whoever asked is gone
		}
		line.begin(jobs[i].key.Name)
		defer line.end(jobs[i].key.Name)
		jobs[i].key.Check, errs[i] = c.one(ctx, jobs[i])
	})
	for i := range reports {
		for _, k := range reports[i].Keys {
			if k.Check != nil && k.Check.Outcome == checkFailed {
				reports[i].find(findCheck, k.Name, "on_check failed: %s", k.Check.text())
			}
		}
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// one checks one key. The error is the store's.
func (c *checker) one(ctx context.Context, j checkJob) (*checkReport, error) {
	name, pool := j.key.Name, j.cfg.Name
	before, err := j.fresh.since(ctx, time.Now().Add(-stale))
	if err != nil {
		return &checkReport{Outcome: checkSkipped, Reason: "it could not be seen whether it is free still"}, err
	}
	if reason := taken(before.key(pool, name)); reason != "" {
		return &checkReport{Outcome: checkSkipped, Reason: reason}, nil
	}
	r, failed := c.run(ctx, proc.Command{
		Shell: j.cfg.Hooks.Check, Dir: c.file.Dir, Timeout: j.cfg.Hooks.Timeout, Hide: c.f.Secrets(),
		Env: append(withoutLease(c.f.HookEnv()), "QASIGHT_KEY="+name, "QASIGHT_POOL="+pool, "QASIGHT_HOOK=check"),
	})
	out := &checkReport{Outcome: checkOK, Line: lastLine(r.Output), Code: r.Code, Seconds: client.SecondsOf(r.Took)}
	switch {
	case failed != nil:
		out.Outcome, out.Reason = checkFailed, failed.Error()
	case r.Code != 0:
		out.Outcome, out.Reason = checkFailed, fmt.Sprintf("exit code %d", r.Code)
	}
	after, err := j.fresh.since(ctx, time.Now())
	if err != nil {
		out.Outcome, out.Reason = checkDiscarded, "it could not be seen whether it was free all the time"
		return out, err
	}
	if reason := taken(after.key(pool, name)); reason != "" {
		out.Outcome, out.Reason = checkDiscarded, reason
	}
	return out, nil
}

// taken says why a key that was free is free no more; "" when it still is.
func taken(k client.Key) string {
	switch {
	case k.State == string(lease.Free):
		return ""
	case k.Lease != nil:
		return "taken meanwhile by " + who(k.Lease.Account, k.Lease.Holder)
	}
	return "not free any more: " + k.State
}

// text says in a line how the check went.
func (r *checkReport) text() string {
	var parts []string
	for _, s := range []string{r.Reason, r.Line} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, ": ")
}

// withoutLease drops what an exec around this command has in its environment: the
// check is of no lease.
func withoutLease(env []string) []string {
	out := make([]string, 0, len(env))
	for _, kv := range env {
		if name, _, _ := strings.Cut(kv, "="); !strings.HasPrefix(name, "QASIGHT_LEASE") && name != "QASIGHT_FENCE" {
			out = append(out, kv)
		}
	}
	return out
}

// lastLine is the last line of an output that is not blank, cut.
func lastLine(output string) string {
	lines := strings.Split(strings.ReplaceAll(output, "\r", "\n"), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if l := strings.TrimSpace(lines[i]); l != "" {
			return cut(command.Plain(l), maxLine)
		}
	}
	return ""
}
