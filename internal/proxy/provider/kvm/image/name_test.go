package image_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"fleetdesk/internal/proxy/provider/kvm/image"
)

const installation = "7f5c2c1e-0000-4000-8000-000000000001/fleetdesk"

func drawSource(t *rapid.T) image.Source {
	return image.Source{
		URL:    "https://images.example.com/" + rapid.StringMatching(`[ab]{0,2}`).Draw(t, "url"),
		SHA256: strings.Repeat(rapid.StringMatching(`[ab]?`).Draw(t, "sha"), 64),
		Format: rapid.SampledFrom([]image.Format{image.QCOW2, image.Raw}).Draw(t, "format"),
	}
}

// Two sources share a key only when they are one source of one installation.
func TestKeysDoNotMix(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawSource(t), drawSource(t)
		inA, inB := rapid.StringMatching(`[ab]{0,2}`).Draw(t, "a"), rapid.StringMatching(`[ab]{0,2}`).Draw(t, "b")
		same := a == b && inA == inB
		ka, kb := image.Key(inA, "home", a), image.Key(inB, "home", b)
		if (ka == kb) != same {
			t.Errorf("%q %+v and %q %+v: keys %s and %s", inA, a, inB, b, ka, kb)
		}
		name := image.VolumeName(ka, image.Nonce(), a.Format)
		c, ok, halves := image.Find([]string{name, image.MarkerName(name, 512)}, kb)
		if ok != same || len(halves) != 0 || ok && c.Volume != name {
			t.Errorf("another key finds %+v, %v, %v", c, ok, halves)
		}
		n, _ := image.ParseName(name)
		if n.By(inB, "home") != (inA == inB) || n.By(inA, "home-nat") {
			t.Errorf("%s of %q is by %q, or by its other provider", name, inA, inB)
		}
		if n.Of(inB) != (inA == inB) {
			t.Errorf("%s of %q is %v of %q", name, inA, n.Of(inB), inB)
		}
	})
}

func TestKeyIsStable(t *testing.T) {
	sum := strings.Repeat("ab", 32)
	s := image.Source{URL: "https://images.example.com/d.qcow2", SHA256: sum, Format: image.QCOW2}
	// Another value would make every operator fetch its images again.
	if got, want := image.Key(installation, "home", s), "37ea513505e0d6861aa5fdb0c6a3de657fdb19eb"; got != want {
		t.Errorf("the key is %s, want %s", got, want)
	}
	upper, direct := s, s
	upper.SHA256, direct.Format = strings.ToUpper(sum), ""
	for name, o := range map[string]image.Source{"upper-case digest": upper, "qcow2 by default": direct} {
		if image.Key(installation, "home", o) != image.Key(installation, "home", s) {
			t.Errorf("%s: the same source has another key", name)
		}
	}
}

// What the names say is read back, and fits into what holds names.
func TestNamesRoundTrip(t *testing.T) {
	safe := regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,127}$`)
	rapid.Check(t, func(t *rapid.T) {
		s := drawSource(t)
		key, nonce := image.Key(installation, "home", s), image.Nonce()
		size := rapid.Int64Range(1, 1<<62).Draw(t, "size")
		volume := image.VolumeName(key, nonce, s.Format)
		marker := image.MarkerName(volume, size)
		for name, want := range map[string]image.Name{
			volume: {Key: key, Nonce: nonce, Format: s.Format, Volume: volume},
			marker: {Key: key, Nonce: nonce, Format: s.Format, Volume: volume, Marker: true, VirtualSize: size},
		} {
			got, ok := image.ParseName(name)
			if diff := cmp.Diff(want, got); diff != "" || !ok {
				t.Errorf("%s: %v (-want +got):\n%s", name, ok, diff)
			}
			if !safe.MatchString(name) {
				t.Errorf("%s is no name for a file", name)
			}
		}
	})
	key := image.Key(installation, "home", image.Source{})
	if name := image.VolumeName(key, image.Nonce(), ""); !strings.HasSuffix(name, ".qcow2") {
		t.Errorf("%s: without a format it is qcow2", name)
	}
	if a, b := image.Nonce(), image.Nonce(); a == b {
		t.Errorf("two nonces are %s", a)
	}
}

func TestForeignNamesAreIgnored(t *testing.T) {
	key := image.Key(installation, "home", image.Source{})
	good := image.VolumeName(key, "0123456789abcdef", image.QCOW2)
	for reason, name := range map[string]string{
		"nothing":                       "",
		"a guest's disk":                "web-1.qcow2",
		"no prefix":                     strings.TrimPrefix(good, "fleetdesk-image-"),
		"another prefix":                "x" + good,
		"a copy of somebody":            good + ".bak",
		"a copy of somebody, before":    "copy-" + good,
		"another ending":                strings.TrimSuffix(good, "qcow2") + "vmdk",
		"no ending":                     strings.TrimSuffix(good, ".qcow2"),
		"upper case":                    strings.ToUpper(good),
		"a short nonce":                 image.VolumeName(key, "0123456789abcde", image.QCOW2),
		"a long nonce":                  image.VolumeName(key, "0123456789abcdef0", image.QCOW2),
		"a nonce that is not hex":       image.VolumeName(key, "0123456789abcdeg", image.QCOW2),
		"a short key":                   image.VolumeName(key[1:], "0123456789abcdef", image.QCOW2),
		"a marker without a size":       good + ".verified-",
		"a marker with no size":         image.MarkerName(good, 0),
		"a marker with a negative size": image.MarkerName(good, -512),
		"a marker with leading zeros":   good + ".verified-0512",
		"a marker with a sign":          good + ".verified-+512",
		"a marker too large":            good + ".verified-9223372036854775808",
		"a marker of a marker":          image.MarkerName(image.MarkerName(good, 512), 512),
		"a marker of nothing":           ".verified-512",
		"a path":                        "/var/lib/libvirt/images/" + good,
		"a line end":                    good + "\n",
	} {
		if n, ok := image.ParseName(name); ok || n != (image.Name{}) {
			t.Errorf("%s: %q is %+v", reason, name, n)
		}
		if c, ok, halves := image.Find([]string{name}, key); ok || len(halves) > 0 {
			t.Errorf("%s: %q is found: %+v, %v", reason, name, c, halves)
		}
	}
}

func TestFind(t *testing.T) {
	s := image.Source{URL: "https://images.example.com/d"}
	key, other := image.Key(installation, "home", s), image.Key("another", "home", s)
	a, b := image.VolumeName(key, "aaaaaaaaaaaaaaaa", image.QCOW2), image.VolumeName(key, "bbbbbbbbbbbbbbbb", image.Raw)
	foreign := image.VolumeName(other, "aaaaaaaaaaaaaaaa", image.QCOW2)
	whole := func(v string, f image.Format, size int64) image.Cached {
		return image.Cached{Volume: v, Format: f, VirtualSize: size, Marker: image.MarkerName(v, size)}
	}
	for name, tc := range map[string]struct {
		reason string
		names  []string
		want   image.Cached
		halves []string
	}{
		"empty pool":        {"nothing is there", nil, image.Cached{}, nil},
		"whole":             {"volume and marker", []string{a, image.MarkerName(a, 512)}, whole(a, image.QCOW2, 512), nil},
		"no marker":         {"a partial upload must not be taken for an image", []string{a}, image.Cached{}, []string{a}},
		"marker alone":      {"somebody removed the volume", []string{image.MarkerName(a, 512)}, image.Cached{}, []string{image.MarkerName(a, 512)}},
		"two whole":         {"two operators uploaded at once: the first by name serves", []string{b, a, image.MarkerName(b, 1024), image.MarkerName(a, 512)}, whole(a, image.QCOW2, 512), nil},
		"one half":          {"what is whole serves, what is not is named", []string{a, b, image.MarkerName(b, 1024)}, whole(b, image.Raw, 1024), []string{a}},
		"foreign":           {"another installation's is not ours, whole or not", []string{foreign, image.MarkerName(foreign, 512), "web-1.qcow2"}, image.Cached{}, nil},
		"marker of another": {"a marker speaks of one volume", []string{a, image.MarkerName(b, 512)}, image.Cached{}, []string{a, image.MarkerName(b, 512)}},
		"two markers":       {"the larger size is safe for overlays", []string{a, image.MarkerName(a, 1024), image.MarkerName(a, 2048), image.MarkerName(a, 512)}, whole(a, image.QCOW2, 2048), nil},
		"two of nothing":    {"both are named", []string{image.MarkerName(a, 512), image.MarkerName(a, 1024)}, image.Cached{}, []string{image.MarkerName(a, 1024), image.MarkerName(a, 512)}},
		"half, twice":       {"once is enough", []string{image.MarkerName(a, 512), image.MarkerName(a, 512)}, image.Cached{}, []string{image.MarkerName(a, 512)}},
		"listed twice":      {"once is enough", []string{a, a, b, b, image.MarkerName(b, 512), image.MarkerName(b, 512)}, whole(b, image.Raw, 512), []string{a}},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok, halves := image.Find(tc.names, key)
			if diff := cmp.Diff(tc.want, got); diff != "" || ok != (tc.want.Volume != "") {
				t.Errorf("%s, %v (-want +got):\n%s", tc.reason, ok, diff)
			}
			slices.Sort(tc.halves)
			if diff := cmp.Diff(tc.halves, halves); diff != "" {
				t.Errorf("%s, halves (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// However a pool looks: what is found has its volume and its marker there, and
// every volume or marker of the key is either whole or named as a half.
func TestFindAccountsForEverything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := []string{image.Key("one", "home", image.Source{}), image.Key("two", "home", image.Source{})}
		var names []string
		for range rapid.IntRange(0, 12).Draw(t, "n") {
			name := image.VolumeName(rapid.SampledFrom(keys).Draw(t, "key"), strings.Repeat(rapid.StringMatching(`[abc]`).Draw(t, "nonce"), 16), rapid.SampledFrom([]image.Format{image.QCOW2, image.Raw}).Draw(t, "format"))
			if rapid.Bool().Draw(t, "marker") {
				name = image.MarkerName(name, rapid.Int64Range(1, 3).Draw(t, "size"))
			}
			names = append(names, name)
		}
		c, ok, halves := image.Find(names, keys[0])
		if ok && (!slices.Contains(names, c.Volume) || !slices.Contains(names, c.Marker) || image.MarkerName(c.Volume, c.VirtualSize) != c.Marker || !strings.HasSuffix(c.Volume, string(c.Format))) {
			t.Errorf("%+v is not there: %q", c, names)
		}
		paired := func(n image.Name) bool {
			return slices.Contains(names, n.Volume) && slices.ContainsFunc(names, func(s string) bool {
				o, _ := image.ParseName(s)
				return o.Marker && o.Volume == n.Volume
			})
		}
		anyWhole := false
		for _, s := range names {
			n, _ := image.ParseName(s)
			whole := n.Key == keys[0] && paired(n)
			anyWhole = anyWhole || whole
			if got, want := slices.Contains(halves, s), n.Key == keys[0] && !whole; got != want {
				t.Errorf("%s is a half: %v, want %v", s, got, want)
			}
		}
		if ok != anyWhole {
			t.Errorf("found %v in %q", ok, names)
		}
		slices.Reverse(names)
		c2, ok2, halves2 := image.Find(names, keys[0])
		if c2 != c || ok2 != ok || !slices.Equal(halves2, halves) {
			t.Errorf("the order of the list decides: %+v and %+v", c, c2)
		}
	})
}

func FuzzFind(f *testing.F) {
	key := image.Key(installation, "home", image.Source{})
	volume := image.VolumeName(key, "0123456789abcdef", image.QCOW2)
	f.Add(volume)
	f.Add(image.MarkerName(volume, 512))
	f.Add(volume + ".verified-00")
	f.Add("fleetdesk-image--.raw.verified-1")
	f.Fuzz(func(t *testing.T, name string) {
		n, ok := image.ParseName(name)
		if !ok {
			return
		}
		// A name is read only as what makes the same name again.
		again := image.VolumeName(n.Key, n.Nonce, n.Format)
		if again != n.Volume {
			t.Errorf("%q is of %q, made again %q", name, n.Volume, again)
		}
		if n.Marker {
			again = image.MarkerName(again, n.VirtualSize)
		}
		if again != name {
			t.Errorf("%q reads as %q", name, again)
		}
		if _, found, halves := image.Find([]string{name}, n.Key); found || len(halves) != 1 || halves[0] != name {
			t.Errorf("%q alone: %v, %q", name, found, halves)
		}
	})
}
