package poolcmd

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/cli/command"
	"fleetdesk/internal/qasight/humanrun"
)

// changeOutput says what would be done, and what was.
type changeOutput struct {
	f    *command.Factory
	plan *humanrun.Plan
	dry  bool
}

// changeDocument is what --json prints of a change.
type changeDocument struct {
	Verb string `json:"verb"`
	Pool string `json:"pool"`
	// DryRun is whether nothing was to be run.
	DryRun bool `json:"dryRun"`
	// Keys are what was planned; Command is the provider's text for each.
	Keys    []string `json:"keys"`
	Command string   `json:"command"`
	// Listed is what existed when it was planned.
	Listed []string `json:"listed"`
	// Skipped are leftovers that do not qualify; Remaining counts those that do,
	// besides Keys.
	Skipped   []skippedDocument `json:"skipped"`
	Remaining int               `json:"remaining"`
	// Results are what was run, in order; Items the names to add to the pool's
	// items.
	Results []resultDocument `json:"results"`
	Items   []string         `json:"items"`
	// Error is what ended it early.
	Error *errorDocument `json:"error,omitempty"`
}

type skippedDocument struct {
	Key    string `json:"key"`
	Reason string `json:"reason"`
	// Foreign is whether it lacks the pool's prefix.
	Foreign bool `json:"foreign"`
}

type resultDocument struct {
	Key    string `json:"key"`
	Action string `json:"action"`
	// State is done, failed or unknown.
	State string `json:"state"`
	// Took is in seconds.
	Took   float64 `json:"took"`
	Detail string  `json:"detail"`
}

type errorDocument struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

func (o *changeOutput) document() changeDocument {
	p := o.plan
	d := changeDocument{
		Verb: string(p.Verb), Pool: p.Pool, DryRun: o.dry, Keys: append([]string{}, p.Keys...), Command: p.Command,
		Listed: append([]string{}, p.Listed...), Skipped: []skippedDocument{}, Remaining: p.Remaining,
		Results: []resultDocument{}, Items: []string{},
	}
	for _, s := range p.Skipped {
		d.Skipped = append(d.Skipped, skippedDocument{s.Key, s.Why, s.Foreign})
	}
	return d
}

// nothing says that there is nothing to do.
func (o *changeOutput) nothing() error {
	if o.f.JSON {
		return o.f.PrintJSON(o.document())
	}
	w := o.f.Out()
	fmt.Fprintf(w, "Nothing to do: pool %s has no leftover that qualifies (%s in the list).\n", o.plan.Pool, count(len(o.plan.Listed), "name"))
	o.stays(w)
	return nil
}

// dryRun shows the plan and says, before and after it, that nothing was run.
func (o *changeOutput) dryRun() error {
	o.f.Sayf("DRY RUN: nothing is created or destroyed without --apply.")
	if o.f.JSON {
		return o.f.PrintJSON(o.document())
	}
	w := o.f.Out()
	o.write(w)
	again := []string{"qasight pool", string(o.plan.Verb), o.plan.Pool}
	again = append(again, o.plan.Names...)
	if o.plan.ListIsEmpty {
		again = append(again, "--list-is-empty")
	}
	fmt.Fprintf(w, "\nDRY RUN: nothing was run. To have it done: %s --apply\n", strings.Join(again, " "))
	return nil
}

// shown shows the plan to the person who is about to be asked.
func (o *changeOutput) shown() { o.write(o.f.Streams.Err) }

func (o *changeOutput) write(w io.Writer) {
	p := o.plan
	does := "destroys"
	if p.Verb == humanrun.Add {
		does = "creates"
	}
	fmt.Fprintf(w, "%s of pool %s %s %s, one after the other, each by: %s\n", p.Verb, p.Pool, does, count(len(p.Keys), "key"), command.Plain(p.Command))
	for _, k := range p.Keys {
		fmt.Fprintf(w, "  %s\n", k)
	}
	if p.Verb == humanrun.Add {
		fmt.Fprintf(w, "The list shows %s, the pool has %s, and max_items is %d.\n", count(len(p.Listed), "name"), count(len(p.Items), "item"), p.MaxItems)
	}
	if p.Remaining > 0 {
		fmt.Fprintf(w, "%s %s: one command takes %d; run it again for them.\n", count(p.Remaining, "more leftover"), verb(p.Remaining, "qualifies", "qualify"), humanrun.MaxKeys)
	}
	o.stays(w)
}

// stays names the leftovers that do not qualify, and why.
func (o *changeOutput) stays(w io.Writer) {
	var foreign []string
	head := false
	for _, s := range o.plan.Skipped {
		if s.Foreign {
			foreign = append(foreign, s.Key)
			continue
		}
		if !head {
			head = true
			fmt.Fprintln(w, "Leftovers that stay:")
		}
		fmt.Fprintf(w, "  %s %s\n", s.Key, command.Plain(s.Why))
	}
	if len(foreign) == 0 {
		return
	}
	const most = 10
	more := ""
	if len(foreign) > most+1 {
		more = fmt.Sprintf(" and %d more (--json names all)", len(foreign)-most)
		foreign = foreign[:most]
	}
	fmt.Fprintf(w, "Not this pool's, without name_prefix %q: %s%s\n", o.plan.Prefix, strings.Join(foreign, ", "), more)
}

// done says what was done, and what was not; err is what ended the run.
func (o *changeOutput) done(r humanrun.Report, err error) error {
	if o.f.JSON {
		d := o.document()
		for _, x := range r.Outcomes {
			d.Results = append(d.Results, resultDocument{x.Key, x.Action, string(x.State), x.Took.Seconds(), x.Detail})
		}
		d.Items = append(d.Items, o.fresh(r)...)
		if err != nil {
			d.Error = &errorDocument{fault.CodeOf(err), err.Error()}
		}
		return o.f.PrintJSON(d)
	}
	w := o.f.Out()
	did := map[humanrun.State]string{humanrun.Done: "destroyed", humanrun.Failed: "FAILED", humanrun.Unknown: "OUTCOME UNKNOWN"}
	if o.plan.Verb == humanrun.Add {
		did[humanrun.Done] = "created"
	}
	rows := [][]string{{"KEY", "RESULT", "TOOK", "ACTION"}}
	for i, k := range o.plan.Keys {
		if i >= len(r.Outcomes) {
			rows = append(rows, []string{k, "not run", "", ""})
			continue
		}
		x := r.Outcomes[i]
		rows = append(rows, []string{k, did[x.State], command.Duration(x.Took), x.Action})
	}
	if err := command.Table(w, rows); err != nil {
		return err
	}
	if o.plan.Remaining > 0 {
		fmt.Fprintf(w, "%s %s: run it again for them.\n", count(o.plan.Remaining, "more leftover"), verb(o.plan.Remaining, "remains", "remain"))
	}
	if o.plan.Verb == humanrun.Sweep {
		o.stays(w)
	}
	o.lines(w, o.fresh(r))
	return nil
}

// fresh are the created keys that the pool does not list yet.
func (o *changeOutput) fresh(r humanrun.Report) []string {
	var out []string
	for _, x := range r.Outcomes {
		if o.plan.Verb == humanrun.Add && x.State == humanrun.Done && !slices.Contains(o.plan.Items, x.Key) {
			out = append(out, x.Key)
		}
	}
	return out
}

// lines are what the person adds to the file.
func (o *changeOutput) lines(w io.Writer, fresh []string) {
	if len(fresh) == 0 {
		return
	}
	fmt.Fprintf(w, "\nqasight never edits its file. For the pool to have them, add to items of pool %s:\n%s\n(in a list in brackets: %s)\n",
		o.plan.Pool, strings.Join(humanrun.ItemLines(fresh), "\n"), strings.Join(fresh, ", "))
	if o.plan.Place.Server != "" {
		fmt.Fprintf(w, "and have an admin run: qasight pool publish %s\n", o.plan.Pool)
	}
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func verb(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
