package postgres

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// debianBinaries is where Debian's packages put each version's programs.
const debianBinaries = "/usr/lib/postgresql"

// binaries returns the folder of the server's programs.
func binaries(dir string) (string, error) {
	if dir == "" {
		newest := 0
		all, err := os.ReadDir(debianBinaries)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		for _, e := range all {
			version, err := strconv.Atoi(e.Name())
			if err != nil || version < newest {
				continue
			}
			// A version of which only the client's programs are left does not count.
			if _, err := os.Stat(filepath.Join(debianBinaries, e.Name(), "bin", "postgres")); err == nil {
				newest = version
			}
		}
		if newest == 0 {
			return "", fmt.Errorf("no PostgreSQL for tests below %s: run 'apt-get install postgresql'", debianBinaries)
		}
		dir = filepath.Join(debianBinaries, strconv.Itoa(newest), "bin")
	}
	for _, name := range []string{"initdb", "postgres"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return "", fmt.Errorf("no PostgreSQL for tests: %w: run 'apt-get install postgresql'", err)
		}
	}
	return dir, nil
}

// unprivileged returns whose process the server is: PostgreSQL refuses to be
// root's. Nil stands for this process's own user.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("PostgreSQL for tests: it does not run as root, and there is no user postgres or nobody")
}

const (
	prefix = "fleetdesk-pg-"
	// longestFolder leaves room for the socket's name: the kernel takes 107
	// bytes.
	longestFolder = 80
)

// makeFolders makes what the server's user must reach. It also removes what
// test programs left that were killed.
func (s *Server) makeFolders() (err error) {
	base := os.TempDir()
	if len(base) > longestFolder-len(prefix)-12 || s.cred != nil && !openToAll(base) {
		base = "/tmp"
	}
	sweep(base)
	if s.dir, err = os.MkdirTemp(base, prefix); err != nil {
		return err
	}
	if s.lock, err = os.Create(filepath.Join(s.dir, "alive")); err != nil {
		return err
	}
	if err := syscall.Flock(int(s.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return err
	}
	s.data, s.sock = filepath.Join(s.dir, "data"), filepath.Join(s.dir, "s")
	for dir, mode := range map[string]fs.FileMode{s.data: 0o700, s.sock: 0o755} {
		if err := os.Mkdir(dir, mode); err != nil {
			return err
		}
		if s.cred != nil {
			if err := os.Chown(dir, int(s.cred.Uid), int(s.cred.Gid)); err != nil {
				return err
			}
		}
	}
	return os.Chmod(s.dir, 0o711)
}

// openToAll reports whether every user may go through a folder.
func openToAll(dir string) bool {
	for {
		info, err := os.Stat(dir)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			return false
		}
		if dir == filepath.Dir(dir) {
			return true
		}
		dir = filepath.Dir(dir)
	}
}

// sweep removes the folders whose makers are gone: nobody holds their lock.
func sweep(base string) {
	all, _ := filepath.Glob(filepath.Join(base, prefix+"*", "alive"))
	for _, path := range all {
		f, err := os.Open(path)
		if err != nil {
			continue // another user's, or just removed
		}
		if info, err := f.Stat(); err == nil && time.Since(info.ModTime()) > time.Minute &&
			syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(filepath.Dir(path))
		}
		_ = f.Close()
	}
}

// prepare gives a command the server's user, a group of its own and no
// environment of ours.
func (s *Server) prepare(cmd *exec.Cmd) {
	cmd.Dir = s.dir
	cmd.Env = []string{"LC_ALL=C", "TZ=UTC", "PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: s.cred,
		Setpgid:    true, // a Ctrl-C in the terminal is for the tests
		Pdeathsig:  syscall.SIGQUIT,
	}
}

// launch starts the server's first process.
func (s *Server) launch() (*process, error) {
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(s.bin, "postgres"), "-D", s.data)
	s.prepare(cmd)
	cmd.Stdout, cmd.Stderr = log, log
	p := &process{done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel takes the thread that started a process for its parent, and
		// a thread may end earlier than the program.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	p.pid = cmd.Process.Pid
	return p, nil
}

func (s *Server) logFile() string { return filepath.Join(s.dir, "log") }

// logTail returns the end of what the server said.
func (s *Server) logTail() string {
	b, err := os.ReadFile(s.logFile())
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-2000):])
}

// children lists the processes that a process started and that still run.
func children(pid int) []int {
	var all []int
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		if child, parent, state, ok := readStat(path); ok && parent == pid && state != 'Z' {
			all = append(all, child)
		}
	}
	return all
}

// readStat reads a line such as "12 (name) S 1 …": pid, name, state, parent.
func readStat(path string) (pid, parent int, state byte, ok bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, 0, 0, false
	}
	end := bytes.LastIndexByte(b, ')') // the name may hold anything
	fields := strings.Fields(string(b[end+1:]))
	if end < 0 || len(fields) < 2 {
		return 0, 0, 0, false
	}
	pid, err = strconv.Atoi(filepath.Base(filepath.Dir(path)))
	if err != nil {
		return 0, 0, 0, false
	}
	parent, err = strconv.Atoi(fields[1])
	return pid, parent, fields[0][0], err == nil
}

// waitGone waits until none of the processes runs.
func waitGone(all []int) error {
	t := time.NewTicker(tick)
	defer t.Stop()
	for deadline := time.Now().Add(stopTimeout); ; <-t.C {
		left := 0
		for _, pid := range all {
			if _, _, state, ok := readStat(fmt.Sprintf("/proc/%d/stat", pid)); ok && state != 'Z' {
				left++
			}
		}
		switch {
		case left == 0:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("%d processes of PostgreSQL outlive SIGKILL", left)
		}
	}
}
