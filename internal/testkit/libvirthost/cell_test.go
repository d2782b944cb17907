//go:build integration && linux

package libvirthost_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"fleetdesk/internal/testkit/libvirthost"
)

// inner makes a copy of the test binary play tests in a cell of its own, below
// this one: what it leaves behind is then seen from outside.
const inner = "LIBVIRTHOST_TEST_INNER"

func TestMain(m *testing.M) {
	if what := os.Getenv(inner); what != "" {
		os.Exit(libvirthost.Main(play(what), libvirthost.Options{Foreign: what == "foreign"}))
	}
	goleak.VerifyTestMain(libvirthost.Around(m, libvirthost.Options{}))
}

type play string

// Run plays the tests of the inner cell.
func (p play) Run() int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	say := func(line string) { fmt.Println(line) }
	switch p {
	case "foreign":
		_, err := libvirthost.New(ctx, libvirthost.HostOptions{N: 1})
		say(fmt.Sprint("inside: ", libvirthost.Inside(), ", a host: ", err))
		return 0
	case "flags":
		in, _ := io.ReadAll(os.Stdin)
		say(fmt.Sprintf("%s %q %s", filepath.Base(os.Args[0]), os.Args[1:], in))
		return 7
	case "signal":
		got := make(chan os.Signal, 1)
		signal.Notify(got, syscall.SIGTERM)
		say("ready")
		say((<-got).String())
		return 9
	case "dies":
		say("ready")
	case "host":
		h, err := libvirthost.New(ctx, libvirthost.HostOptions{N: 1})
		if err == nil {
			_, err = h.PlantForeign(ctx, "guest", "")
		}
		if err == nil {
			_, err = os.CreateTemp("", "left")
		}
		if err != nil {
			say(err.Error())
			return 1
		}
		say("ready")
	}
	select {}
}

// cell starts the inner tests, whose starter has temp as its folder of temporary
// files. What hides the outer cell from them is a mount
// namespace in which /run is empty.
func cell(t *testing.T, what, before, temp string, args ...string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(within(t, 20*time.Second), "unshare", append([]string{
		"--mount", "--propagation", "private", "sh", "-c",
		"mount -t tmpfs none /run && " + before + " exec \"$0\" \"$@\"", self,
	}, args...)...)
	cmd.Env = append(os.Environ(), inner+"="+what, "TMPDIR="+temp)
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, bufio.NewReader(out)
}

func expect(t *testing.T, r *bufio.Reader, want string) {
	t.Helper()
	got, err := r.ReadString('\n')
	if strings.TrimSpace(got) != want {
		rest, _ := io.ReadAll(r)
		t.Fatalf("the tests inside say %q (%v), want %q\n%s", got, err, want, rest)
	}
}

// traces is what there is of the machine that a cell could leave something in.
type traces struct {
	Links, Mounts, Files []string
	Namespaces           int
}

func look(t *testing.T, temp string) traces {
	t.Helper()
	var s traces
	links, err := os.ReadDir("/sys/class/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		s.Links = append(s.Links, l.Name())
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	s.Mounts = strings.Split(string(mounts), "\n")
	files, err := filepath.Glob(temp + "/*")
	if err != nil {
		t.Fatal(err)
	}
	s.Files = files
	seen := map[string]bool{}
	for _, kind := range []string{"net", "mnt", "pid", "uts", "ipc"} {
		all, _ := filepath.Glob("/proc/[0-9]*/ns/" + kind)
		for _, n := range all {
			if to, err := os.Readlink(n); err == nil {
				seen[to] = true
			}
		}
	}
	s.Namespaces = len(seen)
	return s
}

// processes are the live ones, by pid, with their names.
func processes(t *testing.T) map[int]string {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]string{}
	for _, p := range all {
		b, err := os.ReadFile(p)
		if err != nil {
			continue
		}
		name, rest, _ := strings.Cut(string(b), ")")
		_, name, _ = strings.Cut(name, "(")
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(p)))
		if state := strings.Fields(rest)[0]; state != "Z" && state != "X" {
			seen[pid] = name
		}
	}
	return seen
}

func TestKilledTestsLeaveNothing(t *testing.T) {
	cases := map[string]struct {
		reason string
		victim func(starter int, tests int) int
	}{
		"the tests":     {"a panic, the deadline of go test, the kernel's out-of-memory killer", func(_, tests int) int { return tests }},
		"their starter": {"it is the process that go test knows and kills", func(starter, _ int) int { return starter }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			temp := t.TempDir()
			before, old := look(t, temp), processes(t)
			cmd, out := cell(t, "host", "", temp)
			expect(t, out, "ready")

			var names []string
			tests := 0
			for pid, name := range processes(t) {
				if _, known := old[pid]; !known {
					names = append(names, name)
					if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)); bytes.Contains(b, []byte("TMPDIR=/run/fleetdesk-cell/tmp")) &&
						bytes.Contains(b, []byte(inner+"=host")) && pid != cmd.Process.Pid {
						// The deepest but the host's own first process: that one has
						// its starter's environment.
						if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); !bytes.HasPrefix(line, []byte("fleetdesk-")) {
							tests = pid
						}
					}
				}
			}
			for _, want := range []string{"libvirtd", "sshd", "dnsmasq", "qemu-system-x86"} {
				if !slices.Contains(names, want) {
					t.Errorf("%s does not run in %v: this test would prove nothing", want, names)
				}
			}
			if tests == 0 {
				t.Fatal("the test process was not found")
			}
			if err := syscall.Kill(tc.victim(cmd.Process.Pid, tests), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, out)
			_ = cmd.Wait()

			ctx := within(t, 10*time.Second)
			for {
				var left []string
				for pid, name := range processes(t) {
					if _, known := old[pid]; !known {
						left = append(left, name)
					}
				}
				after := look(t, temp)
				if len(left) == 0 && cmp.Equal(before, after) {
					return
				}
				if ctx.Err() != nil {
					t.Fatalf("processes left: %v; traces (-before +after):\n%s", left, cmp.Diff(before, after))
				}
				pause(ctx, 20*time.Millisecond)
			}
		})
	}
}

func TestCellIsTransparent(t *testing.T) {
	code := func(t *testing.T, cmd *exec.Cmd) int {
		t.Helper()
		var exit *exec.ExitError
		if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode()
	}
	t.Run("flags, input, output and exit code", func(t *testing.T) {
		cmd, out := cell(t, "flags", "echo in |", "/tmp", "-test.run=X Y", "-test.v")
		self, _ := os.Executable()
		expect(t, out, fmt.Sprintf("%s %q in", filepath.Base(self), []string{"-test.run=X Y", "-test.v"}))
		if got := code(t, cmd); got != 7 {
			t.Errorf("exit code %d, the tests returned 7", got)
		}
	})
	t.Run("a signal that the tests handle", func(t *testing.T) {
		cmd, out := cell(t, "signal", "", "/tmp")
		expect(t, out, "ready")
		_ = cmd.Process.Signal(syscall.SIGTERM)
		expect(t, out, "terminated")
		if got := code(t, cmd); got != 9 {
			t.Errorf("exit code %d, the tests returned 9", got)
		}
	})
	t.Run("a signal that ends the tests", func(t *testing.T) {
		cmd, out := cell(t, "dies", "", "/tmp")
		expect(t, out, "ready")
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_, _ = io.Copy(io.Discard, out)
		if got := code(t, cmd); got != 128+int(syscall.SIGTERM) {
			t.Errorf("exit code %d, want 143", got)
		}
	})
	t.Run("names are answered at once", func(t *testing.T) {
		ctx := within(t, 3*time.Second)
		if got, err := net.DefaultResolver.LookupHost(ctx, "cell"); err != nil || !slices.Equal(got, []string{libvirthost.Gateway}) {
			t.Errorf("cell is %v, %v", got, err)
		}
		var unknown *net.DNSError
		if _, err := net.DefaultResolver.LookupHost(ctx, "unknown.example.com"); !errors.As(err, &unknown) || unknown.IsTimeout || ctx.Err() != nil {
			t.Errorf("a name that nobody has: %v", err)
		}
	})
	t.Run("none for a foreign host", func(t *testing.T) {
		cmd, out := cell(t, "foreign", "", "/tmp")
		expect(t, out, "inside: false, a host: no cell: TestMain must call libvirthost.Main")
		if got := code(t, cmd); got != 0 {
			t.Errorf("exit code %d", got)
		}
	})
}

func TestUnfitMachine(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		reason string
		before string
		want   []string
	}{
		"no root": {
			reason: "the text says what to type",
			before: "exec setpriv --reuid=nobody --clear-groups /mnt/open.test;",
			want:   []string{"need root", "make test-integration-kvm"},
		},
		"no virsh": {
			reason: "a machine without the packages fails and never skips",
			before: "mount --bind /dev/null /usr/bin/virsh &&",
			want:   []string{"virsh (libvirt-clients)", "make setup-kvm"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			ctx := within(t, 20*time.Second)
			var said bytes.Buffer
			// The binary is where every user can reach it.
			shell := "mount -t tmpfs -o mode=755 none /mnt && cp " + self + " /mnt/open.test && mount -t tmpfs -o mode=755 none /run && " +
				tc.before + " exec /mnt/open.test"
			cmd := exec.CommandContext(ctx, "unshare", "--mount", "--propagation", "private", "sh", "-c", shell)
			cmd.Env = append(os.Environ(), inner+"=dies")
			cmd.Stderr = &said
			_ = cmd.Run()
			if got := cmd.ProcessState.ExitCode(); got != 1 {
				t.Errorf("exit code %d, want 1", got)
			}
			for _, w := range tc.want {
				if !strings.Contains(said.String(), w) {
					t.Errorf("it says %q and not %q", said.String(), w)
				}
			}
		})
	}
}
