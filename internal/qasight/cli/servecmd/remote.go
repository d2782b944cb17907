package servecmd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/cli/command"
)

// requestTime bounds one request to the team server.
const requestTime = 30 * time.Second

// team is how commands reach the team server.
type team struct {
	f *command.Factory
	// server is the flag --server: a URL, "" for the one of the project's file.
	server string
}

func (t *team) flags(c *cobra.Command) {
	c.PersistentFlags().StringVar(&t.server, "server", "", "the team server's URL; default: server of qasight.yaml")
}

// url is the team server's; "" when the project's file names none.
func (t *team) url() (string, error) {
	if t.server != "" {
		return t.server, checkURL(t.server)
	}
	c, err := t.f.Config()
	if fault.CodeOf(err) == "no_config" && t.f.File == "" {
		return "", fault.New(fault.Invalid, "which team server? Give --server URL, or change to a folder whose qasight.yaml has server")
	}
	if err != nil {
		return "", err
	}
	return c.Server, nil
}

// mustURL is url where a team server is needed.
func (t *team) mustURL() (string, error) {
	address, err := t.url()
	if err == nil && address == "" {
		err = fault.New(fault.Invalid, "qasight.yaml names no team server: give --server URL")
	}
	return address, err
}

// checkURL holds --server to the rules of the file's server: a token never travels
// unencrypted beyond this machine.
func checkURL(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		// The parser's text would repeat the URL, and with it a password.
		return fault.New(fault.Invalid, "--server is no URL: write it as https://HOST:PORT")
	case u.User != nil:
		return fault.New(fault.Invalid, "--server holds a user: leave it out; the token says who you are")
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return fault.New(fault.Invalid, "--server has a path: write https://HOST:PORT")
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return fault.New(fault.Invalid, "--server: http would send your token unencrypted to another machine: use https (http is for localhost, 127.0.0.1 and [::1])")
	}
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// run has do speak to the team server with the person's token.
func (t *team) run(c *cobra.Command, do func(ctx context.Context, r remote) error) error {
	ctx, stop := t.f.UntilSignal(c.Context())
	defer stop()
	address, err := t.mustURL()
	if err != nil {
		return err
	}
	token, err := t.f.Token(address)
	if err != nil {
		return err
	}
	r, err := dial(address, token)
	if err != nil {
		return err
	}
	defer r.close()
	return command.Interrupt(ctx, do(ctx, r))
}

// remote is a team server, spoken to with a token.
type remote struct {
	*client.Client
	url   string
	close func()
}

// dial sends nothing yet.
func dial(address string, t client.Token) (remote, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone() // it is one
	c, err := client.New(client.Options{BaseURL: address, Token: t, HTTPClient: &http.Client{Transport: transport, Timeout: requestTime}})
	if err != nil {
		return remote{}, fault.Wrap(fault.Invalid, err)
	}
	return remote{c, address, transport.CloseIdleConnections}, nil
}

// explain says what a person can do about a client's error.
func (r remote) explain(err error) error { return broker.Explain(r.url, err) }

func (r remote) accounts(ctx context.Context) ([]client.Account, error) {
	var all []client.Account
	for p := (client.Page{Limit: accountsPage}); ; {
		page, err := r.Accounts(ctx, p)
		if err != nil {
			return nil, r.explain(err)
		}
		all = append(all, page.Items...)
		if p.Cursor = page.Next; p.Cursor == "" {
			return all, nil
		}
	}
}

// account looks one up; found is false when there is none of that name.
func (r remote) account(ctx context.Context, name string) (a client.Account, found bool, err error) {
	all, err := r.accounts(ctx)
	for _, a := range all {
		if a.Name == name {
			return a, true, nil
		}
	}
	return client.Account{}, false, err
}

// change sets what do changes of an account that must exist.
func (r remote) change(ctx context.Context, name string, do func(*client.AccountChange)) error {
	a, found, err := r.account(ctx, name)
	if err != nil {
		return err
	}
	if !found {
		return noAccount(name)
	}
	to := client.AccountChange{Role: a.Role, Disabled: a.Disabled}
	do(&to)
	return r.explain(r.ChangeAccount(ctx, name, to))
}

func noAccount(name string) error {
	return fault.WithCode(fault.Errorf(fault.NotFound, "there is no account %q: see `qasight token accounts`", command.Plain(name)), "account")
}

func (r remote) tokens(ctx context.Context, account string) ([]client.TokenInfo, error) {
	var all []client.TokenInfo
	for p := (client.Page{Limit: accountsPage}); ; {
		page, err := r.Tokens(ctx, account, p)
		if err != nil {
			return nil, r.explain(err)
		}
		all = append(all, page.Items...)
		if p.Cursor = page.Next; p.Cursor == "" {
			return all, nil
		}
	}
}

// lost tells whether a request may have been carried out although its answer is an
// error, and what to look for.
func lost(err error, account string) error {
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Status != 0 && e.Status < http.StatusInternalServerError || e.Class == client.Invalid {
		return err
	}
	return fmt.Errorf("%w (a token may have been made that nobody has: `qasight token list %s` shows it)", err, account)
}
