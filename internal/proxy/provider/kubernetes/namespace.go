package kubernetes

import (
	"context"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fleetdesk/internal/core/fault"
)

// home is the namespace that a provider has met first, by its UID. A kubeconfig
// that is changed may lead to another cluster: all that is here would look gone
// there, and be made again.
type home struct {
	mu  sync.Mutex
	uid types.UID
}

// is takes the first UID, and reports whether another is the same.
func (h *home) is(uid types.UID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.uid == "" {
		h.uid = uid
	}
	return h.uid == uid
}

// misled is the finding that a kubeconfig leads to another namespace.
type misled struct{ error }

func (m *misled) Unwrap() error { return m.error }

// connected is the way to the cluster; the first to use it sees whether it leads
// where it led before.
func (p *Provider) connected(ctx context.Context) (*conn, error) {
	c, err := p.cluster.conn(ctx)
	if err != nil {
		return nil, p.failed("connect", err)
	}
	if c.right.Load() {
		return c, nil
	}
	if err := p.rightPlace(ctx, c); err != nil {
		return nil, err
	}
	c.right.Store(true)
	return c, nil
}

// rightPlace asks whether the namespace is there, and is the one of before. Who
// is about to say that something is not there asks first: an API server says it
// of everything in a namespace that it does not have.
func (p *Provider) rightPlace(ctx context.Context, c *conn) error {
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	ns, err := c.core.CoreV1().Namespaces().Get(ctx, p.conf.namespace, metav1.GetOptions{})
	if err != nil {
		return p.failed("read namespace "+p.conf.namespace, err)
	}
	if p.home.is(ns.UID) {
		return nil
	}
	return &misled{fault.Errorf(fault.Permanent, "host %s: namespace %s is another one than before: put the old kubeconfig back; for another cluster give kubernetes.cluster another name; if it was deleted and made anew, restart the operator", p.host, p.conf.namespace)}
}

// notThere is the error of something that is not there, in a namespace that is.
func (p *Provider) notThere(ctx context.Context, c *conn, what string) error {
	if err := p.rightPlace(ctx, c); err != nil {
		return err
	}
	return fault.New(fault.NotFound, fmt.Sprintf("host %s: there is no %s", p.host, what))
}
