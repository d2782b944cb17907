package kubernetes_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
	"fleetdesk/internal/proxy/provider/kubernetes"
)

// meddled is a provider whose requests go through a hand first.
func meddled(t *testing.T, w *world, hand func(r *http.Request) error) *kubernetes.Provider {
	t.Helper()
	section := w.section
	section.KubeconfigSecret = nil
	p, err := kubernetes.New(kubernetes.Options{Name: "away", Section: section, HashCost: 4, Own: func() (*rest.Config, error) {
		cfg := rest.CopyConfig(w.user)
		cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper {
			return trip(func(r *http.Request) (*http.Response, error) {
				if err := hand(r); err != nil {
					return nil, err
				}
				return rt.RoundTrip(r)
			})
		})
		return cfg, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// hands notes requests, and meddles with those that it is set on.
type hands struct {
	mu     sync.Mutex
	seen   []string
	meddle func(request string) error
}

func (h *hands) on(r *http.Request) error {
	q := r.URL.Query()
	text := r.Method + " " + r.URL.Path + " watch=" + q.Get("watch") + " limit=" + q.Get("limit") + " "
	h.mu.Lock()
	h.seen = append(h.seen, text)
	meddle := h.meddle
	h.mu.Unlock()
	if meddle == nil {
		return nil
	}
	return meddle(text)
}

func (h *hands) set(meddle func(string) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen, h.meddle = nil, meddle
}

func (h *hands) count(part string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, text := range h.seen {
		if strings.Contains(text, part) {
			n++
		}
	}
	return n
}

// A lost connection is told at the first try, and whatever was listened to by
// then is listed anew: it may have been lost as well.
func TestLostConnections(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	h := &hands{}
	p := meddled(t, w, h.on)
	rows, err := p.ListByTag(t.Context(), installation)
	if err != nil || rows[0].Err != nil {
		t.Fatalf("the list = %+v, %v", rows, err)
	}
	h.set(func(request string) error {
		if strings.Contains(request, "/pods/") || strings.Contains(request, "limit=1 ") {
			return io.EOF
		}
		return nil
	})
	if _, err := p.Get(t.Context(), provider.Ref{Owner: ownerOf("lost")}); fault.Of(err) != fault.Unavailable {
		t.Errorf("Get: %s: %v", fault.Of(err), err)
	}
	if n := h.count("/pods/"); n != 1 {
		t.Errorf("Get tried %d times", n)
	}
	rows, err = p.ListByTag(t.Context(), installation)
	if err != nil || fault.Of(rows[0].Err) != fault.Unavailable {
		t.Errorf("the list = %+v, %v", rows, err)
	}
	await(t, "all to be listed anew", func() bool { return h.count("limit=500 ") > 0 && h.count("watch=true") > 0 })
	h.set(nil)
	rows, err = p.ListByTag(t.Context(), installation)
	if err != nil || rows[0].Err != nil {
		t.Errorf("the list afterwards = %+v, %v", rows, err)
	}
}

// An operator whose claim somebody removes right after it was written is told,
// and sweeps nothing.
func TestClaimThatIsRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	h := &hands{}
	p := meddled(t, w, h.on)
	h.set(func(request string) error {
		if strings.HasPrefix(request, "GET ") && strings.Contains(request, "/leases ") {
			return w.admin.CoordinationV1().Leases(w.ns).DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{})
		}
		return nil
	})
	rows, err := p.Claim(t.Context(), provider.Claim{Installation: installation, Holder: "holderone", Beat: 1, Period: time.Minute})
	if err != nil || fault.Of(rows[0].Err) != fault.Transient || !strings.Contains(rows[0].Err.Error(), "somebody removed the claim") {
		t.Errorf("Claim = %+v, %v", rows, err)
	}
}
