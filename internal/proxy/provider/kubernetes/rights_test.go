package kubernetes_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kubernetes"
)

// life is all that a provider does in its namespace.
func life(t *testing.T, w *world, p *kubernetes.Provider, uid string) []error {
	var errs []error
	note := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
	}
	ctx := t.Context()
	spec := specOf(w, uid)
	_, err := p.Create(ctx, spec)
	note("Create", err)
	_, err = p.Create(ctx, spec)
	note("Create again", err)
	_, err = p.Get(ctx, provider.Ref{Owner: spec.Owner})
	note("Get", err)
	soon, cancel := context.WithTimeout(ctx, 2*time.Second)
	rows, err := p.ListByTag(soon, installation)
	cancel()
	note("ListByTag", err)
	note("ListByTag's row", rows[0].Err)
	claim := provider.Claim{Installation: installation, Holder: "holder" + strings.ReplaceAll(uid, "-", "x"), Beat: 1, Period: time.Minute}
	claims, err := p.Claim(ctx, claim)
	note("Claim", err)
	note("Claim's row", claims[0].Err)
	claim.Dead = []string{claim.Holder}
	claims, err = p.Claim(ctx, claim)
	note("Claim taken back", err)
	note("its row", claims[0].Err)
	// A Secret of an earlier attempt is written anew.
	again := specOf(w, uid+"-again")
	err = provider.Step(ctx, "")
	note("Step", err)
	_, err = p.Create(provider.WithStepHook(ctx, func(step string) error {
		if step == "kubernetes: pod" {
			return fault.New(fault.Transient, "the test ends this call here")
		}
		return nil
	}), again)
	if err != nil && !strings.Contains(err.Error(), "the test ends this call") {
		note("Create that ends early", err)
	}
	_, err = p.Create(ctx, again)
	note("Create that goes on", err)
	left, err := p.Leftovers(ctx, installation, nil)
	note("Leftovers", err)
	note("Leftovers' row", left[0].Err)
	for _, o := range []provider.Owner{spec.Owner, again.Owner} {
		_, err = p.Delete(ctx, provider.Ref{Owner: o})
		note("Delete", err)
	}
	return errs
}

// With exactly the documented Role everything works; with one right less
// something is Denied, and Check names what is missing.
func TestEachRightIsNeeded(t *testing.T) {
	t.Parallel()
	withServices := func(s *kubernetes.Section) { s.Service = &kubernetes.Service{Type: "ClusterIP"} }
	w := newWorld(t, withServices)
	w.nodes.Hold() // Pods need not run
	p := w.open(t)
	if errs := life(t, w, p, "all-rights"); len(errs) > 0 {
		t.Fatalf("with the whole Role: %v", errs)
	}
	if row := health(t, p); row.Reason != provider.ReasonOK || !strings.HasPrefix(row.Version, "v1.") {
		t.Errorf("Check with the whole Role = %+v", row)
	}
	for i, lacks := range kubernetes.Rights() {
		t.Run(lacks.Verb+" "+lacks.Resource, func(t *testing.T) {
			t.Parallel()
			user := fmt.Sprintf("lacks-%d-%s", i, w.ns)
			w.bind(t, user, without(kubernetes.Role(w.ns, true).Rules, lacks))
			cfg := cluster.User(t, user)
			w.inForce(t, user)
			s := &secrets{}
			s.put("k", kubeconfig(t, cfg, "https://"+w.line.address()))
			p, err := kubernetes.New(kubernetes.Options{Name: "away", Section: kubernetes.Section{
				Cluster: "away", Namespace: w.ns, KubeconfigSecret: &kubernetes.KubeconfigSecret{Name: "k"}, Service: w.section.Service,
			}, Secret: s.get, HashCost: 4})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			uid := fmt.Sprintf("lacks-%d", i)
			errs := life(t, w, p, uid)
			for _, o := range []string{uid, uid + "-again"} { // by one who may
				w.drop(t, nameOf(ownerOf(o)))
			}
			if !slices.ContainsFunc(errs, func(err error) bool { return fault.Of(err) == fault.Denied }) {
				t.Errorf("nothing is Denied: the Role needs no %s of %s; got %v", lacks.Verb, lacks.Resource, errs)
			}
			row := health(t, p)
			if row.Reason != kubernetes.ReasonForbidden || !strings.Contains(row.Message, lacks.Verb) || !strings.Contains(row.Message, lacks.Resource) {
				t.Errorf("Check = %+v; want Forbidden, naming %s of %s", row, lacks.Verb, lacks.Resource)
			}
		})
	}
}

// without is rules without one verb on one kind.
func without(rules []rbacv1.PolicyRule, r kubernetes.Right) []rbacv1.PolicyRule {
	var out []rbacv1.PolicyRule
	for _, rule := range rules {
		if rule.APIGroups[0] == r.Group && rule.Resources[0] == r.Resource {
			rule.Verbs = slices.DeleteFunc(slices.Clone(rule.Verbs), func(v string) bool { return v == r.Verb })
		}
		if len(rule.Verbs) > 0 {
			out = append(out, rule)
		}
	}
	return out
}

// inForce waits until the API server knows of a user's Role.
func (w *world) inForce(t *testing.T, user string) {
	t.Helper()
	await(t, "the Role of "+user, func() bool {
		allowed := 0
		for _, resource := range []string{"pods", "secrets"} {
			for _, verb := range []string{"get", "list", "delete"} {
				r, err := w.admin.AuthorizationV1().LocalSubjectAccessReviews(w.ns).Create(t.Context(), &authorizationv1.LocalSubjectAccessReview{
					ObjectMeta: metav1.ObjectMeta{Namespace: w.ns},
					Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{
						Namespace: w.ns, Verb: verb, Resource: resource,
					}},
				}, metav1.CreateOptions{})
				if err == nil && r.Status.Allowed {
					allowed++
				}
			}
		}
		return allowed > 0
	})
}

// A Role without Services is enough where none are asked for; also where some
// were asked for once, though nobody then sees what is left of them.
func TestNoRightOnServicesIsNeeded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.nodes.Hold()
	p := w.open(t)
	if errs := life(t, w, p, "without"); len(errs) > 0 {
		t.Errorf("%v", errs)
	}
	if row := health(t, p); row.Reason != provider.ReasonOK {
		t.Errorf("Check = %+v", row)
	}
}

// The page shows the Role as the code has it, and its manifests apply.
func TestDocumentedRole(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../../docs/kubernetes-provider.md")
	if err != nil {
		t.Fatal(err)
	}
	var found bool
	for _, block := range strings.Split(string(page), "```yaml\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		for _, doc := range strings.Split(block, "\n---\n") {
			var role rbacv1.Role
			if !strings.Contains(doc, "\nkind: Role\n") && !strings.HasPrefix(doc, "kind: Role\n") {
				continue
			}
			if err := yaml.UnmarshalStrict([]byte(doc), &role); err != nil {
				t.Fatal(err)
			}
			found = true
			want := kubernetes.Role("proxies", true)
			if asText(t, role.Rules) != asText(t, want.Rules) || role.Name != want.Name || role.Namespace != want.Namespace {
				t.Errorf("the page has\n%s\nand the code\n%s", asText(t, role.Rules), asText(t, want.Rules))
			}
		}
	}
	if !found {
		t.Error("the page shows no Role")
	}
	for _, reason := range kubernetes.Reasons() {
		if !strings.Contains(string(page), "| `"+reason+"` |") {
			t.Errorf("the page's table has no reason %s", reason)
		}
	}
	if !strings.Contains(string(page), kubernetes.DefaultImage) {
		t.Errorf("the page does not name the default image %s", kubernetes.DefaultImage)
	}
}

// The manifests of the page make a place where the provider works.
func TestDocumentedManifestsApply(t *testing.T) {
	t.Parallel()
	cfg := cluster.Config(t)
	admin, err := clientset.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../../../docs/kubernetes-provider.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(page), "```yaml\napiVersion: v1\nkind: Namespace\n")
	if !ok {
		t.Fatal("the page has no manifest that begins with the namespace")
	}
	block, _, _ := strings.Cut("apiVersion: v1\nkind: Namespace\n"+rest, "```")
	made := map[string]bool{}
	for _, doc := range strings.Split(block, "\n---\n") {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
			t.Fatal(err)
		}
		ctx, o := t.Context(), metav1.CreateOptions{FieldValidation: "Strict"}
		switch kind.Kind {
		case "Namespace":
			_, err = admin.CoreV1().Namespaces().Create(ctx, read[corev1.Namespace](t, doc), o)
		case "ServiceAccount":
			_, err = admin.CoreV1().ServiceAccounts("proxies").Create(ctx, read[corev1.ServiceAccount](t, doc), o)
		case "Role":
			_, err = admin.RbacV1().Roles("proxies").Create(ctx, read[rbacv1.Role](t, doc), o)
		case "RoleBinding":
			_, err = admin.RbacV1().RoleBindings("proxies").Create(ctx, read[rbacv1.RoleBinding](t, doc), o)
		case "Secret":
			_, err = admin.CoreV1().Secrets("proxies").Create(ctx, read[corev1.Secret](t, doc), o)
		default:
			t.Errorf("the manifest has a %q, which this test does not know", kind.Kind)
		}
		if err != nil && !apierrors.IsAlreadyExists(err) { // the test may run twice
			t.Errorf("%s: %v", kind.Kind, err)
		}
		made[kind.Kind] = true
	}
	for _, kind := range []string{"Namespace", "ServiceAccount", "Role", "RoleBinding"} {
		if !made[kind] {
			t.Errorf("the page's manifest has no %s", kind)
		}
	}
	// As the service account that the page names.
	user := cluster.User(t, "system:serviceaccount:proxies:fleetdesk-operator")
	s := &secrets{}
	s.put("k", kubeconfig(t, user, cfg.Host))
	p, err := kubernetes.New(kubernetes.Options{Name: "away", Section: kubernetes.Section{
		Namespace: "proxies", KubeconfigSecret: &kubernetes.KubeconfigSecret{Name: "k"}, Service: &kubernetes.Service{Type: "ClusterIP"},
	}, Secret: s.get})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var row provider.HostHealth
	await(t, "a check that is well", func() bool {
		row = health(t, p)
		return row.Reason == provider.ReasonOK
	})
}

func read[O any](t *testing.T, doc string) *O {
	t.Helper()
	var o O
	if err := yaml.UnmarshalStrict([]byte(doc), &o); err != nil {
		t.Fatal(err)
	}
	return &o
}
