package api_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"

	"fleetdesk/internal/core/token"
	"fleetdesk/internal/desk/api"
	desktoken "fleetdesk/internal/desk/token"
	"fleetdesk/internal/platform/sqldb"
)

// forgetful is an authenticator whose answers are never used twice: what every
// request would cost without keeping them.
type forgetful struct {
	*desktoken.Service
	n atomic.Uint64
}

func (f *forgetful) Generation() uint64 { return f.n.Add(1) }

// BenchmarkRequest is one GET /api/v1/whoami without a network, over a SQLite
// file: the cost of authentication, with the request log's and the metrics' off.
func BenchmarkRequest(b *testing.B) {
	db, err := sqldb.Open(b.Context(), sqldb.Options{Path: filepath.Join(b.TempDir(), "desk.db")})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	service := desktoken.New(desktoken.Options{Store: db.Tokens()})
	const clients = 256
	var bearers [clients]string
	for i := range bearers {
		name := fmt.Sprintf("client-%d", i)
		if _, err := service.CreateAccount(b.Context(), name, token.Viewer); err != nil {
			b.Fatal(err)
		}
		secret, _, err := service.IssueFor(b.Context(), name, 0)
		if err != nil {
			b.Fatal(err)
		}
		bearers[i] = secret.Reveal()
	}
	for name, auth := range map[string]api.Authenticator{"kept": service, "asked": &forgetful{Service: service}} {
		h, err := api.New(api.Options{
			Auth: auth, Accounts: service, Log: slog.New(slog.DiscardHandler), Limits: api.Limits{PerToken: -1},
		})
		if err != nil {
			b.Fatal(err)
		}
		for _, tokens := range []int{1, clients} {
			b.Run(fmt.Sprintf("answers=%s/tokens=%d", name, tokens), func(b *testing.B) {
				b.ReportAllocs()
				var next atomic.Int64
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						r := httptest.NewRequest(http.MethodGet, "/api/v1/whoami", nil)
						r.Header.Set("Authorization", "Bearer "+bearers[int(next.Add(1))%tokens])
						w := httptest.NewRecorder()
						if h.ServeHTTP(w, r); w.Code != http.StatusOK {
							b.Errorf("status %d: %s", w.Code, w.Body)
							return
						}
					}
				})
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
			})
		}
	}
}
