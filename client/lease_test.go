package client_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"fleetdesk/client"
)

func TestSeconds(t *testing.T) {
	for d, want := range map[time.Duration]client.Seconds{
		0: 0, time.Second: 1, 1500 * time.Millisecond: 1.5, 599998999 * time.Microsecond: 599.998, -time.Second: -1, 24 * time.Hour: 86400,
		time.Microsecond: 0,
	} {
		s := client.SecondsOf(d)
		if s != want || s.Duration() != d.Truncate(time.Millisecond) {
			t.Errorf("%s is %v on the wire, want %v; and %s again", d, s, want, s.Duration())
		}
		raw, err := json.Marshal(s)
		var back client.Seconds
		if err != nil || json.Unmarshal(raw, &back) != nil || back != s {
			t.Errorf("%s is %s in JSON", d, raw)
		}
	}
	for s, want := range map[client.Seconds]time.Duration{
		client.Seconds(math.Inf(1)): math.MaxInt64, client.Seconds(math.Inf(-1)): math.MinInt64, 1e300: math.MaxInt64, 0.0014: time.Millisecond,
	} {
		if got := s.Duration(); got != want {
			t.Errorf("%v is %d, want %d", s, got, want)
		}
	}
	if got := client.Seconds(math.NaN()).Duration(); got != 0 {
		t.Errorf("no number is %s", got)
	}
}

func TestWholeSeconds(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		0: 0, 1: 1, time.Second: 1, time.Second + 1: 2, 90 * time.Second: 90, -1: -1, -time.Second: -1, -time.Hour: -3600,
		math.MaxInt64: 9223372037,
	} {
		if got := client.WholeSeconds(d); got != want {
			t.Errorf("%d is %d s, want %d", d, got, want)
		}
	}
}

// The URL of a proxy is right for any credentials and any address.
func TestProxyURL(t *testing.T) {
	for _, host := range []string{"192.0.2.10", "2001:db8::1", "fe80::1%eth0", "proxy.example.com"} {
		for _, text := range []string{"plain", "a:b", "a@b", "pa$$word", "50%", "%41", "a/b?c#d", "ä☃", " ", "<>\"'`{}|\\^[]", "&=+,;!*()"} {
			p := client.ProxyAccess{Protocol: "http", Host: host, Port: 3128, Username: text, Password: client.Secret(text)}
			u, err := url.Parse(p.URL().String())
			if err != nil {
				t.Errorf("%s with %q: %v", host, text, err)
				continue
			}
			password, _ := u.User.Password()
			if u.Scheme != "http" || u.Hostname() != host || u.Port() != "3128" || u.User.Username() != text || password != text || u.Path != "" {
				t.Errorf("%s with %q became %s", host, text, p.URL())
			}
			// As the transport of net/http takes it.
			if got, err := http.ProxyURL(u)(nil); err != nil || got.Host != u.Host {
				t.Errorf("%s: %v, %v", u, got, err)
			}
		}
	}
	if got := (client.ProxyAccess{Host: "2001:db8::1", Port: 1080}).Address(); got != "[2001:db8::1]:1080" {
		t.Errorf("an address of IPv6 is %s", got)
	}
}

func TestSecretsAreNeverPrinted(t *testing.T) {
	const text = "s3cr3t-t3xt"
	access := client.ProxyAccess{Protocol: "http", Host: "192.0.2.10", Port: 3128, Username: "u", Password: text}
	grant := client.Grant{Proxy: &access}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "secret", client.Secret(text), "access", access, "grant", grant)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "secret", client.Secret(text), "access", access, "grant", grant)
	raw, err := json.Marshal(grant)
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&log, verb, client.Secret(text))
		fmt.Fprintf(&log, verb, access)
		fmt.Fprintf(&log, verb, grant)
	}
	all := log.String() + string(raw) + access.URL().Redacted()
	if strings.Contains(all, text) || strings.Contains(all, fmt.Sprintf("%x", text)) {
		t.Errorf("a secret is printed: %s", all)
	}
}

// played answers GETs by their query.
type played struct {
	answers map[string]string
	asked   []string
}

func (p *played) RoundTrip(r *http.Request) (*http.Response, error) {
	p.asked = append(p.asked, r.URL.RequestURI())
	body, ok := p.answers[r.URL.RequestURI()]
	if !ok {
		return (&answers{list: []*answer{{status: 404}}}).RoundTrip(r)
	}
	return (&answers{list: []*answer{{status: 200, body: body}}}).RoundTrip(r)
}

// Lists are walked page by page, no page is asked for that nobody reads, and an
// error ends the walk.
func TestPagesAreWalked(t *testing.T) {
	names := func(c *client.Client, most int) (all []string, err error) {
		for p, failed := range c.AllPools(t.Context()) {
			if failed != nil {
				return all, failed
			}
			if all = append(all, p.Name); len(all) == most {
				break
			}
		}
		return all, nil
	}
	const first, second, third = "/base/api/v1/pools?limit=500", "/base/api/v1/pools?cursor=b&limit=500", "/base/api/v1/pools?cursor=c&limit=500"
	pages := map[string]string{
		first:  `{"items":[{"name":"a"},{"name":"b"}],"next":"b"}`,
		second: `{"items":[{"name":"c"}],"next":"c"}`,
		third:  `{"items":[]}`,
	}
	p := &played{answers: pages}
	all, err := names(newClient(t, p, 0), -1)
	if err != nil || !slices.Equal(all, []string{"a", "b", "c"}) || !slices.Equal(p.asked, []string{first, second, third}) {
		t.Errorf("%v, %v, asked %v", all, err, p.asked)
	}
	p = &played{answers: pages}
	if all, err = names(newClient(t, p, 0), 2); err != nil || len(all) != 2 || len(p.asked) != 1 {
		t.Errorf("%v, %v, asked %v", all, err, p.asked)
	}
	delete(pages, second)
	if all, err = names(newClient(t, p, 0), -1); !errors.Is(err, client.NotFound) || len(all) != 2 {
		t.Errorf("%v, %v", all, err)
	}
	pages[second] = `{"items":[{"name":"c"}],"next":"b"}`
	p = &played{answers: pages}
	if all, err = names(newClient(t, p, 0), -1); err != nil || len(p.asked) != 2 {
		t.Errorf("a page that names itself: %v, %v, asked %v", all, err, p.asked)
	}
}

// What a problem document says of a pool without a free key is in the error.
func TestNoneFree(t *testing.T) {
	body := `{"type":"urn:fleetdesk:problem:quota:none_free","title":"T","status":503,"detail":"D",
		"holders":[{"key":"win-01","account":"ci","holder":"job","state":"held","secondsLeft":412.5}],"position":3,"secondsUntilFree":42.5}`
	rt := &answers{list: []*answer{{status: 503, body: body, header: http.Header{"Content-Type": {"application/problem+json"}, "Retry-After": {"43"}}}}}
	_, err := newClient(t, rt, -1).Take(t.Context(), "win", client.TakeOptions{})
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Code != "none_free" || e.Position != 3 || e.UntilFree != 42500*time.Millisecond || e.RetryAfter != 43*time.Second ||
		len(e.Holders) != 1 || e.Holders[0] != (client.Holder{Key: "win-01", Account: "ci", Holder: "job", State: "held", SecondsLeft: 412.5}) {
		t.Errorf("%#v", err)
	}
	if want := "take a key of pool win: D (quota, status 503)"; err == nil || err.Error() != want {
		t.Errorf("its text is %q, want %q", err, want)
	}
}
