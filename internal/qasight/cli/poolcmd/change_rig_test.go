package poolcmd_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"fleetdesk/internal/platform/proc"
	"fleetdesk/internal/qasight/cli/command"
	"fleetdesk/internal/qasight/cli/poolcmd"
)

// TestSupervisor is the test binary as the supervisor of a command, when the rig's
// program asks for it.
func TestSupervisor(t *testing.T) {
	if flag.Arg(0) == "supervise" {
		os.Exit(proc.Supervise(os.Stderr))
	}
	t.Parallel()
}

// changes is a project with a provider over a folder of files.
type changes struct {
	*project
	program string
}

const changesFile = `
project: shop
pools:
	win:
		items: [qa-1, qa-2]
		provider:
			list: exec sh vms.sh list
			create: exec sh vms.sh create
			destroy: exec sh vms.sh destroy
			allow: [create, destroy]
			name_prefix: qa-
			max_items: 9
`

// newChanges has the items qa-1 and qa-2, and the leftovers qa-3 and qa-4.
func newChanges(t *testing.T) *changes {
	t.Helper()
	x := &changes{project: newProject(t, changesFile)}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	x.program = x.write("supervisor", fmt.Sprintf("#!/bin/sh\nexec '%s' '-test.run=^TestSupervisor$' supervise\n", self))
	x.write("vms.sh", `echo "$1 $QASIGHT_KEY token=$QASIGHT_TOKEN" >> journal
[ -f "hook-$1" ] && . ./hook-$1
case "$1" in
list) ls world;;
create) touch "world/$QASIGHT_KEY";;
destroy) rm "world/$QASIGHT_KEY";;
esac
`)
	if err := os.Mkdir(filepath.Join(x.dir, "world"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"qa-1", "qa-2", "qa-3", "qa-4"} {
		x.write("world/"+n, "")
	}
	return x
}

func (x *changes) write(name, text string) string {
	x.t.Helper()
	path := filepath.Join(x.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		x.t.Fatal(err)
	}
	return path
}

// world is what exists, and destroyed how often a destroy ran.
func (x *changes) world() string {
	x.t.Helper()
	entries, err := os.ReadDir(filepath.Join(x.dir, "world"))
	if err != nil {
		x.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func (x *changes) journal() string {
	text, err := os.ReadFile(filepath.Join(x.dir, "journal"))
	if err != nil {
		return ""
	}
	return string(text)
}

// terminal is a pseudo-terminal: the person's side and the program's.
type terminal struct {
	person, program *os.File
	seen            chan string
}

func newTerminal(t testing.TB) *terminal {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetUint32(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return &terminal{person: os.NewFile(uintptr(fd), "ptmx"), program: slave, seen: make(chan string, 1)}
}

// read collects what the person sees, and calls prompted once when the text is
// there.
func (p *terminal) read(prompt string, prompted func()) {
	var all strings.Builder
	buf := make([]byte, 4096)
	for {
		n, err := p.person.Read(buf)
		all.Write(buf[:n])
		if prompted != nil && strings.Contains(all.String(), prompt) {
			prompted()
			prompted = nil
		}
		if err != nil {
			p.seen <- all.String()
			return
		}
	}
}

// atTerminal runs "pool" with the arguments at a terminal; answer is called when
// the person is asked. It returns what the person saw, too.
func (x *changes) atTerminal(answer func(p *terminal), args ...string) said {
	x.t.Helper()
	p := newTerminal(x.t)
	go p.read("Type yes to run this: ", func() { answer(p) })
	s := x.runOn(p.program, p.program, true, args...)
	p.program.Close() // the last one: then the person's side ends
	s.err = <-p.seen + s.err
	p.person.Close()
	return s
}

// runOn runs "pool" with the arguments on an input and an error output.
func (x *changes) runOn(in, errs *os.File, isTerminal bool, args ...string) said {
	x.t.Helper()
	out, err := os.Create(filepath.Join(x.t.TempDir(), "out"))
	if err != nil {
		x.t.Fatal(err)
	}
	defer out.Close()
	f := &command.Factory{
		Program: command.Program{
			Environ: x.env, Signals: x.signals, Executable: x.program, Name: "qasight",
			Streams: command.Streams{In: in, Out: out, Err: errs, InTerminal: isTerminal, ErrTerminal: isTerminal},
		},
		File: filepath.Join(x.dir, "qasight.yaml"),
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	root := &cobra.Command{SilenceErrors: true, SilenceUsage: true}
	root.PersistentFlags().BoolVar(&f.JSON, "json", false, "")
	root.AddCommand(poolcmd.New(f)...)
	root.SetArgs(append([]string{"pool"}, args...))
	root.SetOut(io.Discard)
	root.SetErr(io.Discard)
	err = root.ExecuteContext(ctx)
	text, readErr := os.ReadFile(out.Name())
	if readErr != nil {
		x.t.Fatal(readErr)
	}
	s := said{code: command.ExitCode(err), out: string(text)}
	if err != nil && !command.Silent(err) {
		s.err = err.Error() + "\n"
	}
	return s
}

// change runs "pool" with the arguments and without a terminal.
func (x *changes) change(code int, args []string, texts ...string) said {
	x.t.Helper()
	in, err := os.Open(os.DevNull)
	if err != nil {
		x.t.Fatal(err)
	}
	defer in.Close()
	errs, err := os.Create(filepath.Join(x.t.TempDir(), "err"))
	if err != nil {
		x.t.Fatal(err)
	}
	defer errs.Close()
	s := x.runOn(in, errs, false, args...)
	text, err := os.ReadFile(errs.Name())
	if err != nil {
		x.t.Fatal(err)
	}
	s.err = string(text) + s.err
	if s.code != code {
		x.t.Errorf("%v: exit code %d, want %d\n%s%s", args, s.code, code, s.out, s.err)
	}
	for _, want := range texts {
		if !strings.Contains(s.out+s.err, want) {
			x.t.Errorf("%v: %q is not in\n%s%s", args, want, s.out, s.err)
		}
	}
	return s
}
