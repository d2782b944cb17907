package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// errDirect is what a request fails with that would leave without its proxy.
var errDirect = errors.New("there is no proxy for this request, and it is not sent without one")

// Through is the proxy of requests, for [http.Transport.Proxy]: the same for all
// of them, whatever the environment says. Without an address every request
// fails: none ever goes direct.
func (p ProxyAccess) Through(*http.Request) (*url.URL, error) {
	if p.Host == "" || p.Port < 1 || p.Protocol == "" {
		return nil, errDirect
	}
	return p.URL(), nil
}

// Transport makes requests through the proxy alone; nothing of it is shared.
// Close its idle connections when done.
func (p ProxyAccess) Transport() *http.Transport {
	return &http.Transport{
		Proxy: p.Through, ForceAttemptHTTP2: true,
		MaxIdleConns: 16, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: 20 * time.Second, ExpectContinueTimeout: time.Second,
	}
}

// maxThrough bounds the proxies that one [Client.Through] uses.
const maxThrough = 5

// Through does something through a proxy that is picked for it, and tells the
// desk how it went. use gets a client whose requests leave by that proxy and by
// nothing else, and returns an outcome; "" is [OutcomeOK], or [OutcomeError] with
// an error. After any other outcome than ok it is called again with another
// proxy, with at most 5 in all. The error is use's own of the last time, or that
// of a pick or report: see [Client.Next] and [Client.Report].
func (c *Client) Through(ctx context.Context, r NextRequest, use func(ctx context.Context, through *http.Client) (outcome string, err error)) error {
	pick, err := c.Next(ctx, r)
	for n := 1; err == nil; n++ {
		outcome, failed := pick.use(ctx, use)
		if outcome != OutcomeOK && failed == nil {
			failed = fmt.Errorf("proxy %s: %s", pick.Key, outcome)
		}
		report := ReportRequest{Outcome: outcome}
		last := outcome == OutcomeOK || n == maxThrough || ctx.Err() != nil
		if !last {
			report.Replace = &r
		}
		// Also of a use that was given up the desk should hear.
		told, unheard := c.ReportPick(context.WithoutCancel(ctx), pick, report)
		switch {
		case outcome == OutcomeOK:
			return failed // whether or not the desk heard of it: it must not be done twice
		case last:
			return errors.Join(failed, unheard)
		case told.Replacement != nil:
			pick = *told.Replacement
		default:
			if pick, err = c.Next(ctx, r); err != nil {
				err = errors.Join(failed, unheard, err)
			}
		}
	}
	return err
}

// use runs a use, and says how it went.
func (p Pick) use(ctx context.Context, use func(context.Context, *http.Client) (string, error)) (outcome string, err error) {
	var access ProxyAccess // of a key that is no proxy: every request fails
	if a := p.Proxy(); a != nil {
		access = *a
	}
	transport := access.Transport()
	defer transport.CloseIdleConnections()
	outcome, err = use(ctx, &http.Client{Transport: transport})
	switch {
	case outcome != "":
	case err != nil:
		outcome = OutcomeError
	default:
		outcome = OutcomeOK
	}
	return outcome, err
}
