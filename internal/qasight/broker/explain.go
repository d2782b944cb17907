package broker

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
)

// CodeNotDesk is the code of an error that says that the URL leads to something
// else than a team server. It is Invalid.
const CodeNotDesk = "not_desk"

// Explain gives an error of the desk's client the class and code that the rules
// gave it, in words for the person who typed the command: what is wrong, and what
// to do. The *client.Error stays in the chain; any other error is returned as it
// is. Server is the team server's URL, "" for a local database.
func Explain(server string, err error) error {
	e, ok := errors.AsType[*client.Error](err)
	if !ok {
		return err
	}
	class, code := fault.Class(e.Class), e.Code
	text := said(e)
	switch {
	case server == "" && e.Status >= http.StatusInternalServerError && e.Detail == "":
		text = "the local lease database does not answer: is its disk full, or its folder not to be written to? --verbose tells more"
	case server == "":
	case e.Status == 0 && e.Class == client.Invalid: // nothing was sent
	case e.Status == 0:
		text = unreached(server, e)
	case e.Status == http.StatusUnauthorized && e.Code != "":
		text = server + " does not accept your token, since it is unknown, expired or revoked, or its account is disabled: " +
			"log in again with `qasight login`, or ask an admin for another token"
	case notDesk(e):
		class, code = fault.Invalid, CodeNotDesk
		text = fmt.Sprintf("%s does not answer as a qasight server does (%s): check the URL, which is https://HOST:PORT without a path", server, text)
	case e.Status == http.StatusForbidden && e.Code == "role":
		text += ": ask an admin, or for a token of that role (`qasight whoami` says what yours may do)"
	case e.Code == "store" && e.Status >= http.StatusInternalServerError:
		text = "the lease database of " + server + " does not answer: try again in a moment, and else ask whoever runs the server; leases go on meanwhile"
	case e.Status >= http.StatusInternalServerError:
		text = server + ": " + text
	}
	if server != "" && e.RequestID != "" && e.Status >= http.StatusInternalServerError {
		text += fmt.Sprintf(" (request %s of the server's log)", e.RequestID)
	}
	return fault.WithCode(fault.Wrap(class, &explained{text, err}), code)
}

// explained is an error in other words.
type explained struct {
	text string
	err  error
}

func (e *explained) Error() string { return e.text }
func (e *explained) Unwrap() error { return e.err }

// said is what the other side said, without what was asked of it by which route.
func said(e *client.Error) string {
	switch {
	case e.Detail != "":
		return e.Detail
	case e.Unwrap() != nil:
		return e.Unwrap().Error()
	}
	return e.Title
}

// unreached says why there is no answer.
func unreached(server string, e *client.Error) string {
	cause := e.Unwrap()
	if cause == nil {
		cause = e
	}
	plain, isPlain := errors.AsType[tls.RecordHeaderError](cause)
	switch {
	case untrusted(cause):
		return fmt.Sprintf("the certificate of %s is not trusted: %v: when an authority of your own signed it, name the authority's file in SSL_CERT_FILE", server, cause)
	case isPlain && plain.Conn != nil, strings.Contains(cause.Error(), "server gave HTTP response to HTTPS client"):
		return server + " speaks plain HTTP and not HTTPS: give the server a certificate, or, on this machine alone, write http:// in the URL"
	}
	return fmt.Sprintf("the team server %s does not answer: %v: check the URL, that the server runs, and that this machine reaches it", server, cause)
}

// untrusted reports whether the server's certificate is why it was not spoken to.
func untrusted(err error) bool {
	_, authority := errors.AsType[x509.UnknownAuthorityError](err)
	_, host := errors.AsType[x509.HostnameError](err)
	_, invalid := errors.AsType[x509.CertificateInvalidError](err)
	return authority || host || invalid
}

// notDesk reports whether an answer is not one of a desk: every refusal of a desk
// says more than its status, and its routes exist.
func notDesk(e *client.Error) bool {
	return e.Code == "" && (e.Status == http.StatusNotImplemented || e.Status < http.StatusInternalServerError &&
		(e.Detail == "" || e.Status == http.StatusNotFound || e.Status == http.StatusMethodNotAllowed))
}
