package gcp_test

import (
	"strings"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/gcp"
	"fleetdesk/internal/testkit/gcefake"
)

// A token endpoint that is away, or hidden behind something else, says nothing
// of the key: the error is Unavailable, names the Secret, and ends by itself.
func TestATokenEndpointThatIsAway(t *testing.T) {
	const skew = `{"error":"invalid_grant","error_description":"Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe. Check your iat and exp values in the JWT claim."}`
	for name, tc := range map[string]struct {
		reason string
		answer gcefake.Answer
		text   string
	}{
		"broken off": {"no network", gcefake.Answer{}, "no token for"},
		"a login":    {"a network that wants to be paid", gcefake.Answer{Status: 200, Type: "text/html", Body: "<html>log in</html>"}, "no token for"},
		"no token":   {"JSON of something else", gcefake.Answer{Status: 200, Type: "application/json", Body: "{}"}, "no token in it"},
		"refused":    {"a proxy between", gcefake.Answer{Status: 403, Type: "text/html", Body: "<html>denied</html>"}, "status 403"},
		"overload":   {"it says so", gcefake.Answer{Status: 503, Type: "text/plain", Body: "later"}, "cannot answer"},
		"hurry":      {"it says so", gcefake.Answer{Status: 400, Type: "application/json", Body: `{"error":"temporarily_unavailable"}`}, "cannot answer"},
		"clock":      {"the key is good, and the clock is not", gcefake.Answer{Status: 400, Type: "application/json", Body: skew}, "the clock here is wrong"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, false, gcefake.Options{})
			mend := w.BreakTokens(tc.answer)
			p := w.open(t)
			s := specOf("a", w.Zones()[0])
			_, err := p.Get(t.Context(), refOf(s))
			if fault.Of(err) != fault.Unavailable || !strings.Contains(err.Error(), tc.text) || !strings.Contains(err.Error(), "gcp-key") || strings.Contains(err.Error(), "revoked") || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %s: %v; want Unavailable with %q and the Secret", tc.reason, fault.Of(err), err, tc.text)
			}
			if rows, _ := p.Check(t.Context()); rows[0].Reason != gcp.ReasonCredentials {
				t.Errorf("Check: %+v; want %s", rows[0], gcp.ReasonCredentials)
			}
			mend()
			w.advance(time.Second)
			up(t, p, s)
		})
	}
}
