package seed_test

import (
	"bytes"
	"encoding/base64"
	"io"
	"mime"
	"mime/multipart"
	"net/mail"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/internal/proxy/provider/kvm/seed"
)

// cloud-init 2979: vendor lists are dropped when the user has the same key.
// Nothing is merged, since the vendor-data is a script.
func TestVendorDataAloneIsAScript(t *testing.T) {
	got := string(seed.VendorData(true, nil))
	if got != seed.AgentScript() || !strings.HasPrefix(got, "#!/bin/sh\n") {
		t.Errorf("vendor-data is no script of ours: %.60q", got)
	}
	// cloud-init takes anything with this in its first 4096 bytes for an archive.
	if strings.Contains(strings.ToLower(got), "mime-version:") {
		t.Error("cloud-init would take the script for a MIME archive")
	}
	for _, c := range []byte(got) {
		if c != '\n' && c != '\t' && (c < ' ' || c > '~') {
			t.Errorf("the script holds byte %#x: its part of an archive is plain ASCII", c)
		}
	}
}

func TestVendorDataOfTheConfigurationAlone(t *testing.T) {
	for _, own := range []string{"#cloud-config\r\nversion: 1.10\n", "\x1f\x8b\x00", "#!/bin/sh\n"} {
		if got := string(seed.VendorData(false, []byte(own))); got != own {
			t.Errorf("%q became %q", own, got)
		}
	}
	for name, got := range map[string][]byte{"none": seed.VendorData(false, nil), "empty": seed.VendorData(false, []byte{})} {
		if got != nil {
			t.Errorf("%s: vendor-data out of nothing: %q", name, got)
		}
	}
}

type part struct{ kind, body string }

// parts takes an archive apart, as a reader of mail does.
func parts(t *testing.T, archive []byte) []part {
	t.Helper()
	m, err := mail.ReadMessage(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	kind, params, err := mime.ParseMediaType(m.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/mixed" || m.Header.Get("MIME-Version") != "1.0" {
		t.Fatalf("the header is %v (%v)", m.Header, err)
	}
	var found []part
	for r := multipart.NewReader(m.Body, params["boundary"]); ; {
		p, err := r.NextRawPart()
		if err == io.EOF {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(p)
		if err != nil {
			t.Fatal(err)
		}
		kind, _, err := mime.ParseMediaType(p.Header.Get("Content-Type"))
		if err != nil {
			t.Fatal(err)
		}
		if p.Header.Get("Content-Transfer-Encoding") == "base64" {
			for line := range strings.SplitSeq(string(body), "\n") {
				if len(line) > 76 {
					t.Errorf("a line of %d letters: mail allows 76", len(line))
				}
			}
			if body, err = base64.StdEncoding.DecodeString(strings.ReplaceAll(string(body), "\n", "")); err != nil {
				t.Fatal(err)
			}
		}
		found = append(found, part{kind, string(body)})
	}
}

// cloud-init 6178: the header of the archive comes first, its boundary is in no
// part, and what the configuration says arrives as it is.
func TestVendorDataOfBoth(t *testing.T) {
	for name, own := range map[string]string{
		"cloudConfig": "#cloud-config\nversion: 1.10\n",
		"noNewline":   "#cloud-config\nversion: 1.10",
		"jinja":       "## template: jinja\n#cloud-config\nhostname: {{ v1.local_hostname }}\n",
		"script":      "#!/bin/sh\necho hi\n",
		"crlf":        "#cloud-config\r\nruncmd: [ls]\r\n",
		"utf8":        "#cloud-config\nmotd: Grüße → 世界\n",
		"latin1":      "#cloud-config\nmotd: Gr\xfc\xdfe\n",
		"binary":      "\x00\x1f\x8b\xff",
		"archive":     string(seed.VendorData(true, []byte("#cloud-config\n"))),
		"separator":   "#cloud-config\n--=_fleetdesk_0\n--=_fleetdesk_0--\n\n--boundary--\n",
		"blank":       "\n\n\n",
		"space":       " #cloud-config \n",
		"long":        "#cloud-config\nx: " + strings.Repeat("y", 5000) + "\n",
		"large":       strings.Repeat("#cloud-config\n", 10_000),
	} {
		t.Run(name, func(t *testing.T) {
			archive := seed.VendorData(true, []byte(own))
			if !bytes.HasPrefix(archive, []byte("Content-Type: multipart/mixed; boundary=")) ||
				!bytes.Contains(archive[:min(len(archive), 200)], []byte("\nMIME-Version: 1.0\n")) {
				t.Errorf("the header does not come first: %.200q", archive)
			}
			want := []part{{"text/plain", own}, {"text/x-shellscript", seed.AgentScript()}}
			if d := cmp.Diff(want, parts(t, archive), cmp.AllowUnexported(part{})); d != "" {
				t.Errorf("the parts (-want +got):\n%s", d)
			}
			if !bytes.Equal(archive, seed.VendorData(true, []byte(own))) {
				t.Error("the same input gives another archive")
			}
		})
	}
}

func TestBoundaryOccursInNoPart(t *testing.T) {
	for name, tc := range map[string]struct {
		parts []string
		want  string
	}{
		"plain":  {[]string{"#cloud-config", "#!/bin/sh"}, "=_fleetdesk_0"},
		"none":   {nil, "=_fleetdesk_0"},
		"first":  {[]string{"--=_fleetdesk_0\n", ""}, "=_fleetdesk_1"},
		"second": {[]string{"", "x=_fleetdesk_0--"}, "=_fleetdesk_1"},
		"longer": {[]string{"=_fleetdesk_0", "=_fleetdesk_10"}, "=_fleetdesk_2"},
	} {
		t.Run(name, func(t *testing.T) {
			var parts [][]byte
			for _, p := range tc.parts {
				parts = append(parts, []byte(p))
			}
			if got := seed.BoundaryFor(parts...); got != tc.want {
				t.Errorf("the boundary is %q, want %q", got, tc.want)
			}
		})
	}
}

func FuzzVendorData(f *testing.F) {
	f.Add([]byte("#cloud-config\n"))
	f.Add([]byte("\xff\r\n\r\n--"))
	f.Fuzz(func(t *testing.T, own []byte) {
		if len(own) == 0 {
			return
		}
		got := parts(t, seed.VendorData(true, own))
		if len(got) != 2 || got[0].body != string(own) || got[1].body != seed.AgentScript() {
			t.Errorf("%q became %+v", own, got[:1])
		}
	})
}
