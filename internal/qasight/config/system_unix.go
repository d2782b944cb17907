//go:build unix

package config

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// otherSystem reports whether two folders are known to be on different file
// systems.
func otherSystem(a, b string) bool {
	device := func(path string) (any, bool) {
		info, err := os.Stat(path)
		if err != nil {
			return nil, false
		}
		s, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return nil, false
		}
		return s.Dev, true
	}
	da, oka := device(a)
	db, okb := device(b)
	return oka && okb && da != db
}

// foreign reports whether a file, or the folder that it stands in, is known to
// belong to somebody who is neither this process's user, nor root, nor the owner of
// the folder from which it was looked for.
func foreign(path, from string) bool {
	trusted := []uint32{0, uint32(os.Geteuid())}
	owner := func(path string) (uint32, bool) {
		info, err := os.Stat(path)
		if err != nil {
			return 0, false
		}
		s, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return 0, false
		}
		return s.Uid, true
	}
	if id, known := owner(from); known {
		trusted = append(trusted, id)
	}
	for _, p := range []string{path, filepath.Dir(path)} {
		if id, known := owner(p); known && !slices.Contains(trusted, id) {
			return true
		}
	}
	return false
}
