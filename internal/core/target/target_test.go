package target_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/target"
)

func TestNormalize(t *testing.T) {
	long := strings.Repeat("a", 63) + "." + strings.Repeat("b", 63) + "." + strings.Repeat("c", 63) + "." + strings.Repeat("d", 61)
	for in, want := range map[string]string{
		"shop.example.com":                                    "shop.example.com",
		"Shop.EXAMPLE.com":                                    "shop.example.com",
		"shop.example.com.":                                   "shop.example.com",
		"shop.example.com:443":                                "shop.example.com",
		"shop.example.com.:8443":                              "shop.example.com",
		"shop.example.com:":                                   "shop.example.com",
		"https://shop.example.com/cart?x#":                    "shop.example.com",
		"HTTPS://Shop.Example.com:443":                        "shop.example.com",
		"//shop.example.com/a":                                "shop.example.com",
		"shop.example.com/a/b":                                "shop.example.com",
		"shop.example.com?q=1":                                "shop.example.com",
		"http://ann:pa:ss@shop.example.com:8080/":             "shop.example.com",
		"https://ann@example.org@shop.example.com":            "shop.example.com",
		"https://shop.example.com/?next=http://other.example": "shop.example.com",
		"shop.example.com/http://other.example":               "shop.example.com",
		`https://shop.example.com\@other.example`:             "shop.example.com", // as browsers read it
		`http:\\shop.example.com\cart`:                        "shop.example.com",
		`https:/\shop.example.com/`:                           "shop.example.com",
		"https://shop.example.com:/x":                         "shop.example.com",
		"localhost":                                           "localhost",
		"my_shop.example.com":                                 "my_shop.example.com",
		"r3---sn-abc.example.com":                             "r3---sn-abc.example.com",
		"Bücher.example":                                      "xn--bcher-kva.example",
		"bu\u0308cher.example":                                "xn--bcher-kva.example", // the same in two code points
		"xn--bcher-kva.example":                               "xn--bcher-kva.example",
		"XN--BCHER-KVA.example":                               "xn--bcher-kva.example",
		"straße.example":                                      "xn--strae-oqa.example",
		"例え。テスト":                                              "xn--r8jz45g.xn--zckzah",
		"例え.テスト。":                                             "xn--r8jz45g.xn--zckzah",
		"ｓｈｏｐ．example．com":                                    "shop.example.com",
		"1.example":                                           "1.example",
		"0x7f.example":                                        "0x7f.example",
		long:                                                  long,
		"https://a.example/" + strings.Repeat("p", 2000):      "a.example",
	} {
		got, err := target.Normalize(in)
		if err != nil || got != want {
			t.Errorf("Normalize(%.60q) = %q, %v; want %q", in, got, err, want)
		}
	}
}

func TestNormalizeRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		in, says string
	}{
		"empty":                         {"", "is empty"},
		"a dot":                         {".", "names no host"},
		"a space":                       {" ", "character that no host name has"},
		"spaces around":                 {" shop.example.com", "character that no host name has"},
		"ten thousand characters":       {strings.Repeat("a", 10_000), "10000 bytes"},
		"a long name":                   {strings.Repeat("a.", 127) + "example", "at most 253"},
		"a name of 254 bytes":           {strings.Repeat(strings.Repeat("a", 63)+".", 3) + strings.Repeat("d", 62), "254 bytes"},
		"a long URL":                    {"https://a.example/" + strings.Repeat("p", 3000), "3018 bytes"},
		"a long part":                   {strings.Repeat("a", 64) + ".example", "part of 64 bytes"},
		"a long part in IDNA":           {strings.Repeat("ü", 60) + ".example", "at most"},
		"IPv4":                          {"192.0.2.1", "is an IP address"},
		"IPv4 with a port":              {"192.0.2.1:80", "is an IP address"},
		"IPv4 with a dot":               {"192.0.2.1.", "is an IP address"},
		"IPv4 in a URL":                 {"http://192.0.2.1/x", "is an IP address"},
		"IPv4 as a number":              {"3221225985", "is an IP address"},
		"IPv4 short":                    {"127.1", "is an IP address"},
		"IPv4 in hex":                   {"0xC0000201", "is an IP address"},
		"IPv4 in wide digits":           {"１９２.0.2.1", "is an IP address"},
		"IPv4 in odd parts":             {"a.0x", "is an IP address"},
		"IPv6":                          {"2001:db8::1", "is an IP address"},
		"IPv6 in brackets":              {"[2001:db8::1]:443", "is an IP address"},
		"IPv6 in a URL":                 {"https://[::1]/", "is an IP address"},
		"a wildcard":                    {"*.example.com", "is a wildcard"},
		"all":                           {"*", "is a wildcard"},
		"a wildcard inside":             {"sho*.example.com", "is a wildcard"},
		"punycode that does not decode": {"xn--a.example", "punycode does not decode"},
		"punycode cut off":              {"xn--.example", ""},
		"punycode of ASCII":             {"xn--example-.com", "punycode does not decode"},
		"an empty part":                 {"shop..example.com", "empty part"},
		"a dot in front":                {".example.com", "empty part"},
		"two dots at the end":           {"example.com..", "empty part"},
		"a port that is none":           {"example.com:https", "port"},
		"a port too high":               {"example.com:65536", "port"},
		"a scheme alone":                {"https://", "names no host"},
		"a scheme and a path":           {"https:///cart", "names no host"},
		"a scheme and one slash":        {"https:/shop.example.com/", "write https://"},
		"a scheme and one backslash":    {`http:\shop.example.com`, "write https://"},
		"a scheme without slashes":      {"https:shop.example.com", "port"},
		"a scheme and a colon":          {"https:", "ends in a colon"},
		"a scheme, a colon and a query": {"https:?x", "ends in a colon"},
		"a URL in a URL":                {"https://http://shop.example.com", "ends in a colon"},
		"what is no scheme":             {"1http://shop.example.com", "write https://"},
		"what is no scheme, with a dot": {"1.http://shop.example.com", "write https://"},
		"a host, a colon and a slash":   {"shop.example.com:/x", "write https://"},
		"a user, a colon and a slash":   {"ann:/hunter2@shop.example.com", "write https://"},
		"three slashes":                 {`https:/\/shop.example.com`, "names no host"},
		"a control character":           {"shop\x00.example.com", "character that no host name has"},
		"a line break":                  {"shop.example.com\n", "character that no host name has"},
		"a percent sign":                {"shop%2eexample.com", "character that no host name has"},
		"not UTF-8":                     {"shop\xff.example.com", ""},
		"a character of no name":        {"shop\ufffd.example.com", ""},
	} {
		got, err := target.Normalize(tc.in)
		if err == nil {
			t.Errorf("%s: Normalize(%.60q) = %q, want a refusal", name, tc.in, got)
			continue
		}
		if fault.Of(err) != fault.Invalid || fault.CodeOf(err) != target.Code {
			t.Errorf("%s: class %s, code %q", name, fault.Of(err), fault.CodeOf(err))
		}
		if text := err.Error(); !strings.Contains(text, tc.says) || !strings.HasPrefix(text, "the target ") ||
			strings.ContainsAny(text, "\n\x00") || len(text) > 300 {
			t.Errorf("%s: %q does not say %q in one short line", name, text, tc.says)
		}
	}
}

// A target may be a URL with credentials; no error shows them.
func TestNormalizeKeepsCredentialsToItself(t *testing.T) {
	for _, in := range []string{
		"http://ann:hunter2@192.0.2.1/", "http://ann:hunter2@*/", "ann:hunter2@bad host", "ann:hunter2@a:b:c", "ann:hunter2@xn--a.example",
		"http://ann:hunter2@", "http://ann:hunter2@a..b", "http://ann:hunter2@a:x",
	} {
		if _, err := target.Normalize(in); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Normalize(%q): %v", in, err)
		}
	}
}

func TestSite(t *testing.T) {
	for in, want := range map[string]string{
		"shop.example.com":              "example.com",
		"example.com":                   "example.com",
		"a.b.shop.example.co.uk":        "example.co.uk",
		"co.uk":                         "co.uk",
		"com":                           "com",
		"localhost":                     "localhost",
		"ann.github.io":                 "ann.github.io", // each user's is a site of its own
		"x.ann.github.io":               "ann.github.io",
		"www.xn--85x722f.xn--55qx5d.cn": "xn--85x722f.xn--55qx5d.cn",
		"a.b.internal":                  "b.internal",       // no rule of the list: the last part is the suffix
		"www.city.kawasaki.jp":          "city.kawasaki.jp", // an exception of the list
		"a.b.c.kawasaki.jp":             "b.c.kawasaki.jp",
	} {
		if got := target.Site(in); got != want {
			t.Errorf("Site(%q) = %q, want %q", in, got, want)
		}
	}
}

// holds checks what Normalize promises of any text.
func holds(t interface {
	Helper()
	Fatalf(format string, args ...any)
}, s string,
) {
	t.Helper()
	got, err := target.Normalize(s)
	if err != nil {
		if got != "" || fault.Of(err) != fault.Invalid || fault.CodeOf(err) != target.Code {
			t.Fatalf("Normalize(%q) = %q, %v (%s, %q)", s, got, err, fault.Of(err), fault.CodeOf(err))
		}
		return
	}
	if got == "" || len(got) > target.MaxHost || strings.Trim(got, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
		t.Fatalf("Normalize(%q) = %q", s, got)
	}
	for _, same := range []string{got, got + ".", strings.ToUpper(got), "https://" + got + ":443/x", got + ":80"} {
		if again, err := target.Normalize(same); err != nil || again != got {
			t.Fatalf("Normalize(%q) = %q, but of %q it is %q, %v", s, got, same, again, err)
		}
	}
	for _, front := range []string{"https:/", `https:\`, `http:/\`, `ws:\\`, "https:", "https:///", "1http://", "x-y.z://", `//`, `\\`} { // the same, or none
		if again, err := target.Normalize(front + got + "/x"); err == nil && again != got {
			t.Fatalf("Normalize(%q) = %q", front+got+"/x", again)
		}
	}
	site := target.Site(got)
	if again, err := target.Normalize(site); err != nil || again != site || target.Site(site) != site {
		t.Fatalf("Site(%q) = %q, which normalizes to %q, %v", got, site, again, err)
	}
	if site != got && !strings.HasSuffix(got, "."+site) {
		t.Fatalf("Site(%q) = %q", got, site)
	}
}

func FuzzNormalize(f *testing.F) {
	for _, s := range []string{
		"", "shop.example.com", "HTTPS://Shop.Example.com:443/x", "Bücher.example", "xn--bcher-kva.example", "xn--a", "192.0.2.1", "[::1]",
		"*.example.com", "a..b", "例え。テスト", "straße.example", "a\u200d.example", "\u00ad.example", "xn--1ch.example", "ａ.０x1", "⒈.example",
		"ı.example", "İ.example", "xn--fa-hia.example", "a.b.kawasaki.jp", "-.example", "_.example", "xn--0.pt",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) { holds(t, s) })
}

func TestNormalizeProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		part := rapid.OneOf(rapid.StringMatching(`[a-zA-Z0-9_-]{1,12}`), rapid.StringMatching(`xn--[a-z0-9-]{0,10}`), rapid.StringN(0, 6, 24))
		parts := rapid.SliceOfN(part, 1, 5).Draw(t, "parts")
		dot := rapid.SampledFrom([]string{".", ".", ".", "。", "．"}).Draw(t, "dot")
		holds(t, rapid.SampledFrom([]string{"", "https://", "//", "u:p@"}).Draw(t, "front")+strings.Join(parts, dot)+
			rapid.SampledFrom([]string{"", ".", ":443", "/x", "。"}).Draw(t, "end"))
	})
}
