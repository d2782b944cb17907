package obs

import (
	"runtime"
	"runtime/debug"
	"strings"
)

// Build says which build of the program runs.
type Build struct {
	// Version is the module's version, "devel" for a build from a work tree.
	Version string
	// Revision is the commit it was built from, with "+dirty" behind it for a
	// changed work tree; "unknown" when the build did not record one.
	Revision string
	// Go is the toolchain's version, e.g. "go1.26.8".
	Go string
}

// String is one line for --version.
func (b Build) String() string {
	return b.Version + " (" + b.Revision + ", " + b.Go + ")"
}

// Version reads what the Go toolchain recorded in the running binary.
func Version() Build {
	b := Build{Version: "devel", Revision: "unknown", Go: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if v := info.Main.Version; v != "" {
		if v = strings.Trim(v, "()"); v != "" {
			b.Version = v
		}
	}
	dirty := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.modified":
			dirty = s.Value == "true"
		}
	}
	if dirty {
		b.Revision += "+dirty"
	}
	return b
}
