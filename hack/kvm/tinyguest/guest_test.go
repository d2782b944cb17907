//go:build linux

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kdomanski/iso9660"
)

func TestAnswer(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct{ reason, line, want string }{
		"ping":           {"the simplest", `{"execute":"guest-ping"}`, `{"return":{}}`},
		"sync":           {"the id comes back", `{"execute":"guest-sync","arguments":{"id":7}}`, `{"return":7}`},
		"sync delimited": {"after a byte that no JSON has", "\xff" + `{"execute":"guest-sync-delimited","arguments":{"id":8}}`, "\xff" + `{"return":8}`},
		"host name":      {"the kernel's", `{"execute":"guest-get-host-name"}`, `{"return":{"host-name":"` + host + `"}}`},
		"unknown":        {"as QEMU's agent says it", `{"execute":"guest-exec"}`, `{"error":{"class":"CommandNotFound","desc":"The command guest-exec has not been found"}}`},
		"no JSON":        {"what cannot be read is answered too", `{"execute`, `{"error":{"class":"GenericError","desc":"this is no JSON object"}}`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := string(answer([]byte(tc.line + "\n"))); got != tc.want+"\n" {
				t.Errorf("answer %q, want %q: %s", got, tc.want, tc.reason)
			}
		})
	}
	if got := string(answer([]byte(`{"execute":"guest-network-get-interfaces"}`))); !strings.Contains(got, `"ip-address":"127.0.0.1","ip-address-type":"ipv4","prefix":8`) {
		t.Errorf("interfaces: %s", got)
	}
}

// disk writes an ISO and returns its path.
func disk(t *testing.T, label string, files map[string]string) string {
	t.Helper()
	w, err := iso9660.NewWriter()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Cleanup() }()
	for name, text := range files {
		if err := w.AddFile(strings.NewReader(text), name); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "seed.iso")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := w.WriteTo(f, label); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSeed(t *testing.T) {
	dir := t.TempDir()
	user := "#cloud-config\nwrite_files:\n- path: " + dir + "/a/b\n  content: |\n    one\n    two\n  permissions: '0600'\n" +
		"- {path: " + dir + "/c, content: aGk=, encoding: b64}\n"
	s, err := readSeed(disk(t, "CIDATA", map[string]string{"meta-data": "local-hostname: named\n", "user-data": user, "vendor-data": "#!/bin/sh\n"}))
	if err != nil || s == nil {
		t.Fatalf("no seed: %v", err)
	}
	if string(s.files["user-data"]) != user || string(s.files["vendor-data"]) != "#!/bin/sh\n" {
		t.Errorf("files: %q", s.files)
	}
	if got := s.hostName(); got != "named" {
		t.Errorf("host name %q", got)
	}
	if err := s.apply(); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"a/b": "one\ntwo\n", "c": "hi"} {
		if got, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", file, got, err)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "a/b")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode: %v, %v", info, err)
	}
}

func TestNoSeed(t *testing.T) {
	small := filepath.Join(t.TempDir(), "small")
	if err := os.WriteFile(small, bytes.Repeat([]byte{1}, 512), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"another label": disk(t, "other", map[string]string{"user-data": "x"}), "a small disk": small, "no disk": small + "x",
	} {
		if s, err := readSeed(path); s != nil || err != nil {
			t.Errorf("%s: %v, %v", name, s, err)
		}
	}
	start := time.Now()
	if s := waitSeed(time.Millisecond); s != nil || time.Since(start) > 5*time.Second {
		t.Errorf("seed %v after %s", s, time.Since(start))
	}
}

func TestOtherUserDataDoesNothing(t *testing.T) {
	for _, user := range []string{"", "## template: jinja\n#cloud-config\nwrite_files: {{ x }}\n", "Content-Type: multipart/mixed\n", "#!/bin/sh\n"} {
		if err := (&seed{files: map[string][]byte{"user-data": []byte(user)}}).apply(); err != nil {
			t.Errorf("%q: %v", user, err)
		}
	}
}
