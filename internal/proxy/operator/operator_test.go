package operator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/client"
	"fleetdesk/config/crd"
	"fleetdesk/config/rbac"
	"fleetdesk/config/samples"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/platform/obs"
	"fleetdesk/internal/proxy/operator"
	"fleetdesk/internal/proxy/provider/local"
	"fleetdesk/internal/testkit/kube"
	"fleetdesk/internal/testkit/kubelet"
)

var cluster = kube.Shared(kube.Options{CRDs: crd.Bases})

// TestMain also is a proxy's main function: the provider "local", and the
// stand-in for a kubelet, start this very binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "local-proxy" {
		if err := local.Serve(context.Background(), os.Args[2:], os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	kubelet.Child(os.Args)
	ctrl.SetLogger(obs.Logr(slog.New(slog.DiscardHandler)))
	os.Exit(cluster.Run(database.Around(m)))
}

const patience = 30 * time.Second

func until(t *testing.T, what string, cond func() (missing string)) {
	t.Helper()
	var missing string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if missing = cond(); missing == "" {
			return
		}
	}
	t.Fatalf("%s: still after %s: %s", what, patience, missing)
}

// admin is an administrator's uncached client.
func admin(t *testing.T) kubeclient.Client {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(s), v1alpha1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	c, err := kubeclient.New(cluster.Config(t), kubeclient.Options{Scheme: s})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// underRole returns the configuration of the service account that the
// generated role is for: what works with it works in a cluster.
func underRole(t *testing.T) *rest.Config {
	t.Helper()
	c := admin(t)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "fleetdesk-system"}}
	if err := c.Create(t.Context(), ns); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	data, err := rbac.Files.ReadFile("role.yaml")
	if err != nil {
		t.Fatal(err)
	}
	user := "system:serviceaccount:fleetdesk-system:proxy-operator"
	subjects := []rbacv1.Subject{{Kind: "User", APIGroup: "rbac.authorization.k8s.io", Name: user}}
	objects := []kubeclient.Object{&rbacv1.ClusterRole{}, &rbacv1.Role{}}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for _, o := range objects {
		if err := decoder.Decode(o); err != nil {
			t.Fatal(err)
		}
	}
	ref := rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Name: "proxy-operator"}
	cref, rref := ref, ref
	cref.Kind, rref.Kind = "ClusterRole", "Role"
	objects = append(objects,
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "proxy-operator"}, RoleRef: cref, Subjects: subjects},
		&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "fleetdesk-system", Name: "proxy-operator"}, RoleRef: rref, Subjects: subjects})
	for _, o := range objects {
		if err := c.Create(t.Context(), o); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	return cluster.User(t, user)
}

// logs collects what an operator logs.
type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// running is one operator in this process.
type running struct {
	operator.Endpoints
	logs *logs
	stop func()
}

func options(t *testing.T, change ...func(*operator.Options)) operator.Options {
	t.Helper()
	o := operator.Defaults()
	o.StateDir = t.TempDir()
	o.APIBind, o.OriginBind = "127.0.0.1:0", "127.0.0.1:0"
	o.ListInterval = time.Second
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o.LocalCommand = []string{executable, "local-proxy"}
	for _, c := range change {
		c(&o)
	}
	return o
}

// start runs an operator until stop, or the end of the test.
func start(t *testing.T, cfg *rest.Config, o operator.Options) *running {
	t.Helper()
	r := &running{logs: &logs{}}
	o.Log = obs.NewLogger(r.logs, obs.Options{Level: obs.Verbosity(2)})
	ready := make(chan operator.Endpoints, 1)
	o.Ready = func(e operator.Endpoints) { ready <- e }
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- operator.Run(ctx, cfg, o) }()
	var once sync.Once
	r.stop = func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-done:
				if err != nil {
					t.Errorf("the operator ended with %v", err)
				}
			case <-time.After(patience):
				t.Error("the operator does not stop")
			}
		})
	}
	t.Cleanup(r.stop)
	select {
	case r.Endpoints = <-ready:
	case err := <-done:
		t.Fatalf("the operator did not start: %v", err)
	case <-time.After(patience):
		t.Fatalf("the operator is not ready:\n%s", r.logs)
	}
	return r
}

func proxy(ns, name, provider string) *v1alpha1.Proxy {
	return &v1alpha1.Proxy{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: map[string]string{"tier": "test"}},
		Spec: v1alpha1.ProxySpec{
			Provider:    provider,
			HealthCheck: v1alpha1.HealthCheck{Interval: "1s", Timeout: "900ms", FailureThreshold: 1},
		},
	}
}

func get(t *testing.T, c kubeclient.Client, ns, name string) *v1alpha1.Proxy {
	t.Helper()
	px := &v1alpha1.Proxy{}
	if err := c.Get(t.Context(), types.NamespacedName{Namespace: ns, Name: name}, px); err != nil {
		t.Fatal(err)
	}
	return px
}

func becomesReady(t *testing.T, c kubeclient.Client, ns, name string) *v1alpha1.Proxy {
	t.Helper()
	var px *v1alpha1.Proxy
	until(t, name+" becoming Ready", func() string {
		if px = get(t, c, ns, name); px.Status.Phase != v1alpha1.PhaseReady || px.Status.ExitIP == "" {
			return fmt.Sprintf("%+v", px.Status)
		}
		return ""
	})
	return px
}

// removed deletes a Proxy at the end of a test and waits for its process.
func removed(t *testing.T, c kubeclient.Client, ns, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.Delete(ctx, proxy(ns, name, "x")); err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	until(t, name+" being gone", func() string {
		px := &v1alpha1.Proxy{}
		err := c.Get(ctx, types.NamespacedName{Namespace: ns, Name: name}, px)
		if apierrors.IsNotFound(err) {
			return ""
		}
		return fmt.Sprintf("%+v %v", px.Status, err)
	})
}

// fetch gets the origin's page through a proxy and returns it.
func fetch(t *testing.T, px *v1alpha1.Proxy, origin string, user *url.Userinfo) string {
	t.Helper()
	via := &url.URL{Scheme: "http", Host: net.JoinHostPort(px.Status.Address, fmt.Sprint(px.Status.Port)), User: user}
	c := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{Proxy: http.ProxyURL(via), DisableKeepAlives: true}}
	resp, err := c.Get(origin)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %v", resp.Status, body, err)
	}
	return string(body)
}

func adminToken(t *testing.T, e operator.Endpoints) string {
	t.Helper()
	b, err := os.ReadFile(e.AdminTokenFile)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// The main job, under the role that is shipped: from a Proxy object to a page
// fetched through it, over a restart, to nothing left.
func TestTheMainJobUnderTheShippedRole(t *testing.T) {
	cfg, c, ns := underRole(t), admin(t), cluster.Namespace(t)
	o := options(t, func(o *operator.Options) { o.LeaderElect = true })
	// The providers file is the sample that people copy.
	sample, err := samples.Files.ReadFile("providers.yaml")
	if err != nil {
		t.Fatal(err)
	}
	o.ProvidersConfig = filepath.Join(t.TempDir(), "providers.yaml")
	if err := os.WriteFile(o.ProvidersConfig, sample, 0o600); err != nil {
		t.Fatal(err)
	}
	op := start(t, cfg, o)
	auth := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "auth"}, StringData: map[string]string{"username": "crawl er", "password": "p:a@s$s%w ö"}}
	withAuth := proxy(ns, "b", "local")
	withAuth.Spec.AuthSecretRef = &v1alpha1.LocalSecretRef{Name: "auth"}
	for _, obj := range []kubeclient.Object{auth, proxy(ns, "a", "local"), withAuth} {
		if err := c.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
	a, b := becomesReady(t, c, ns, "a"), becomesReady(t, c, ns, "b")
	for px, user := range map[*v1alpha1.Proxy]*url.Userinfo{a: nil, b: url.UserPassword("crawl er", "p:a@s$s%w ö")} {
		if got, want := fetch(t, px, op.Origin+"/", user), "You come from "+px.Status.Address+"\nNo header tells of a proxy\n"; got != want {
			t.Errorf("%s: the origin says %q, want %q", px.Name, got, want)
		}
		if px.Status.ExitIP != px.Status.Address {
			t.Errorf("%s: exit IP %q, address %q", px.Name, px.Status.ExitIP, px.Status.Address)
		}
		if px.Status.Leaks == nil || len(*px.Status.Leaks) != 0 || px.Status.LatencyMilliseconds == 0 || px.Status.ExitIPShared != 0 {
			t.Errorf("%s: its own origin saw no header of it: %+v", px.Name, px.Status)
		}
	}
	if a.Status.Address == b.Status.Address {
		t.Error("an origin cannot tell the two apart")
	}

	token := adminToken(t, op.Endpoints)
	if info, err := os.Stat(op.AdminTokenFile); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("token file: %v %v", info.Mode(), err)
	}
	api, err := client.New(client.Options{BaseURL: op.API, Token: client.Token(token)})
	if err != nil {
		t.Fatal(err)
	}
	list, err := api.Proxies(t.Context(), client.ProxyQuery{Namespace: ns, Phase: "Ready", Selector: "tier=test"})
	if err != nil || len(list.Items) != 2 || list.Items[0].Name != "a" || list.Items[0].Address != a.Status.Address || !list.Items[0].Ready ||
		list.Items[0].Leaks == nil || len(*list.Items[0].Leaks) != 0 || list.Items[0].LatencyMilliseconds == 0 || list.Items[0].ChecksPassedPercent == nil {
		t.Errorf("GET /proxies: %+v %v", list, err)
	}
	wrong, err := client.New(client.Options{BaseURL: op.API, Token: "fdt_wrong"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := wrong.Proxy(t.Context(), ns, "a"); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("a wrong token: %v", err)
	}
	if _, err := api.Proxy(t.Context(), ns, "nobody"); !errors.Is(err, client.NotFound) {
		t.Errorf("an unknown proxy: %v", err)
	}
	metrics := read(t, op.API+"/metrics")
	for _, want := range []string{"proxy_operator_provider_calls_total", "proxy_operator_health_probes_total", "proxy_operator_desk_rows_queued", "controller_runtime_reconcile_total"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics has no %s", want)
		}
	}
	read(t, op.API+"/healthz")
	read(t, op.API+"/readyz")

	// A restart adopts what runs, and nothing blinks.
	op.stop()
	again := start(t, cfg, o)
	if again.NewAdminToken || adminToken(t, again.Endpoints) != token {
		t.Error("the restart made another admin token")
	}
	if now := becomesReady(t, c, ns, "a"); now.Status.ProviderID != a.Status.ProviderID || now.Status.Address != a.Status.Address {
		t.Errorf("not adopted: %+v", now.Status)
	}
	removed(t, c, ns, "a")
	removed(t, c, ns, "b")
	if conn, err := net.DialTimeout("tcp", net.JoinHostPort(a.Status.Address, fmt.Sprint(a.Status.Port)), time.Second); err == nil {
		_ = conn.Close()
		t.Error("the deleted proxy still listens")
	}
	left, err := filepath.Glob(filepath.Join(o.StateDir, "providers", "local", "[^.]*"))
	if err != nil || len(left) != 0 {
		t.Errorf("files left: %v %v", left, err)
	}
	for _, l := range []string{op.logs.String(), again.logs.String(), metrics} {
		for _, secret := range []string{token, "p:a@s$s%w", url.QueryEscape("p:a@s$s%w ö")} {
			if strings.Contains(l, secret) {
				t.Errorf("%q is in the log or the metrics", secret)
			}
		}
		if strings.Contains(l, "forbidden") {
			t.Errorf("the role lacks a right:\n%s", l)
		}
	}
}

func read(t *testing.T, u string) string {
	t.Helper()
	c := &http.Client{Timeout: 10 * time.Second}
	resp, err := c.Get(u)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 8<<20))
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %.200s %v", u, resp.Status, body, err)
	}
	return string(body)
}

func TestABrokenProviderBesideAGoodOne(t *testing.T) {
	c, ns := admin(t), cluster.Namespace(t)
	o := options(t)
	o.ProvidersConfig = filepath.Join(o.StateDir, "providers.yaml")
	text := "providers:\n- name: good\n  kind: local\n- name: bad\n  kind: local\n  local:\n    stateDirectory: /nowhere\n- name: odd\n  kind: teleport\n"
	if err := os.WriteFile(o.ProvidersConfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	op := start(t, cluster.Config(t), o)
	for _, name := range []string{"good", "bad", "odd", "none"} {
		if err := c.Create(t.Context(), proxy(ns, name, name)); err != nil {
			t.Fatal(err)
		}
	}
	becomesReady(t, c, ns, "good")
	for name, want := range map[string]string{
		"bad":  `providers.yaml:7: unknown field "stateDirectory"`,
		"odd":  `providers.yaml:8: provider "odd": unknown kind "teleport": known are [gcp kubernetes kvm local]`,
		"none": `the providers config has no provider "none": it has bad, good, odd`,
	} {
		until(t, name+" saying what is wrong", func() string {
			px := get(t, c, ns, name)
			ready := apimeta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionReady)
			if ready == nil || !strings.Contains(ready.Message, want) || px.Status.Phase != v1alpha1.PhasePending {
				return fmt.Sprintf("%+v", px.Status)
			}
			return ""
		})
		removed(t, c, ns, name)
	}
	removed(t, c, ns, "good")
	if !strings.Contains(op.logs.String(), "provider is disabled") {
		t.Error("the log does not tell of the disabled provider")
	}
}

func TestTheFirstAdminTokenGoesToASecretWhenAsked(t *testing.T) {
	cfg, c := underRole(t), admin(t)
	o := options(t, func(o *operator.Options) { o.AdminTokenSecret = "first-admin" })
	op := start(t, cfg, o)
	s := &corev1.Secret{}
	if err := c.Get(t.Context(), types.NamespacedName{Namespace: "fleetdesk-system", Name: "first-admin"}, s); err != nil {
		t.Fatal(err)
	}
	api, err := client.New(client.Options{BaseURL: op.API, Token: client.Token(s.Data["token"])})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := api.Proxies(t.Context(), client.ProxyQuery{}); err != nil {
		t.Errorf("the Secret's token does not open the API: %v", err)
	}
	if op.AdminTokenFile != "" {
		t.Errorf("a file as well: %s", op.AdminTokenFile)
	}
	// The admin does with it what admins do.
	if _, err := api.CreateAccount(t.Context(), client.NewAccount{Name: "ci", Role: client.RoleViewer}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.IssueToken(t.Context(), "ci", client.NewToken{}); err != nil {
		t.Fatal(err)
	}
	if all, err := api.Tokens(t.Context(), "ci", client.Page{}); err != nil || len(all.Items) != 1 {
		t.Errorf("the account's tokens: %+v %v", all, err)
	}
	if err := api.ChangeAccount(t.Context(), "ci", client.AccountChange{Role: client.RoleRunner}); err != nil {
		t.Errorf("another role: %v", err)
	}
}

func TestBadSettingsAreRefusedBeforeAnythingRuns(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Close() }()
	write := func(o *operator.Options, text string) {
		o.ProvidersConfig = filepath.Join(o.StateDir, "p.yaml")
		if err := os.WriteFile(o.ProvidersConfig, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		reason string
		change func(*operator.Options)
		class  fault.Class
		want   string
	}{
		"used port":      {"", func(o *operator.Options) { o.APIBind = busy.Addr().String() }, fault.Conflict, "--api-bind-address"},
		"public address": {"tokens in plain text", func(o *operator.Options) { o.APIBind = "0.0.0.0:0" }, fault.Invalid, "--api-allow-plaintext"},
		"half of TLS":    {"", func(o *operator.Options) { o.APITLSCert = "x.pem" }, fault.Invalid, "--api-tls-key"},
		"no such file":   {"", func(o *operator.Options) { o.ProvidersConfig = "/no/such/providers.yaml" }, fault.Invalid, "/no/such/providers.yaml"},
		"not yaml":       {"the first start has no earlier file to keep", func(o *operator.Options) { write(o, "providers: [") }, fault.Invalid, "p.yaml"},
		"equal names": {"", func(o *operator.Options) {
			write(o, "providers:\n- {name: a, kind: local}\n- {name: a, kind: local}\n")
		}, fault.Invalid, "p.yaml:3"},
		"rate of nothing":   {"nobody could ask anything", func(o *operator.Options) { o.APIRate = 0 }, fault.Invalid, "--api-rate"},
		"rate below":        {"-1 alone means no limit", func(o *operator.Options) { o.APIRate = -2 }, fault.Invalid, "--api-rate"},
		"rate not a number": {"", func(o *operator.Options) { o.APIRate = math.NaN() }, fault.Invalid, "--api-rate"},
		"two databases":     {"", func(o *operator.Options) { o.Database, o.DatabaseURLFile = "a", "b" }, fault.Invalid, "exclude each other"},
		"no URL file":       {"", func(o *operator.Options) { o.DatabaseURLFile = "/no/such/url" }, fault.Permanent, "/no/such/url"},
		"no URL in file": {"a password has no place in an error", func(o *operator.Options) {
			write(o, "postgres://user:hunter2@")
			o.DatabaseURLFile, o.ProvidersConfig = o.ProvidersConfig, ""
		}, fault.Invalid, "database URL"},
		"short interval":    {"", func(o *operator.Options) { o.ListInterval = time.Millisecond }, fault.Invalid, "--list-interval"},
		"short checks":      {"", func(o *operator.Options) { o.CheckInterval = time.Millisecond }, fault.Invalid, "--provider-check-interval"},
		"slow checks":       {"two checks of one host would run at once", func(o *operator.Options) { o.CheckInterval, o.CheckTimeout = 12*time.Second, 13*time.Second }, fault.Invalid, "--provider-check-timeout=13s"},
		"checks in no time": {"", func(o *operator.Options) { o.CheckTimeout = -time.Second }, fault.Invalid, "--provider-check-timeout"},
		"short sweeps":      {"", func(o *operator.Options) { o.SweepInterval = time.Millisecond }, fault.Invalid, "--gc-interval"},
		"rare sweeps":       {"a claim would be believed for days", func(o *operator.Options) { o.SweepInterval = 2 * time.Hour }, fault.Invalid, "--gc-interval"},
		"no grace":          {"what is being made would go", func(o *operator.Options) { o.SweepGrace = 0 }, fault.Invalid, "--gc-grace"},
		"no workers":        {"", func(o *operator.Options) { o.Workers = 0 }, fault.Invalid, "--workers"},
		"token twice":       {"", func(o *operator.Options) { o.AdminTokenFile, o.AdminTokenSecret = "a", "b" }, fault.Invalid, "exclude each other"},
		"state is a file":   {"", func(o *operator.Options) { write(o, ""); o.StateDir = o.ProvidersConfig }, fault.Permanent, "--state-dir"},
		"origin anywhere":   {"a proxy would ask itself", func(o *operator.Options) { o.OriginBind = "0.0.0.0:0" }, fault.Invalid, "--origin-url"},
		"health url":        {"", func(o *operator.Options) { o.HealthURL = "ftp://example.com" }, fault.Invalid, "--health-check-url"},
		"origin url alone":  {"", func(o *operator.Options) { o.OriginBind, o.OriginURL = "", "http://origin.example.com" }, fault.Invalid, "--origin-bind-address"},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t, tc.change)
			o.Ready = func(operator.Endpoints) { t.Error("it started") }
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err := operator.Run(ctx, cluster.Config(t), o)
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Error("a password is in the error")
			}
			if fault.Of(err) != tc.class || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: got %v (%s), want %s with %q", tc.reason, err, fault.Of(err), tc.class, tc.want)
			}
		})
	}
}
