package servecmd

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/obs"
	"fleetdesk/internal/qasight/cli/command"
)

// serverFolder is the folder of a server without a place of its own, among those of
// projects. No file in it has the name of a project's.
const serverFolder = "server"

func newServer(f *command.Factory) *cobra.Command {
	var o options
	var jsonLog bool
	c := &cobra.Command{
		Use: "server", Short: "Run the team server, which several machines lease from", Args: command.NoArgs,
		Long: `Runs the team server until it is told to end (Ctrl-C, or SIGTERM): pools, leases,
accounts and the action log over HTTP, kept in an SQLite file or in PostgreSQL.

It runs no command, ever, and reads no qasight.yaml: pools come from "qasight pool
publish", and hooks run where the keys are used. On its first start it makes the
account "admin", and leaves its token in a file that only you can read. With
--verbose the log also tells what goes on inside.`,
		Example: `  qasight server
  qasight server --listen :8443 --tls-cert cert.pem --tls-key key.pem
  qasight server --listen :8443 --tls-cert cert.pem --tls-key key.pem --database-url-file /etc/qasight/db-url

  # for scripts: any free port, and where it is
  qasight server --listen 127.0.0.1:0 --address-file ./address`,
		RunE: func(c *cobra.Command, _ []string) error {
			if f.JSON {
				return fault.New(fault.Invalid, "server prints no document, so --json means nothing to it: leave it out (--log-json logs JSON lines)")
			}
			o.home = f.StateDir(serverFolder)
			o.log = obs.NewLogger(f.Streams.Err, obs.Options{Level: f.LogLevel(), JSON: jsonLog})
			ctx, stop := f.UntilSignal(c.Context())
			defer stop()
			o.ready = func(s started) error { return tell(ctx, f, s) }
			return command.Interrupt(ctx, serve(ctx, o))
		},
	}
	flags := c.Flags()
	flags.SortFlags = false
	flags.StringVar(&o.listen, "listen", "127.0.0.1:8443", "where it listens (host:port); port 0 for any free one")
	flags.StringVar(&o.addressFile, "address-file", "", "file that holds the server's URL while it runs")
	flags.StringVar(&o.tls.Cert, "tls-cert", "", "PEM certificate chain; it is read again when it changes")
	flags.StringVar(&o.tls.Key, "tls-key", "", "PEM key of the certificate")
	flags.BoolVar(&o.allowPlaintext, "allow-plaintext", false, "go without TLS on an address other than loopback")
	databaseFlags(c, &o.place)
	flags.StringVar(&o.adminTokenFile, "admin-token-file", "", "new file (0600) for the first admin token; default admin-token beside the database")
	flags.Float64Var(&o.rate, "api-rate", 50, "requests a second of one token, sustained; twice as many at once; -1 for no limit")
	flags.BoolVar(&jsonLog, "log-json", false, "log JSON lines")
	c.AddCommand(newAdminToken(f))
	return c
}

// databaseFlags say where the server's database is.
func databaseFlags(c *cobra.Command, p *place) {
	c.Flags().StringVar(&p.database, "database", "", "SQLite file, on a local disk; default qasight/server/desk.db in the state folder")
	c.Flags().StringVar(&p.urlFile, "database-url-file", "", "file (0600) with the URL of a PostgreSQL database, instead of --database")
}

// tell says where the server is and how to get in. The token itself is shown to a
// person at a terminal alone: anything else keeps what it is given. A reader that
// has gone away does not end the server.
func tell(ctx context.Context, f *command.Factory, s started) error {
	out := f.Streams.Out // not f.Out: see above
	fmt.Fprintln(out, "listening on", s.url)
	switch {
	case s.tokenFile == "":
	case s.fresh && f.Streams.OutTerminal:
		text, err := reveal(ctx, s.tokenFile)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "the first admin token, which is also in %s:\n  %s\n", s.tokenFile, text)
	case s.fresh:
		fmt.Fprintln(out, "the first admin token is in", s.tokenFile)
	default:
		fmt.Fprintln(out, "the first admin token was put into", s.tokenFile)
	}
	if s.fresh {
		fmt.Fprintf(out, "log in: qasight login --server %s < %s\n", s.url, s.tokenFile)
	}
	return nil
}
