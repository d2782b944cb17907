package servecmd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fleetdesk/internal/core/fault"
	coretoken "fleetdesk/internal/core/token"
	"fleetdesk/internal/desk/token"
	"fleetdesk/internal/platform/sqldb"
	"fleetdesk/internal/qasight/cli/command"
)

// startTime bounds what a start asks of the database.
const startTime = 30 * time.Second

// firstAdmin sees to it that somebody can use the server: it leaves the first admin
// token in its file.
func (d *desk) firstAdmin(ctx context.Context) (started, error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	s := started{url: d.server.URL(), tokenFile: d.o.adminTokenFile}
	var err error
	if s.fresh, err = d.tokens.EnsureFirstAdmin(ctx, token.FileDelivery(s.tokenFile)); err != nil {
		if c := fault.Of(err); c == fault.Permanent || c == fault.Conflict {
			return started{}, fmt.Errorf("%w (another place: --admin-token-file)", err)
		}
		return started{}, err
	}
	if !s.fresh && missing(s.tokenFile) {
		d.o.log.Info("the first admin token was taken from its file; `qasight server admin-token` makes another when it is lost", "file", s.tokenFile)
		s.tokenFile = ""
	}
	return s, nil
}

// reveal is the text of a first admin token that was made now.
func reveal(ctx context.Context, file string) (string, error) {
	t, found, err := token.FileDelivery(file).Load(ctx)
	if err != nil || !found {
		return "", errors.Join(err, fault.Errorf(fault.Invalid, "%s is gone", file))
	}
	return t.Reveal(), nil
}

// newAdminToken is the way back in when the first admin token was lost.
func newAdminToken(f *command.Factory) *cobra.Command {
	var p place
	var out, account string
	c := &cobra.Command{
		Use: "admin-token", Short: "Make another admin token, when the first one was lost", Args: command.NoArgs,
		Long: `Makes another token of an admin's account and writes it to a new file that only
you can read. It needs the rights on the server's database, not a token, and may be
run while the server runs.`,
		Example: `  qasight server admin-token --out ./admin-token
  qasight login --server https://qasight.example:8443 < ./admin-token`,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := f.UntilSignal(c.Context())
			defer stop()
			home := f.StateDir(serverFolder)
			if out == "" {
				out = p.tokenFile(home)
			}
			if err := anotherAdmin(ctx, p, home, account, out); err != nil {
				return command.Interrupt(ctx, setting(err))
			}
			_, err := fmt.Fprintln(f.Out(), "the new token of", account, "is in", out)
			return err
		},
	}
	databaseFlags(c, &p)
	c.Flags().StringVar(&out, "out", "", "new file (0600) for the token; default admin-token beside the database")
	c.Flags().StringVar(&account, "account", token.FirstAdmin, "the admin's account")
	return c
}

// anotherAdmin issues a token of an admin's account into a new file.
func anotherAdmin(ctx context.Context, p place, home, account, out string) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if err := p.validate(); err != nil {
		return err
	}
	at := p.at(home)
	if at.Path != "" && missing(at.Path) {
		return fault.Errorf(fault.Invalid, "there is no database %s: name the one that the server uses with --database", at.Path)
	}
	if err := usable("--out", out); err != nil {
		return err
	}
	db, err := sqldb.Open(ctx, at)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }() // what was written is written
	if err := isAdmin(ctx, db.Tokens(), account); err != nil {
		return err
	}
	tokens := token.New(token.Options{Store: db.Tokens()})
	secret, record, err := tokens.Issue(ctx, account, time.Time{})
	if err != nil {
		return err
	}
	if err := token.FileDelivery(out).Save(ctx, secret); err != nil {
		return fmt.Errorf("%w: %w", err, revoked(record.ID, tokens.Revoke(context.WithoutCancel(ctx), record.ID)))
	}
	return nil
}

// revoked tells what became of a token that nobody was given.
func revoked(id string, err error) error {
	if err != nil {
		return fmt.Errorf("the token %s is not revoked, though nobody has it: %w", id, err)
	}
	return fmt.Errorf("the token %s is revoked again", id)
}

// accountsPage is how many accounts are read at once.
const accountsPage = 500

// isAdmin refuses an account whose tokens would not open what an admin needs.
func isAdmin(ctx context.Context, store coretoken.Store, name string) error {
	var admins []string
	for after := ""; ; {
		page, err := store.Accounts(ctx, after, accountsPage)
		if err != nil {
			return err
		}
		for _, a := range page {
			if a.Role == coretoken.Admin && !a.Disabled {
				if a.Name == name {
					return nil
				}
				admins = append(admins, a.Name)
			}
		}
		if len(page) < accountsPage {
			break
		}
		after = page[len(page)-1].Name
	}
	if len(admins) == 0 {
		return fault.New(fault.Invalid, "this database has no admin: start the server on it, which makes one")
	}
	return fault.Errorf(fault.Invalid, "%q is no admin: name one with --account: %s", name, strings.Join(admins[:min(len(admins), 10)], ", "))
}
