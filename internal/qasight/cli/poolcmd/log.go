package poolcmd

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/cli/command"
	"fleetdesk/internal/qasight/config"
)

// logOptions are those of "qasight pool log".
type logOptions struct {
	Pool, Key string
	Limit     int
	// Resolve is the id of an action without an end, Note what a person found,
	// Found how it ended: ok, failed, or "" for no verdict.
	Resolve, Note, Found string
}

const (
	defaultLogLimit = 50
	maxLogLimit     = 1000
)

func newLog(f *command.Factory) *cobra.Command {
	o := &logOptions{}
	c := &cobra.Command{
		Use:   "log [POOL]",
		Short: "Show what provider commands were run, and resolve those without an end",
		Long: `Shows the action log: each provider command that a person had run, the latest first,
and every action without an end. Such an action runs, or was cut off: its outcome is
not known, and its key is barred from being leased and changed until a person looks
and says so with --resolve and --note. With --found the log also tells how it ended;
left out, the action is resolved without a verdict, and the note alone says what was
found. The log is never changed, only added to.`,
		Example: "  qasight pool log win-vms --key qa-win-03\n  qasight pool log --resolve K3Q5Y7ZABC2DK3Q5Y7ZABC2D --note \"it is gone\" --found ok",
		Args:    command.Args(0, 1, "at most POOL"),
		ValidArgsFunction: func(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return f.CompletePools(prefix)
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
	}
	flags := c.Flags()
	flags.StringVar(&o.Key, "key", "", "only actions on this key")
	flags.IntVar(&o.Limit, "limit", defaultLogLimit, "how many actions to show")
	flags.StringVar(&o.Resolve, "resolve", "", "say what became of this action, which has no end")
	flags.StringVar(&o.Note, "note", "", "with --resolve: what you found")
	flags.StringVar(&o.Found, "found", "", "with --resolve: whether it was done after all, ok or failed; left out: resolved without a verdict")
	_ = c.RegisterFlagCompletionFunc("found", cobra.FixedCompletions( // the flag exists
		[]string{"ok", "failed"}, cobra.ShellCompDirectiveNoFileComp))
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 1 {
			o.Pool = args[0]
		}
		resolves := c.Flags().Changed("resolve")
		if err := o.check(resolves, c.Flags().Changed("limit"), c.Flags().Changed("note") || c.Flags().Changed("found")); err != nil {
			return err
		}
		ctx, stop := f.UntilSignal(c.Context())
		defer stop()
		if resolves {
			return runResolve(ctx, f, o)
		}
		return runLog(ctx, f, o)
	}
	return c
}

func (o *logOptions) check(resolves, limited, said bool) error {
	switch {
	case !resolves && said:
		return fault.New(fault.Invalid, "--note and --found go with --resolve alone")
	case resolves && (o.Pool != "" || o.Key != "" || limited):
		return fault.New(fault.Invalid, "--resolve names one action: leave POOL, --key and --limit out")
	case resolves && strings.TrimSpace(o.Note) == "":
		return fault.New(fault.Invalid, "--resolve needs --note TEXT: say what you found")
	case o.Found != "" && o.Found != "ok" && o.Found != "failed":
		return fault.Errorf(fault.Invalid, "--found %q is neither ok nor failed", command.Plain(o.Found))
	case o.Limit < 1 || o.Limit > maxLogLimit:
		return fault.Errorf(fault.Invalid, "--limit %d: 1 to %d are possible", o.Limit, maxLogLimit)
	}
	for what, name := range map[string]string{"POOL": o.Pool, "--key": o.Key} {
		if name == "" {
			continue
		}
		if err := lease.ValidName(name); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	if resolves {
		return action.ValidID(o.Resolve)
	}
	return nil
}

func runLog(ctx context.Context, f *command.Factory, o *logOptions) error {
	file, err := f.Config()
	if err != nil {
		return err
	}
	b, err := f.Looker(ctx, file)
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }() // it was looked at
	actions, err := readLog(ctx, b, o)
	if err != nil {
		return err
	}
	open, err := readOpen(ctx, b, o, actions)
	if err != nil {
		return err
	}
	if len(actions) == 0 && o.Pool != "" && !knows(file, o.Pool) {
		_, err := file.Pool(o.Pool)
		return err
	}
	if f.JSON {
		return f.PrintJSON(logDocument(actions, open))
	}
	return printLog(f, actions, open, func(a *action.Action) bool { return fault.CodeOf(mayRun(ctx, b, a)) == codeChange })
}

func knows(file *config.File, pool string) bool {
	_, err := file.Pool(pool)
	return err == nil
}

// readLog returns the latest actions, at most as many as were asked for.
func readLog(ctx context.Context, b broker.History, o *logOptions) ([]action.Action, error) {
	// An action has three entries at most, but the newest entries may be ends of
	// actions that began long before: then there is more to read.
	for limit := 3 * o.Limit; ; limit *= 2 {
		entries, err := b.Entries(ctx, broker.Match{Pool: o.Pool, Key: o.Key}, limit)
		if err != nil {
			return nil, err
		}
		actions := slices.DeleteFunc(action.Fold(entries), func(a action.Action) bool { return a.Started == nil })
		if len(actions) >= o.Limit || len(entries) < limit {
			return actions[:min(o.Limit, len(actions))], nil
		}
	}
}

// readOpen returns the actions without an end that are not among the latest, the
// oldest first.
func readOpen(ctx context.Context, b broker.History, o *logOptions, shown []action.Action) ([]action.Action, error) {
	entries, err := b.Open(ctx, o.Pool)
	if err != nil {
		return nil, err
	}
	entries = slices.DeleteFunc(entries, func(e action.Entry) bool {
		return o.Key != "" && e.Key != o.Key || slices.ContainsFunc(shown, func(a action.Action) bool { return a.ID == e.Action })
	})
	open := action.Fold(entries)
	slices.Reverse(open)
	return open, nil
}

// printLog prints the log; alive tells of an action without an end whether it may
// still run.
func printLog(f *command.Factory, actions, open []action.Action, alive func(*action.Action) bool) error {
	w := f.Out()
	if len(actions)+len(open) == 0 {
		fmt.Fprintln(w, "No provider command was run.")
		return nil
	}
	rows := [][]string{{"TIME", "POOL", "VERB", "KEY", "BY", "STATE", "TOOK", "ACTION", "DETAIL"}}
	var unfinished []action.Action
	for _, a := range slices.Concat(actions, open) {
		if a.State == action.StateUnfinished {
			unfinished = append(unfinished, a)
		}
		took := ""
		if a.Finished != nil {
			took = command.Duration(a.Finished.Time.Sub(a.Started.Time))
		}
		rows = append(rows, []string{
			a.Started.Time.UTC().Format(time.RFC3339), a.Pool, string(a.Verb), a.Key, by(*a.Started), stateText(&a), took, a.ID, firstLine(detail(&a)),
		})
	}
	if err := command.Table(w, rows); err != nil {
		return err
	}
	slices.SortFunc(unfinished, func(a, b action.Action) int { return cmp.Compare(a.Started.Seq, b.Started.Seq) })
	for _, a := range unfinished {
		what := "Its outcome is unknown: look at it, then"
		if alive(&a) {
			what = "Wait first: " + mayRunYet + ".\nWhen that is over and it has no end, look at it, then"
		}
		fmt.Fprintf(w, "\nUNFINISHED: the %s of %s since %s. %s\n  qasight pool log --resolve %s --note TEXT [--found ok|failed]\n",
			a.Verb, command.Plain(cmp.Or(a.Key, "pool "+a.Pool)), a.Started.Time.UTC().Format(time.RFC3339), what, a.ID)
	}
	return nil
}

func by(e action.Entry) string {
	if e.Host == "" {
		return e.User
	}
	return e.User + "@" + e.Host
}

// stateText is an action's state with the verdict of whoever resolved it.
func stateText(a *action.Action) string {
	if a.State != action.StateResolved || a.Resolved.OK == nil {
		return string(a.State)
	}
	if *a.Resolved.OK {
		return string(a.State) + " (ok)"
	}
	return string(a.State) + " (failed)"
}

// detail is what the last entry tells.
func detail(a *action.Action) string {
	switch {
	case a.Finished != nil:
		return a.Finished.Detail
	case a.Resolved != nil:
		return by(*a.Resolved) + ": " + a.Resolved.Detail
	}
	return ""
}

// firstLine is the first line with something on it, cut for a table.
func firstLine(text string) string {
	const most = 60
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			if r := []rune(line); len(r) > most {
				return string(r[:most-1]) + "…"
			}
			return line
		}
	}
	return ""
}
