// Package crawlers runs the examples of docs/crawlers.md as the page has them:
// with the tools that crawlers use, through real forward proxies that the desk
// hands out, against an origin that bans by rate for each address.
package crawlers
