package api_test

import (
	"context"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"fleetdesk/client"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
	"fleetdesk/internal/core/token"
	"fleetdesk/internal/desk/api"
	"fleetdesk/internal/desk/service"
)

// naming is a Selection whose selectors are "name=value", "name!=value" and
// "name", with commas, on attributes "label:…".
type naming struct{}

func (naming) Key(namespace, name string) string       { return namespace + "." + name }
func (naming) Parts(key string) (string, string, bool) { return strings.Cut(key, ".") }
func (naming) DefaultPool(namespace string) string     { return namespace + ".default" }

func (naming) Match(w client.Wish) (all []lease.Match, err error) {
	in := func(attribute, value string) {
		if value != "" {
			all = append(all, lease.Match{Attribute: attribute, Op: lease.In, Values: []string{value}})
		}
	}
	for part := range strings.SplitSeq(w.Selector, ",") {
		m := requirement.FindStringSubmatch(part)
		switch {
		case w.Selector == "":
		case m == nil:
			return nil, fault.WithCode(fault.Errorf(fault.Invalid, "at character %d: no requirement", strings.Index(w.Selector, part)+1), "selector")
		case m[2] == "=":
			in("label:"+m[1], m[3])
		case m[2] == "!=":
			all = append(all, lease.Match{Attribute: "label:" + m[1], Op: lease.NotIn, Values: []string{m[3]}})
		default:
			all = append(all, lease.Match{Attribute: "label:" + m[1], Op: lease.Exists})
		}
	}
	in("protocol", w.Scheme)
	in("provider", w.Provider)
	in("region", w.Region)
	return all, nil
}

var requirement = regexp.MustCompile(`^([a-z]+)(?:(!?=)([a-z]+))?$`)

// crawler is a desk seen through the API by the Go client, as a crawler uses it.
type crawler struct{ deskClient }

func request(q leasetest.Query) client.NextRequest {
	return client.NextRequest{Pool: q.Pool, Target: q.Target, Holder: q.Holder, Constraints: q.Where, Wish: client.Wish{Scheme: q.Scheme}}
}

func picked(p client.Pick) leasetest.Picked {
	return leasetest.Picked{
		Use: p.Use, Key: p.Key, Pool: p.Pool, Target: p.Target, ExitIP: p.ExitIP, Attributes: p.Attributes, Rested: p.Rested.Duration(),
	}
}

func (c crawler) Next(ctx context.Context, q leasetest.Query) (leasetest.Picked, error) {
	p, err := c.c.Next(ctx, request(q))
	return picked(p), rebuilt(err)
}

func (c crawler) Report(ctx context.Context, u leasetest.Usage) (leasetest.Told, error) {
	namespace, name, _ := strings.Cut(u.Key, ".")
	r := client.ReportRequest{Outcome: string(u.Outcome), Target: u.Target, Pool: u.Pool, Use: u.Use, Lease: u.Lease}
	if u.Replace != nil {
		next := request(*u.Replace)
		r.Replace = &next
	}
	done, err := c.c.Report(ctx, namespace, name, r)
	told := leasetest.Told{Rest: done.Rest.Duration(), Strikes: done.Strikes}
	if done.Replacement != nil {
		one := picked(*done.Replacement)
		told.Replacement = &one
	}
	if done.NoReplacement != nil {
		told.Without = done.NoReplacement.Code
	}
	return told, rebuilt(err)
}

func (c crawler) Rests(ctx context.Context, key string) (all []leasetest.Rest, err error) {
	namespace, name, _ := strings.Cut(key, ".")
	for page := (client.Page{Limit: 1}); ; {
		list, err := c.c.Cooldowns(ctx, namespace, name, page)
		if err != nil {
			return nil, rebuilt(err)
		}
		for _, r := range list.Items {
			all = append(all, leasetest.Rest{
				Target: r.Target, Banned: r.Cause == "banned", Left: r.SecondsLeft.Duration(), Strikes: r.Strikes, Scope: lease.Scope(r.Scope),
			})
		}
		if page.Cursor = list.Next; page.Cursor == "" {
			return all, nil
		}
	}
}

func (c crawler) Lift(ctx context.Context, key, target string) error {
	namespace, name, _ := strings.Cut(key, ".")
	return rebuilt(c.c.LiftCooldowns(ctx, namespace, name, target))
}

// suiteDesk serves a store, and speaks to it as each of the suites' accounts.
func suiteDesk(t *testing.T, store lease.Store, change func(*api.Options)) (s *service.Service, as func(account string) deskClient) {
	s = run(t, store, service.Limits{})
	d := serve(t, func(o *api.Options) {
		o.Desk, o.Limits.PerToken = s, -1
		change(o)
	})
	d.auth.set(func() {
		for name, role := range map[string]token.Role{"ann": token.Runner, "bob": token.Runner, "root": token.Admin} {
			d.auth.byText["fd_suite_"+name] = token.Principal{Account: name, Role: role, TokenID: name}
		}
	})
	return s, func(account string) deskClient {
		c, err := client.New(client.Options{
			BaseURL: d.url, Token: client.Token("fd_suite_" + account), HTTPClient: &http.Client{Transport: d.http.Transport, Timeout: 30 * time.Second},
		})
		if err != nil {
			t.Fatal(err)
		}
		return deskClient{c}
	}
}

// The API through its client keeps what crawlers are promised.
func TestPickSuite(t *testing.T) {
	leasetest.RunPicks(t, func(t *testing.T) leasetest.PickHarness {
		m := leasetest.NewMemory(leasetest.Options{})
		s, as := suiteDesk(t, m, func(o *api.Options) { o.Selection, o.Access = naming{}, namedAccess{} })
		return leasetest.PickHarness{
			DeskHarness: leasetest.DeskHarness{As: func(account string) leasetest.Desk { return as(account) }, Advance: m.Advance},
			Pick:        func(account string) leasetest.Picker { return crawler{as(account)} },
			Do:          s.Do,
		}
	})
}
