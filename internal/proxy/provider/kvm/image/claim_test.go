package image_test

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"fleetdesk/internal/proxy/provider/kvm/image"
)

// What a claim's name says is read back, by the installation that it is of.
func TestClaimsRoundTrip(t *testing.T) {
	safe := regexp.MustCompile(`^[a-z0-9-]{1,128}$`)
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "installation")
		want := image.Claim{
			Place:  image.Place(in, "home", rapid.SampledFrom([]string{"box-1", "box-2"}).Draw(t, "host")),
			Holder: rapid.StringMatching(`[a-z0-9]{8,32}`).Draw(t, "holder"),
			Period: time.Duration(rapid.Int64Range(1, int64(1<<63-1)/int64(time.Millisecond)).Draw(t, "period")) * time.Millisecond,
			Beat:   rapid.Uint64().Draw(t, "beat"),
		}
		name := image.ClaimName(in, want)
		got, ok := image.ParseClaim(name)
		if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(image.Claim{})); diff != "" || !ok {
			t.Errorf("%s: %v (-want +got):\n%s", name, ok, diff)
		}
		if !safe.MatchString(name) || !got.Of(in) || got.Of("c") {
			t.Errorf("%s is of c, not of %q, or no name for a file", name, in)
		}
		if _, ours := image.ParseName(name); ours {
			t.Errorf("%s is an image's name as well", name)
		}
	})
	seen := map[string]bool{}
	for _, p := range []string{image.Place("i", "p", "h"), image.Place("j", "p", "h"), image.Place("i", "q", "h"), image.Place("i", "p", "k")} {
		if seen[p] {
			t.Errorf("two places are %s", p)
		}
		seen[p] = true
	}
}

func TestClaimNamesAreStable(t *testing.T) {
	c := image.Claim{Place: image.Place(installation, "home", "box-1"), Holder: "abcdefgh", Period: 3 * time.Minute, Beat: 7}
	// Another name would hide an operator of another version.
	if got, want := image.ClaimName(installation, c), "fleetdesk-claim-37ea513505-PLACE-abcdefgh-180000-7"; got != strings.Replace(want, "PLACE", c.Place, 1) {
		t.Errorf("the claim is called %s, want %s", got, want)
	}
}

func TestWhatIsNoClaim(t *testing.T) {
	const good = "fleetdesk-claim-0123456789-abcdef0123-holder01-180000-7"
	if _, ok := image.ParseClaim(good); !ok {
		t.Fatalf("%s is no claim", good)
	}
	for reason, name := range map[string]string{
		"nothing":                   "",
		"the prefix alone":          "fleetdesk-claim-",
		"another prefix":            "x" + good,
		"upper case":                strings.ToUpper(good),
		"a copy of somebody":        good + ".bak",
		"one part more":             good + "-1",
		"one part less":             strings.TrimSuffix(good, "-7"),
		"an installation not hex":   strings.Replace(good, "0123456789", "012345678g", 1),
		"a short installation":      strings.Replace(good, "0123456789", "012345678", 1),
		"a short place":             strings.Replace(good, "abcdef0123", "abcdef012", 1),
		"a short holder":            strings.Replace(good, "holder01", "holder0", 1),
		"a long holder":             strings.Replace(good, "holder01", strings.Repeat("h", 33), 1),
		"a holder of other letters": strings.Replace(good, "holder01", "holder_1", 1),
		"no period":                 strings.Replace(good, "180000", "0", 1),
		"a period below zero":       strings.Replace(good, "-180000", "--180000", 1),
		"a period too long":         strings.Replace(good, "180000", "9223372036855", 1),
		"a period with zeros":       strings.Replace(good, "180000", "0180000", 1),
		"no beat":                   strings.TrimSuffix(good, "7"),
		"a beat with zeros":         strings.TrimSuffix(good, "7") + "07",
		"a beat with a sign":        strings.TrimSuffix(good, "7") + "+7",
		"a beat too large":          strings.TrimSuffix(good, "7") + "18446744073709551616",
		"a line end":                good + "\n",
	} {
		if c, ok := image.ParseClaim(name); ok {
			t.Errorf("%s: %q is the claim %+v", reason, name, c)
		}
	}
}

func FuzzParseClaim(f *testing.F) {
	f.Add("fleetdesk-claim-0123456789-abcdef0123-holder01-180000-7")
	f.Fuzz(func(t *testing.T, s string) {
		c, ok := image.ParseClaim(s)
		if !ok {
			return
		}
		// All but the installation, which is a hash, is in the claim.
		if got := image.ClaimName("any", c); got[:16] != s[:16] || got[26:] != s[26:] {
			t.Errorf("%q is read as %+v, which is called %q: a second spelling", s, c, got)
		}
	})
}
