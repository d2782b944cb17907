package operator_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/client"
	"fleetdesk/internal/proxy/operator"
	"fleetdesk/internal/testkit/postgres"
)

var database = postgres.Shared(postgres.Options{})

// onPostgres has an operator keep its desk in a PostgreSQL database.
func onPostgres(t *testing.T, databaseURL string) func(*operator.Options) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(file, []byte(databaseURL+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(o *operator.Options) { o.DatabaseURLFile = file }
}

// clientOf is an admin's client of a running operator.
func clientOf(t *testing.T, op *running) *client.Client {
	t.Helper()
	api, err := client.New(client.Options{BaseURL: op.API, Token: client.Token(adminToken(t, op.Endpoints)), Retries: -1})
	if err != nil {
		t.Fatal(err)
	}
	return api
}

func codeOf(err error) string {
	if e, ok := errors.AsType[*client.Error](err); ok {
		return e.Code
	}
	return ""
}

const password = "p:a@s$s%w ö"

// withSecret is a Proxy that asks for a password, and its Secret.
func withSecret(ns, name string) (*corev1.Secret, *v1alpha1.Proxy) {
	auth := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, StringData: map[string]string{"username": "crawl er", "password": password}}
	px := proxy(ns, name, "local")
	px.Spec.AuthSecretRef = &v1alpha1.LocalSecretRef{Name: name}
	return auth, px
}

// taken waits until the pool of a namespace hands a Proxy out.
func taken(t *testing.T, api *client.Client, ns string) *client.Lease {
	t.Helper()
	var l *client.Lease
	until(t, "a lease", func() string {
		var err error
		if l, err = api.Take(t.Context(), ns+".default", client.TakeOptions{TTL: time.Hour}); err != nil {
			return err.Error()
		}
		return ""
	})
	return l
}

// Every replica hands out, also those that do not lead, under the role that is
// shipped; the desk is a PostgreSQL database that they share.
func TestReplicasShareTheDesk(t *testing.T) {
	cfg, c, ns := underRole(t), admin(t), cluster.Namespace(t)
	onDesk := onPostgres(t, database.Database(t))
	elect := func(o *operator.Options) { o.LeaderElect = true }
	leader := start(t, cfg, options(t, onDesk, elect))
	auth, px := withSecret(ns, "a")
	if err := errors.Join(c.Create(t.Context(), auth), c.Create(t.Context(), px)); err != nil {
		t.Fatal(err)
	}
	ready := becomesReady(t, c, ns, "a")
	other := start(t, cfg, options(t, onDesk, elect, func(o *operator.Options) { o.AdminTokenFile = leader.AdminTokenFile }))
	if other.NewAdminToken {
		t.Error("the second replica made another admin token")
	}
	l := taken(t, clientOf(t, other), ns)
	way, ok := l.Proxy()
	want := client.ProxyAccess{Protocol: "http", Host: ready.Status.Address, Port: int(ready.Status.Port), Username: "crawl er", Password: password}
	if !ok || way != want {
		t.Errorf("handed out %+v (password right: %t), want %+v", way, way.Password == want.Password, want)
	}
	if got := fetch(t, ready, leader.Origin+"/", way.URL().User); !strings.Contains(got, ready.Status.Address) {
		t.Errorf("the origin says %q", got)
	}
	if _, err := clientOf(t, leader).Take(t.Context(), ns+".default", client.TakeOptions{}); codeOf(err) != "none_free" {
		t.Errorf("the other replica's lease: %v", err)
	}

	if _, err := l.Release(t.Context(), client.ReleaseRequest{}); err != nil {
		t.Fatal(err)
	}
	removed(t, c, ns, "a")
	until(t, "the row being gone", func() string {
		if _, err := clientOf(t, other).Pool(t.Context(), ns+".default", client.Page{}); codeOf(err) != "pool" {
			return fmt.Sprint(err)
		}
		return ""
	})
	for _, op := range []*running{leader, other} {
		for _, secret := range []string{password, url.QueryEscape(password), string(l.Secret())} {
			if strings.Contains(op.logs.String(), secret) {
				t.Error("a secret is in a log")
			}
		}
		if strings.Contains(op.logs.String(), "forbidden") {
			t.Errorf("the role lacks a right:\n%s", op.logs)
		}
	}
}

// A crawler picks Proxies by what they are, with the credentials of their Secrets,
// says what became of it, and gets another one.
func TestCrawlersPick(t *testing.T) {
	c, ns := admin(t), cluster.Namespace(t)
	op := start(t, cluster.Config(t), options(t))
	api := clientOf(t, op)
	auth, a := withSecret(ns, "a")
	b := proxy(ns, "b", "local")
	a.Labels, b.Labels = map[string]string{"tier": "eu"}, map[string]string{"tier": "us"}
	pool := &v1alpha1.ProxyPool{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "default"}, Spec: v1alpha1.ProxyPoolSpec{Cooldown: "1h"}}
	if err := errors.Join(c.Create(t.Context(), pool), c.Create(t.Context(), auth), c.Create(t.Context(), a), c.Create(t.Context(), b)); err != nil {
		t.Fatal(err)
	}
	ready := becomesReady(t, c, ns, "a")
	becomesReady(t, c, ns, "b")
	eu := client.NextRequest{Namespace: ns, Target: "https://Shop.example.com/cart", Wish: client.Wish{Selector: "tier notin (us),tier", Scheme: "http", Provider: "local"}}
	var pick client.Pick
	until(t, "a pick", func() string {
		var err error
		if pick, err = api.Next(t.Context(), eu); err != nil {
			return err.Error()
		}
		return ""
	})
	want := client.ProxyAccess{Protocol: "http", Host: ready.Status.Address, Port: int(ready.Status.Port), Username: "crawl er", Password: password}
	if way := pick.Proxy(); pick.Namespace != ns || pick.Name != "a" || pick.Target != "shop.example.com" || way == nil || *way != want {
		t.Fatalf("picked %v with %v", pick, pick.Proxy())
	}
	if got := fetch(t, ready, op.Origin+"/", pick.Proxy().URL().User); !strings.Contains(got, ready.Status.Address) {
		t.Errorf("the origin says %q", got)
	}
	if _, err := api.Next(t.Context(), eu); codeOf(err) != "none_free" {
		t.Errorf("before it has rested: %v", err)
	}
	var told client.Reported
	until(t, "a replacement", func() string {
		var err error
		told, err = api.ReportPick(t.Context(), pick, client.ReportRequest{Outcome: client.OutcomeBanned, Replace: &client.NextRequest{Wish: client.Wish{Selector: "tier!=eu"}}})
		if err != nil || told.Replacement == nil {
			return fmt.Sprint(told, err)
		}
		return ""
	})
	if told.Strikes != 1 || told.Replacement.Name != "b" || told.Replacement.Proxy() == nil {
		t.Errorf("told %+v", told)
	}
	list, err := api.Cooldowns(t.Context(), ns, "a", client.Page{})
	if err != nil || len(list.Items) != 1 || list.Items[0].Target != "shop.example.com" || list.Items[0].Cause != "banned" {
		t.Errorf("it rests %+v, %v", list, err)
	}
	for _, selector := range []string{"tier in", "a=b,,", "x>1"} {
		eu.Selector = selector
		if _, err := api.Next(t.Context(), eu); codeOf(err) != "selector" || !strings.Contains(err.Error(), "at character") {
			t.Errorf("the selector %q: %v", selector, err)
		}
	}
	if strings.Contains(op.logs.String(), password) {
		t.Error("a secret is in a log")
	}
	for _, name := range []string{"a", "b"} {
		removed(t, c, ns, name)
	}
}

// A database that is lost stops no machine from being made or removed, and its
// leases are there when it is back.
func TestTheFleetGoesOnWithoutItsDatabase(t *testing.T) {
	server := postgres.Private(t, postgres.Options{})
	c, ns := admin(t), cluster.Namespace(t)
	op := start(t, cluster.Config(t), options(t, onPostgres(t, server.Database(t))))
	api := clientOf(t, op)
	pool := &v1alpha1.ProxyPool{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "default"}, Spec: v1alpha1.ProxyPoolSpec{DrainTimeout: "6s"}}
	if err := errors.Join(c.Create(t.Context(), pool), c.Create(t.Context(), proxy(ns, "a", "local")), c.Create(t.Context(), proxy(ns, "b", "local"))); err != nil {
		t.Fatal(err)
	}
	becomesReady(t, c, ns, "a")
	becomesReady(t, c, ns, "b")
	held := map[string]*client.Lease{}
	for range 2 {
		l := taken(t, api, ns)
		held[strings.TrimPrefix(l.Key(), ns+".")] = l
	}

	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	until(t, "the operator being not ready", func() string {
		if status := statusOf(t, op.API+"/readyz"); status != http.StatusServiceUnavailable {
			return fmt.Sprint(status)
		}
		return ""
	})
	if _, err := api.Take(t.Context(), ns+".default", client.TakeOptions{}); !errors.Is(err, client.Unavailable) || codeOf(err) == "none_free" {
		t.Errorf("taking without a database: %v", err)
	}
	if err := errors.Join(c.Create(t.Context(), proxy(ns, "new", "local")), c.Delete(t.Context(), proxy(ns, "a", "local"))); err != nil {
		t.Fatal(err)
	}
	becomesReady(t, c, ns, "new")
	until(t, "the deleted one saying why it waits", func() string {
		px := get(t, c, ns, "a")
		ready := apimeta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionReady)
		if ready == nil || ready.Reason != v1alpha1.ReasonDraining || !strings.Contains(ready.Message, "does not answer") {
			return fmt.Sprintf("%+v", px.Status)
		}
		return ""
	})
	removed(t, c, ns, "a")
	if !strings.Contains(op.logs.String(), "rows cannot be written") || !strings.Contains(read(t, op.API+"/metrics"), "proxy_operator_desk_rows_failing 1") {
		t.Errorf("nobody is told:\n%s", op.logs)
	}

	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "the machine that is new being handed out", func() string {
		l, err := api.Take(t.Context(), ns+".default", client.TakeOptions{})
		if err != nil {
			return err.Error()
		}
		if l.Key() != ns+".new" {
			t.Errorf("handed out: %s", l.Key())
		}
		return ""
	})
	if err := held["b"].Renew(t.Context(), client.RenewRequest{}); err != nil {
		t.Errorf("a lease from before: %v", err)
	}
	until(t, "the lease of the removed one having ended", func() string {
		if err := held["a"].Renew(t.Context(), client.RenewRequest{}); err == nil {
			return "it goes on"
		}
		return ""
	})
	if _, err := held["b"].Release(t.Context(), client.ReleaseRequest{}); err != nil {
		t.Error(err)
	}
	removed(t, c, ns, "b")
	removed(t, c, ns, "new") // after its time to drain: it is held
}

func statusOf(t *testing.T, u string) int {
	t.Helper()
	c := &http.Client{Timeout: 20 * time.Second}
	resp, err := c.Get(u)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

func TestTheRateOfOneToken(t *testing.T) {
	for name, tc := range map[string]struct {
		rate    float64
		refused bool
	}{"one a second": {1, true}, "no limit": {-1, false}} {
		t.Run(name, func(t *testing.T) {
			api := clientOf(t, start(t, cluster.Config(t), options(t, func(o *operator.Options) { o.APIRate = tc.rate })))
			refused := false
			for range 300 {
				_, err := api.Proxies(t.Context(), client.ProxyQuery{Limit: 1})
				if err != nil && codeOf(err) != "rate" {
					t.Fatal(err)
				}
				refused = refused || err != nil
			}
			if refused != tc.refused {
				t.Errorf("refused: %t, want %t", refused, tc.refused)
			}
		})
	}
}
