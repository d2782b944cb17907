// Package command is what all of qasight's commands share: where they read and
// write, how they find the project's file and its broker, how they end, and how
// they print.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/obs"
	"fleetdesk/internal/platform/proc"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/config"
)

// Program is the process as main hands it over.
type Program struct {
	// Args are the arguments without the program's name.
	Args []string
	// Environ is the environment, each "NAME=value".
	Environ []string
	// Executable is this program's own file, and Name what it was called as: a
	// supervisor is started with them.
	Executable, Name string
	// Signals brings what the process gets of [Signals].
	Signals <-chan os.Signal
	Streams Streams
}

// Streams are the process's own input and outputs.
type Streams struct {
	In       *os.File
	Out, Err *os.File
	// InTerminal, OutTerminal and ErrTerminal are whether they are terminals.
	InTerminal, OutTerminal, ErrTerminal bool
}

// Factory is what a command gets; it lives as long as the process.
type Factory struct {
	Program
	// File is the flag --file: qasight.yaml's path, "" to look for it.
	File string
	// JSON is the flag --json.
	JSON bool
	// Verbose is the flag --verbose.
	Verbose bool

	// unwritten is the first error of what [Factory.Out] gave out.
	unwritten atomic.Pointer[error]
}

// Getenv returns a variable of the environment, "" for none.
func (f *Factory) Getenv(name string) string {
	for i := len(f.Environ) - 1; i >= 0; i-- { // the last one counts
		if v, ok := strings.CutPrefix(f.Environ[i], name+"="); ok {
			return v
		}
	}
	return ""
}

// Log is where what goes wrong inside is told.
func (f *Factory) Log() *slog.Logger {
	return obs.NewLogger(f.Streams.Err, obs.Options{Level: f.LogLevel()})
}

// LogLevel is what --verbose asks for.
func (f *Factory) LogLevel() slog.Level {
	if f.Verbose {
		return obs.Verbosity(1)
	}
	return obs.Verbosity(0)
}

// Sayf tells the person something beside the command's answer: on standard
// error.
func (f *Factory) Sayf(format string, args ...any) { fmt.Fprintf(f.Streams.Err, format+"\n", args...) }

// Out is where the command's answer goes. A command need not look at its errors:
// the first one is kept for [Factory.Unwritten].
func (f *Factory) Out() io.Writer { return answer{f} }

// Unwritten is why the command's answer could not be written; nil when it was.
func (f *Factory) Unwritten() error {
	if err := f.unwritten.Load(); err != nil {
		return *err
	}
	return nil
}

type answer struct{ f *Factory }

// Write implements [io.Writer].
func (a answer) Write(p []byte) (int, error) {
	n, err := a.f.Streams.Out.Write(p)
	if err != nil {
		a.f.unwritten.CompareAndSwap(nil, &err)
	}
	return n, err
}

// Config reads the project's file: that of --file, or the nearest one from the
// working folder up.
func (f *Factory) Config() (*config.File, error) {
	path := f.File
	if path == "" {
		dir, err := os.Getwd()
		if err != nil {
			return nil, fault.Errorf(fault.Invalid, "the working folder cannot be told: %w", err)
		}
		if path, err = config.Find(dir); err != nil {
			return nil, err
		}
		if path == filepath.Join(dir, config.FileName) {
			path = config.FileName // what errors about it begin with
		}
	}
	return config.Load(path)
}

// Database is the path of a project's local lease database.
func (f *Factory) Database(project string) string {
	return filepath.Join(f.StateDir(project), "leases.db")
}

// StateDir is where this person's files of a project are.
func (f *Factory) StateDir(project string) string {
	state := f.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(state) { // as its specification says of relative ones
		state = filepath.Join(f.home(), ".local", "state")
	}
	return filepath.Join(state, "qasight", project)
}

func (f *Factory) home() string {
	if h := f.Getenv("HOME"); filepath.IsAbs(h) {
		return h
	}
	if u, err := user.Current(); err == nil && filepath.IsAbs(u.HomeDir) {
		return u.HomeDir
	}
	return "/"
}

// Account is the person's name on this machine.
func (f *Factory) Account() string {
	name := f.Getenv("USER")
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = u.Username
	}
	// What an account's name may hold.
	name = strings.Map(func(r rune) rune {
		if r < 0x80 && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.@:", r)) {
			return r
		}
		return '-'
	}, name)
	if name = strings.TrimLeft(name, "-_.@:"); name == "" {
		return fmt.Sprintf("uid-%d", os.Getuid())
	}
	return name[:min(len(name), 128)]
}

// Host is this machine's name.
func (f *Factory) Host() string {
	if h, err := os.Hostname(); err == nil {
		return h
	}
	return "unknown-host"
}

// Holder says who uses a key, for people: the flag --holder, or who runs this.
func (f *Factory) Holder(flag string) string {
	if flag != "" {
		return flag
	}
	return fmt.Sprintf("%s@%s pid %d", f.Account(), f.Host(), os.Getpid())
}

// The variables that hold the team server's token.
const (
	tokenVariable     = "QASIGHT_TOKEN"
	tokenFileVariable = "QASIGHT_TOKEN_FILE"
)

// Broker opens the project's broker. Close it.
func (f *Factory) Broker(ctx context.Context, c *config.File) (broker.Broker, error) {
	if c.Server == "" {
		return broker.OpenLocal(ctx, f.local(c))
	}
	return f.server(c.Server)
}

// Looker opens the project's broker for looking: a local lease database is
// neither made nor changed.
func (f *Factory) Looker(ctx context.Context, c *config.File) (broker.Looker, error) {
	if c.Server == "" {
		return broker.LookLocal(ctx, f.local(c))
	}
	return f.server(c.Server)
}

func (f *Factory) local(c *config.File) broker.Local {
	// What goes wrong inside is in the errors that this process prints.
	log := slog.New(slog.DiscardHandler)
	if f.Verbose {
		log = f.Log()
	}
	return broker.Local{Path: f.Database(c.Project), Account: f.Account(), File: filepath.Join(c.Dir, filepath.Base(c.Path)), Log: log}
}

func (f *Factory) server(address string) (broker.Broker, error) {
	t, err := f.Token(address)
	if err != nil {
		return nil, err
	}
	return broker.OpenServer(broker.Server{URL: address, Token: t})
}

// tokenTime bounds how long a pipe's writer is waited for.
const tokenTime = 10 * time.Second

// maxTokenFile bounds the file of a token, in bytes.
const maxTokenFile = 4 << 10

// Token is the person's token for a team server: that of QASIGHT_TOKEN, of the file
// that QASIGHT_TOKEN_FILE names, or of [Factory.TokenFile]. Errors are Denied with
// the code "no_token", say where it was looked for, and repeat nothing of what was
// found there.
func (f *Factory) Token(server string) (client.Token, error) {
	if t := strings.TrimSpace(f.Getenv(tokenVariable)); t != "" {
		return tokenOf(tokenVariable, t)
	}
	path, named := f.Getenv(tokenFileVariable), true
	if path == "" {
		path, named = f.tokenFile(server), false
	}
	// A pipe (QASIGHT_TOKEN_FILE=<(…) of a shell) is read too, but nobody waits for
	// ever for its writer.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, os.ErrNotExist) && !named:
		return "", fault.WithCode(fault.Errorf(fault.Denied,
			"no token for %s: log in with `qasight login`, or set %s or %s (no token is in %s)", server, tokenVariable, tokenFileVariable, path), "no_token")
	case err != nil:
		return "", fault.WithCode(fault.Errorf(fault.Denied, "the token for %s cannot be read: %w", server, err), "no_token")
	}
	defer file.Close()
	_ = file.SetReadDeadline(time.Now().Add(tokenTime)) // what is no pipe needs none
	text, err := io.ReadAll(io.LimitReader(file, maxTokenFile))
	if err != nil || strings.TrimSpace(string(text)) == "" {
		return "", fault.WithCode(fault.Errorf(fault.Denied, "%s holds no token for %s", path, server), "no_token")
	}
	return tokenOf(path, strings.TrimSpace(string(text)))
}

// tokenOf refuses what is no token, before it is sent to anybody.
func tokenOf(where, text string) (client.Token, error) {
	for _, r := range text {
		var what string
		switch {
		case r == '\n' || r == '\r':
			what = "it has several lines"
		case r == ' ' || r == '\t':
			what = "a blank is inside"
		case r < ' ' || r >= 0x7f:
			what = "it has a character that no token has"
		default:
			continue
		}
		return "", fault.WithCode(fault.Errorf(fault.Denied, "%s holds no token: %s: put the token there and nothing else", where, what), "no_token")
	}
	return client.Token(text), nil
}

func (f *Factory) tokenFile(server string) string {
	dir := f.Getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(f.home(), ".config")
	}
	return filepath.Join(dir, "qasight", serverName(server)+".token")
}

// serverName is a team server's host, and its port when it is not the usual one:
// two servers on one host have a token each. It is the name of a file.
func serverName(server string) string {
	u, err := url.Parse(server)
	if err != nil || u.Hostname() == "" {
		return "server"
	}
	host, usual := strings.ToLower(u.Host), ":443"
	if u.Scheme == "http" {
		usual = ":80"
	}
	return strings.Map(func(r rune) rune {
		if r == filepath.Separator || r <= ' ' || r >= 0x7f {
			return '-'
		}
		return r
	}, strings.TrimSuffix(host, usual))
}

// Guard starts commands under supervisors of this program.
func (f *Factory) Guard() proc.Guard {
	return proc.Guard{Program: f.Executable, Args: []string{f.Name, SuperviseCommand}}
}

// SuperviseCommand is the hidden command that is a supervisor.
const SuperviseCommand = "supervise"

// HookEnv is the environment of hooks and provider commands: the person's own
// without qasight's token, and the variables given.
func (f *Factory) HookEnv(more ...string) []string {
	env := make([]string, 0, len(f.Environ)+len(more))
	for _, kv := range f.Environ {
		if name, _, _ := strings.Cut(kv, "="); name != tokenVariable && name != tokenFileVariable {
			env = append(env, kv)
		}
	}
	return append(env, more...)
}

// leastSecret is the shortest text that is hidden, in bytes: a shorter one is found
// everywhere, and is no secret.
const leastSecret = 4

// Secrets are the values of variables whose names say that they are secret, to be
// hidden in what is kept of a command's output.
func (f *Factory) Secrets() []string {
	var out []string
	for _, kv := range f.Environ {
		name, value, _ := strings.Cut(kv, "=")
		if len(value) >= leastSecret && secretName(name) {
			out = append(out, value)
		}
	}
	return out
}

func secretName(name string) bool {
	name = strings.ToUpper(name)
	for _, part := range []string{"TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "API_KEY", "APIKEY", "ACCESS_KEY", "PRIVATE_KEY"} {
		if strings.Contains(name, part) {
			return true
		}
	}
	return strings.HasSuffix(name, "_PASS") || strings.HasSuffix(name, "_PWD")
}
