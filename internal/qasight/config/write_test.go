package config_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"fleetdesk/internal/qasight/config"
)

// writer writes a file in one of the many ways in which people do.
type writer struct {
	t *rapid.T
	b strings.Builder
}

func (w *writer) chance(what string) bool { return rapid.IntRange(0, 3).Draw(w.t, what) == 0 }

// end ends a line, with or without what people leave there.
func (w *writer) end() {
	w.b.WriteString(rapid.SampledFrom([]string{"", "", "", " ", "  # why: [é, {x}] \"'", " #"}).Draw(w.t, "end") + "\n")
	for w.chance("between") {
		w.b.WriteString(rapid.SampledFrom([]string{"", "# é: x", "        # - x", "  ", "#"}).Draw(w.t, "line") + "\n")
	}
}

// scalar writes a text that has no need of quotes.
func (w *writer) scalar(s string) string {
	return fmt.Sprintf(rapid.SampledFrom([]string{"%s", "%s", `"%s"`, "'%s'"}).Draw(w.t, "quotes"), s)
}

func (w *writer) items(indent string, items []string) {
	if w.chance("flow") || len(items) == 0 {
		w.b.WriteString(" [")
		for i, item := range items {
			if i > 0 {
				w.b.WriteString(rapid.SampledFrom([]string{", ", ",", " , ", ",\n" + indent + "    ", ", # é\n" + indent + "    "}).Draw(w.t, "comma"))
			}
			w.b.WriteString(w.scalar(item))
		}
		w.b.WriteString(rapid.SampledFrom([]string{"]", " ]", "\n" + indent + "  ]"}).Draw(w.t, "close"))
		w.end()
		return
	}
	w.end()
	deeper := rapid.SampledFrom([]string{"", "  ", "    "}).Draw(w.t, "deeper")
	gap := rapid.SampledFrom([]string{" ", "   "}).Draw(w.t, "gap")
	for _, item := range items {
		w.b.WriteString(indent + deeper + "-" + gap + w.scalar(item))
		w.end()
	}
}

var nameGen = rapid.StringMatching(`[A-Za-z0-9][A-Za-z0-9._-]{0,10}`).Filter(func(s string) bool {
	// YAML takes them for nothing, and says so.
	return !strings.EqualFold(s, "null")
})

// Whatever is written is what is read, and stands where it is said to stand.
func TestParseReadsWhatWasWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type one struct {
			Name, Check string
			Items       []string
		}
		var want []one
		w := &writer{t: t}
		if w.chance("mark") {
			w.b.WriteString("---\n")
		}
		project := nameGen.Draw(t, "project")
		w.b.WriteString("project: " + w.scalar(project))
		w.end()
		w.b.WriteString("pools:")
		w.end()
		indent := rapid.SampledFrom([]string{" ", "  ", "    "}).Draw(t, "indent")
		for _, name := range rapid.SliceOfNDistinct(nameGen, 1, 4, rapid.ID[string]).Draw(t, "pools") {
			p := one{name, "", rapid.SliceOfNDistinct(nameGen, 0, 6, rapid.ID[string]).Draw(t, "items")}
			w.b.WriteString(indent + w.scalar(name) + ":")
			w.end()
			hook := func() {
				text := rapid.SampledFrom([]string{"./check.sh --all", `test "$QASIGHT_KEY" = 'é' || exit 1`, "a && b # no comment", "x\n  y\n\n\tz #\n"}).Draw(t, "command")
				w.b.WriteString(indent + indent + "on_check: ")
				switch {
				case strings.Contains(text, "\n"), w.chance("block"):
					text = strings.TrimSuffix(text, "\n") + "\n"
					w.b.WriteString("|\n")
					for l := range strings.Lines(text) {
						w.b.WriteString(strings.TrimSuffix(indent+indent+"  "+l, indent+indent+"  \n"))
						if l == "\n" {
							w.b.WriteString("\n")
						}
					}
				case strings.Contains(text, " #"), w.chance("quoted"):
					w.b.WriteString("'" + strings.ReplaceAll(text, "'", "''") + "'")
					w.end()
				default:
					w.b.WriteString(text)
					w.end()
				}
				p.Check = text
			}
			first := w.chance("hook first")
			if first {
				hook()
			}
			w.b.WriteString(indent + indent + "items:")
			w.items(indent+indent, p.Items)
			if !first && w.chance("hook last") {
				hook()
			}
			want = append(want, p)
		}
		text := w.b.String()
		if w.chance("no end") {
			text = strings.TrimRight(text, "\n")
		}
		if w.chance("other system") {
			text = "\uFEFF" + strings.ReplaceAll(text, "\n", "\r\n")
		}
		f, err := config.Parse("qasight.yaml", "/srv/shop", []byte(text))
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		var got []one
		lines := linesOf(text)
		for i := range f.Pools {
			p := &f.Pools[i]
			got = append(got, one{p.Name, p.Hooks.Check, p.Items})
			stands(t, lines, p.Name, p.At)
			for _, item := range p.Items {
				stands(t, lines, item, p.ItemAt(item))
			}
		}
		if diff := cmp.Diff(want, got); diff != "" || f.Project != project {
			t.Fatalf("project %q, want %q; pools (-want +got):\n%s\n%s", f.Project, project, diff, text)
		}
	})
}
