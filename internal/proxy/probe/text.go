package probe

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
)

// timedOut reports whether err is a deadline's.
func timedOut(ctx context.Context, err error) bool {
	return errors.Is(ctx.Err(), context.DeadlineExceeded) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
}

// dialText says why a TCP connection failed. The text is ours or the system's.
func dialText(err error) string {
	if errors.Is(err, context.Canceled) {
		return "cancelled"
	}
	if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
		return "it does not accept one in time"
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return "its host name cannot be resolved: " + clip(dns.Err)
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	return clip(err.Error())
}

// tlsText says why a handshake failed. A certificate's own words are clipped
// and made printable, since the far side chose them.
func tlsText(err error) string {
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return "the far side does not speak TLS"
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "the certificate is signed by an unknown authority"
	}
	if closedEarly(err) {
		return "the connection was closed during the handshake"
	}
	return clip(err.Error())
}

// closedEarly reports whether the far side closed the connection.
func closedEarly(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// clip makes a foreign text short and printable.
func clip(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
	if len(s) > 200 {
		s = s[:200] + "..."
	}
	return s
}

// clientTLS is how the URL's own certificate is verified.
func clientTLS(c Check) *tls.Config {
	return &tls.Config{RootCAs: c.CAs, NextProtos: []string{"http/1.1"}}
}

// isTLS reports whether err comes from a TLS handshake.
func isTLS(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return true
	}
	_, ok := errors.AsType[tls.AlertError](err)
	return ok
}
