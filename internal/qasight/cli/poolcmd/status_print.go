package poolcmd

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"time"

	"fleetdesk/internal/core/drift"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/qasight/cli/command"
)

const (
	// manyKeys is how many keys a pool shows unless all are asked for.
	manyKeys = 40
	// manyLines bounds other lists of a pool, such as its leftovers.
	manyLines = 40
)

func (o *statusOptions) print(s *statusReport) error {
	if o.f.JSON {
		return o.f.PrintJSON(s)
	}
	var out bytes.Buffer
	t := told{time.Now()}
	for i := range s.Pools {
		if i > 0 {
			out.WriteByte('\n')
		}
		if err := o.printPool(&out, &s.Pools[i], t, s.StoreError == ""); err != nil {
			return err
		}
	}
	if len(s.Pools) > 0 {
		out.WriteByte('\n')
	}
	for _, f := range s.Findings {
		fmt.Fprintln(&out, command.Plain("! "+f.Text))
	}
	fmt.Fprintln(&out, s.summary())
	_, err := o.f.Out().Write(out.Bytes())
	return err
}

func (o *statusOptions) printPool(w io.Writer, r *poolReport, t told, stored bool) error {
	fmt.Fprintln(w, command.Plain(r.head(stored)))
	looks := r.looks()
	head := []string{" ", "KEY", "EXISTS", "STATE", "DETAIL"}
	if o.check {
		head = []string{" ", "KEY", "EXISTS", "STATE", "CHECK", "DETAIL"}
	}
	rows, hidden := [][]string{head}, 0
	for i := range r.Keys {
		k := &r.Keys[i]
		if len(r.Keys) > manyKeys && !o.all && !looks[k.Name] {
			hidden++
			continue
		}
		mark := ""
		if looks[k.Name] {
			mark = "!"
		}
		row := []string{mark, k.Name, string(k.Exists), k.State, k.detail(r.Name, t)}
		if o.check {
			row = []string{mark, k.Name, string(k.Exists), k.State, k.checked(), k.detail(r.Name, t)}
		}
		rows = append(rows, row)
	}
	if len(rows) > 1 {
		if err := indented(w, rows); err != nil {
			return err
		}
	}
	if hidden > 0 {
		fmt.Fprintf(w, "  %s without a finding not shown: --all shows them\n", plural(hidden, "key", "keys"))
	}
	for _, line := range r.lines(o, t) {
		fmt.Fprintln(w, command.Plain("  "+line))
	}
	return nil
}

// head is the pool in one line.
func (r *poolReport) head(stored bool) string {
	states, exist := r.counts()
	var parts []string
	if stored {
		text := fmt.Sprintf("%d of %s free", states[string(lease.Free)], plural(len(r.Keys), "key", "keys"))
		for _, s := range []string{
			string(lease.Held), string(lease.Resetting), string(lease.NeedsReset), string(lease.Cooling), string(lease.DisabledSt),
			string(lease.Barred), string(lease.Unhealthy), string(lease.Gone), stateUnpublished,
		} {
			if states[s] > 0 {
				text += fmt.Sprintf(", %d %s", states[s], s)
			}
		}
		parts = append(parts, text)
	} else {
		parts = append(parts, plural(len(r.Keys), "key", "keys")+", lease states not known")
	}
	switch {
	case !r.Provider:
		parts = append(parts, "no provider")
	case r.failed():
		parts = append(parts, "list failed, what exists is not known")
	default:
		parts = append(parts, fmt.Sprintf("%d present, %d missing, %d left over", exist[drift.Present], exist[drift.Missing], len(r.Leftovers)))
	}
	if r.Waiting > 0 {
		parts = append(parts, fmt.Sprintf("%d waiting", r.Waiting))
	}
	return r.Name + ": " + strings.Join(parts, "; ")
}

// detail says why a key is not free, or how its check went. That the file does
// not list it is said first.
func (k *keyReport) detail(pool string, t told) string {
	why := t.why(k.key, pool)
	if k.Check != nil {
		why = k.Check.text()
	}
	if k.Item {
		return why
	}
	return strings.TrimSuffix("not in the file; "+why, "; ")
}

func (k *keyReport) checked() string {
	if k.Check == nil {
		return "-"
	}
	return k.Check.Outcome
}

// lines are what is to be said of the pool below its keys.
func (r *poolReport) lines(o *statusOptions, t told) []string {
	var out []string
	for _, f := range r.Findings {
		switch f.Code {
		case findMissing, findDisabled, findCheck: // the key's row says so
		case findLeftover: // below, each by name
		default:
			out = append(out, "! "+f.Text)
		}
		if f.Code == findDiffers {
			for _, d := range r.Differences {
				out = append(out, "    "+d)
			}
		}
	}
	if r.List != nil && r.List.Error == "" && r.List.Names == 0 {
		out = append(out, "the list is empty: nothing exists")
	}
	for i, l := range r.Leftovers {
		if i == manyLines && !o.all {
			out = append(out, fmt.Sprintf("! and %d more are left over: --all shows them", len(r.Leftovers)-i))
			break
		}
		out = append(out, fmt.Sprintf("! %s %s", l.Name, leftoverText(l, r.Name, r.Prefix)))
	}
	if c := r.Change; c != nil {
		of := ""
		if len(c.Keys) > 0 {
			of = " of " + strings.Join(c.Keys, ", ")
		}
		out = append(out, fmt.Sprintf("a change is under way: %s%s by %s since %s", c.Verb, of, who(c.Account, c.Holder), t.at(c.Began)))
	}
	for _, a := range r.Actions {
		if a.UnderWay {
			out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s runs since %s", a.Verb, a.Key, t.at(a.Started))))
		}
	}
	if o.check && !r.Checked {
		out = append(out, "the pool has no on_check: nothing was checked")
	}
	return out
}

// summary is the last line.
func (s *statusReport) summary() string {
	look, failed, checks := 0, 0, 0
	for i := range s.Pools {
		r := &s.Pools[i]
		if r.failed() {
			failed++
		}
		if len(r.Findings) > 0 {
			look++
		}
		for _, k := range r.Keys {
			if k.Check != nil && (k.Check.Outcome == checkOK || k.Check.Outcome == checkFailed) {
				checks++
			}
		}
	}
	text := plural(len(s.Pools), "pool", "pools") + ": "
	var parts []string
	if look > 0 {
		parts = append(parts, fmt.Sprintf("%d to look at", look))
	}
	if failed > 0 {
		parts = append(parts, plural(failed, "list failed", "lists failed"))
	}
	if s.StoreError != "" {
		parts = append(parts, "the lease store does not answer")
	}
	if checks > 0 {
		parts = append(parts, plural(checks, "key checked", "keys checked"))
	}
	if n := len(s.Findings); n > 0 {
		parts = append(parts, plural(n, "finding", "findings")+" beside the pools")
	}
	if look == 0 && failed == 0 && s.StoreError == "" && len(s.Findings) == 0 {
		parts = append([]string{"all well"}, parts...)
	}
	return text + strings.Join(parts, ", ")
}
