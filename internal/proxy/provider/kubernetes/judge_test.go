package kubernetes_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientset "k8s.io/client-go/kubernetes"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider/kubernetes"
)

// What a real API server answers is judged by class and reason.
func TestJudgeOfRealRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	p := w.open(t)
	pods := func(ns string) func(*corev1.Pod) error {
		return func(pod *corev1.Pod) error {
			_, err := w.admin.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{})
			return err
		}
	}
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		out := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: plainPod()}
		change(out)
		return out
	}
	limited := cluster.Namespace(t)
	if _, err := w.admin.CoreV1().LimitRanges(limited).Create(t.Context(), &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "small"}, Spec: corev1.LimitRangeSpec{
		Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer, Max: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1m")}}},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	hooked := cluster.Namespace(t)
	w.webhook(t, hooked)
	user, err := clientset.NewForConfig(cluster.User(t, "stranger-"+w.ns))
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		reason string
		ask    func() error
		class  fault.Class
		row    string
	}{
		"Pod security": {"the namespace is restricted", func() error {
			return pods(w.ns)(pod(func(p *corev1.Pod) { p.Spec.HostNetwork = true }))
		}, fault.Denied, kubernetes.ReasonPodRefused},
		"limit range": {"an admission rule, and no right that is missing", func() error {
			return pods(limited)(pod(func(p *corev1.Pod) {
				p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
			}))
		}, fault.Denied, kubernetes.ReasonPodRefused},
		"webhook": {"somebody's policy", func() error { return pods(hooked)(pod(func(*corev1.Pod) {})) }, fault.Denied, kubernetes.ReasonPodRefused},
		"webhook, 400": {"the policy says that the Pod is wrong", func() error {
			return pods(hooked)(pod(func(p *corev1.Pod) { p.Labels = map[string]string{"code": "400"} }))
		}, fault.Invalid, kubernetes.ReasonPodRefused},
		"RBAC": {"a right is missing", func() error {
			_, err := user.CoreV1().Pods(w.ns).List(t.Context(), metav1.ListOptions{})
			return err
		}, fault.Denied, kubernetes.ReasonForbidden},
		"invalid": {"a field that the API server does not take", func() error {
			return pods(w.ns)(pod(func(p *corev1.Pod) { p.Spec.Containers[0].Image = "" }))
		}, fault.Invalid, kubernetes.ReasonPodRefused},
		"not there": {"an object", func() error {
			_, err := w.admin.CoreV1().Pods(w.ns).Get(t.Context(), "never", metav1.GetOptions{})
			return err
		}, fault.NotFound, kubernetes.ReasonError},
		"namespace not there": {"a place", func() error {
			return pods("never")(pod(func(*corev1.Pod) {}))
		}, fault.Permanent, kubernetes.ReasonNamespaceMissing},
	} {
		t.Run(name, func(t *testing.T) {
			err := tc.ask()
			if err == nil {
				t.Fatal("the API server does not refuse it")
			}
			if class, row := p.Judge(err); class != tc.class || row != tc.row {
				t.Errorf("%s: %s, %s; want %s, %s: %v", tc.reason, class, row, tc.class, tc.row, err)
			}
			if text := p.Failed("try", err).Error(); strings.ContainsAny(text, "\n\r") || len(text) > 1000 {
				t.Errorf("the text has several lines, or %d bytes: %q", len(text), text)
			}
		})
	}
}

// What no server here can be made to say, in its own words.
func TestJudge(t *testing.T) {
	p, err := kubernetes.New(kubernetes.Options{Name: "away", Section: kubernetes.Section{Namespace: "proxies"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	pods := schema.GroupResource{Resource: "pods"}
	for name, tc := range map[string]struct {
		reason string
		err    error
		class  fault.Class
		row    string
	}{
		"busy":        {"priority and fairness", apierrors.NewTooManyRequests("too many requests", 1), fault.Transient, kubernetes.ReasonBusy},
		"internal":    {"etcd is away", apierrors.NewInternalError(errors.New("etcdserver: request timed out")), fault.Unavailable, kubernetes.ReasonError},
		"unavailable": {"it starts", apierrors.NewServiceUnavailable("starting"), fault.Unavailable, kubernetes.ReasonError},
		"timeout":     {"the server gave up", apierrors.NewTimeoutError("timed out", 1), fault.Timeout, kubernetes.ReasonTimeout},
		"too slow":    {"as above", apierrors.NewServerTimeout(pods, "create", 1), fault.Timeout, kubernetes.ReasonTimeout},
		"conflict":    {"another one wrote it", apierrors.NewConflict(pods, "p", errors.New("changed")), fault.Conflict, kubernetes.ReasonError},
		"deadline":    {"ours", fmt.Errorf("get: %w", context.DeadlineExceeded), fault.Timeout, kubernetes.ReasonTimeout},
		"cancelled":   {"the operator stops", fmt.Errorf("get: %w", context.Canceled), fault.Transient, kubernetes.ReasonTimeout},
		"account":     {"the manifest was not applied", apierrors.NewForbidden(pods, "p", errors.New(`error looking up service account proxies/fleetdesk-proxy: serviceaccount "fleetdesk-proxy" not found`)), fault.Permanent, kubernetes.ReasonAccountMissing},
		"404 page":    {"a load balancer without a back end: no Pod is gone", apierrors.NewGenericServerResponse(http.StatusNotFound, "get", pods, "p", "404 page not found", 0, true), fault.Permanent, kubernetes.ReasonUnreachable},
		"502 page":    {"a load balancer", apierrors.NewGenericServerResponse(http.StatusBadGateway, "get", pods, "p", "<html>", 0, true), fault.Unavailable, kubernetes.ReasonError},
		"dial":        {"nobody listens", errors.New("dial tcp 192.0.2.9:6443: connect: connection refused"), fault.Unavailable, kubernetes.ReasonUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			if class, row := p.Judge(tc.err); class != tc.class || row != tc.row {
				t.Errorf("%s: %s, %s; want %s, %s", tc.reason, class, row, tc.class, tc.row)
			}
			if got := p.Failed("try", tc.err); fault.Of(got) != tc.class || !strings.HasPrefix(got.Error(), "host cluster/proxies: try: ") {
				t.Errorf("%s: %s: %v", tc.reason, fault.Of(got), got)
			}
		})
	}
}

// webhook has a policy refuse all Pods of a namespace.
func (w *world) webhook(t *testing.T, ns string) {
	t.Helper()
	srv := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Result: &metav1.Status{Message: "no Pods\nhere", Code: http.StatusForbidden}}
		if strings.Contains(string(review.Request.Object.Raw), `"code":"400"`) {
			review.Response.Result.Code = http.StatusBadRequest
			review.Response.Result.Reason = metav1.StatusReasonBadRequest
		}
		_ = json.NewEncoder(rw).Encode(review)
	}))
	t.Cleanup(srv.Close)
	fail, none := admissionregistrationv1.Fail, admissionregistrationv1.SideEffectClassNone
	hook := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "refuse-" + ns},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "pods.policy.example.com", FailurePolicy: &fail, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: ns}},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL: &srv.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}),
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}},
		}},
	}
	api := w.admin.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	if _, err := api.Create(t.Context(), hook, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = api.Delete(context.Background(), hook.Name, metav1.DeleteOptions{}) })
	await(t, "the webhook to be in force", func() bool {
		_, err := w.admin.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "try"}, Spec: plainPod()},
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil
	})
}
