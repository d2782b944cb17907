package brokertest

import (
	"context"
	"log/slog"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/action"
	"fleetdesk/internal/core/action/actiontest"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease/leasetest"
	"fleetdesk/internal/core/token"
	"fleetdesk/internal/desk/api"
	"fleetdesk/internal/desk/service"
	desktoken "fleetdesk/internal/desk/token"
	"fleetdesk/internal/platform/httpd"
	"fleetdesk/internal/platform/sqldb"
	"fleetdesk/internal/qasight/broker"
)

// Discard is a log that nobody reads.
func Discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// Local is a harness over a local lease database: each account opens the file
// anew.
func Local(t testing.TB) Harness {
	path := filepath.Join(t.TempDir(), "leases.db")
	return Harness{Open: func(t testing.TB, account string) broker.Broker { return OpenLocal(t, path, account) }}
}

// OpenLocal opens a local lease database. The caller closes it.
func OpenLocal(t testing.TB, path, account string) broker.Broker {
	t.Helper()
	b, err := broker.OpenLocal(t.Context(), broker.Local{Path: path, Account: account, Log: Discard()})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TeamServer is a desk that listens on loopback, with the accounts ann and bob
// (runners), root (an admin) and viv (a viewer).
type TeamServer struct {
	// URL is where it listens.
	URL string
	// Stop ends it, once; the test's end does otherwise.
	Stop   func()
	tokens map[string]client.Token
}

// Serve runs a team server on the stores until t ends; its accounts are in a
// database of their own. Log hears it, nil for nobody.
func Serve(t testing.TB, s broker.Stores, log *slog.Logger) *TeamServer {
	t.Helper()
	if log == nil {
		log = Discard()
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	db, err := sqldb.Open(t.Context(), sqldb.Options{Path: filepath.Join(t.TempDir(), "accounts.db")})
	must(err)
	t.Cleanup(func() { _ = db.Close() })
	auth := desktoken.New(desktoken.Options{Store: db.Tokens(), Directory: db.Tokens()})
	out := &TeamServer{tokens: map[string]client.Token{}}
	for account, role := range map[string]token.Role{"ann": token.Runner, "bob": token.Runner, "root": token.Admin, "viv": token.Viewer} {
		_, err := auth.CreateAccount(t.Context(), account, role)
		must(err)
		secret, _, err := auth.IssueFor(t.Context(), account, 0)
		must(err)
		out.tokens[account] = client.Token(secret.Reveal())
	}
	desk, err := service.New(service.Options{Store: s.Leases, Log: log})
	must(err)
	handler, err := api.New(api.Options{Auth: auth, Actions: s.Actions, Desk: desk, Log: log, Limits: api.Limits{PerToken: -1}})
	must(err)
	server, err := httpd.New(httpd.Options{Handler: handler, Address: "127.0.0.1:0", Log: log})
	must(err)
	out.URL = server.URL()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served, ran := make(chan error, 1), make(chan error, 1)
	go func() { served <- server.Serve(ctx) }()
	go func() { ran <- desk.Run(ctx) }()
	stopped := false
	out.Stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		for _, end := range []chan error{served, ran} {
			if err := <-end; err != nil {
				t.Errorf("the team server: %v", err)
			}
		}
	}
	t.Cleanup(out.Stop)
	return out
}

// Token is an account's.
func (s *TeamServer) Token(account string) client.Token { return s.tokens[account] }

// Open opens the server as an account sees it. Transport makes its requests; nil
// for one of its own. The caller closes it.
func (s *TeamServer) Open(t testing.TB, account string, transport http.RoundTripper) broker.Broker {
	t.Helper()
	b, err := broker.OpenServer(broker.Server{URL: s.URL, Token: s.Token(account), Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Harness is the server's.
func (s *TeamServer) Harness() Harness {
	return Harness{Open: func(t testing.TB, account string) broker.Broker { return s.Open(t, account, nil) }}
}

// SQLite are stores in a new database file, which is closed when t ends.
func SQLite(t testing.TB) broker.Stores {
	t.Helper()
	db, err := sqldb.Open(t.Context(), sqldb.Options{Path: filepath.Join(t.TempDir(), "desk.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return broker.Stores{Leases: db.Leases(), Actions: db.Actions()}
}

// Memory are stores in memory whose clock and outages are the test's to command.
type Memory struct {
	Leases  *leasetest.Memory
	Actions *actiontest.Memory
}

// NewMemory returns empty ones.
func NewMemory() *Memory {
	m := &Memory{Leases: leasetest.NewMemory(leasetest.Options{})}
	m.Actions = actiontest.NewMemory(nil)
	return m
}

// Stores are what brokers and servers work on: actions without an end bar their
// keys there.
func (m *Memory) Stores() broker.Stores { return broker.Stores{Leases: m.Leases, Actions: barring{m}} }

// Outage makes both fail as databases that do not answer, until it is called with
// false.
func (m *Memory) Outage(on bool) {
	m.Leases.Outage(on)
	if !on {
		m.Actions.Fail(nil)
		return
	}
	m.Actions.Fail(fault.New(fault.Unavailable, "brokertest: the database does not answer"))
}

// Harness is one of brokers in this process.
func (m *Memory) Harness() Controlled {
	return m.control(Harness{Open: func(t testing.TB, account string) broker.Broker {
		t.Helper()
		b, err := broker.Over(t.Context(), m.Stores(), broker.Place{Path: "memory", Account: account}, Discard())
		if err != nil {
			t.Fatal(err)
		}
		return b
	}})
}

// Serve runs a team server on it until t ends.
func (m *Memory) Serve(t testing.TB) (*TeamServer, Controlled) {
	t.Helper()
	s := Serve(t, m.Stores(), nil)
	return s, m.control(s.Harness())
}

func (m *Memory) control(h Harness) Controlled {
	return Controlled{Harness: h, Advance: func(d time.Duration) { m.Leases.Advance(d) }, Outage: m.Outage}
}

// barring is the log of a Memory. In a database an action without an end bars its
// key in the transaction that keeps its entry; here it does so right after it.
type barring struct{ m *Memory }

// Append implements [action.Log].
func (b barring) Append(ctx context.Context, e action.Entry) (action.Entry, error) {
	kept, err := b.m.Actions.Append(ctx, e)
	switch {
	case err != nil || e.Key == "":
	case e.Phase == action.PhaseStarted:
		open, failed := b.m.Actions.Entries(ctx, action.Query{Action: e.Action, Limit: 1})
		if failed == nil && len(open) == 1 && open[0].Phase == action.PhaseStarted {
			b.m.Leases.CloseAction(e.Key, e.Action) // the same entry again
			b.m.Leases.OpenAction(e.Key, e.Action, "", kept.User)
		}
	default:
		b.m.Leases.CloseAction(e.Key, e.Action)
	}
	return kept, err
}

// Entries implements [action.Log].
func (b barring) Entries(ctx context.Context, q action.Query) ([]action.Entry, error) {
	return b.m.Actions.Entries(ctx, q)
}

// Open implements [action.Log].
func (b barring) Open(ctx context.Context, q action.OpenQuery) ([]action.Entry, error) {
	return b.m.Actions.Open(ctx, q)
}
