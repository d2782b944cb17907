//go:build linux

package main

import (
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/kdomanski/iso9660"
)

// seed is a NoCloud seed: its files' bytes by name.
type seed struct {
	device string
	files  map[string][]byte
}

// waitSeed looks at every block device until one holds a seed; nil when none
// did in time.
func waitSeed(limit time.Duration) *seed {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		devices, _ := filepath.Glob("/sys/class/block/*")
		for _, d := range devices {
			device := "/dev/" + filepath.Base(d)
			s, err := readSeed(device)
			if err != nil {
				say("seed on %s: %v", device, err)
			}
			if s != nil {
				return s
			}
		}
	}
	return nil
}

// The primary volume descriptor of an ISO: where it is, and its parts.
const (
	descriptor = 16 * 2048
	labelFrom  = 40
	labelTo    = 72
)

// readSeed returns nil for what is no seed.
func readSeed(device string) (*seed, error) {
	f, err := os.Open(device)
	if err != nil {
		return nil, nil // a drive without a disk
	}
	defer f.Close()
	var b [2048]byte
	if _, err := f.ReadAt(b[:], descriptor); err != nil || string(b[1:6]) != "CD001" ||
		!strings.EqualFold(strings.TrimSpace(string(b[labelFrom:labelTo])), "cidata") {
		return nil, nil // too small, or another file system
	}
	image, err := iso9660.OpenImage(f)
	if err != nil {
		return nil, err
	}
	root, err := image.RootDir()
	if err != nil {
		return nil, err
	}
	children, err := root.GetChildren()
	if err != nil {
		return nil, err
	}
	s := &seed{device: device, files: map[string][]byte{}}
	for _, c := range children {
		if c.IsDir() {
			continue
		}
		text, err := io.ReadAll(c.Reader())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.Name(), err)
		}
		s.files[strings.ToLower(strings.TrimSuffix(c.Name(), ";1"))] = text
	}
	return s, nil
}

// hostName returns meta-data's local-hostname.
func (s *seed) hostName() string {
	var m struct {
		Host string `yaml:"local-hostname"`
	}
	if err := yaml.Unmarshal(s.files["meta-data"], &m); err != nil {
		say("meta-data: %v", err)
	}
	return m.Host
}

// apply writes the files of a cloud-config. Other kinds of user-data are
// reported and do nothing.
func (s *seed) apply() error {
	user := s.files["user-data"]
	if !strings.HasPrefix(string(user), "#cloud-config") {
		return nil
	}
	var config struct {
		Files []struct {
			Path        string `yaml:"path"`
			Content     string `yaml:"content"`
			Encoding    string `yaml:"encoding"`
			Permissions string `yaml:"permissions"`
		} `yaml:"write_files"`
	}
	if err := yaml.Unmarshal(user, &config); err != nil {
		return err
	}
	for _, f := range config.Files {
		text := []byte(f.Content)
		switch f.Encoding {
		case "", "text/plain":
		case "b64", "base64":
			var err error
			if text, err = base64.StdEncoding.DecodeString(f.Content); err != nil {
				return fmt.Errorf("%s: %w", f.Path, err)
			}
		default:
			return fmt.Errorf("%s: encoding %s: only b64 is known here", f.Path, f.Encoding)
		}
		mode := uint64(0o644)
		if f.Permissions != "" {
			var err error
			if mode, err = strconv.ParseUint(f.Permissions, 8, 12); err != nil {
				return fmt.Errorf("%s: permissions: %w", f.Path, err)
			}
		}
		if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(f.Path, text, os.FileMode(mode)); err != nil {
			return err
		}
	}
	return nil
}
