package crawlers_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"
)

// tool is one way to run a program of the page.
type tool struct {
	name string
	// program is run, with the files beside it that it needs.
	program string
	files   []string
	// needs are what must be on this machine.
	needs []string
	// command runs it, in its folder, on these URLs.
	command func(b *bench, urls []string) []string
}

// The paths are those of Debian's packages: a python of somebody's own has no
// Scrapy.
const python, bash = "/usr/bin/python3", "/bin/bash"

func tools() []tool {
	return []tool{
		{
			name: "curl", program: "crawl.sh", needs: []string{bash, "/usr/bin/curl", "/usr/bin/jq"},
			command: func(_ *bench, urls []string) []string { return append([]string{bash, "crawl.sh"}, urls...) },
		},
		{
			name: "urllib", program: "crawl_urllib.py", files: []string{"desk.py"}, needs: []string{python},
			command: func(_ *bench, urls []string) []string { return append([]string{python, "crawl_urllib.py"}, urls...) },
		},
		{
			name: "requests", program: "crawl_requests.py", files: []string{"desk.py"},
			needs:   []string{python, "/usr/lib/python3/dist-packages/requests"},
			command: func(_ *bench, urls []string) []string { return append([]string{python, "crawl_requests.py"}, urls...) },
		},
		{
			name: "scrapy", program: "shop.py", files: []string{"desk.py", "deskproxies.py"},
			needs:   []string{python, "/usr/lib/python3/dist-packages/scrapy"},
			command: func(_ *bench, urls []string) []string { return append([]string{python, "shop.py"}, urls...) },
		},
		{
			name: "fetch", program: "crawl.mjs", files: []string{"desk.mjs"}, needs: []string{"node", nodeModules + "/undici"},
			command: func(_ *bench, urls []string) []string { return append([]string{"node", "crawl.mjs"}, urls...) },
		},
		{
			name: "playwright", program: "browse.mjs", files: []string{"desk.mjs"},
			needs:   []string{"node", nodeModules + "/playwright-core", "/usr/bin/chromium"},
			command: func(_ *bench, urls []string) []string { return append([]string{"node", "browse.mjs"}, urls...) },
		},
		{
			name: "go", program: "crawl.go", needs: []string{"go"},
			command: func(b *bench, urls []string) []string { return append([]string{b.goProgram}, urls...) },
		},
	}
}

// nodeModules is what test/crawlers/npm/install.sh leaves.
const nodeModules = "../../bin/crawlers/node_modules"

// present skips the test where something is missing: in CI that is a failure.
func (tl tool) present(t *testing.T) {
	t.Helper()
	for _, need := range tl.needs {
		if _, err := exec.LookPath(need); err == nil {
			continue
		}
		if _, err := os.Stat(need); err != nil {
			t.Skipf("%s is missing: make setup-crawlers", need)
		}
	}
}

// lay puts the programs into a folder, as a reader of the page would.
func (tl tool) lay(t *testing.T, b *bench) string {
	t.Helper()
	// Not t.TempDir: the path of a browser's socket must be short.
	dir, err := os.MkdirTemp("", "crawl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	for _, name := range append([]string{tl.program}, tl.files...) {
		text := b.programs[name]
		if text == "" {
			t.Fatalf("docs/crawlers.md has no %s", name)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if slices.Contains(tl.needs, "node") {
		modules, err := filepath.Abs(nodeModules)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// outcome is what came of a run.
type outcome struct {
	code           int
	stdout, stderr string
	files          []string // that have a secret
}

// longest bounds one run: what waits for a proxy here waits seconds.
const longest = 90 * time.Second

// run runs the program on the URLs. What it started is gone when this returns.
func (tl tool) run(t *testing.T, b *bench, pool string, env, urls []string) outcome {
	t.Helper()
	dir := tl.lay(t, b)
	argv := tl.command(b, urls)
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.Env = append(b.env(dir), append([]string{"POOL=" + pool}, env...)...)
	// A group of its own, so that one signal ends all of it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	o := outcome{code: -1, stdout: stdout.String(), stderr: stderr.String()}
	if cmd.ProcessState != nil {
		o.code = cmd.ProcessState.ExitCode()
	}
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		t.Errorf("%s: %v", tl.program, err)
	}
	if ctx.Err() != nil {
		t.Errorf("%s runs after %s: its loops have an end that is too far", tl.program, longest)
	}
	endAll(t, dir)
	o.files = b.inFiles(t, dir)
	return o
}

// endAll ends what is left of a run: processes whose command line or environment
// names its folder. A browser's are in a group of their own.
func endAll(t *testing.T, dir string) {
	t.Helper()
	self := os.Getpid()
	for range 100 {
		left := processesOf(dir)
		left = slices.DeleteFunc(left, func(pid int) bool { return pid == self })
		if len(left) == 0 {
			return
		}
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("processes of %s do not end: %v", dir, processesOf(dir))
}

func processesOf(dir string) (pids []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid := 0
		for _, c := range e.Name() {
			if c < '0' || c > '9' {
				pid = 0
				break
			}
			pid = pid*10 + int(c-'0')
		}
		if pid == 0 {
			continue
		}
		env, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if bytes.Contains(env, []byte(dir+"\x00")) || bytes.Contains(line, []byte(dir)) {
			pids = append(pids, pid)
		}
	}
	return pids
}
