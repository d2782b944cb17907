package seed_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fleetdesk/internal/platform/proc"
	"fleetdesk/internal/proxy/provider/kvm/seed"
)

// run runs the agent's script with nothing but the given commands, each a shell
// text, and returns what was called and what it printed.
func run(t *testing.T, commands map[string]string) (calls []string, output string) {
	t.Helper()
	dir := t.TempDir()
	log := filepath.Join(dir, "calls")
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range commands {
		script := "#!/bin/sh\necho \"" + name + " $*\" >>" + log + "\n" + text + "\n"
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "agent.sh")
	if err := os.WriteFile(file, []byte(seed.AgentScript()), 0o755); err != nil {
		t.Fatal(err)
	}
	r, err := proc.Run(t.Context(), proc.Command{
		// Nothing in it may read what somebody left on the input.
		Shell: `echo unread | /bin/sh "$FILE"`, Dir: dir, Timeout: 30 * time.Second,
		Env: []string{"PATH=" + bin, "BIN=" + bin, "FILE=" + file},
	})
	if err != nil || r.Code != 0 || r.Behind {
		t.Errorf("the script ended with %d (%v): a boot must never fail on it; it said\n%s", r.Code, err, r.Output)
	}
	for line := range strings.Lines(r.Output) {
		if !strings.HasPrefix(line, "fleetdesk: ") {
			t.Errorf("it printed %q: the console shows who speaks", line)
		}
	}
	b, err := os.ReadFile(log)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n"), r.Output
}

// appear is what a package manager does that installs the agent.
const appear = `echo '#!/bin/sh' >"$BIN/qemu-ga"; /bin/chmod +x "$BIN/qemu-ga"`

func count(calls []string, part string) int {
	n := 0
	for _, c := range calls {
		if strings.Contains(c, part) {
			n++
		}
	}
	return n
}

func TestAgentScriptParses(t *testing.T) {
	for _, shell := range []string{"/bin/sh", "/bin/dash", "/bin/bash", "/bin/busybox"} {
		if _, err := os.Stat(shell); err != nil {
			continue
		}
		args := []string{shell, "-n", "agent.sh"}
		if shell == "/bin/busybox" {
			args = []string{shell, "sh", "-n", "agent.sh"}
		}
		r, err := proc.Run(t.Context(), proc.Command{Args: args, Timeout: 10 * time.Second})
		if err != nil || r.Code != 0 || r.Output != "" {
			t.Errorf("%s: %d, %v: %s", shell, r.Code, err, r.Output)
		}
	}
}

// A guest that has the agent only has it started: no network is needed.
func TestAgentScriptOnAnImageWithTheAgent(t *testing.T) {
	calls, out := run(t, map[string]string{"qemu-ga": "", "apt-get": "", "systemctl": ""})
	want := []string{"systemctl --quiet is-enabled qemu-guest-agent", "systemctl --no-block start qemu-guest-agent"}
	if !slices.Equal(calls, want) || !strings.Contains(out, "is started") {
		t.Errorf("calls %q, want %q; it said %s", calls, want, out)
	}
	calls, out = run(t, map[string]string{"qemu-ga": "", "systemctl": `case "$*" in *is-enabled*) exit 1;; esac`})
	if want = slices.Insert(want, 1, "systemctl enable qemu-guest-agent"); !slices.Equal(calls, want) || !strings.Contains(out, "is started") {
		t.Errorf("not enabled: calls %q, want %q; it said %s", calls, want, out)
	}
}

func TestAgentScriptInstalls(t *testing.T) {
	const systemd, openrc = "systemctl", "rc-service"
	for name, tc := range map[string]struct {
		reason  string
		manager map[string]string
		init    map[string]string
		install string
		calls   int
		start   string
	}{
		"debian": {
			"apt-get twice: the lists of a cloud image are old or not there",
			map[string]string{"apt-get": `case "$*" in install*) ` + appear + `;; esac`},
			map[string]string{systemd: ""},
			"apt-get install -y --no-install-recommends qemu-guest-agent", 2, "systemctl --no-block start qemu-guest-agent",
		},
		"fedora": {
			"dnf before yum, which may be its other name",
			map[string]string{"dnf": appear, "yum": appear},
			map[string]string{systemd: ""},
			"dnf -q -y install qemu-guest-agent", 1, "systemctl --no-block start qemu-guest-agent",
		},
		"old centos": {
			"yum alone",
			map[string]string{"yum": appear},
			map[string]string{systemd: ""},
			"yum -q -y install qemu-guest-agent", 1, "systemctl --no-block start qemu-guest-agent",
		},
		"suse": {
			"zypper asks nothing",
			map[string]string{"zypper": appear},
			map[string]string{systemd: ""},
			"zypper --quiet --non-interactive install --no-recommends qemu-guest-agent", 1, "systemctl --no-block start",
		},
		"alpine": {
			"apk, and OpenRC",
			map[string]string{"apk": appear},
			map[string]string{openrc: `case "$*" in *status) exit 3;; esac`, "rc-update": ""},
			"apk add --quiet --update-cache qemu-guest-agent", 1, "rc-service qemu-guest-agent start",
		},
		"devuan": {
			"neither systemd nor OpenRC",
			map[string]string{"apt-get": `case "$*" in install*) ` + appear + `;; esac`},
			map[string]string{"service": ""},
			"apt-get install", 2, "service qemu-guest-agent start",
		},
	} {
		t.Run(name, func(t *testing.T) {
			commands := map[string]string{"date": "echo 100", "sleep": ""}
			for _, m := range []map[string]string{tc.manager, tc.init} {
				for k, v := range m {
					commands[k] = v
				}
			}
			calls, out := run(t, commands)
			if count(calls, tc.install) != 1 || count(calls, tc.start) != 1 || !strings.Contains(out, "is installed") || !strings.Contains(out, "is started") {
				t.Errorf("%s: calls %q; it said %s", tc.reason, calls, out)
			}
			n := 0
			for k := range tc.manager {
				n += count(calls, k+" ")
			}
			if n != tc.calls || count(calls, "sleep") != 0 {
				t.Errorf("%s: %d calls of a package manager, want %d: %q", tc.reason, n, tc.calls, calls)
			}
		})
	}
}

// OpenRC: one that runs is not started again.
func TestAgentScriptTwiceOnAlpine(t *testing.T) {
	calls, _ := run(t, map[string]string{"qemu-ga": "", "rc-service": "", "rc-update": "exit 1"})
	if count(calls, "rc-service qemu-guest-agent start") != 0 || count(calls, "rc-update add qemu-guest-agent default") != 1 {
		t.Errorf("calls %q", calls)
	}
}

func TestAgentScriptTriesAgain(t *testing.T) {
	// The lock of another package manager goes away at the third try.
	third := `case "$*" in install*) echo x >>"$BIN/../n"; n=0; while read -r _; do n=$((n+1)); done <"$BIN/../n"; [ $n -lt 3 ] && exit 100; ` + appear + `;; esac`
	calls, out := run(t, map[string]string{"apt-get": third, "systemctl": "", "sleep": "", "date": "echo 100"})
	if count(calls, "apt-get install") != 3 || count(calls, "sleep 5") != 2 || count(calls, "--no-block start") != 1 || !strings.Contains(out, "try 2 of 10") {
		t.Errorf("calls %q; it said %s", calls, out)
	}
}

// A guest without a network boots all the same, after ten tries at most.
func TestAgentScriptGivesUp(t *testing.T) {
	calls, out := run(t, map[string]string{"apt-get": "exit 100", "systemctl": "", "sleep": "", "date": "echo 100"})
	if count(calls, "apt-get install") != 10 || count(calls, "sleep") != 9 || count(calls, "systemctl") != 0 || !strings.Contains(out, "could not be installed (tries: 10)") {
		t.Errorf("calls %q; it said %s", calls, out)
	}
}

// A network that swallows everything makes each try slow: time ends it too.
func TestAgentScriptGivesUpByTime(t *testing.T) {
	slow := `t=0; [ -e "$BIN/../t" ] && read -r t <"$BIN/../t"; echo $((t+200)) >"$BIN/../t"; echo $t`
	calls, out := run(t, map[string]string{"dnf": "exit 1", "systemctl": "", "sleep": "", "date": slow})
	if count(calls, "dnf") != 2 || !strings.Contains(out, "tries: 2") {
		t.Errorf("calls %q; it said %s", calls, out)
	}
}

func TestAgentScriptBoundsEachCommand(t *testing.T) {
	calls, _ := run(t, map[string]string{
		"apt-get": `case "$*" in install*) ` + appear + `;; esac`, "systemctl": "", "date": "echo 100",
		"timeout": `shift; exec "$@"`,
	})
	if count(calls, "timeout 120 apt-get update") != 1 || count(calls, "timeout 600 apt-get install") != 1 {
		t.Errorf("calls %q", calls)
	}
}

// A question of a package's would wait for an answer for ever.
func TestAgentScriptAsksNothing(t *testing.T) {
	calls, _ := run(t, map[string]string{
		"apt-get": `echo "asks: $DEBIAN_FRONTEND" >>"$BIN/../calls"; case "$*" in install*) ` + appear + `;; esac`, "systemctl": "", "date": "echo 100",
	})
	if count(calls, "asks: noninteractive") != 2 {
		t.Errorf("calls %q", calls)
	}
}

func TestAgentScriptOnStrangeMachines(t *testing.T) {
	for name, tc := range map[string]struct {
		commands map[string]string
		says     string
	}{
		"no manager":   {map[string]string{"systemctl": ""}, "no package manager that is known here"},
		"no init":      {map[string]string{"qemu-ga": ""}, "could not be started"},
		"no start":     {map[string]string{"qemu-ga": "", "systemctl": "exit 1"}, "could not be started"},
		"no clock":     {map[string]string{"yum": "exit 1", "date": "exit 1", "sleep": ""}, "tries: 10"},
		"reads input":  {map[string]string{"yum": "read -r x || " + appear, "systemctl": ""}, "is started"},
		"static units": {map[string]string{"qemu-ga": "", "systemctl": `case "$*" in *enable*) echo static >&2; exit 1;; esac`}, "is started"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, out := run(t, tc.commands); !strings.Contains(out, tc.says) {
				t.Errorf("it said %q, want %q", out, tc.says)
			}
		})
	}
}
