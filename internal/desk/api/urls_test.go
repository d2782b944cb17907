package api_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/lease/leasetest"
	"fleetdesk/internal/platform/proc"
)

// readURLs reads URLs as Python's standard library does: what urllib and
// requests make of a proxy's.
const readURLs = `
import base64, json, sys
from urllib.parse import urlsplit, unquote_to_bytes
b64 = lambda b: base64.b64encode(b).decode()
out = []
for u in json.loads(base64.b64decode(sys.argv[1])):
    s = urlsplit(u)
    # urlsplit's username stops at the first colon of the escaped text, as it should.
    out.append([s.scheme, s.hostname, s.port, b64(unquote_to_bytes(s.username or "")), b64(unquote_to_bytes(s.password or ""))])
print(json.dumps(out))
`

// The URL that goes over the wire, with a lease and with a pick, is read by
// others as what it is made of.
func TestURLsAsPythonReadsThem(t *testing.T) {
	d := serveCrawl(t, leasetest.Options{})
	var all []client.ProxyAccess
	for _, text := range []string{"crawler", "a:b", "a@b", "pa$$", "100%", "a%41b", "a/b?c#d", "a b", "ü☃é", "[x]", `"\`, "+&=;,!*'()~", "\x00\x7f", ""} {
		for _, host := range []string{"192.0.2.10", "2001:db8::1", "proxy.example.com"} {
			all = append(all, client.ProxyAccess{Protocol: "http", Host: host, Port: 3128, Username: text, Password: client.Secret("x" + text)},
				client.ProxyAccess{Protocol: "socks5", Host: host, Port: 1080, Username: "u" + text, Password: client.Secret(text)})
		}
	}
	var urls []string
	for _, a := range all {
		d.access.set(a, nil)
		var got struct{ Proxy struct{ URL string } }
		path := []string{"/leases", "/proxies/next"}[len(urls)%2]
		resp, raw := d.call(t, runnerToken, "POST", path, `{"pool":"crawl.default"}`, nil)
		if err := json.Unmarshal(raw, &got); err != nil || got.Proxy.URL == "" {
			t.Fatalf("%s: %v: %s", path, err, raw)
		}
		urls = append(urls, got.Proxy.URL)
		if resp.Header.Get("Lease-Secret") != "" {
			id := strings.Split(strings.SplitN(string(raw), `"id":"`, 2)[1], `"`)[0]
			d.call(t, runnerToken, "POST", "/leases/"+id+"/release", "", map[string][]string{"Lease-Secret": {resp.Header.Get("Lease-Secret")}})
		}
	}
	asked, err := json.Marshal(urls)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	res, err := proc.Run(ctx, proc.Command{
		Args: []string{"python3", "-c", readURLs, base64.StdEncoding.EncodeToString(asked)}, Env: os.Environ(), Limit: 1 << 20,
	})
	if res.Code == 127 {
		t.Skip("there is no python3 here")
	}
	if err != nil || res.Code != 0 {
		t.Fatalf("%v: %s", err, res.Output)
	}
	var read [][5]any
	if err := json.Unmarshal([]byte(res.Output), &read); err != nil || len(read) != len(all) {
		t.Fatalf("%v: %s", err, res.Output)
	}
	for i, a := range all {
		b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
		want := [5]any{a.Protocol, a.Host, float64(a.Port), b64(a.Username), b64(string(a.Password))}
		if read[i] != want {
			t.Errorf("%s is read as %v, want %v", urls[i], read[i], want)
		}
	}
}
