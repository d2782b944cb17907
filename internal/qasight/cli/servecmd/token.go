package servecmd

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/desk/token"
	"fleetdesk/internal/qasight/cli/command"
)

func newToken(f *command.Factory) *cobra.Command {
	t := &team{f: f}
	c := &cobra.Command{
		Use: "token", Short: "Accounts and tokens of the team server", Args: command.NoArgs,
		Long: `Accounts and tokens of the team server. It needs an admin's token.

A viewer looks; a runner takes, renews and releases keys and writes the action log;
an admin does the rest. A token is shown once, when it is made, and only its hash is
kept.`,
		Example: `  qasight token create ci --role runner --expires 90d --out ./ci.token
  qasight token list ci
  qasight token revoke k3q5y7zabc2d`,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	t.flags(c)
	c.AddCommand(
		newCreate(t), newList(t), newRevoke(t), newAccounts(t),
		newState(t, "disable", true), newState(t, "enable", false), newRole(t),
	)
	return c
}

func roles() []string { return []string{client.RoleViewer, client.RoleRunner, client.RoleAdmin} }

func checkRole(what, role string) error {
	if !slices.Contains(roles(), role) {
		return fault.Errorf(fault.Invalid, "%s %q: want %s", what, command.Plain(role), strings.Join(roles(), ", "))
	}
	return nil
}

// created is what is printed of a new token.
type created struct {
	client.TokenInfo
	Role string `json:"role"`
	// Token is its text; "" when it went to File.
	Token string `json:"token,omitempty"`
	File  string `json:"file,omitempty"`
}

func newCreate(t *team) *cobra.Command {
	var role, expires, out string
	c := &cobra.Command{
		Use: "create ACCOUNT", Short: "Make a token, and its account when there is none of that name", Args: command.Args(1, 1, "ACCOUNT"),
		Long: `Makes a token of an account, which is made too when there is none of that name. The
token goes to standard output alone, once, or to a new file that only you can read.`,
		Example: `  qasight token create ann --role runner
  qasight token create ci --role runner --expires 90d --out ./ci.token`,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, args []string) error {
			life, err := lifetime(expires)
			if err != nil {
				return err
			}
			if role != "" {
				if err := checkRole("--role", role); err != nil {
					return err
				}
			}
			if out != "" {
				if err := usable("--out", out); err != nil {
					return err // before an account is made
				}
			}
			return t.run(c, func(ctx context.Context, r remote) error {
				a, err := t.ensure(ctx, r, args[0], role)
				if err != nil {
					return err
				}
				made, err := r.IssueToken(ctx, a.Name, client.NewToken{Lifetime: int64(life / time.Second)})
				if err != nil {
					return lost(r.explain(err), a.Name)
				}
				if err := t.deliver(ctx, a, made, out); err != nil {
					// Nobody has it: it must not stay good for ever.
					ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTime)
					defer cancel()
					return fmt.Errorf("%w: %w", err, revoked(made.ID, r.RevokeToken(ctx, made.ID)))
				}
				return nil
			})
		},
	}
	c.Flags().StringVar(&role, "role", "", "viewer, runner or admin; needed for a new account")
	c.Flags().StringVar(&expires, "expires", "never", "when the token ends, such as 12h or 90d")
	c.Flags().StringVar(&out, "out", "", "new file (0600) for the token, instead of standard output")
	complete(c, "role", roles()...)
	complete(c, "expires", "12h", "30d", "90d", "never")
	return c
}

// complete completes a flag's values.
func complete(c *cobra.Command, flag string, values ...string) {
	if err := c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // there is no such flag: never
	}
}

// ensure returns the account, and makes it when there is none of that name. Role is
// "" or what it must have.
func (t *team) ensure(ctx context.Context, r remote, name, role string) (client.Account, error) {
	a, found, err := r.account(ctx, name)
	if err != nil {
		return client.Account{}, err
	}
	if !found {
		if role == "" {
			return client.Account{}, fault.Errorf(fault.Invalid, "there is no account %q: say with --role what a new one may do: %s", command.Plain(name), strings.Join(roles(), ", "))
		}
		if a, err = r.CreateAccount(ctx, client.NewAccount{Name: name, Role: role}); err != nil {
			return client.Account{}, r.explain(err)
		}
		t.f.Sayf("account %s is new (%s)", a.Name, a.Role)
	}
	switch {
	case a.Disabled:
		return a, fault.Errorf(fault.Conflict, "account %s is disabled, and its tokens open nothing: `qasight token enable %s` first", a.Name, a.Name)
	case role != "" && a.Role != role:
		return a, fault.Errorf(fault.Conflict, "account %s is a %s: `qasight token role %s %s` changes it, for all its tokens", a.Name, a.Role, a.Name, role)
	}
	return a, nil
}

// deliver hands a new token over: to a new file, or to standard output.
func (t *team) deliver(ctx context.Context, a client.Account, made client.IssuedToken, out string) error {
	show := created{TokenInfo: made.TokenInfo, Role: a.Role, Token: string(made.Token)}
	if out != "" {
		if err := token.FileDelivery(out).Save(ctx, token.NewSecret(string(made.Token))); err != nil {
			return setting(err)
		}
		show.Token, show.File = "", out
	}
	if t.f.JSON {
		return t.f.PrintJSON(show)
	}
	ends := "never ends"
	if !made.Expires.IsZero() {
		ends = "ends " + made.Expires.Format(time.RFC3339)
	}
	if out != "" {
		_, err := fmt.Fprintf(t.f.Out(), "token %s of %s (%s, %s) is in %s\n", made.ID, a.Name, a.Role, ends, out)
		return err
	}
	if _, err := fmt.Fprintln(t.f.Out(), string(made.Token)); err != nil {
		return err
	}
	t.f.Sayf("token %s of %s (%s, %s): this is the only time that it is shown", made.ID, a.Name, a.Role, ends)
	return nil
}

const day = 24 * time.Hour

// lifetime reads when a token ends: "never" (0), days such as "90d", or a time such
// as "12h" or "1d12h".
func lifetime(s string) (time.Duration, error) {
	if s == "never" {
		return 0, nil
	}
	refuse := func() (time.Duration, error) {
		return 0, fault.Errorf(fault.Invalid, "--expires %q: want never, or a time from 1m to 3650d such as 12h or 90d", command.Plain(s))
	}
	var all time.Duration
	rest := s
	if days, after, ok := strings.Cut(s, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil {
			return refuse()
		}
		all, rest = time.Duration(n)*day, after
	}
	if rest != "" || s == "" {
		d, err := time.ParseDuration(rest)
		if err != nil || d < 0 || d > token.MaxLifetime {
			return refuse()
		}
		all += d
	}
	if all < token.MinLifetime || all > token.MaxLifetime {
		return refuse()
	}
	return all, nil
}

// tokenList and accountList are what --json prints.
type (
	tokenList struct {
		Tokens []client.TokenInfo `json:"tokens"`
	}
	accountList struct {
		Accounts []client.Account `json:"accounts"`
	}
)

func newList(t *team) *cobra.Command {
	return &cobra.Command{
		Use: "list [ACCOUNT]", Short: "List tokens, of one account or of all", Args: command.Args(0, 1, "at most one ACCOUNT"),
		Example: `  qasight token list
  qasight token list ci --json`,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, args []string) error {
			return t.run(c, func(ctx context.Context, r remote) error {
				names := args
				if len(args) == 0 {
					accounts, err := r.accounts(ctx)
					if err != nil {
						return err
					}
					for _, a := range accounts {
						names = append(names, a.Name)
					}
				}
				list := tokenList{Tokens: []client.TokenInfo{}}
				for _, name := range names {
					tokens, err := r.tokens(ctx, name)
					if err != nil {
						return err
					}
					list.Tokens = append(list.Tokens, tokens...)
				}
				if t.f.JSON {
					return t.f.PrintJSON(list)
				}
				return command.Table(t.f.Out(), tokenRows(list.Tokens, time.Now()))
			})
		},
	}
}

func tokenRows(all []client.TokenInfo, now time.Time) [][]string {
	rows := [][]string{{"TOKEN", "ACCOUNT", "CREATED", "ENDS", "STATE"}}
	for _, i := range all {
		ends, state := "never", "good"
		if !i.Expires.IsZero() {
			ends = i.Expires.Format(time.RFC3339)
			if !now.Before(i.Expires) {
				state = "expired"
			}
		}
		if i.Revoked {
			state = "revoked"
		}
		rows = append(rows, []string{i.ID, i.Account, i.Created.Format(time.RFC3339), ends, state})
	}
	return rows
}

// tokenMark begins the text of each token.
const tokenMark = "fdt_"

// longestID is more than the id of any token has; the text of one is longer.
const longestID = 64

func newRevoke(t *team) *cobra.Command {
	return &cobra.Command{
		Use: "revoke ID", Short: "End a token at once; again is harmless", Args: command.Args(1, 1, "one ID, as `qasight token list` shows it"),
		Example:           `  qasight token revoke k3q5y7zabc2d`,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, args []string) error {
			id := args[0]
			if strings.HasPrefix(id, tokenMark) || len(id) > longestID {
				return fault.New(fault.Invalid, "that is no id but the text of a token, which is now known to whoever sees this machine's processes: "+
					"find its id with `qasight token list`, and revoke it by that")
			}
			return t.run(c, func(ctx context.Context, r remote) error {
				if err := r.RevokeToken(ctx, id); err != nil {
					return r.explain(err)
				}
				_, err := fmt.Fprintf(t.f.Out(), "token %s opens nothing any more\n", command.Plain(id))
				return err
			})
		},
	}
}

func newAccounts(t *team) *cobra.Command {
	return &cobra.Command{
		Use: "accounts", Short: "List the accounts", Args: command.NoArgs,
		Example: `  qasight token accounts
  qasight token accounts --json`,
		RunE: func(c *cobra.Command, _ []string) error {
			return t.run(c, func(ctx context.Context, r remote) error {
				all, err := r.accounts(ctx)
				if err != nil {
					return err
				}
				if t.f.JSON {
					return t.f.PrintJSON(accountList{append([]client.Account{}, all...)})
				}
				rows := [][]string{{"ACCOUNT", "ROLE", "STATE", "CREATED"}}
				for _, a := range all {
					rows = append(rows, []string{a.Name, a.Role, stateOf(a.Disabled), a.Created.Format(time.RFC3339)})
				}
				return command.Table(t.f.Out(), rows)
			})
		},
	}
}

func stateOf(disabled bool) string {
	if disabled {
		return "disabled"
	}
	return "enabled"
}

func newState(t *team, verb string, disabled bool) *cobra.Command {
	short := "Let an account's tokens work again"
	if disabled {
		short = "Have an account's tokens open nothing; they are kept"
	}
	return &cobra.Command{
		Use: verb + " ACCOUNT", Short: short, Args: command.Args(1, 1, "ACCOUNT"),
		Example:           "  qasight token " + verb + " ci",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, args []string) error {
			return t.run(c, func(ctx context.Context, r remote) error {
				if err := r.change(ctx, args[0], func(a *client.AccountChange) { a.Disabled = disabled }); err != nil {
					return err
				}
				_, err := fmt.Fprintf(t.f.Out(), "account %s is %s\n", args[0], stateOf(disabled))
				return err
			})
		},
	}
}

func newRole(t *team) *cobra.Command {
	return &cobra.Command{
		Use: "role ACCOUNT ROLE", Short: "Change what an account may do: viewer, runner or admin", Args: command.Args(2, 2, "ACCOUNT and ROLE"),
		Example: `  qasight token role ann admin`,
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return roles(), cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkRole("role", args[1]); err != nil {
				return err
			}
			return t.run(c, func(ctx context.Context, r remote) error {
				if err := r.change(ctx, args[0], func(a *client.AccountChange) { a.Role = args[1] }); err != nil {
					return err
				}
				_, err := fmt.Fprintf(t.f.Out(), "account %s is a %s\n", args[0], args[1])
				return err
			})
		},
	}
}
