package command_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/cli/command"
)

func TestExitCode(t *testing.T) {
	t.Parallel()
	of := func(c fault.Class, code string) error {
		return fmt.Errorf("doing: %w", fault.WithCode(fault.New(c, "what"), code))
	}
	for name, tc := range map[string]struct {
		reason string
		err    error
		want   int
	}{
		"nothing":       {"all well", nil, 0},
		"look":          {"a command says so itself", command.Exit(1, nil), 1},
		"said":          {"what a command says wins over the class", command.Exit(3, of(fault.Denied, "")), 3},
		"said deep":     {"also further down", fmt.Errorf("x: %w", command.Exit(78, nil)), 78},
		"invalid":       {"the command line or the file", of(fault.Invalid, ""), 2},
		"config":        {"the file", of(fault.Invalid, "config"), 2},
		"not found":     {"a pool that nobody knows", of(fault.NotFound, "pool"), 2},
		"denied":        {"the role does not allow it", of(fault.Denied, ""), 77},
		"no token":      {"nobody said who it is", of(fault.Denied, "no_token"), 77},
		"conflict":      {"somebody else is at it", of(fault.Conflict, "held"), 77},
		"none free":     {"no key in time", of(fault.Quota, "none_free"), 75},
		"queue":         {"too many wait", of(fault.Quota, "queue_full"), 75},
		"busy":          {"too much is asked at once", of(fault.Quota, "busy"), 75},
		"rate":          {"too often", of(fault.Quota, "rate"), 75},
		"quota":         {"any other limit", of(fault.Quota, ""), 75},
		"lease lost":    {"it ran out, or was taken away", of(fault.Conflict, "lease_lost"), 76},
		"lease unknown": {"there is no such lease any more", of(fault.NotFound, "lease"), 76},
		"unavailable":   {"the store is away", of(fault.Unavailable, ""), 69},
		"stopping":      {"the server stops", of(fault.Unavailable, "stopping"), 69},
		"timeout":       {"no answer in time", of(fault.Timeout, ""), 69},
		"deadline":      {"the same, unclassed", context.DeadlineExceeded, 69},
		"transient":     {"it may work later", of(fault.Transient, ""), 69},
		"permanent":     {"the store is broken", of(fault.Permanent, "store"), 69},
		"unsupported":   {"the store is too old", of(fault.Unsupported, ""), 69},
		"unclassed":     {"nobody said", errors.New("what"), 69},
		"cancelled":     {"whoever waited went away", context.Canceled, 69},
	} {
		t.Run(name, func(t *testing.T) {
			if got := command.ExitCode(tc.err); got != tc.want {
				t.Errorf("%s: got %d, want %d", tc.reason, got, tc.want)
			}
		})
	}
}

// Every class of error has an exit code of the table, and so has every constant.
func TestExitCodesAreTheTable(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "exit.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var constants []int
	for _, d := range file.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.CONST {
			for _, s := range g.Specs {
				for _, v := range s.(*ast.ValueSpec).Values {
					n, err := strconv.Atoi(v.(*ast.BasicLit).Value)
					if err != nil {
						t.Fatal(err)
					}
					constants = append(constants, n)
				}
			}
		}
	}
	var table []int
	for _, r := range command.ExitCodes() {
		for c := range strings.SplitSeq(r.Code, ", ") {
			n, err := strconv.Atoi(c)
			if err != nil {
				t.Fatal(err)
			}
			table = append(table, n)
		}
		if r.Meaning == "" || !strings.Contains(command.ExitHelp(), r.Meaning) {
			t.Errorf("%s: its meaning is not in the help", r.Code)
		}
	}
	if diff := cmp.Diff(constants, table); diff != "" {
		t.Errorf("the constants of exit.go and the table differ (-constants +table):\n%s", diff)
	}
	for _, m := range fault.Table() {
		if got := command.ExitCode(fault.New(m.Class, "what")); !slices.Contains(table, got) || got == 0 {
			t.Errorf("%s ends with %d, which is not in the table", m.Class, got)
		}
	}
}

func TestSilent(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason string
		err    error
		want   bool
	}{
		"code alone":  {"all was said already", command.Exit(1, nil), true},
		"code, cause": {"the cause was not said yet", command.Exit(1, errors.New("what")), false},
		"an error":    {"it was not said yet", errors.New("what"), false},
		"nothing":     {"there is nothing to be silent about", nil, false},
	} {
		if got := command.Silent(tc.err); got != tc.want {
			t.Errorf("%s: %s: got %v", name, tc.reason, got)
		}
	}
	cause := fault.New(fault.Denied, "what")
	if err := command.Exit(3, cause); err.Error() != "what" || !errors.Is(err, fault.Denied) {
		t.Errorf("an exit code hides its cause: %v", err)
	}
	if got := command.Exit(3, nil).Error(); got != "exit 3" {
		t.Errorf("without a cause: %q", got)
	}
}

// A signal ends a command with the signal's code; its errors are then of no interest.
func TestUntilSignal(t *testing.T) {
	t.Parallel()
	signals := make(chan syscallSignal, 4)
	f := &command.Factory{Program: command.Program{Signals: relay(t, signals)}}
	ctx, stop := f.UntilSignal(t.Context())
	signals <- syscall.SIGUSR1
	signals <- syscall.SIGPIPE
	signals <- syscall.SIGTERM
	<-ctx.Done()
	cause, ok := context.Cause(ctx).(command.Interrupted)
	if !ok || cause.Signal != syscall.SIGTERM {
		t.Fatalf("the cause is %v", context.Cause(ctx))
	}
	lost := &client.Error{Class: client.Transient}
	if got := command.ExitCode(command.Interrupt(ctx, lost)); got != 143 {
		t.Errorf("SIGTERM ends with %d, want 143", got)
	}
	if err := command.Interrupt(ctx, nil); err != nil {
		t.Errorf("what ended well is no error: %v", err)
	}
	stop()

	ctx, stop = f.UntilSignal(t.Context())
	if err := command.Interrupt(ctx, lost); !errors.Is(err, lost) {
		t.Errorf("without a signal: %v", err)
	}
	stop()
	<-ctx.Done()
	if err := command.Interrupt(ctx, lost); !errors.Is(err, lost) {
		t.Errorf("after the watch: %v", err)
	}
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		if !command.Ending(s) {
			t.Errorf("%s asks for an end", s)
		}
	}
	if command.Ending(syscall.SIGPIPE) || command.Ending(syscall.SIGUSR2) {
		t.Error("neither a closed pipe nor a user's signal asks for an end")
	}
}
