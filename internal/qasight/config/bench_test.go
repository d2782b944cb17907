package config_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"fleetdesk/internal/qasight/config"
)

// large is a file of so many pools with so many keys each.
func large(pools, items int) string {
	var b strings.Builder
	b.WriteString("project: shop\npools:\n")
	for p := range pools {
		fmt.Fprintf(&b, "  pool-%d:\n    lease_ttl: 30m\n    items:\n", p)
		for i := range items {
			fmt.Fprintf(&b, "      - key-%d-%d\n", p, i)
		}
	}
	return b.String()
}

// A file that was made to be slow is slow by its length only. The bound is wide:
// what grows with the square takes minutes at this length.
func TestParseTakesNoLongerThanTheFileIsLong(t *testing.T) {
	const size = 1 << 16
	fill := func(s string) string { return strings.Repeat(s, size/len(s)) }
	// The parser itself takes the square of the time for these.
	more := func(s string) string { return strings.Repeat(fill(s), 8) }
	for name, text := range map[string]string{
		"largest pool": large(1, 10_000), "pools": large(200, 200), "fields": more("a: b\n"), "empty fields": fill("a:\n"), "pairs": "{" + fill("a: b, ") + "}",
		"empty items": more("-\n"), "items": fill("- a\n"), "words": fill("a "), "lines": fill("a\n"), "in one list": "a: [" + fill("b, ") + "]",
		"brackets": fill("["), "braces": fill("{"), "dashes": fill("- "), "marks": fill("? "), "anchors": fill("&a "), "aliases": fill("*a "), "tags": fill("!a "),
		"comments": fill("# a\n"), "blocks": fill("|\n"), "documents": fill("---\n"), "directives": fill("%a\n"), "quotes": fill(`"" `), "blank": fill("\n"), "tabs": fill("\t"),
		"text in quotes": `a: "` + fill("b\n") + `"`, "escapes": `a: "` + fill(`\n`) + `"`, "block": "a: |\n" + fill("  b\n"), "folded": "a: >\n" + fill("  b\n\n"),
		"steps": steps(size), "one item twice": "project: p\npools:\n a:\n  items:\n" + fill("   - x\n"),
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			_, err := config.Parse("qasight.yaml", "/srv/shop", []byte(text))
			if d := time.Since(start); d > 10*time.Second {
				t.Errorf("%d bytes took %s (%v)", len(text), d, err)
			}
		})
	}
}

// steps is a text in which each line is indented deeper than the one before.
func steps(size int) string {
	var b strings.Builder
	for i := 0; b.Len() < size; i++ {
		b.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return b.String()
}

func BenchmarkParse(b *testing.B) {
	for _, n := range []struct{ pools, items int }{{1, 10}, {1, 1_000}, {1, 10_000}, {20, 10_000}, {200, 10}, {200, 1_000}} {
		text := []byte(large(n.pools, n.items))
		b.Run(fmt.Sprintf("pools=%d/items=%d", n.pools, n.items), func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := config.Parse("qasight.yaml", "/srv/shop", text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
