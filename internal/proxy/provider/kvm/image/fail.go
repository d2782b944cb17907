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
	"os"
	"strings"
	"syscall"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/egress"
)

// The fields of the provider's kvm section that texts name.
const (
	allowField = "imageAllowCIDRs"
	caField    = "imageCAFile"
)

func hint(p netip.Prefix) string {
	return fmt.Sprintf("if images shall come from there, list %s in %s of the provider's kvm section", p, allowField)
}

// failure is an error with a text of our own and its cause.
type failure struct {
	text  string
	cause error
}

func (e *failure) Error() string { return e.text }
func (e *failure) Unwrap() error { return e.cause }

func fail(c fault.Class, cause error, format string, args ...any) error {
	return fault.Wrap(c, &failure{fmt.Sprintf(format, args...), cause})
}

// silence is the cause of a context that the source's own silence ended.
type silence struct{ limit time.Duration }

func (s silence) Error() string { return fmt.Sprintf("no byte for %s", s.limit) }

// givenUp is the error of a transfer whose own context ended, nil while it has
// not. The context's error is kept; one that nobody classed is a Timeout when
// it is a deadline's, else Transient.
func givenUp(ctx context.Context, where string) error {
	cause := context.Cause(ctx)
	if cause == nil {
		return nil
	}
	if err := ctx.Err(); !errors.Is(cause, err) {
		cause = errors.Join(cause, err)
	}
	return fail(fault.Of(cause), cause, "%s: the download was given up: %s", where, clip(context.Cause(ctx).Error()))
}

// notAnswered says why a request got no answer. The text is ours or the
// system's, save for what the far side made a TLS library say, which is
// clipped.
func notAnswered(err error, where string, refused *egress.Refusal) error {
	if refused != nil {
		return fail(fault.Permanent, refused, "%s is not asked: %s", where, refused)
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return fail(fault.Transient, err, "%s: its host name cannot be resolved: %s", where, clip(dns.Err))
	}
	if egress.FromDial(err) {
		if isTimeout(err) {
			return fail(fault.Timeout, err, "%s: its host accepts no connection in time", where)
		}
		return fail(fault.Unavailable, err, "%s: its host cannot be connected to: %s", where, systemText(err))
	}
	if c, text := tlsText(err); text != "" {
		return fail(c, err, "%s: TLS with its host failed: %s", where, text)
	}
	if closedEarly(err) {
		return fail(fault.Transient, err, "%s: its host closed the connection before it answered: %s", where, systemText(err))
	}
	// What is quoted is the far side's, and may repeat the query.
	text, _, _ := strings.Cut(err.Error(), `"`)
	return fail(fault.Transient, err, "%s: its host gave no answer in HTTP: %s", where, clip(strings.TrimRight(text, ": ")))
}

// tlsText says why a handshake failed; the text is empty when it was not that.
// A certificate stays wrong until a person does something; an alert may be of
// the moment.
func tlsText(err error) (fault.Class, string) {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return fault.Permanent, fmt.Sprintf("its certificate is signed by an unknown authority; for a private one, name its CA's file in %s of the provider's kvm section", caField)
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return fault.Permanent, clip(err.Error())
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return fault.Permanent, "it does not speak TLS; check the URL's scheme and port"
	}
	if _, ok := errors.AsType[tls.AlertError](err); ok {
		return fault.Transient, clip(err.Error())
	}
	return "", ""
}

func isTimeout(err error) bool {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	ne, ok := errors.AsType[net.Error](err)
	return ok && ne.Timeout()
}

// closedEarly reports whether the far side closed the connection.
func closedEarly(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// systemText is the system's word for it, without addresses and ports.
func systemText(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	return clip(err.Error())
}

// badStatus is the error of an answer that brings no image.
func badStatus(resp *http.Response, where string) error {
	status := fmt.Sprintf("status %d", resp.StatusCode)
	if text := http.StatusText(resp.StatusCode); text != "" {
		status += " " + text
	}
	switch code := resp.StatusCode; {
	case code == http.StatusNotFound, code == http.StatusGone:
		return fail(fault.Permanent, nil, "%s: the image is not there (%s): check the URL", where, status)
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return fail(fault.Permanent, fault.Denied, "%s: its host does not give the image to us (%s): images are fetched without credentials; check the URL, and whether its signature has expired", where, status)
	case code == http.StatusRequestTimeout, code == http.StatusTooManyRequests, code >= 500 && code <= 599:
		return fail(fault.Transient, nil, "%s: its host cannot give the image now (%s)", where, status)
	case code >= 300 && code <= 399:
		return fail(fault.Permanent, nil, "%s: a redirect that leads nowhere (%s): check the URL", where, status)
	}
	return fail(fault.Permanent, nil, "%s: its host answered with %s in place of 200: check the URL", where, status)
}

// encoded names the Content-Encoding of an answer, "" when there is none.
func encoded(h http.Header) string {
	var all []string
	for _, v := range h.Values("Content-Encoding") {
		if v = strings.TrimSpace(v); v != "" && !strings.EqualFold(v, "identity") {
			all = append(all, v)
		}
	}
	return clip(strings.Join(all, ", "))
}
