package servecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/cli/command"
)

func newLogin(f *command.Factory) *cobra.Command {
	t := &team{f: f}
	c := &cobra.Command{
		Use: "login", Short: "Keep your token for a team server",
		Long: `Reads your token from standard input (at a terminal without showing it), asks the
team server whose it is, and keeps it in a file that only you can read. It is never
an argument: those are seen by everybody on a machine.

Where nobody logs in, such as in CI, set QASIGHT_TOKEN or QASIGHT_TOKEN_FILE.`,
		Example: `  qasight login
  qasight login --server https://qasight.example:8443 < ./ann.token`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				// It may be the token, and is repeated nowhere.
				return fault.Errorf(fault.Invalid, "`%s` takes no arguments: it reads the token from standard input, as arguments are seen by everybody on this machine. "+
					"If that was a token, have it revoked", c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := f.UntilSignal(c.Context())
			defer stop()
			return command.Interrupt(ctx, t.login(ctx))
		},
	}
	t.flags(c)
	return c
}

func (t *team) login(ctx context.Context) error {
	address, err := t.mustURL()
	if err != nil {
		return err
	}
	text, err := readToken(ctx, t.f, address)
	if err != nil {
		return err
	}
	if text == "" {
		return fault.New(fault.Invalid, "standard input holds no token: type it, or give its file with `< FILE`")
	}
	r, err := dial(address, client.Token(text))
	if err != nil {
		return err
	}
	defer r.close()
	who, err := r.Whoami(ctx)
	if e, ok := errors.AsType[*client.Error](err); ok && e.Status == http.StatusUnauthorized {
		return fault.Errorf(fault.Denied, "%s does not know this token, and nothing was kept: ask an admin for another one (`qasight token create`)", address)
	}
	if err != nil {
		return r.explain(err)
	}
	if err := t.f.SaveToken(address, client.Token(text)); err != nil {
		return err
	}
	if name := t.f.TokenVariable(); name != "" {
		t.f.Sayf("note: %s is set and is used instead of the token that was kept", name)
	}
	if t.f.JSON {
		return t.f.PrintJSON(identity{Identity: who, Server: address})
	}
	_, err = fmt.Fprintf(t.f.Out(), "logged in to %s as %s (%s); the token is kept in %s\n", address, command.Plain(who.Account), who.Role, t.f.TokenFile(address))
	return err
}

// maxToken is more than any token has, in bytes.
const maxToken = 4 << 10

// readToken reads a token from standard input, until ctx ends.
func readToken(ctx context.Context, f *command.Factory, address string) (string, error) {
	fd := int(f.Streams.In.Fd())
	var before *term.State
	if f.Streams.InTerminal {
		var err error
		if before, err = term.GetState(fd); err != nil {
			return "", fault.Errorf(fault.Invalid, "the terminal cannot be told to hide the token: %w: give it with `< FILE`", err)
		}
		fmt.Fprintf(f.Streams.Err, "token for %s (it is not shown): ", address)
	}
	type answer struct {
		text []byte
		err  error
	}
	// Nothing ends a read from a terminal: after a signal this goroutine ends with
	// the process.
	done := make(chan answer, 1)
	go func() {
		var a answer
		if before != nil {
			a.text, a.err = term.ReadPassword(fd)
		} else {
			a.text, a.err = io.ReadAll(io.LimitReader(f.Streams.In, maxToken+1))
		}
		done <- a
	}()
	var a answer
	select {
	case a = <-done:
	case <-ctx.Done():
		a.err = ctx.Err()
	}
	if before != nil {
		if a.err != nil {
			a.err = errors.Join(a.err, term.Restore(fd, before))
		}
		fmt.Fprintln(f.Streams.Err) // the line feed was not shown either
	}
	if a.err != nil && !errors.Is(a.err, io.EOF) {
		return "", fault.Errorf(fault.Invalid, "the token cannot be read: %w: give it with `< FILE`", a.err)
	}
	if len(a.text) > maxToken {
		return "", fault.Errorf(fault.Invalid, "standard input has more than %d bytes: that is no token", maxToken)
	}
	return strings.TrimSpace(string(a.text)), nil
}

// identity is what --json prints. For a local lease database Server is "".
type identity struct {
	client.Identity
	Server string `json:"server,omitempty"`
	// Database is the local lease database.
	Database string `json:"database,omitempty"`
}

func newWhoami(f *command.Factory) *cobra.Command {
	t := &team{f: f}
	c := &cobra.Command{
		Use: "whoami", Short: "Say which account you use, and what it may do", Args: command.NoArgs,
		Example: `  qasight whoami
  qasight whoami --server https://qasight.example:8443 --json`,
		RunE: func(c *cobra.Command, _ []string) error {
			address, err := t.url()
			if err != nil {
				return err
			}
			if address == "" {
				return t.local()
			}
			return t.run(c, func(ctx context.Context, r remote) error {
				who, err := r.Whoami(ctx)
				if err != nil {
					return r.explain(err)
				}
				if f.JSON {
					return f.PrintJSON(identity{Identity: who, Server: address})
				}
				_, err = fmt.Fprintf(f.Out(), "%s (%s) on %s, by token %s\n", command.Plain(who.Account), who.Role, address, command.Plain(who.TokenID))
				return err
			})
		},
	}
	t.flags(c)
	return c
}

// local tells who a person is where no team server is used.
func (t *team) local() error {
	c, err := t.f.Config()
	if err != nil {
		return err
	}
	path := t.f.Database(c.Project)
	if t.f.JSON {
		return t.f.PrintJSON(identity{Identity: client.Identity{Account: t.f.Account(), Role: client.RoleAdmin}, Database: path})
	}
	_, err = fmt.Fprintf(t.f.Out(), "%s, on this machine's lease database %s\n", t.f.Account(), path)
	return err
}
