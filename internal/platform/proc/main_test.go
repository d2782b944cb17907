package proc_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"fleetdesk/internal/platform/proc"
)

// TestMain makes the test binary the processes that the tests need besides.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "supervise":
			// Not os.Exit: the race detector makes that last a second.
			syscall.Exit(proc.Supervise(os.Stderr))
		case "starter":
			os.Exit(starter(os.Args[2]))
		case "zombie":
			os.Exit(zombie(os.Args[2]))
		}
	}
	// They mostly wait.
	if err := flag.Set("test.parallel", "12"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// job is what a starter is to do.
type job struct {
	Guard  bool
	Shell  string
	Files  bool // its own ones
	Grace  time.Duration
	Within time.Duration // the deadline, from the start; 0 for none
	Stop   bool          // as soon as it says "stop" on the input
	Reads  bool          // a line from the terminal afterwards
	Behind bool          // first starts itself once more, in the background of its terminal
}

// starter is a process that runs a command, as told. It says on its output how
// the command ended.
func starter(text string) int {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		fmt.Println(err)
		return 1
	}
	if j.Behind {
		j.Behind = false
		return again(j)
	}
	c := proc.Command{Shell: j.Shell, Env: []string{"PATH=" + os.Getenv("PATH")}, Grace: j.Grace}
	if j.Files {
		c.Files = &proc.Files{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
	}
	var r proc.Result
	var err error
	if j.Guard {
		r, err = guarded(c, j)
	} else {
		r, err = proc.Run(context.Background(), c)
	}
	fmt.Printf("result code=%d signal=%d ended=%q err=%v output=%q\n", r.Code, int(r.Signal), r.Ended, err, r.Output)
	if j.Reads {
		var line string
		_, err := fmt.Scanln(&line)
		fmt.Printf("back %q %v\n", line, err)
	}
	return 0
}

func guarded(c proc.Command, j job) (proc.Result, error) {
	var until time.Duration
	if j.Within != 0 {
		until = proc.Now() + j.Within
	}
	g, err := guard().Start(context.Background(), c, until)
	if err != nil {
		return proc.Result{}, err
	}
	if j.Stop {
		var line string
		fmt.Scanln(&line)
		g.Stop()
	}
	return g.Wait(context.Background())
}

func again(j job) int {
	text, _ := json.Marshal(j)
	cmd := exec.Command("/proc/self/exe", "starter", string(text))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Run(); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// zombie leaves a zombie in the process group that it leaves itself, says so by
// making the file, and lives on until it is killed.
func zombie(file string) int {
	cmd := exec.Command("/bin/true")
	if err := cmd.Start(); err != nil {
		return 1
	}
	for state(cmd.Process.Pid) != "Z" {
		time.Sleep(time.Millisecond)
	}
	if _, err := syscall.Setsid(); err != nil {
		return 1
	}
	if err := os.WriteFile(file, []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
		return 1
	}
	time.Sleep(time.Minute)
	return 0
}

func guard() proc.Guard {
	return proc.Guard{Program: "/proc/self/exe", Args: []string{"proc.test", "supervise"}}
}

// path is an environment in which the machine's programs are found.
func path(t *testing.T, more ...string) []string {
	t.Helper()
	return append([]string{"PATH=" + os.Getenv("PATH")}, more...)
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in vain: waited for %s", what)
		}
	}
}

// state is a process's state as /proc has it; "" when there is no such process.
func state(pid int) string {
	s := stat(pid)
	if len(s) == 0 {
		return ""
	}
	return s[0]
}

// stat are the fields after a process's name: state, parent, group, session, …
func stat(pid int) []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
}

// alive reports whether a process is there and no zombie.
func alive(pid int) bool {
	s := state(pid)
	return s != "" && s != "Z" && s != "X"
}

// group are the processes of a group that are no zombies.
func group(pgid int) []int {
	var pids []int
	files, _ := filepath.Glob("/proc/[0-9]*")
	for _, f := range files {
		pid, _ := strconv.Atoi(filepath.Base(f))
		if s := stat(pid); len(s) > 2 && s[2] == strconv.Itoa(pgid) && s[0] != "Z" && s[0] != "X" {
			pids = append(pids, pid)
		}
	}
	return pids
}

// number waits for a file that holds a number and a newline.
func number(t *testing.T, file string) int {
	t.Helper()
	n := 0
	eventually(t, file, func() bool {
		text, err := os.ReadFile(file)
		if err != nil || !strings.HasSuffix(string(text), "\n") {
			return false
		}
		n, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil
	})
	return n
}

// waited waits for a file to be there.
func waited(t *testing.T, file string) {
	t.Helper()
	eventually(t, file, func() bool { _, err := os.Stat(file); return err == nil })
}

// undisturbed tries what is about times. When the machine stood still meanwhile,
// it says nothing about the code, and is tried again.
func undisturbed(t *testing.T, try func() []string) {
	t.Helper()
	var problems []string
	var stood time.Duration
	for range 6 {
		stop, most := make(chan struct{}), make(chan time.Duration)
		go func() {
			var late time.Duration
			for last := time.Now(); ; {
				select {
				case <-stop:
					most <- late
					return
				case <-time.After(5 * time.Millisecond):
				}
				now := time.Now()
				late, last = max(late, now.Sub(last)), now
			}
		}()
		problems = try()
		close(stop)
		if stood = <-most; len(problems) == 0 || stood < 20*time.Millisecond {
			break
		}
	}
	for _, p := range problems {
		t.Errorf("%s (the machine stood still for %v)", p, stood)
	}
}
