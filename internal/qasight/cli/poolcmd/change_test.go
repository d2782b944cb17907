package poolcmd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleetdesk/internal/qasight/broker/brokertest"
	"fleetdesk/internal/qasight/config"
)

// Only "yes" at a terminal goes on, after the plan was seen there.
func TestChangePrompt(t *testing.T) {
	t.Parallel()
	types := func(text string) func(*changes, *terminal) {
		return func(_ *changes, p *terminal) { _, _ = p.person.WriteString(text) }
	}
	for name, tt := range map[string]struct {
		reason string
		answer func(*changes, *terminal)
		code   int
		world  string
		text   string
	}{
		"yes":       {"then it is done", types("yes\n"), 0, "qa-1 qa-2", "destroyed"},
		"y":         {"one letter is typed by chance", types("y\n"), 77, "qa-1 qa-2 qa-3 qa-4", "declined"},
		"YES":       {"only yes is yes", types("YES\n"), 77, "qa-1 qa-2 qa-3 qa-4", "declined"},
		"spelled":   {"blanks around it are nothing", types(" yes \n"), 0, "qa-1 qa-2", "destroyed"},
		"no":        {"is none", types("no\n"), 77, "qa-1 qa-2 qa-3 qa-4", "declined"},
		"return":    {"is none", types("\n"), 77, "qa-1 qa-2 qa-3 qa-4", "declined"},
		"more":      {"only yes is yes", types("yes please\n"), 77, "qa-1 qa-2 qa-3 qa-4", "declined"},
		"yesterday": {"only yes is yes", types("yesterday\n"), 77, "qa-1 qa-2 qa-3 qa-4", "declined"},
		"end":       {"the end of the input is no answer", types("\x04"), 77, "qa-1 qa-2 qa-3 qa-4", "the input ended"},
		"cut off":   {"nor is one that was cut off", types("yes\x04\x04"), 77, "qa-1 qa-2 qa-3 qa-4", "the input ended"},
		"interrupt": {"Ctrl-C declines", func(x *changes, _ *terminal) { x.signals <- syscall.SIGINT }, 77, "qa-1 qa-2 qa-3 qa-4", "interrupt"},
		"world":     {"what was shown is done, or nothing", func(x *changes, p *terminal) { x.write("world/qa-9", ""); _, _ = p.person.WriteString("yes\n") }, 77, "qa-1 qa-2 qa-3 qa-4 qa-9", "the world changed"},
		"file": {"what was shown is done, or nothing", func(x *changes, p *terminal) {
			x.file(changesFile + "\tb: {items: [qa-4]}\n")
			_, _ = p.person.WriteString("yes\n")
		}, 77, "qa-1 qa-2 qa-3 qa-4", "the world changed"},
		"no newline": {"an answer is a line", func(x *changes, p *terminal) { _, _ = p.person.WriteString("yes"); x.signals <- syscall.SIGTERM }, 77, "qa-1 qa-2 qa-3 qa-4", "declined"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newChanges(t)
			s := x.atTerminal(func(p *terminal) { tt.answer(x, p) }, "sweep", "win", "--apply")
			if s.code != tt.code || x.world() != tt.world || !strings.Contains(s.out+s.err, tt.text) {
				t.Errorf("%s: exit code %d, %q exists, want %d, %q, and %q in\n%s%s", tt.reason, s.code, x.world(), tt.code, tt.world, tt.text, s.out, s.err)
			}
			plan, _, asked := strings.Cut(s.err, "Type yes to run this: ")
			if !asked || !strings.Contains(plan, "qa-3") || !strings.Contains(plan, "exec sh vms.sh destroy") {
				t.Errorf("asked without the plan: %s", s.err)
			}
			if tt.code != 0 && strings.Contains(x.journal(), "destroy") {
				t.Errorf("something was run: %s", x.journal())
			}
		})
	}
}

// A terminal on one side alone is nobody who can be asked.
func TestChangeHalfTerminal(t *testing.T) {
	t.Parallel()
	x := newChanges(t)
	x.change(77, words("sweep win --apply"), "without a terminal")
	x.change(77, words("remove win qa-3 --apply"), "--yes")
	x.change(77, words("add win qa-5 --apply"), "--yes")
	if strings.Contains(x.journal(), "destroy") || strings.Contains(x.journal(), "create") {
		t.Errorf("something was run: %s", x.journal())
	}
}

// The exit code tells what happened, and the provider never sees qasight's token.
func TestChangeExits(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		reason string
		hooks  map[string]string
		args   string
		code   int
		text   string
	}{
		"done":              {"all well", nil, "sweep win --apply --yes", 0, "destroyed"},
		"dry":               {"nothing was asked for", nil, "sweep win", 0, "DRY RUN"},
		"failed":            {"applied in part, also with nothing done", map[string]string{"destroy": "exit 4"}, "sweep win --apply --yes", 1, "FAILED"},
		"second failed":     {"applied in part", map[string]string{"destroy": `[ $QASIGHT_KEY = qa-4 ] && exit 4`}, "sweep win --apply --yes", 1, "exit code 4"},
		"still listed":      {"a pool needs a look", map[string]string{"destroy": "exit 0"}, "remove win qa-3 --apply --yes", 1, "still shows"},
		"not created":       {"a pool needs a look", map[string]string{"create": "exit 0"}, "add win qa-5 --apply --yes", 1, "OUTCOME UNKNOWN"},
		"list":              {"what exists is not known", map[string]string{"list": "exit 1"}, "sweep win", 3, "list"},
		"list in between":   {"wins over 1", map[string]string{"list": `[ $(grep -c list journal) = 4 ] && exit 1`}, "sweep win --apply --yes", 3, "destroyed"},
		"changed first":     {"refused", map[string]string{"list": `[ $(grep -c list journal) = 2 ] && touch world/qa-9`}, "sweep win --apply --yes", 77, "not run"},
		"changed between":   {"applied in part", map[string]string{"list": `[ $(grep -c list journal) = 4 ] && touch world/qa-9`}, "sweep win --apply --yes", 1, "the world changed"},
		"apply-only":        {"a mistake, and no dry run", nil, "add win qa-5 --yes", 2, "--yes"},
		"no file's pool":    {"a mistake", nil, "sweep nowhere", 2, "nowhere"},
		"a rule":            {"refused", nil, "remove win qa-1 --apply --yes", 77, "item"},
		"nothing is asked":  {"nothing to do", map[string]string{"list": "exit 0"}, "sweep win --apply", 0, "Nothing to do"},
		"applied with json": {"for programs", nil, "remove win qa-3 --apply --yes --json", 0, `"state": "done"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newChanges(t)
			x.env = append(x.env, "QASIGHT_TOKEN=t0ken-of-the-server")
			for hook, text := range tt.hooks {
				x.write("hook-"+hook, text+"\n")
			}
			s := x.change(tt.code, words(tt.args), tt.text)
			if strings.Contains(x.journal(), "t0ken") {
				t.Errorf("%s: the provider sees the token: %s", tt.reason, x.journal())
			}
			if strings.Contains(tt.args, "--json") && !strings.HasPrefix(s.out, "{") {
				t.Errorf("%s: the output is no document: %s", tt.reason, s.out)
			}
		})
	}
}

// Ctrl-C while a command runs: it gets the signal, its end is logged, and the next
// one does not start.
func TestChangeInterrupted(t *testing.T) {
	t.Parallel()
	x := newChanges(t)
	x.write("hook-destroy", "trap 'touch heard' INT; touch running; while ! [ -f heard ]; do sleep 0.01; done\n")
	sent := make(chan bool)
	go func() {
		defer close(sent)
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if _, err := os.Stat(filepath.Join(x.dir, "running")); err == nil {
				break
			}
		}
		x.signals <- syscall.SIGINT
	}()
	x.change(1, words("sweep win --apply --yes"), "ended by interrupt", "destroyed", "not run")
	<-sent
	if got := x.world(); got != "qa-1 qa-2 qa-4" {
		t.Errorf("%q exists", got)
	}
	x.change(0, words("log --key qa-3"), " ok ")
}

// Ctrl-C while the plan's list runs ends that, and nothing was run.
func TestChangeInterruptedPlan(t *testing.T) {
	t.Parallel()
	x := newChanges(t)
	x.write("hook-list", "touch running; exec sleep 600\n")
	sent := make(chan bool)
	go func() {
		defer close(sent)
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if _, err := os.Stat(filepath.Join(x.dir, "running")); err == nil {
				break
			}
		}
		x.signals <- syscall.SIGINT
	}()
	x.change(77, words("sweep win --apply --yes"), "nothing was run: ended by interrupt")
	<-sent
	x.change(0, words("log"), "No provider command was run.")
}

// With a team server the file must be what was published there.
func TestChangeServer(t *testing.T) {
	t.Parallel()
	desk := brokertest.Serve(t, brokertest.SQLite(t), nil)
	x := newChanges(t)
	file := fmt.Sprintf("server: %s", desk.URL) + changesFile
	x.file(file)
	x.env = append(x.env, "QASIGHT_TOKEN="+string(desk.Token("ann")))
	x.change(77, words("sweep win"), "never published", "qasight pool publish win")
	x.change(77, words("add win qa-5 --apply --yes"), "never published")
	publish := func() {
		t.Helper()
		root := desk.Open(t, "root", nil)
		defer root.Close()
		f, err := config.Load(filepath.Join(x.dir, "qasight.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := root.Publish(t.Context(), f.Pools[0].Pool, nil); err != nil {
			t.Fatal(err)
		}
	}
	publish()
	x.file(strings.ReplaceAll(file, "[qa-1, qa-2]", "[qa-1]"))
	x.change(77, words("sweep win"), "qa-2 was published and is not in the file")
	if x.journal() != "" {
		t.Errorf("the provider was called: %s", x.journal())
	}
	x.file(file)
	x.change(0, words("remove win qa-3 --apply --yes"), "destroyed")
	x.change(0, words("add win qa-5 --apply --yes"), "qasight pool publish win", "      - qa-5")
	x.change(0, words("log"), "ann@", "destroy", "create")
	x.env[len(x.env)-1] = "QASIGHT_TOKEN=" + string(desk.Token("viv"))
	x.change(77, words("remove win qa-4 --apply --yes"))
	x.change(0, words("log"), "ann@")
	desk.Stop()
	x.change(69, words("remove win qa-4 --apply --yes"))
	x.change(69, words("log"))
	if got := x.world(); got != "qa-1 qa-2 qa-4 qa-5" {
		t.Errorf("%q exists", got)
	}
}
