package seed_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kdomanski/iso9660"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kvm/seed"
)

const uid = "3f0c6a52-9d53-4c1e-8a55-0f4f1d2f7a10"

func input() seed.Input {
	return seed.Input{InstanceID: uid, HostName: "fd-crawl-de-1-abc", UserData: []byte("#cloud-config\n")}
}

func build(t *testing.T, in seed.Input) []byte {
	t.Helper()
	image, err := seed.Build(in)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// read returns the label and the files of an image.
func read(t *testing.T, image []byte) (string, map[string]string) {
	t.Helper()
	iso, err := iso9660.OpenImage(bytes.NewReader(image))
	if err != nil {
		t.Fatal(err)
	}
	label, err := iso.Label()
	if err != nil {
		t.Fatal(err)
	}
	root, err := iso.RootDir()
	if err != nil {
		t.Fatal(err)
	}
	children, err := root.GetChildren()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, f := range children {
		b, err := io.ReadAll(f.Reader())
		if err != nil {
			t.Fatal(err)
		}
		files[f.Name()] = string(b)
	}
	return label, files
}

func gzipped(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// cloud-init 4239, 3712: user-data that were written anew on their way. Here
// they are never looked into.
func TestUserDataIsByteForByte(t *testing.T) {
	for name, data := range map[string]string{
		"cloudConfig":  "#cloud-config\n# a comment\npackages: [squid]\nversion: 1.10\nmode: 0644\non: yes\n",
		"crlf":         "#cloud-config\r\npackages: [squid]\r\n",
		"jinja":        "## template: jinja\n#cloud-config\nhostname: {{ v1.local_hostname }}\n{% if x %}a{% endif %}\n",
		"script":       "#!/bin/sh\nexec >/dev/console\necho é\n",
		"mime":         "Content-Type: multipart/mixed; boundary=\"b\"\nMIME-Version: 1.0\n\n--b\nContent-Type: text/cloud-config\n\nversion: 1.10\n--b--\n",
		"gzip":         gzipped(t, "#cloud-config\nversion: 1.10\n"),
		"base64":       "I2Nsb3VkLWNvbmZpZwo=",
		"empty":        "",
		"noNewline":    "#cloud-config",
		"oneSector":    strings.Repeat("a", 2048),
		"sectorAndOne": strings.Repeat("a", 2049),
		"zeros":        strings.Repeat("\x00", 3000),
		"megabyte":     "#cloud-config\n" + strings.Repeat("# 0123456789\n", 1<<20/13),
	} {
		t.Run(name, func(t *testing.T) {
			for _, agent := range []bool{true, false} {
				in := input()
				in.UserData, in.InstallAgent, in.VendorData = []byte(data), agent, []byte("#cloud-config\nversion: 1.10\n")
				_, files := read(t, build(t, in))
				got, there := files["user-data"]
				if !there || got != data {
					t.Errorf("user-data came out with %d bytes (there: %t), went in with %d", len(got), there, len(data))
				}
			}
		})
	}
}

func TestSeedFiles(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		agent  bool
		vendor string
		want   []string
	}{
		"plain":  {"no vendor-data, no file: an empty one is a warning in each guest", false, "", []string{"meta-data", "user-data"}},
		"agent":  {"the script is vendor-data", true, "", []string{"meta-data", "user-data", "vendor-data"}},
		"vendor": {"the configuration's own", false, "#cloud-config\n", []string{"meta-data", "user-data", "vendor-data"}},
		"both":   {"in one archive", true, "#cloud-config\n", []string{"meta-data", "user-data", "vendor-data"}},
	} {
		t.Run(name, func(t *testing.T) {
			in := input()
			in.InstallAgent, in.VendorData = tc.agent, []byte(tc.vendor)
			image := build(t, in)
			label, files := read(t, image)
			if label != "cidata" {
				t.Errorf("the label is %q: cloud-init looks for cidata", label)
			}
			var names []string
			for _, name := range []string{"meta-data", "user-data", "vendor-data"} {
				if _, ok := files[name]; ok {
					names = append(names, name)
				}
			}
			if d := cmp.Diff(tc.want, names); d != "" || len(files) != len(tc.want) {
				t.Errorf("%s: the files are %d (-want +got):\n%s", tc.reason, len(files), d)
			}
			if files["vendor-data"] != string(seed.VendorData(tc.agent, []byte(tc.vendor))) {
				t.Errorf("%s: vendor-data is not what VendorData gives", tc.reason)
			}
			if len(image)%2048 != 0 {
				t.Errorf("the image has %d bytes: not whole sectors", len(image))
			}
		})
	}
}

// cloud-init 3977: a machine that is made anew with the old instance-id does
// not run cloud-init. The id is the object's UID, and stays text.
func TestMetaData(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, id, host, want string
	}{
		"uid":    {"the id is the UID", uid, "fd-crawl-de-1-abc", "instance-id: \"" + uid + "\"\nlocal-hostname: \"fd-crawl-de-1-abc\"\n"},
		"number": {"1e5 and 0777 are numbers in YAML unless quoted", "1e5", "0777", "instance-id: \"1e5\"\nlocal-hostname: \"0777\"\n"},
		"quote":  {"nothing is spliced into YAML", `a"b: {c}`, `#d\e`, "instance-id: \"a\\\"b: {c}\"\nlocal-hostname: \"#d\\\\e\"\n"},
	} {
		t.Run(name, func(t *testing.T) {
			in := input()
			in.InstanceID, in.HostName = tc.id, tc.host
			_, files := read(t, build(t, in))
			if d := cmp.Diff(tc.want, files["meta-data"]); d != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, d)
			}
		})
	}
}

const canary = "c4n4ry-s3cret"

func TestBuildRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(*seed.Input)
		says   string
	}{
		"noID":    {"without an id cloud-init takes another one", func(in *seed.Input) { in.InstanceID = "" }, "instance-id"},
		"noHost":  {"the guest would be called localhost", func(in *seed.Input) { in.HostName = "" }, "local-hostname"},
		"control": {"an id is one line", func(in *seed.Input) { in.InstanceID = "a\nb" }, "instance-id"},
		"bytes":   {"YAML is UTF-8", func(in *seed.Input) { in.HostName = "a\xff" }, "local-hostname"},
		"long":    {"a bound", func(in *seed.Input) { in.HostName = strings.Repeat("a", 254) }, "local-hostname"},
		"user":    {"a bound", func(in *seed.Input) { in.UserData = []byte(strings.Repeat(canary, 1<<24/len(canary)+1)) }, "user-data"},
		"vendor":  {"a bound", func(in *seed.Input) { in.VendorData = []byte(strings.Repeat(canary, 1<<24/len(canary)+1)) }, "vendor-data"},
	} {
		t.Run(name, func(t *testing.T) {
			in := input()
			tc.change(&in)
			image, err := seed.Build(in)
			if image != nil || fault.Of(err) != fault.Invalid || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%s: Build = %d bytes, %v; want Invalid that names %q", tc.reason, len(image), err, tc.says)
			}
			if err != nil && strings.Contains(err.Error(), canary) {
				t.Errorf("the data are in the error: %v", err)
			}
		})
	}
}

// staged returns what is in the folder for temporary files.
func staged(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func tempDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	return dir
}

func TestBuildLeavesNothing(t *testing.T) {
	dir := tempDir(t)
	build(t, input())
	if left := staged(t, dir); len(left) > 0 {
		t.Errorf("left in the folder for temporary files: %v", left)
	}
}

type reader func([]byte) (int, error)

func (r reader) Read(b []byte) (int, error) { return r(b) }

// While the secret is on the disk nobody else can read it, and a failure in the
// middle leaves none of it there.
func TestStaging(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		boom bool
	}{
		"fails":  {err: &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}},
		"panics": {boom: true},
		"works":  {err: io.EOF},
	} {
		t.Run(name, func(t *testing.T) {
			dir := tempDir(t)
			reads := 0
			r := reader(func(b []byte) (int, error) {
				reads++
				if reads == 1 {
					return copy(b, canary), nil
				}
				dirs := staged(t, dir)
				if len(dirs) != 1 {
					t.Fatalf("staged: %v", dirs)
				}
				if info, err := os.Stat(dirs[0]); err != nil || info.Mode().Perm() != 0o700 {
					t.Errorf("the staging folder has mode %v (%v): others can read the user-data", info.Mode(), err)
				}
				if tc.boom {
					panic("boom")
				}
				return 0, tc.err
			})
			func() {
				defer func() { _ = recover() }()
				image, err := seed.WriteReader(r)
				if (tc.err == io.EOF) != (err == nil) || (err == nil) != (image != nil) {
					t.Errorf("%d bytes, %v", len(image), err)
				}
				if err != nil && (strings.Contains(err.Error(), canary) || !strings.Contains(err.Error(), dir)) {
					t.Errorf("the error holds the data or lacks the folder: %v", err)
				}
			}()
			if reads < 2 {
				t.Fatal("nothing was read")
			}
			if left := staged(t, dir); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// A folder for temporary files that is read-only is Permanent, a full one
// Transient; both name the folder and what a person can do.
func TestStagingFault(t *testing.T) {
	t.Setenv("TMPDIR", "/srv/tmp")
	wrap := func(e error) error {
		return fmt.Errorf("staging: %w", &os.PathError{Op: "mkdir", Path: "/srv/tmp/1", Err: e})
	}
	for name, tc := range map[string]struct {
		reason string
		err    error
		class  fault.Class
		says   string
	}{
		"readOnly": {"it stays read-only until somebody mounts another", wrap(syscall.EROFS), fault.Permanent, "writable"},
		"denied":   {"rights do not come by waiting", wrap(syscall.EACCES), fault.Permanent, "writable"},
		"refused":  {"as rights", wrap(syscall.EPERM), fault.Permanent, "writable"},
		"missing":  {"an image without /tmp", wrap(syscall.ENOENT), fault.Permanent, "emptyDir"},
		"file":     {"TMPDIR names a file", wrap(syscall.ENOTDIR), fault.Permanent, "TMPDIR"},
		"full":     {"others' files go away", wrap(syscall.ENOSPC), fault.Transient, "full"},
		"quota":    {"as full", wrap(syscall.EDQUOT), fault.Transient, "full"},
		"files":    {"the machine has less to do soon", wrap(syscall.EMFILE), fault.Transient, "/srv/tmp"},
		"io":       {"a disk's hiccup", wrap(syscall.EIO), fault.Transient, "/srv/tmp"},
		"other":    {"the library keeps no cause when it writes the image", errors.New("writing files: x"), fault.Transient, "/srv/tmp"},
	} {
		t.Run(name, func(t *testing.T) {
			err := seed.StagingFault(tc.err)
			if fault.Of(err) != tc.class || !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), "/srv/tmp") || !errors.Is(err, tc.err) {
				t.Errorf("%s: %s: %v", tc.reason, fault.Of(err), err)
			}
		})
	}
}

func TestBuildWithoutFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "none")
	t.Setenv("TMPDIR", dir)
	if _, err := seed.Build(input()); fault.Of(err) != fault.Permanent || !strings.Contains(err.Error(), dir) {
		t.Errorf("Build without a folder for temporary files: %s: %v", fault.Of(err), err)
	}
}
