package crawlers_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"fleetdesk/internal/core/lease"
)

// A crawl of many pages through handed-out proxies, of a site that bans by rate:
// every page comes, the site refuses each banned address once, and it never
// comes to ban another. Here the pages' number is what a crawl's would be to the
// pool: many times what one address bears.
func TestCrawlsOfABanningSite(t *testing.T) {
	b := startBench(t)
	const proxies, banned = 12, 3
	// The site bans who asks for more than three pages a second.
	b.desk.do(t, lease.PutPool{Epoch: b.desk.epoch, Pool: lease.Pool{
		Name: "crawl.show", Cooldown: 600 * time.Millisecond, InFlight: 1,
	}})
	var first []netip.Addr
	for i := range proxies {
		key := fmt.Sprintf("crawl.show-%02d", i)
		own := netip.AddrFrom4([4]byte{127, 64, 2, byte(1 + i)})
		b.proxies[key] = startForward(t, b, key, own, own)
		b.desk.put(t, key, "crawl.show")
		if i < banned {
			first = append(first, own)
		}
	}
	for _, c := range []struct {
		tool  string
		pages int
	}{{"scrapy", 60}, {"playwright", 12}} {
		t.Run(c.tool, func(t *testing.T) {
			at := slices.IndexFunc(tools(), func(tl tool) bool { return tl.name == c.tool })
			tl := tools()[at]
			tl.present(t)
			site := "show-" + c.tool + ".example.com"
			for _, address := range first {
				b.origin.banish(site, address, time.Now().Add(time.Hour))
			}
			var urls, items []string
			for i := range c.pages {
				item := fmt.Sprintf("%03d", i)
				items = append(items, item)
				urls = append(urls, "https://"+site+"/item/"+item)
			}
			began := time.Now()
			o := tl.run(t, b, "crawl.show", nil, urls)
			took := time.Since(began)
			b.got(t, o, items...)

			got, refused, asked := map[string]bool{}, map[netip.Addr]int{}, map[netip.Addr]bool{}
			for _, v := range b.origin.of(site) {
				asked[v.address] = true
				switch {
				case !strings.HasPrefix(v.path, "/item/"):
				case v.status == http.StatusOK:
					got[v.path] = true
				default:
					refused[v.address]++
				}
			}
			bans := 0
			for address, n := range refused {
				bans += n
				if n != 1 || !slices.Contains(first, address) {
					t.Errorf("%s was refused %d times", address, n)
				}
			}
			t.Logf("SHOW %s: %d pages wanted, %d got, %d refused by the site, %d distinct proxies, in %.1f s",
				c.tool, c.pages, len(got), bans, len(asked), took.Seconds())
			if len(got) != c.pages || len(refused) != banned || len(asked) != proxies {
				t.Errorf("%d pages of %d, %d addresses refused of %d, %d proxies of %d", len(got), c.pages, len(refused), banned, len(asked), proxies)
			}
			if direct := b.direct(site); len(direct) > 0 {
				t.Errorf("requests went direct: %+v", direct)
			}
		})
	}
}
