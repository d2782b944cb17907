package broker_test

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/qasight/broker"
	"fleetdesk/internal/qasight/broker/brokertest"
)

// What a person is told when the team server is not what they think: each names the
// server, says what is wrong in their words, and what to do.
func TestExplained(t *testing.T) {
	t.Parallel()
	answers := func(status int, mediaType, body string) *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", mediaType)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}))
		t.Cleanup(s.Close)
		return s
	}
	problem := func(status int, body string) *httptest.Server {
		return answers(status, "application/problem+json", body)
	}
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(secure.Close)
	plain := answers(404, "text/html", "<h1>Not Found</h1>")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "http://" + l.Addr().String()
	l.Close()
	desk := brokertest.Serve(t, brokertest.SQLite(t), nil)
	for name, tc := range map[string]struct {
		reason string
		url    string
		class  fault.Class
		code   string
		says   []string
	}{
		"nobody there":    {"the usual outage", nobody, fault.Unavailable, "", []string{"does not answer", "connection refused", "check the URL"}},
		"another server":  {"a page for browsers is no answer", plain.URL, fault.Invalid, broker.CodeNotDesk, []string{"404 Not Found", "https://HOST:PORT without a path"}},
		"no such method":  {"a server of files", answers(501, "text/html", "no").URL, fault.Invalid, broker.CodeNotDesk, []string{"501 Not Implemented"}},
		"plain to TLS":    {"what a TLS port answers to http://", answers(400, "text/plain", "Client sent an HTTP request to an HTTPS server.").URL, fault.Invalid, broker.CodeNotDesk, []string{"400 Bad Request"}},
		"a path":          {"the desk is there and its routes are not", desk.URL + "/desk", fault.Invalid, broker.CodeNotDesk, []string{"without a path"}},
		"redirects":       {"the token is not sent elsewhere", answers(302, "text/html", "").URL, fault.Invalid, broker.CodeNotDesk, []string{"redirects"}},
		"TLS to plain":    {"a scheme too many", strings.Replace(plain.URL, "http:", "https:", 1), fault.Unavailable, "", []string{"speaks plain HTTP", "http://"}},
		"no trust":        {"an authority of one's own", secure.URL, fault.Unavailable, "", []string{"certificate", "is not trusted", "SSL_CERT_FILE"}},
		"token":           {"whatever is wrong with it", problem(401, `{"type":"urn:fleetdesk:problem:denied:token","title":"T","detail":"a valid token is needed, in the header"}`).URL, fault.Denied, "token", []string{"does not accept your token", "`qasight login`"}},
		"role":            {"somebody else may", problem(403, `{"type":"urn:fleetdesk:problem:denied:role","title":"T","detail":"account bob has the role viewer; this needs runner"}`).URL, fault.Denied, "role", []string{"account bob has the role viewer; this needs runner: ask an admin"}},
		"a rule":          {"the rules' words are enough", problem(409, `{"type":"urn:fleetdesk:problem:conflict:change","title":"T","detail":"ann changes pool win"}`).URL, fault.Conflict, "change", []string{"ann changes pool win"}},
		"its own failure": {"whoever runs it finds it in its log", problem(500, `{"type":"urn:fleetdesk:problem:permanent","title":"It failed","requestId":"R1"}`).URL, fault.Permanent, "", []string{"It failed (request R1 of the server's log)"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, err := broker.OpenServer(broker.Server{URL: tc.url, Token: "fdt_x"})
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			_, err = b.Pools(t.Context())
			if fault.Of(err) != tc.class || fault.CodeOf(err) != tc.code {
				t.Errorf("%s: class %s, code %q, want %s and %q: %v", tc.reason, fault.Of(err), fault.CodeOf(err), tc.class, tc.code, err)
			}
			text := err.Error()
			for _, want := range tc.says {
				if !strings.Contains(text, want) {
					t.Errorf("%s: %q does not say %q", tc.reason, text, want)
				}
			}
			for _, not := range []string{"list pools", "header", "(conflict", "fdt_x"} {
				if strings.Contains(text, not) {
					t.Errorf("%s: %q says %q", tc.reason, text, not)
				}
			}
			if tc.code != "change" && tc.code != "role" && !strings.Contains(text, tc.url) {
				t.Errorf("%s: %q does not name the server", tc.reason, text)
			}
		})
	}
}

// A local database has no server to speak of.
func TestExplainedLocally(t *testing.T) {
	t.Parallel()
	b := brokertest.OpenLocal(t, t.TempDir()+"/leases.db", "ann")
	defer b.Close()
	_, err := b.Pool(t.Context(), "none")
	if want := lease404; err == nil || err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
	_, err = b.Take(t.Context(), "none", client.TakeOptions{})
	if err == nil || strings.Contains(err.Error(), "status") {
		t.Errorf("got %q", err)
	}
}

const lease404 = `there is no pool "none"`
