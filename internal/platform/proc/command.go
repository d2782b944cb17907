package proc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"fleetdesk/internal/core/fault"
)

const (
	codeNotFound = 127 // what a shell says of a command that is not there
	codeNoExec   = 126 // and of one that it may not or cannot run
)

// prepared is a command that was looked over: the program's file was found, and
// nothing in it means another thing to the kernel than it says.
type prepared struct {
	path string
	args []string // args[0] is the name
	env  []string // each name once
	dir  string
}

// prepare looks a command over. The number is its exit code when the error is not
// nil.
func prepare(c Command) (prepared, int, error) {
	p := prepared{dir: c.Dir, env: unique(c.Env)}
	switch {
	case (c.Shell == "") == (len(c.Args) == 0):
		return p, codeNoExec, startFault(fault.Invalid, "set exactly one of the shell text and the arguments")
	case c.Files != nil && (c.Files.In == nil || c.Files.Out == nil || c.Files.Err == nil):
		return p, codeNoExec, startFault(fault.Invalid, "all three of its input, output and error must be open files")
	}
	for _, v := range p.env {
		if strings.IndexByte(v, '=') < 1 || strings.IndexByte(v, 0) >= 0 {
			name, _, _ := strings.Cut(v, "=") // the value may be a secret
			return p, codeNoExec, startFault(fault.Invalid,
				"its environment holds %.80q: use NAME=value with a name, and no NUL in either", name)
		}
	}
	for _, v := range append([]string{c.Shell, c.Dir}, c.Args...) {
		if strings.IndexByte(v, 0) >= 0 {
			return p, codeNoExec, startFault(fault.Invalid, "%.80q holds a NUL, which no argument and no path can", v)
		}
	}
	if err := checkDir(c.Dir); err != nil {
		return p, codeNoExec, err
	}
	if c.Shell != "" {
		// A text that begins with - is no option: hence the --.
		p.path, p.args = "/bin/sh", []string{"sh", "-c", "--", c.Shell}
		return p, 0, nil
	}
	p.args = c.Args
	var code int
	var err error
	p.path, code, err = find(c.Args[0], p.env)
	return p, code, err
}

func checkDir(dir string) error {
	if dir == "" {
		return nil
	}
	switch info, err := os.Stat(dir); {
	case err != nil:
		return startFault(fault.Invalid, "its folder cannot be used: %w: make it, or name another", err)
	case !info.IsDir():
		return startFault(fault.Invalid, "its folder cannot be used: %s is a file: name a folder", dir)
	}
	return nil
}

// unique keeps the last of those with one name, in the order of the last ones.
// The result is never nil: nil would be this process's own environment.
func unique(env []string) []string {
	last := make(map[string]int, len(env))
	for i, v := range env {
		name, _, _ := strings.Cut(v, "=")
		last[name] = i
	}
	kept := make([]string, 0, len(last))
	for i, v := range env {
		if name, _, _ := strings.Cut(v, "="); last[name] == i {
			kept = append(kept, v)
		}
	}
	return kept
}

// find looks for a program as a shell does, but in absolute folders alone: one
// that depends on where the command runs is no safe place for programs.
func find(name string, env []string) (string, int, error) {
	if strings.Contains(name, "/") {
		return name, 0, nil // exec says what is wrong with it
	}
	var path string
	for _, v := range env {
		if value, ok := strings.CutPrefix(v, "PATH="); ok {
			path = value
		}
	}
	refused := ""
	for _, dir := range filepath.SplitList(path) {
		if name == "" || !filepath.IsAbs(dir) {
			continue
		}
		file := filepath.Join(dir, name)
		switch info, err := os.Stat(file); {
		case err != nil || info.IsDir():
		case info.Mode().Perm()&0o111 == 0:
			refused = file
		default:
			return file, 0, nil
		}
	}
	if refused != "" {
		return "", codeNoExec, startFault(fault.Invalid, "%s is not executable: chmod +x it, or name another program", refused)
	}
	return "", codeNotFound, startFault(fault.Invalid,
		"%q is not found in the absolute folders of its PATH, %q: install it, or set PATH in its environment", name, path)
}

// notStarted is what the kernel's refusal to start p means.
func notStarted(p prepared, err error) (int, error) {
	if gone := checkDir(p.dir); gone != nil {
		return codeNoExec, gone
	}
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return codeNoExec, startFault(fault.Permanent, "%w", err)
	}
	switch errno {
	case syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.ETXTBSY:
		return codeNoExec, startFault(fault.Transient, "%s: %w: try again when the machine has less to do", p.path, errno)
	case syscall.ENOENT:
		return codeNotFound, startFault(fault.Invalid,
			"%s: %w: the program, or the interpreter that its first line names, is missing", p.path, errno)
	default:
		return codeNoExec, startFault(fault.Invalid, "%s: %w: name a program that this user may run here", p.path, errno)
	}
}

func startFault(class fault.Class, format string, args ...any) error {
	return fault.WithCode(fault.Wrap(class, fmt.Errorf("the command cannot be started: "+format, args...)), CodeStart)
}

func grace(c Command) time.Duration {
	switch {
	case c.Grace == 0:
		return DefaultGrace
	case c.Grace < 0:
		return 0
	}
	return c.Grace
}

// settle puts how the first process ended into the result.
func settle(r *Result, s syscall.WaitStatus) {
	if s.Signaled() {
		r.Signal, r.Code = s.Signal(), 128+int(s.Signal())
		return
	}
	r.Code = s.ExitStatus()
}

// timedOut is the error of a command whose time was over.
func timedOut(c Command) error {
	return fault.WithCode(fault.Errorf(fault.Timeout,
		"the command did not end within %v and was ended with its process group: look why it hangs, or give it more time",
		c.Timeout), CodeTimeout)
}

// stuck is the error of a process group that outlived KILL.
func stuck(pgid int) error {
	return fault.WithCode(fault.Errorf(fault.Permanent,
		"the command's process group %d could not be ended: see with ps -o pid,user,stat,args -g %d what is left "+
			"(another user's, or waiting for a device) and end it", pgid, pgid), CodeStuck)
}
