package gcp_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/gcp"
	"fleetdesk/internal/testkit/gcefake"
)

// A Secret that cannot be looked at now leaves the key of before good; one that
// is gone, or holds something else, ends it, and it does not come back by the
// next one that cannot be looked at.
func TestAKeyOutlivesTheClustersAPI(t *testing.T) {
	w := newWorld(t, false, gcefake.Options{})
	key := w.Key()
	p := w.open(t)
	s := specOf("s", w.Zones()[0])
	up(t, p, s)
	look := func() error {
		w.advance(16 * time.Second)
		_, err := p.Get(t.Context(), refOf(s))
		return err
	}
	for _, class := range []fault.Class{fault.Unavailable, fault.Timeout, fault.Transient} {
		w.keep(nil, fault.New(class, "the API server is being upgraded"))
		if err := look(); err != nil {
			t.Errorf("with a good token and a Secret that is %s: %v", class, err)
		}
		w.ExpireTokens()
		if err := look(); fault.Of(err) != class || !strings.Contains(err.Error(), "being upgraded") {
			t.Errorf("with a refused token: %s: %v; want %s", fault.Of(err), err, class)
		}
		w.keep(key, nil)
		if err := look(); err != nil {
			t.Errorf("with the Secret again: %v", err)
		}
	}
	for name, tc := range map[string]struct {
		data provider.Secret
		err  error
	}{
		"gone":           {nil, fault.New(fault.NotFound, "no Secret")},
		"something else": {provider.Secret("{}"), nil},
	} {
		w.keep(tc.data, tc.err)
		if err := look(); err == nil {
			t.Errorf("%s: the key of before goes on", name)
		}
		w.keep(nil, fault.New(fault.Unavailable, "away"))
		if err := look(); fault.Of(err) != fault.Unavailable {
			t.Errorf("%s, and then away: %s: %v; want Unavailable", name, fault.Of(err), err)
		}
		w.keep(key, nil)
		if err := look(); err != nil {
			t.Errorf("%s, and back: %v", name, err)
		}
	}
	if log := w.logged.String(); strings.Contains(log, "PRIVATE KEY") || !strings.Contains(log, "key of before") {
		t.Error("the log does not say that the key of before goes on, or shows it")
	}
}

// A Secret that is not answered at all holds up no call that has a key.
func TestASecretThatHangsLater(t *testing.T) {
	t.Parallel() // it waits for most of its time
	w := newWorld(t, false, gcefake.Options{})
	hang := make(chan struct{})
	reads := make(chan bool, 1)
	p, err := gcp.New(gcp.Options{
		Name: "cloud", Section: w.section,
		Clock: func() time.Time { w.mu.Lock(); defer w.mu.Unlock(); return time.Now().Add(w.ahead) },
		Secret: func(ctx context.Context, ref provider.SecretRef) (provider.Secret, error) {
			select {
			case reads <- true:
				return w.read(ctx, ref)
			default:
			}
			select {
			case <-hang:
			case <-ctx.Done():
			}
			return w.read(ctx, ref)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	defer close(hang)
	s := specOf("s", w.Zones()[0])
	up(t, p, s)
	w.advance(16 * time.Second)
	if _, err := p.Get(t.Context(), refOf(s)); err != nil {
		t.Errorf("%s: %v; the token is good", fault.Of(err), err)
	}
}
