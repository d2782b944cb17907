package operator

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	wire "fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/proxy/deskkeys"
)

func TestMatch(t *testing.T) {
	in := func(attribute string, values ...string) lease.Match {
		return lease.Match{Attribute: attribute, Op: lease.In, Values: values}
	}
	for name, c := range map[string]struct {
		wish wire.Wish
		want []lease.Match
	}{
		"nothing": {},
		"all": {
			wire.Wish{Selector: "tier=eu", Scheme: "socks5", Provider: "kvm-home", Region: "eu-1"},
			[]lease.Match{in("label:tier", "eu"), in("protocol", "socks5"), in("provider", "kvm-home"), in("region", "eu-1")},
		},
		"every operator": {
			wire.Wish{Selector: "a==b, c!=d,e in (f, g),h notin (i),j,!k,example.com/l="},
			[]lease.Match{
				in("label:a", "b"),
				{Attribute: "label:c", Op: lease.NotIn, Values: []string{"d"}},
				in("label:e", "f", "g"),
				{Attribute: "label:h", Op: lease.NotIn, Values: []string{"i"}},
				{Attribute: "label:j", Op: lease.Exists},
				{Attribute: "label:k", Op: lease.Absent},
				in("label:example.com/l", ""),
			},
		},
	} {
		got, err := chosen{}.Match(c.wish)
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

// A selector that does not parse says where.
func TestMatchRefuses(t *testing.T) {
	for selector, says := range map[string]string{
		"tier=eu,":                     "at character 9: a requirement is missing",
		",tier=eu":                     "at character 1:",
		"a,,b":                         "at character 3:",
		" ":                            "at character 1:",
		"a in":                         `at character 1: "a in"`,
		"ok,a in (b":                   `at character 4: "a in (b"`,
		"ok,a in b),c":                 "at character 4:",
		"a=b c":                        "at character 1:",
		"a=b,c=d e,f":                  `at character 5: "c=d e"`,
		"a>1":                          "compares numbers",
		"x,a<1":                        "at character 3:",
		"-a=b":                         "at character 1:",
		"a=-b":                         "at character 1:",
		"a=\x00":                       "at character 3: a control character",
		"ok,a=b\n":                     "at character 7: a control character",
		"a in ()":                      "", // the parser takes an empty value
		"a notin (b),=":                "at character 13:",
		"a=" + strings.Repeat("b", 64): "at character 1:",
		"=":                            "at character 1:",
		"!":                            "at character 1:",
		"()":                           "at character 1:",
	} {
		_, err := chosen{}.Match(wire.Wish{Selector: selector})
		if says == "" {
			continue
		}
		if fault.Of(err) != fault.Invalid || fault.CodeOf(err) != deskkeys.CodeSelector || !strings.Contains(err.Error(), says) ||
			strings.ContainsAny(err.Error(), "\n\x00") || len(err.Error()) > 250 {
			t.Errorf("%q: %v, want %q", selector, err, says)
		}
	}
}

// Conditions on attributes say what the selector says of labels, and what is
// refused the parser refuses too (but for comparisons of numbers).
func TestMatchProperty(t *testing.T) {
	name, value := rapid.SampledFrom([]string{"a", "b", "x.example/c"}), rapid.SampledFrom([]string{"", "v", "w"})
	rapid.Check(t, func(t *rapid.T) {
		requirement := rapid.Custom(func(t *rapid.T) string {
			space := rapid.SampledFrom([]string{"", " "})
			n, v, w := name.Draw(t, "name"), value.Draw(t, "value"), value.Draw(t, "other")
			return space.Draw(t, "space") + rapid.SampledFrom([]string{
				n + "=" + v, n + "==" + v, n + "!=" + v, n, "!" + n, n + " in (" + v + "," + w + ")", n + " notin (" + v + ", " + w + ")", n + "=" + v + "=", n + " in " + v,
			}).Draw(t, "requirement")
		})
		selector := strings.Join(rapid.SliceOfN(requirement, 1, 4).Draw(t, "all"), ",")
		match, err := chosen{}.Match(wire.Wish{Selector: selector})
		parsed, refused := labels.Parse(selector)
		if (err == nil) != (refused == nil) {
			t.Fatalf("%q: %v, the parser says %v", selector, err, refused)
		}
		if err != nil {
			return
		}
		for range 16 {
			set := labels.Set{}
			attributes := map[string]string{"protocol": "http"}
			for _, n := range []string{"a", "b", "x.example/c"} {
				if v := []string{"", "v", "w", "-"}[rand.IntN(4)]; v != "-" {
					set[n], attributes["label:"+n] = v, v
				}
			}
			if got, want := (&lease.Key{Attributes: attributes}).Matches(nil, match...), parsed.Matches(set); got != want {
				t.Fatalf("%q on %v: %v, the parser's says %v", selector, set, got, want)
			}
		}
	})
}

func TestNames(t *testing.T) {
	c := chosen{}
	if got := c.Key("crawl", "home-1.x"); got != "crawl.home-1.x" {
		t.Error(got)
	}
	if ns, name, ok := c.Parts("crawl.home-1.x"); !ok || ns != "crawl" || name != "home-1.x" {
		t.Error(ns, name, ok)
	}
	if _, _, ok := c.Parts("win-01"); ok {
		t.Error("a fixed pool's key is a proxy")
	}
	if got := c.DefaultPool("crawl"); got != "crawl.default" {
		t.Error(got)
	}
}
