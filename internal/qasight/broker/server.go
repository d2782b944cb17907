package broker

import (
	"net/http"
	"time"

	"fleetdesk/client"
)

// Server says which team server to use.
type Server struct {
	// URL is where it listens, Token what opens it.
	URL   string
	Token client.Token
	// Transport makes the requests; nil for one of its own.
	Transport http.RoundTripper
}

// timeout bounds one request, besides its wait for a key.
const timeout = 15 * time.Second

// OpenServer returns a broker over a team server; it sends nothing yet. Errors:
// Invalid for a bad URL or token.
func OpenServer(s Server) (Broker, error) {
	t := s.Transport
	done := func() error { return nil }
	if t == nil {
		own := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // it is one
		t, done = own, func() error { own.CloseIdleConnections(); return nil }
	}
	c, err := client.New(client.Options{BaseURL: s.URL, Token: s.Token, HTTPClient: &http.Client{Transport: t, Timeout: timeout}})
	if err != nil {
		return nil, Explain(s.URL, err)
	}
	return &desk{client: c, place: Place{Server: s.URL}, close: done}, nil
}
