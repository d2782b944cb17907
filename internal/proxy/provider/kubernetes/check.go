package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// Reasons of the row that Check returns; docs/kubernetes-provider.md has the
// table.
const (
	// ReasonOK: Pods can be made.
	ReasonOK = "OK"
	// ReasonKubeconfig: the kubeconfig's Secret is missing or cannot be used.
	ReasonKubeconfig = "Kubeconfig"
	// ReasonUnreachable: no API server answers, or none that is trusted.
	ReasonUnreachable = "Unreachable"
	// ReasonTimeout: no answer in time.
	ReasonTimeout = "Timeout"
	// ReasonUnauthorized: the credentials are not accepted.
	ReasonUnauthorized = "Unauthorized"
	// ReasonForbidden: the user lacks a right.
	ReasonForbidden = "Forbidden"
	// ReasonNamespaceMissing: there is no such namespace, or it is being deleted.
	ReasonNamespaceMissing = "NamespaceMissing"
	// ReasonAccountMissing: there is no such service account.
	ReasonAccountMissing = "ServiceAccountMissing"
	// ReasonQuotaExceeded: the namespace's quota is used up.
	ReasonQuotaExceeded = "QuotaExceeded"
	// ReasonPodRefused: an admission rule refuses the Pod.
	ReasonPodRefused = "PodRefused"
	// ReasonBusy: the API server asks to come back later.
	ReasonBusy = "Busy"
	// ReasonError: it answered with an error.
	ReasonError = "Error"
)

// Reasons returns all reasons of Check.
func Reasons() []string {
	return []string{
		ReasonOK, ReasonKubeconfig, ReasonUnreachable, ReasonTimeout, ReasonUnauthorized, ReasonForbidden,
		ReasonNamespaceMissing, ReasonAccountMissing, ReasonQuotaExceeded, ReasonPodRefused, ReasonBusy, ReasonError,
	}
}

const namespaces = "namespaces"

// right is one verb on one kind of object.
type right struct{ verb, group, resource string }

// Rights are what a provider needs in its namespace, with a Service for each
// instance or without.
func rights(service bool) []right {
	var out []right
	add := func(group, resource string, verbs ...string) {
		for _, verb := range verbs {
			out = append(out, right{verb, group, resource})
		}
	}
	add("", "pods", "get", "list", "watch", "create", "delete")
	add("", "secrets", "get", "list", "create", "update", "delete")
	add("coordination.k8s.io", "leases", "list", "create", "patch", "delete")
	add("", namespaces, "get") // of the provider's own alone
	if service {
		add("", "services", "get", "list", "watch", "create", "delete")
	}
	return out
}

// Check implements [provider.Checker] with one row: it asks, at once, for the
// server's version, for each right, and for a Pod that is made as a dry run, so
// that admission, quota and the namespace itself have their say.
func (p *Provider) Check(ctx context.Context) ([]provider.HostHealth, error) {
	row := provider.HostHealth{Host: p.host, Reason: ReasonOK}
	ctx, cancel, err := p.bound(ctx, "check")
	if err != nil {
		return nil, err
	}
	defer cancel()
	if err := p.examine(ctx, &row); err != nil {
		row.Message = err.Error()
		if row.Reason == ReasonOK {
			row.Reason = p.verdict(err)
		}
	}
	return []provider.HostHealth{row}, nil
}

func (p *Provider) examine(ctx context.Context, row *provider.HostHealth) error {
	c, err := p.cluster.conn(ctx)
	if err != nil {
		row.Reason = p.judge(err).reason
		return p.failed("connect", err)
	}
	note := ""
	// In the order in which a person would mend them.
	asks := []func() error{
		func() error {
			v, err := serverVersion(ctx, c)
			row.Version = v
			if apierrors.IsForbidden(err) {
				return nil // it is for people alone
			}
			return p.failed("ask for the version", err)
		},
		func() error { return p.rightPlace(ctx, c) },
		func() (err error) {
			note, err = p.allowed(ctx, c)
			return err
		},
		func() error { return p.rehearse(ctx, c) },
	}
	errs := make([]error, len(asks))
	var wg sync.WaitGroup
	for i, ask := range asks {
		wg.Go(func() { errs[i] = ask() })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	row.Message = fmt.Sprintf("Kubernetes %s, namespace %s%s", row.Version, p.conf.namespace, note)
	return nil
}

func serverVersion(ctx context.Context, c *conn) (string, error) {
	body, err := c.core.RESTClient().Get().AbsPath("/version").DoRaw(ctx)
	if err != nil {
		return "", err
	}
	return parseVersion(body)
}

// allowed asks for each right that a dry run of a Pod does not show. One that is
// missing shows later otherwise, when a Proxy is deleted. note is for a Role that
// is enough and yet hides something.
func (p *Provider) allowed(ctx context.Context, c *conn) (note string, err error) {
	rules, err := c.core.AuthorizationV1().SelfSubjectRulesReviews().Create(ctx, &authorizationv1.SelfSubjectRulesReview{
		Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: p.conf.namespace},
	}, metav1.CreateOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return "", nil // who may not ask what is allowed is told by the refusal itself
	case err != nil:
		return "", p.failed("ask for the user's rights", err)
	case rules.Status.Incomplete:
		return "", nil
	}
	for _, r := range rights(p.conf.service != nil) {
		if !grants(rules.Status.ResourceRules, r, p.conf.namespace) {
			return "", &lacking{fault.Errorf(fault.Denied, "host %s: the user may not %s %s: bind the Role of docs/kubernetes-provider.md to it in namespace %s", p.host, r.verb, r.resource, p.conf.namespace)}
		}
	}
	if !grants(rules.Status.ResourceRules, right{"list", "", services.Resource}, "") {
		note = "; Services cannot be looked at, so what an earlier section with service left there is not seen"
	}
	return note, nil
}

// lacking is the finding that a right is missing.
type lacking struct{ error }

func (l *lacking) Unwrap() error { return l.error }

// grants reports that rules give a right, to a namespace where it is about one.
func grants(rules []authorizationv1.ResourceRule, r right, namespace string) bool {
	has := func(list []string, want string) bool {
		for _, s := range list {
			if s == want || s == "*" {
				return true
			}
		}
		return false
	}
	for _, rule := range rules {
		if has(rule.Verbs, r.verb) && has(rule.APIGroups, r.group) && has(rule.Resources, r.resource) &&
			(len(rule.ResourceNames) == 0 || r.resource == namespaces && slices.Contains(rule.ResourceNames, namespace)) {
			return true
		}
	}
	return false
}

// rehearse makes a Pod of the default image as a dry run.
func (p *Provider) rehearse(ctx context.Context, c *conn) error {
	w, err := p.settleSpec(provider.Spec{Owner: provider.Owner{
		Installation: "check", Namespace: p.conf.namespace, Name: "check", UID: "check",
	}})
	if err != nil {
		return err
	}
	pod, err := p.podOf(w)
	if err != nil {
		return err
	}
	_, err = c.core.CoreV1().Pods(p.conf.namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if apierrors.IsBadRequest(err) && strings.Contains(err.Error(), "does not support dry run") {
		return nil // a webhook that cannot be asked is met by the first Proxy
	}
	return p.failed("rehearse making a Pod", err)
}

// verdict is the reason that an error stands for.
func (p *Provider) verdict(err error) string {
	if _, ok := errors.AsType[*lacking](err); ok {
		return ReasonForbidden
	}
	if _, ok := errors.AsType[*misled](err); ok {
		return ReasonKubeconfig
	}
	if e, ok := errors.AsType[*oneLine](err); ok {
		return p.judge(e.err).reason
	}
	return ReasonError
}

// maxVersion bounds what is shown of a version.
const maxVersion = 40

func parseVersion(body []byte) (string, error) {
	var v struct {
		GitVersion string `json:"gitVersion"`
	}
	if err := json.Unmarshal(body, &v); err != nil || v.GitVersion == "" {
		return "", fault.New(fault.Permanent, "what answers there does not tell a version of Kubernetes: mend the kubeconfig's server")
	}
	return line(v.GitVersion[:min(len(v.GitVersion), maxVersion)]), nil
}
