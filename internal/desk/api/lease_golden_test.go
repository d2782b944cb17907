package api_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"fleetdesk/client"
	"fleetdesk/internal/core/lease"
	"fleetdesk/internal/core/lease/leasetest"
	"fleetdesk/internal/desk/api"
	"fleetdesk/internal/desk/service"
)

// TestLeaseGolden holds what goes over the wire of pools, leases and changes,
// through the real client, at a time that stands still. Each case begins with
// the pool win of two keys, of which "nightly" holds win-01.
func TestLeaseGolden(t *testing.T) {
	type call func(context.Context, *client.Client, client.Secret) (any, error)
	take := func(pool string, o client.TakeOptions) call {
		return func(ctx context.Context, c *client.Client, _ client.Secret) (any, error) {
			l, err := c.Take(ctx, pool, o)
			if err != nil {
				return nil, err
			}
			return l.Info(), nil
		}
	}
	renew := func(id string, r client.RenewRequest) call {
		return func(ctx context.Context, c *client.Client, s client.Secret) (any, error) {
			return c.RenewLease(ctx, id, s, r)
		}
	}
	release := func(id string, r client.ReleaseRequest) call {
		return func(ctx context.Context, c *client.Client, s client.Secret) (any, error) {
			return c.ReleaseLease(ctx, id, s, r)
		}
	}
	get := func(id string) call {
		return func(ctx context.Context, c *client.Client, _ client.Secret) (any, error) { return c.LeaseInfo(ctx, id) }
	}
	pools := func(p client.Page) call {
		return func(ctx context.Context, c *client.Client, _ client.Secret) (any, error) { return c.Pools(ctx, p) }
	}
	pool := func(name string, p client.Page) call {
		return func(ctx context.Context, c *client.Client, _ client.Secret) (any, error) { return c.Pool(ctx, name, p) }
	}
	waiters := func(name string) call {
		return func(ctx context.Context, c *client.Client, _ client.Secret) (any, error) {
			return c.Waiters(ctx, name, client.Page{})
		}
	}
	publish := func(name string, r client.PublishRequest) call {
		return func(ctx context.Context, c *client.Client, _ client.Secret) (any, error) {
			return c.Publish(ctx, name, r)
		}
	}
	disable := func(pool, key string) call {
		return func(ctx context.Context, c *client.Client, _ client.Secret) (any, error) {
			return c.Disable(ctx, pool, key, client.DisableRequest{Reason: "boots into rescue mode"})
		}
	}
	enable := func(key string) call {
		return func(ctx context.Context, c *client.Client, _ client.Secret) (any, error) {
			return c.Enable(ctx, "win", key)
		}
	}
	forceFor := func(key string, r client.ForceRequest) call {
		return func(ctx context.Context, c *client.Client, _ client.Secret) (any, error) {
			return c.ForceRelease(ctx, "win", key, r)
		}
	}
	force := func(key string, fence int64) call { return forceFor(key, client.ForceRequest{Fence: fence}) }
	begin := func(r client.ChangeRequest) call {
		return func(ctx context.Context, c *client.Client, _ client.Secret) (any, error) {
			return c.BeginChange(ctx, "win", r)
		}
	}
	twice := func(one, two call) call {
		return func(ctx context.Context, c *client.Client, s client.Secret) (any, error) {
			if _, err := one(ctx, c, s); err != nil {
				return nil, err
			}
			return two(ctx, c, s)
		}
	}
	renewChange := func(ctx context.Context, c *client.Client, s client.Secret) (any, error) {
		ch, err := begin(client.ChangeRequest{Verb: "add"})(ctx, c, s)
		if err != nil {
			return nil, err
		}
		return c.RenewChange(ctx, "win", ch.(client.Change).ID, client.ChangeRenewal{TTL: 600})
	}
	endChange := func(ctx context.Context, c *client.Client, s client.Secret) (any, error) {
		ch, err := begin(client.ChangeRequest{Verb: "add"})(ctx, c, s)
		if err != nil {
			return nil, err
		}
		return nil, c.EndChange(ctx, "win", ch.(client.Change).ID)
	}

	free := func(name string) client.Key {
		return client.Key{Name: name, State: "free", Pools: []string{"win"}, Attributes: map[string]string{}}
	}
	held := client.Key{
		Name: "win-01", State: "held", SecondsLeft: 600, Pools: []string{"win"}, Attributes: map[string]string{},
		Lease: &client.KeyLease{ID: "win-01~2", Pool: "win", Account: "nightly", Holder: "job 1", Target: "shop.example.com", Taken: began(), SecondsLeft: 600},
	}
	win := client.Pool{
		Name: "win", Kind: "fixed", Revision: 1, PublishedBy: "ann", Published: began(),
		PoolSettings: client.PoolSettings{
			TTL: 600, MaxTTL: 86400, Scope: "key", Ban: &client.BanCooldown{Initial: 600, Factor: 2, Max: 86400},
		},
	}
	winNow := client.PoolStatus{Pool: win, Keys: 2, Free: 1, Held: 1}
	first := client.LeaseInfo{
		ID: "win-01~2", Pool: "win", Key: "win-01", Account: "nightly", Holder: "job 1", Target: "shop.example.com",
		Fence: 2, State: "held", TTL: 600, SecondsLeft: 600, Attributes: map[string]string{},
	}
	longer := first
	longer.TTL, longer.SecondsLeft = 3600, 3600
	second := client.LeaseInfo{
		ID: "win-02~4", Pool: "win", Key: "win-02", Account: "ci", Holder: "job 2", Target: "",
		Fence: 4, State: "held", TTL: 60, SecondsLeft: 60, Attributes: map[string]string{},
	}
	disabled := free("win-02")
	disabled.State, disabled.Disabled = "disabled", &client.Disabled{Reason: "boots into rescue mode", By: "other", At: began()}
	change := client.Change{Pool: "win", Verb: "add", Keys: []string{}, Account: "ci", Holder: "ann@desk-3", Began: began(), SecondsLeft: 60}
	renewed := change
	renewed.Holder, renewed.SecondsLeft = "", 600
	revision := int64(7)

	const viewer, runner, owner, admin = viewerToken, runnerToken, secondToken, otherToken
	all := client.TakeOptions{Holder: "job 2", TTL: time.Minute}
	cases := map[string]struct {
		reason string
		bearer string
		call   call
		want   any
		class  client.Class
		code   string
		status int
	}{
		"lease-take":           {"a grant has no secret in its body", runner, take("win", all), second, "", "", 0},
		"lease-take-none":      {"who holds what, and when the next is due", runner, twice(take("win", client.TakeOptions{}), take("win", all)), nil, client.Quota, "none_free", 503},
		"lease-take-pool":      {"an unknown pool is no empty one", runner, take("mac", all), nil, client.NotFound, "pool", 404},
		"lease-take-ttl":       {"a time out of the pool's bounds is refused, not cut", runner, take("win", client.TakeOptions{TTL: 25 * time.Hour}), nil, client.Invalid, "ttl", 400},
		"lease-take-viewer":    {"viewers take nothing", viewer, take("win", all), nil, client.Denied, "role", 403},
		"lease-get":            {"everybody may see a lease, and nobody its secret", viewer, get("win-01~2"), first, "", "", 0},
		"lease-get-none":       {"a lease that nobody knows", viewer, get("win-01~999"), nil, client.NotFound, "lease", 404},
		"lease-get-odd":        {"what is no id names no lease", viewer, get("win 01"), nil, client.NotFound, "lease", 404},
		"lease-renew":          {"for an hour from now", owner, renew("win-01~2", client.RenewRequest{TTL: 3600, Fence: 2}), longer, "", "", 0},
		"lease-renew-fence":    {"another fence is another lease", owner, renew("win-01~2", client.RenewRequest{Fence: 3}), nil, client.Conflict, "fence", 409},
		"lease-renew-account":  {"the secret alone does not do", runner, renew("win-01~2", client.RenewRequest{}), nil, client.Denied, "not_owner", 403},
		"lease-release":        {"the key goes back", owner, release("win-01~2", client.ReleaseRequest{}), client.Released{ID: "win-01~2", Key: "win-01"}, "", "", 0},
		"lease-release-twice":  {"which is harmless", owner, twice(release("win-01~2", client.ReleaseRequest{}), release("win-01~2", client.ReleaseRequest{})), client.Released{ID: "win-01~2", Key: "win-01"}, "", "", 0},
		"lease-release-broken": {"a broken key goes out of use", owner, release("win-01~2", client.ReleaseRequest{Outcome: "broken", Reason: "no ping"}), client.Released{ID: "win-01~2", Key: "win-01", Disabled: true}, "", "", 0},
		"lease-lost":           {"what became of a lease", owner, twice(release("win-01~2", client.ReleaseRequest{}), renew("win-01~2", client.RenewRequest{})), nil, client.Conflict, "lease_released", 409},
		"pools":                {"pools with what becomes of their keys", viewer, pools(client.Page{}), client.PoolList{Items: []client.PoolStatus{winNow}}, "", "", 0},
		"pools-past":           {"behind the last one is an empty list, not null", viewer, pools(client.Page{Cursor: "enpw"}), client.PoolList{Items: []client.PoolStatus{}}, "", "", 0},
		"pools-cursor":         {"a made-up cursor is refused", viewer, pools(client.Page{Cursor: "AAAA"}), nil, client.Invalid, "", 400},
		"pool":                 {"its keys, and who holds them", viewer, pool("win", client.Page{}), client.PoolPage{PoolStatus: winNow, Items: []client.Key{held, free("win-02")}, Waiters: []client.Waiter{}}, "", "", 0},
		"pool-page":            {"a full page names the next", viewer, pool("win", client.Page{Limit: 1}), client.PoolPage{PoolStatus: winNow, Items: []client.Key{held}, Next: "d2luLTAx", Waiters: []client.Waiter{}}, "", "", 0},
		"pool-none":            {"an unknown pool", viewer, pool("mac", client.Page{}), nil, client.NotFound, "pool", 404},
		"waiters":              {"nobody waits", viewer, waiters("win"), client.WaiterList{Items: []client.Waiter{}}, "", "", 0},
		"waiters-none":         {"an unknown pool has no queue", viewer, waiters("mac"), nil, client.NotFound, "pool", 404},
		"publish":              {"a list becomes a pool", admin, publish("mac", client.PublishRequest{Items: []string{"mac-1"}, PoolSettings: client.PoolSettings{TTL: 30, MaxTTL: 7200, Cooldown: 0.5, Ban: &client.BanCooldown{Initial: 1, Factor: 1.5, Max: 2}, Scope: "exitIP", Hooks: client.Hooks{Reset: true}}}), client.Pool{Name: "mac", Kind: "fixed", Revision: 1, PublishedBy: "other", Published: began(), PoolSettings: client.PoolSettings{TTL: 30, MaxTTL: 7200, Cooldown: 0.5, Ban: &client.BanCooldown{Initial: 1, Factor: 1.5, Max: 2}, Scope: "exitIP", Hooks: client.Hooks{Reset: true}}}, "", "", 0},
		"publish-revision":     {"somebody published meanwhile", admin, publish("win", client.PublishRequest{IfRevision: &revision}), nil, client.Conflict, "revision", 409},
		"publish-twice":        {"a name stands twice", admin, publish("win", client.PublishRequest{Items: []string{"a", "a"}}), nil, client.Invalid, "key", 400},
		"publish-runner":       {"publishing is for admins", runner, publish("win", client.PublishRequest{}), nil, client.Denied, "role", 403},
		"key-disable":          {"who took it out of use, and why", admin, disable("win", "win-02"), disabled, "", "", 0},
		"key-disable-none":     {"an unknown key", admin, disable("win", "win-99"), nil, client.NotFound, "key", 404},
		"key-disable-pool":     {"a key of no such pool", admin, disable("mac", "win-02"), nil, client.NotFound, "pool", 404},
		"key-enable":           {"back into use", admin, twice(disable("win", "win-02"), enable("win-02")), free("win-02"), "", "", 0},
		"key-force":            {"its holder loses it", admin, force("win-01", 2), free("win-01"), "", "", 0},
		"key-force-reason":     {"why is for the audit log, and nobody is shown it", admin, forceFor("win-01", client.ForceRequest{Fence: 2, Reason: "its job hangs"}), free("win-01"), "", "", 0},
		"key-force-long":       {"a reason has bounds", admin, forceFor("win-01", client.ForceRequest{Reason: strings.Repeat("x", 513)}), nil, client.Invalid, "", 400},
		"key-force-other":      {"somebody else holds it by now", admin, force("win-01", 1), nil, client.Conflict, "fence", 409},
		"key-force-free":       {"nobody holds it", admin, force("win-02", 0), nil, client.Conflict, "not_held", 409},
		"key-force-runner":     {"runners end their own only", runner, force("win-01", 0), nil, client.Denied, "role", 403},
		"change-begin":         {"its id is for who began it", runner, begin(client.ChangeRequest{Verb: "add", Holder: "ann@desk-3"}), change, "", "", 0},
		"change-begin-held":    {"keys in use are left alone", runner, begin(client.ChangeRequest{Keys: []string{"win-01"}}), nil, client.Conflict, "held", 409},
		"change-begin-second":  {"one at a time", runner, twice(begin(client.ChangeRequest{}), begin(client.ChangeRequest{})), nil, client.Conflict, "change", 409},
		"change-renew":         {"ten minutes more", runner, renewChange, renewed, "", "", 0},
		"change-end":           {"no content is success", runner, endChange, nil, "", "", 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d := serveDesk(t, leasetest.Options{Now: began}, nil)
			g, err := d.service.Take(t.Context(), service.TakeRequest{Account: "nightly", Pool: "win", Holder: "job 1", Target: "shop.example.com"})
			if err != nil {
				t.Fatal(err)
			}
			rec := &recording{next: d.http.Transport}
			cl, err := client.New(client.Options{
				BaseURL: d.url, Token: client.Token(c.bearer), Retries: -1,
				HTTPClient: &http.Client{Transport: rec, Timeout: 10 * time.Second},
			})
			if err != nil {
				t.Fatal(err)
			}
			got, err := c.call(t.Context(), cl, client.Secret(g.Secret.Reveal()))
			golden(t, "wire/"+name+".golden", rec.text.Bytes())
			if c.class == "" {
				if err != nil {
					t.Fatalf("%s: %v", c.reason, err)
				}
				if diff := cmp.Diff(c.want, got, cmpopts.IgnoreFields(client.Change{}, "ID")); diff != "" {
					t.Errorf("%s (-want +got):\n%s", c.reason, diff)
				}
				return
			}
			e, ok := errors.AsType[*client.Error](err)
			if !ok || !errors.Is(err, c.class) || e.Status != c.status || e.Code != c.code {
				t.Errorf("%s: err = %#v, want class %s, code %q and status %d", c.reason, err, c.class, c.code, c.status)
			}
		})
	}
}

// A pool's change is shown to everybody; its id, with which others of the account
// could end it, only to its beginner and to admins.
func TestChangeIsShown(t *testing.T) {
	d := serveDesk(t, leasetest.Options{Now: began}, nil)
	ctx := t.Context()
	ch, err := d.client(t, runnerToken).BeginChange(ctx, "win", client.ChangeRequest{Verb: "remove", Keys: []string{"win-02"}})
	if err != nil || ch.ID == "" {
		t.Fatalf("%+v, %v", ch, err)
	}
	for bearer, id := range map[string]string{viewerToken: "", runnerToken: "", otherToken: ch.ID} {
		p, err := d.client(t, bearer).Pool(ctx, "win", client.Page{})
		if err != nil {
			t.Fatal(err)
		}
		want := ch
		want.ID = id
		if diff := cmp.Diff(&want, p.Change); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		bar := []client.Bar{{By: "ci", SecondsLeft: 60}}
		if k := p.Items[1]; k.State != client.StateBarred || !cmp.Equal(k.Bars, bar) {
			t.Errorf("a barred key shows as %+v", k)
		}
	}
	// An admin may end it for somebody; another runner may not.
	err = d.client(t, secondToken).EndChange(ctx, "win", ch.ID)
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Code != "not_owner" {
		t.Errorf("another runner: %v", err)
	}
	if err := d.client(t, otherToken).EndChange(ctx, "win", ch.ID); err != nil {
		t.Errorf("an admin: %v", err)
	}
}

// Everything that a key may show.
func TestKeyIsShown(t *testing.T) {
	now := began()
	d := serveDesk(t, leasetest.Options{Now: func() time.Time { return now }}, func(o *api.Options) { o.Limits.PerToken = -1 })
	ctx := t.Context()
	op, err := d.service.Do(ctx, lease.OpenEpoch{Owner: "test"})
	if err != nil {
		t.Fatal(err)
	}
	epoch := op[0].Epoch
	attributes := map[string]string{"tier": "eu"}
	results, err := d.service.Do(ctx,
		lease.PutPool{Epoch: epoch, Pool: lease.Pool{Name: "crawl.eu", Scope: lease.ScopeExitIP, Cooldown: time.Minute}},
		lease.PutKey{Epoch: epoch, Key: "crawl.a", UID: "u-1", Pools: []string{"crawl.eu"}, Attributes: attributes, ExitIP: "203.0.113.7"},
		lease.PutKey{Epoch: epoch, Key: "crawl.b", UID: "u-2", Pools: []string{"crawl.eu"}, Unfit: "3 checks failed"},
	)
	for _, r := range results {
		err = errors.Join(err, r.Err)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := d.client(t, runnerToken)
	l, err := c.Take(ctx, "crawl.eu", client.TakeOptions{Constraints: map[string]string{"tier": "eu"}})
	if err != nil {
		t.Fatal(err)
	}
	if i := l.Info(); i.UID != "u-1" || !cmp.Equal(i.Attributes, attributes) {
		t.Errorf("the lease shows %+v", i)
	}
	if _, err := l.Release(ctx, client.ReleaseRequest{Outcome: client.OutcomeError}); err != nil {
		t.Fatal(err)
	}
	p, err := c.Pool(ctx, "crawl.eu", client.Page{})
	if err != nil {
		t.Fatal(err)
	}
	want := []client.Key{
		{Name: "crawl.a", State: "cooling", SecondsLeft: 60, Pools: []string{"crawl.eu"}, UID: "u-1", Attributes: attributes, ExitIP: "203.0.113.7", Errors: 1},
		{Name: "crawl.b", State: "unhealthy", Pools: []string{"crawl.eu"}, UID: "u-2", Attributes: map[string]string{}, Unhealthy: "3 checks failed"},
	}
	if diff := cmp.Diff(want, p.Items); diff != "" || p.Kind != "managed" {
		t.Errorf("%s (-want +got):\n%s", p.Kind, diff)
	}
	// The pool of hooks: only for those who run them, and the reset that is due.
	d.publish(t, lease.Pool{Name: "hooks", Hooks: lease.Hooks{Reset: true}}, "h-1")
	if _, err := c.Take(ctx, "hooks", client.TakeOptions{}); !errors.Is(err, client.Invalid) {
		t.Errorf("a pool with hooks: %v", err)
	}
	h, err := c.Take(ctx, "hooks", client.TakeOptions{RunsHooks: true, TTL: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	now = now.Add(6 * time.Second)
	info, err := c.LeaseInfo(ctx, h.ID())
	if err != nil || info.State != client.StateExpired || info.SecondsLeft != 0 || !info.NeedsReset {
		t.Errorf("expired: %+v, %v", info, err)
	}
	h, err = c.Take(ctx, "hooks", client.TakeOptions{RunsHooks: true})
	if err != nil || h.Info().State != client.StateResetting || !h.Info().NeedsReset {
		t.Errorf("the next taker: %+v, %v", h, err)
	}
	if err := h.Renew(ctx, client.RenewRequest{Reset: client.ResetDone}); err != nil || h.Info().State != client.StateHeld {
		t.Errorf("reset: %+v, %v", h.Info(), err)
	}
}
