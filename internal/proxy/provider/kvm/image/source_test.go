package image_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/image"
)

func TestValidate(t *testing.T) {
	sum := strings.Repeat("0123456789abcdef", 4)
	for name, tc := range map[string]struct {
		reason string
		source image.Source
		says   string
	}{
		"https":              {"TLS says whose bytes they are", image.Source{URL: "https://images.example.com/d.qcow2"}, ""},
		"with all":           {"a configured image", image.Source{URL: "https://images.example.com:8443/d.raw?sig=s3cret", SHA256: sum, Format: image.Raw}, ""},
		"upper case":         {"hex is hex", image.Source{URL: "HTTPS://images.example.com/d", SHA256: strings.ToUpper(sum), Format: image.QCOW2}, ""},
		"http with digest":   {"the digest says it", image.Source{URL: "http://images.example.com/d", SHA256: sum}, ""},
		"IPv6":               {"an address is a host", image.Source{URL: "https://[2001:db8::1]/d"}, ""},
		"http alone":         {"anybody could change it on the way", image.Source{URL: "http://images.example.com/d?sig=s3cret"}, "http://images.example.com/d comes over plain HTTP"},
		"none":               {"nothing to fetch", image.Source{}, "no URL"},
		"relative":           {"relative to what", image.Source{URL: "/images/d"}, "not absolute"},
		"no scheme":          {"https is not guessed", image.Source{URL: "images.example.com/d"}, "not absolute"},
		"file":               {"the operator's own disk is no source", image.Source{URL: "file:///etc/passwd"}, "begins with file:"},
		"ftp":                {"only https and http", image.Source{URL: "ftp://images.example.com/d"}, "begins with ftp:"},
		"no host":            {"nobody to ask", image.Source{URL: "https:///d"}, "names no host"},
		"port alone":         {"nobody to ask", image.Source{URL: "https://:443/d"}, "names no host"},
		"opaque":             {"nobody to ask", image.Source{URL: "https:images.example.com"}, "names no host"},
		"userinfo":           {"it would be shown", image.Source{URL: "https://u:s3cret@images.example.com/d"}, "holds a user or password"},
		"user alone":         {"a token, perhaps", image.Source{URL: "https://s3cret@images.example.com/d"}, "holds a user or password"},
		"port 0":             {"nobody listens there", image.Source{URL: "https://images.example.com:0/d"}, "not between 1 and 65535"},
		"port 65536":         {"there is none", image.Source{URL: "https://images.example.com:65536/d"}, "not between 1 and 65535"},
		"no URL at all":      {"and its text may be secret", image.Source{URL: "https://images.example.com/%zz?sig=s3cret"}, "cannot be read"},
		"control character":  {"no header of its own", image.Source{URL: "https://images.example.com/d\r\nX: s3cret"}, "cannot be read"},
		"endless":            {"it is kept in objects and names", image.Source{URL: "https://images.example.com/" + strings.Repeat("d", 8<<10)}, "at most 8192"},
		"format":             {"two are taken", image.Source{URL: "https://images.example.com/d", Format: "vmdk"}, `"vmdk" is not known; write qcow2 or raw`},
		"format, other case": {"one way to write it", image.Source{URL: "https://images.example.com/d", Format: "QCOW2"}, "not known"},
		"short digest":       {"a character was lost", image.Source{URL: "https://images.example.com/d", SHA256: sum[1:]}, "has 63 characters, and a SHA-256 has 64 in hex"},
		"long digest":        {"a character too many", image.Source{URL: "https://images.example.com/d", SHA256: sum + "0"}, "has 65 characters, and a SHA-256 has 64"},
		"SHA-512":            {"the file beside the image on Debian's server", image.Source{URL: "https://images.example.com/d", SHA256: sum + sum}, "has 128 characters, and a SHA-256 has 64 in hex; this may be a SHA-512"},
		"SHA-384":            {"as well", image.Source{URL: "https://images.example.com/d", SHA256: sum + sum[:32]}, "this may be a SHA-384"},
		"SHA-1":              {"as well", image.Source{URL: "https://images.example.com/d", SHA256: sum[:40]}, "this may be a SHA-1"},
		"MD5":                {"as well", image.Source{URL: "https://images.example.com/d", SHA256: sum[:32]}, "this may be an MD5"},
		"not hex":            {"base64, perhaps", image.Source{URL: "https://images.example.com/d", SHA256: sum[1:] + "g"}, "no hex digit"},
		"spaces":             {"copied with the line", image.Source{URL: "https://images.example.com/d", SHA256: sum[1:] + " "}, "no hex digit"},
	} {
		t.Run(name, func(t *testing.T) {
			err := tc.source.Validate()
			if text := fmt.Sprint(tc.source); strings.Contains(text, "s3cret") || tc.says == "" && !strings.Contains(text, "://") {
				t.Errorf("the source prints as %q", text)
			}
			switch {
			case tc.says == "" && err != nil:
				t.Errorf("%v: %s", err, tc.reason)
			case tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says) || fault.Of(err) != fault.Invalid):
				t.Errorf("got %v (%s), want an Invalid error with %q: %s", err, fault.Of(err), tc.says, tc.reason)
			case err != nil && strings.Contains(err.Error(), "s3cret"):
				t.Errorf("%v shows a secret", err)
			}
		})
	}
}

// What a signed URL carries behind its path is in no text that is made of it.
func TestShownHidesAllBehindThePath(t *testing.T) {
	const secret = "s3cret"
	rapid.Check(t, func(t *rapid.T) {
		part := rapid.StringMatching(`[a-zA-Z0-9_.%@:/?&=;#é -]{0,20}`)
		u := &url.URL{
			Scheme: rapid.SampledFrom([]string{"https", "http"}).Draw(t, "scheme"), Host: "images.example.com",
			Path:     "/" + part.Draw(t, "path"),
			RawQuery: part.Draw(t, "query") + secret, Fragment: part.Draw(t, "fragment") + secret,
			User: url.UserPassword(part.Draw(t, "user")+secret, secret),
		}
		got := image.Shown(u)
		if strings.Contains(got, secret) || !strings.HasPrefix(got, u.Scheme+"://images.example.com/") {
			t.Errorf("%s is shown as %s", u, got)
		}
		if err := (image.Source{URL: u.String()}).Validate(); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%v of %s", err, u)
		}
	})
	long := image.Shown(&url.URL{Scheme: "https", Host: "images.example.com", Path: "/" + strings.Repeat("a\x1b", 1000)})
	if len(long) > 210 || strings.Contains(long, "\x1b") {
		t.Errorf("a long path is shown as %q", long)
	}
}
