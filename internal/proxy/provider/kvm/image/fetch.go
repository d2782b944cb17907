package image

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/egress"
)

// Defaults of FetchOptions.
const (
	DefaultMaxBytes      = 64 << 30
	DefaultIdleTimeout   = 60 * time.Second
	DefaultHeaderTimeout = 30 * time.Second
	DefaultMaxRedirects  = 5
	DefaultUserAgent     = "fleetdesk"
)

const (
	maxHeaderBytes = 64 << 10
	maxCAFile      = 1 << 20
)

// FetchOptions say how images are fetched. A zero field has its default.
type FetchOptions struct {
	// AllowCIDRs are address ranges that images may come from although they hold
	// no public host: imageAllowCIDRs of the provider's kvm section.
	AllowCIDRs []netip.Prefix
	// CAFile is a PEM file of certificate authorities that are trusted besides
	// the system's; empty for none. It is read at each Open, so one that comes
	// later or changes is taken without a restart.
	CAFile string
	// MaxBytes is the longest image that is taken; 64 GiB.
	MaxBytes int64
	// IdleTimeout is how long a Read waits for the source's next byte; 60 s. The
	// time that the reader takes between two Reads does not count.
	IdleTimeout time.Duration
	// HeaderTimeout is how long one request may take until its answer begins,
	// for each redirect anew; 30 s.
	HeaderTimeout time.Duration
	// MaxRedirects is how many redirects are followed; 5.
	MaxRedirects int
	// UserAgent is what servers see; "fleetdesk".
	UserAgent string
}

// Fetcher asks for images. It may be used concurrently and keeps nothing open
// between two.
type Fetcher struct {
	o     FetchOptions
	guard egress.Guard
}

// NewFetcher returns a Fetcher, or an Invalid error that names the field.
func NewFetcher(o FetchOptions) (*Fetcher, error) {
	allow, err := egress.Prefixes(allowField, o.AllowCIDRs)
	if err != nil {
		return nil, err
	}
	if o.MaxBytes < 0 || o.IdleTimeout < 0 || o.HeaderTimeout < 0 || o.MaxRedirects < 0 {
		return nil, fault.New(fault.Invalid, "a limit of image downloads is negative; leave it out for its default")
	}
	o.MaxBytes = orElse(o.MaxBytes, DefaultMaxBytes)
	o.IdleTimeout = orElse(o.IdleTimeout, DefaultIdleTimeout)
	o.HeaderTimeout = orElse(o.HeaderTimeout, DefaultHeaderTimeout)
	o.MaxRedirects = orElse(o.MaxRedirects, DefaultMaxRedirects)
	o.UserAgent = orElse(o.UserAgent, DefaultUserAgent)
	return &Fetcher{o: o, guard: egress.Guard{Allow: allow, Hint: hint}}, nil
}

func orElse[T comparable](v, other T) T {
	var zero T
	if v == zero {
		return other
	}
	return v
}

// Open asks for the image, follows redirects and reads the header; it waits for
// the source. ctx is the whole transfer's: when it ends, Open and Reads return
// its error. The caller closes the Stream.
//
// There is one GET for each step and no HEAD; sizes come from the last answer
// and from the image's own header. Errors name the source without its query,
// and have a class: Invalid when s is; Permanent when a person has to change
// something (not there, not allowed to us, an address that is not allowed, an
// image that is not what was promised, a wrong certificate); Unavailable when
// the host cannot be connected to; Timeout when the source is silent;
// Transient otherwise.
func (f *Fetcher) Open(ctx context.Context, s Source) (*Stream, error) {
	u, err := s.parse()
	if err != nil {
		return nil, err
	}
	cas, err := f.authorities()
	if err != nil {
		return nil, err
	}
	own, cancel := context.WithCancelCause(ctx)
	t := &transfer{f: f, outer: ctx, ctx: own, cancel: cancel, cas: cas, first: u}
	st, err := t.open(s)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	return st, nil
}

// authorities are the certificate authorities besides the system's own, nil
// for none.
func (f *Fetcher) authorities() (*x509.CertPool, error) {
	if f.o.CAFile == "" {
		return nil, nil
	}
	pem, err := readFile(f.o.CAFile, maxCAFile)
	if err != nil {
		return nil, fault.Errorf(fault.Transient, "the images' CA file (%s) cannot be read: %w", caField, err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fault.Errorf(fault.Permanent, "the images' CA file %s (%s) holds no certificate in PEM", f.o.CAFile, caField)
	}
	return pool, nil
}

func readFile(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}

// transfer is one image on its way in.
type transfer struct {
	f     *Fetcher
	first *url.URL
	cas   *x509.CertPool
	// outer is the caller's context; ctx is its child and also ends with the
	// stream, or with a silence of the source as its cause. A transfer lives no
	// longer than they do.
	outer, ctx context.Context //nolint:containedctx // they are the transfer's own lifetime
	cancel     context.CancelCauseFunc
}

// where names the source, and the place that redirects led to.
func (t *transfer) where(at *url.URL) string {
	if at == t.first || shown(at) == shown(t.first) {
		return shown(t.first)
	}
	return fmt.Sprintf("%s (redirected to %s)", shown(t.first), shown(at))
}

func (t *transfer) open(s Source) (*Stream, error) {
	resp, at, err := t.follow()
	if err != nil {
		return nil, err
	}
	where := t.where(at)
	if resp.StatusCode != http.StatusOK {
		err = badStatus(resp, where)
	} else if coding := encoded(resp.Header); coding != "" {
		err = fail(fault.Permanent, nil, "%s: its host sends the image with Content-Encoding %q, so the bytes are not the file's; have it sent as it is", where, coding)
	} else if resp.ContentLength > t.f.o.MaxBytes {
		err = fail(fault.Permanent, nil, "%s: the image has %d bytes, and at most %d are taken", where, resp.ContentLength, t.f.o.MaxBytes)
	}
	if err != nil {
		resp.Body.Close()
		return nil, err
	}
	st := newStream(t, s, where, resp)
	if err := st.readHeader(); err != nil {
		_ = st.Close()
		return nil, err
	}
	return st, nil
}

// follow sends requests until an answer is no redirect. It returns where that
// answer is from.
func (t *transfer) follow() (*http.Response, *url.URL, error) {
	at := t.first
	for hops := 0; ; hops++ {
		resp, err := t.ask(at)
		if err != nil {
			return nil, nil, err
		}
		to := resp.Header.Get("Location")
		if !isRedirect(resp.StatusCode) || to == "" {
			return resp, at, nil
		}
		resp.Body.Close()
		if hops == t.f.o.MaxRedirects {
			return nil, nil, fail(fault.Permanent, nil, "%s: more than %d redirects: check the URL", t.where(at), t.f.o.MaxRedirects)
		}
		if at, err = t.next(at, to); err != nil {
			return nil, nil, err
		}
	}
}

func isRedirect(status int) bool {
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	return false
}

// next is where a redirect leads, or a Permanent error.
func (t *transfer) next(at *url.URL, to string) (*url.URL, error) {
	if len(to) > maxURL {
		return nil, fail(fault.Permanent, nil, "%s: a redirect to a URL of %d bytes, and at most %d are taken", t.where(at), len(to), maxURL)
	}
	u, err := at.Parse(to)
	if err != nil { // it repeats the URL
		return nil, fail(fault.Permanent, nil, "%s: a redirect to a URL that cannot be read", t.where(at))
	}
	if err := checkURL(u); err != nil {
		return nil, fail(fault.Permanent, nil, "%s: a redirect that is not followed: %s", t.where(at), err)
	}
	if at.Scheme == "https" && u.Scheme != "https" {
		return nil, fail(fault.Permanent, nil, "%s: a redirect from https to plain HTTP (%s) is not followed", t.where(at), shown(u))
	}
	return u, nil
}

// ask sends one request over a connection of its own. Nothing of an earlier
// answer goes with it: no cookie, no referer, no credentials.
func (t *transfer) ask(at *url.URL) (*http.Response, error) {
	req, err := http.NewRequestWithContext(t.ctx, http.MethodGet, at.String(), nil)
	if err != nil { // it may repeat the URL
		return nil, fail(fault.Permanent, nil, "%s: the URL cannot be requested", t.where(at))
	}
	req.Header.Set("User-Agent", t.f.o.UserAgent)
	req.Header.Set("Accept", "*/*")
	req.Header.Set("Accept-Encoding", "identity")

	limit := t.f.o.HeaderTimeout
	timer := time.AfterFunc(limit, func() { t.cancel(silence{limit}) })
	defer timer.Stop()
	var verdicts egress.Verdicts
	// A host with several addresses has time for the second.
	tr := egress.Transport(t.ctx, &net.Dialer{Timeout: limit * 2 / 3, Control: t.f.guard.Control(verdicts.Note)})
	tr.TLSClientConfig = &tls.Config{RootCAs: t.cas, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	tr.MaxResponseHeaderBytes = maxHeaderBytes
	resp, err := tr.RoundTrip(req)
	if err == nil {
		return resp, nil
	}
	where := t.where(at)
	if quiet, ok := errors.AsType[silence](context.Cause(t.ctx)); ok {
		return nil, fail(fault.Timeout, quiet, "%s: no answer within %s", where, quiet.limit)
	}
	if gone := givenUp(t.outer, where); gone != nil {
		return nil, gone
	}
	return nil, notAnswered(err, where, verdicts.Refused())
}
