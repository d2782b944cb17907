package local_test

import (
	"strings"
	"testing"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/local"
)

func TestParseID(t *testing.T) {
	tag := local.TagOf(installation)
	uid := "3f0c6a52-9d53-4c1e-8a55-0f4f1d2f7a10"
	for name, tc := range map[string]struct {
		reason string
		in     string
		want   local.ID
		ok     bool
	}{
		"round": {"what String writes is read", "local://home/" + uid + "~" + tag, local.ID{Provider: "home", UID: uid, Tag: tag}, true},
		"dots":  {"a dot inside a name leads nowhere", "local://h.1/a..b~" + tag, local.ID{Provider: "h.1", UID: "a..b", Tag: tag}, true},
		"up":    {"a UID must not leave the state directory", "local://home/..~" + tag, local.ID{}, false},
		"slash": {"one folder, no path", "local://home/a/b~" + tag, local.ID{}, false},
		"hide":  {"hidden names are the provider's own", "local://home/.ops~" + tag, local.ID{}, false},
		"other": {"another provider's scheme", "kvm://home/" + uid + "~" + tag, local.ID{}, false},
		"bare":  {"without the installation's tag it would mean two instances", "local://home/" + uid, local.ID{}, false},
		"short": {"a tag has its length", "local://home/" + uid + "~" + tag[1:], local.ID{}, false},
		"upper": {"a tag has one spelling", "local://home/" + uid + "~" + strings.Repeat("A", 16), local.ID{}, false},
		"long":  {"a name longer than a file name may be", "local://home/" + strings.Repeat("a", 129) + "~" + tag, local.ID{}, false},
		"empty": {"nothing is no id", "", local.ID{}, false},
		"space": {"no trimming", " local://home/" + uid + "~" + tag, local.ID{}, false},
		"nul":   {"no byte that ends a C string", "local://home/a\x00b~" + tag, local.ID{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := local.ParseID(tc.in)
			if (err == nil) != tc.ok || got != tc.want {
				t.Errorf("%s: ParseID(%q) = %+v, %v", tc.reason, tc.in, got, err)
			}
			if err != nil && fault.Of(err) != fault.Invalid {
				t.Errorf("class %s; want invalid", fault.Of(err))
			}
		})
	}
}

func FuzzParseID(f *testing.F) {
	f.Add("local://home/a~0123456789abcdef")
	f.Add("local://home/../../etc~0123456789abcdef")
	f.Fuzz(func(t *testing.T, s string) {
		id, err := local.ParseID(s)
		if err != nil {
			return
		}
		if id.String() != s {
			t.Errorf("ParseID(%q).String() = %q", s, id)
		}
		if strings.ContainsAny(id.UID, "/~\x00") || strings.HasPrefix(id.UID, ".") {
			t.Errorf("ParseID(%q) lets UID %q through", s, id.UID)
		}
	})
}

func TestCandidate(t *testing.T) {
	seen := map[string]string{}
	for _, uid := range []string{"a", "b", "3f0c6a52-9d53-4c1e-8a55-0f4f1d2f7a10"} {
		for n := range 16 {
			a := local.Candidate(uid, n)
			b := a.As4()
			if b[0] != 127 || b[1] < 64 || b[1] > 127 || b[3] == 0 || b[3] == 255 {
				t.Errorf("Candidate(%q, %d) = %s is outside 127.64.0.0/10, or ends in 0 or 255", uid, n, a)
			}
			if other, ok := seen[a.String()]; ok {
				t.Errorf("Candidate(%q, %d) = %s is %s as well", uid, n, a, other)
			}
			seen[a.String()] = uid
		}
	}
	if got := local.Candidate("a", 0).String(); got != "127.99.88.205" {
		t.Errorf("Candidate(a, 0) = %s: the sequence is kept in no file, so it must never change", got)
	}
}

func TestCreateRefuses(t *testing.T) {
	good := specOf("a")
	for name, tc := range map[string]struct {
		reason string
		change func(*provider.Spec)
		class  fault.Class
		says   string
	}{
		"uid":      {"a UID becomes a folder's name", func(s *provider.Spec) { s.Owner.UID = "../a" }, fault.Invalid, "UID"},
		"noTag":    {"an instance without an owner could not be swept", func(s *provider.Spec) { s.Owner.Installation = "" }, fault.Invalid, "installation"},
		"host":     {"there is one host", func(s *provider.Spec) { s.Host = "other" }, fault.Invalid, "placement.host"},
		"zone":     {"there are no zones", func(s *provider.Spec) { s.Zone = "a" }, fault.Invalid, "placement.zone"},
		"selector": {"there are no nodes", func(s *provider.Spec) { s.NodeSelector = map[string]string{"a": "b"} }, fault.Invalid, "placement.nodeSelector"},
		"image":    {"there is one image", func(s *provider.Spec) { s.Image = "debian" }, fault.Invalid, "placement.image"},
		"port":     {"ports end at 65535", func(s *provider.Spec) { s.Port = 65536 }, fault.Invalid, "port"},
		"socks":    {"it speaks http alone", func(s *provider.Spec) { s.Protocol = provider.SOCKS5 }, fault.Unsupported, "protocol"},
		"https":    {"it speaks http alone", func(s *provider.Spec) { s.Protocol = provider.HTTPS }, fault.Unsupported, "protocol"},
		"userData": {"nobody would run it", func(s *provider.Spec) { s.UserData = provider.Secret("#cloud-config") }, fault.Unsupported, "no machine"},
		"colon":    {"basic authentication cannot carry it", func(s *provider.Spec) { s.Credentials.User = "a:b" }, fault.Invalid, "user name"},
	} {
		t.Run(name, func(t *testing.T) {
			p := open(t, t.TempDir())
			spec := good
			tc.change(&spec)
			in, err := p.Create(t.Context(), spec)
			if fault.Of(err) != tc.class || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%s: Create = %+v, class %q: %v; want %s that names %q", tc.reason, in, fault.Of(err), err, tc.class, tc.says)
			}
		})
	}
}

func TestPlace(t *testing.T) {
	p := open(t, t.TempDir())
	for name, tc := range map[string]struct {
		reason string
		spec   provider.Spec
		class  fault.Class
	}{
		"any":      {"the provider chooses", provider.Spec{Owner: ownerOf("a")}, ""},
		"local":    {"the only host may be named", provider.Spec{Owner: ownerOf("a"), Host: "local"}, ""},
		"other":    {"no other", provider.Spec{Owner: ownerOf("a"), Host: "Local"}, fault.Invalid},
		"zone":     {"no zones", provider.Spec{Owner: ownerOf("a"), Zone: "z"}, fault.Invalid},
		"selector": {"no nodes", provider.Spec{Owner: ownerOf("a"), NodeSelector: map[string]string{"a": "b"}}, fault.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			host, err := p.Place(t.Context(), tc.spec)
			if fault.Of(err) != tc.class || (err == nil) != (host == local.Host) {
				t.Errorf("%s: Place = %q, %v", tc.reason, host, err)
			}
		})
	}
}
