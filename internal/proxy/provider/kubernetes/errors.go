package kubernetes

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"fleetdesk/internal/core/fault"
)

// refusal is what an error of the API server means here.
type refusal struct {
	class fault.Class
	// reason is the reason of Check's row.
	reason string
	// help says what a person can do; empty where the text says it.
	help string
}

// judge tells what an error means. The API server gives the class by status and
// reason; quotas, admission and RBAC share one status, and only the text tells
// them apart. The texts are the server's own and have not changed in years; a
// test asks a real server for each.
func (p *Provider) judge(err error) refusal {
	ns := p.conf.namespace
	switch text := err.Error(); {
	case fault.Classed(err):
		return refusal{fault.Of(err), ReasonKubeconfig, ""}
	case errors.Is(err, context.DeadlineExceeded), apierrors.IsTimeout(err), apierrors.IsServerTimeout(err):
		return refusal{fault.Timeout, ReasonTimeout, ""}
	case errors.Is(err, context.Canceled):
		return refusal{fault.Transient, ReasonTimeout, ""}
	case apierrors.IsUnauthorized(err):
		return refusal{fault.Permanent, ReasonUnauthorized, "the credentials are not accepted: renew them in the kubeconfig Secret; a new one is read without a restart"}
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return refusal{fault.Permanent, ReasonNamespaceMissing, fmt.Sprintf("namespace %s is being deleted: make it again, or name another one in the provider's section", ns)}
	case apierrors.IsNotFound(err) && namespaceMissing(err) && !apierrors.IsUnexpectedServerError(err):
		return refusal{fault.Permanent, ReasonNamespaceMissing, fmt.Sprintf("make namespace %s, or name another one in the provider's section", ns)}
	case apierrors.IsForbidden(err) && strings.Contains(text, "exceeded quota"), apierrors.IsForbidden(err) && strings.Contains(text, "failed quota"):
		return refusal{fault.Quota, ReasonQuotaExceeded, fmt.Sprintf("raise the ResourceQuota of namespace %s, or delete Proxies", ns)}
	case apierrors.IsForbidden(err) && strings.Contains(text, "error looking up service account"):
		return refusal{fault.Permanent, ReasonAccountMissing, fmt.Sprintf("make service account %s in namespace %s; it needs no rights", p.conf.account, ns)}
	case apierrors.IsForbidden(err) && strings.Contains(text, "violates PodSecurity"):
		return refusal{fault.Denied, ReasonPodRefused, "the namespace's Pod security refuses the Pod"}
	case apierrors.IsForbidden(err) && strings.Contains(text, "denied the request"):
		return refusal{fault.Denied, ReasonPodRefused, "an admission webhook of the cluster refuses it"}
	case apierrors.IsForbidden(err) && strings.Contains(text, " cannot ") && strings.Contains(text, "User "):
		return refusal{fault.Denied, ReasonForbidden, fmt.Sprintf("bind the Role of docs/kubernetes-provider.md to this user in namespace %s", ns)}
	case apierrors.IsForbidden(err):
		return refusal{fault.Denied, ReasonPodRefused, "an admission rule of the cluster refuses it"}
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		return refusal{fault.Invalid, ReasonPodRefused, ""}
	case apierrors.IsTooManyRequests(err):
		return refusal{fault.Transient, ReasonBusy, "the API server is busy, and is asked again"}
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return refusal{fault.Conflict, ReasonError, ""}
	case apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err):
		return refusal{fault.NotFound, ReasonError, ""}
	}
	if untrusted(err) {
		return refusal{fault.Permanent, ReasonUnreachable, "the server's certificate is not of the kubeconfig's authority, or not for this name: take the kubeconfig anew"}
	}
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		if code := status.Status().Code; code < http.StatusInternalServerError && code >= http.StatusMultipleChoices {
			return refusal{fault.Permanent, ReasonUnreachable, "what answers there is no Kubernetes API server: mend the kubeconfig's server"}
		}
		return refusal{fault.Unavailable, ReasonError, ""}
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return refusal{fault.Unavailable, ReasonUnreachable, "the server's name is not known: mend the kubeconfig's server, or the resolver"}
	}
	return refusal{fault.Unavailable, ReasonUnreachable, "the API server is not reached: see whether it runs, and whether the kubeconfig's server is right"}
}

func namespaceMissing(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Kind == "namespaces"
}

func untrusted(err error) bool {
	_, authority := errors.AsType[x509.UnknownAuthorityError](err)
	_, name := errors.AsType[x509.HostnameError](err)
	_, invalid := errors.AsType[x509.CertificateInvalidError](err)
	return authority || name || invalid
}

// failed gives an error of the cluster its class, place and remedy, in one line.
func (p *Provider) failed(doing string, err error) error {
	if err == nil {
		return nil
	}
	v := p.judge(err)
	if v.reason == ReasonUnauthorized || untrusted(err) {
		p.cluster.doubt()
	}
	if v.help != "" {
		return fault.Errorf(v.class, "host %s: %s: %s: %w", p.host, doing, v.help, &oneLine{err})
	}
	return fault.Errorf(v.class, "host %s: %s: %w", p.host, doing, &oneLine{err})
}

// missing reports an answer that nothing is there: given by an API server for
// the thing itself, not by whatever else may answer at that address.
func missing(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err) && !namespaceMissing(err)
}

// oneLine is an error whose text is bounded and in one line: a webhook writes
// what it likes.
type oneLine struct{ err error }

func (e *oneLine) Error() string { return line(e.err.Error()) }
func (e *oneLine) Unwrap() error { return e.err }

// maxText bounds a text of the cluster's, in bytes.
const maxText = 500

func line(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s)
	if len(s) > maxText {
		return strings.ToValidUTF8(s[:maxText], "") + "…"
	}
	return s
}
