package kubernetes

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// The steps of Create, as provider.Step names them. A Pod that has ended is
// removed first, and then made again.
const (
	stepSecret  = "kubernetes: secret"
	stepService = "kubernetes: service"
	stepPod     = "kubernetes: pod"
	stepEnded   = "kubernetes: remove ended pod"
)

// Create implements [provider.Provider]: Secret, Service, Pod, in this order. A
// Secret of an earlier attempt is written anew while there is no Pod: its
// version then tells a sweep that it is not left over.
func (p *Provider) Create(ctx context.Context, spec provider.Spec) (provider.Instance, error) {
	w, err := p.settleSpec(spec)
	if err != nil {
		return provider.Instance{}, err
	}
	if spec.Host == "" {
		return provider.Instance{}, fault.New(fault.Invalid, "the spec names no host: Place chooses it")
	}
	doing := "make Pod " + w.name
	ctx, cancel, err := p.bound(ctx, doing)
	if err != nil {
		return provider.Instance{}, err
	}
	defer cancel()
	unlock, err := p.working.lock(ctx, w.name)
	if err != nil {
		return provider.Instance{}, p.failed(doing, err)
	}
	defer unlock()
	c, err := p.connected(ctx)
	if err != nil {
		return provider.Instance{}, err
	}
	pod, err := p.pod(ctx, c, w.name)
	if err != nil {
		return provider.Instance{}, err
	}
	if pod == nil {
		return p.make(ctx, c, w)
	}
	if err := p.belongs(pod, w.owner); err != nil {
		return provider.Instance{}, err
	}
	svc, err := p.serviceOf(ctx, c, pod)
	if err != nil {
		return provider.Instance{}, err
	}
	in := p.instance(pod, svc)
	switch in.State {
	case provider.Unknown:
		in.Owner.Installation = w.owner.Installation
		return in, nil
	case provider.Stopped:
		if kind := p.serviceKind(pod); kind != noService && kind != p.conf.serviceKind() {
			// The new Pod does not know of it, so it goes first.
			if _, err := p.deletePart(ctx, c, services, w.name, w.owner); err != nil {
				return provider.Instance{}, err
			}
		}
		if err := provider.Step(ctx, stepEnded); err != nil {
			return provider.Instance{}, err
		}
		at := int64(0)
		if err := p.removePod(ctx, c, pod, &at); err != nil {
			return provider.Instance{}, err
		}
		return p.make(ctx, c, w)
	case provider.Provisioning:
		return p.complete(ctx, c, w, pod, svc)
	}
	return in, nil
}

// make makes what there is of an instance without a Pod, and the Pod.
func (p *Provider) make(ctx context.Context, c *conn, w *wanted) (provider.Instance, error) {
	if err := p.room(ctx, w, func() { p.making[w.name] = true }); err != nil {
		return provider.Instance{}, err
	}
	defer func() {
		p.counting.Lock()
		defer p.counting.Unlock()
		delete(p.making, w.name)
	}()
	pod, err := p.podOf(w)
	if err != nil {
		return provider.Instance{}, err
	}
	if err := p.putSecret(ctx, c, w); err != nil {
		return provider.Instance{}, err
	}
	svc, err := p.putService(ctx, c, w, p.conf.serviceKind())
	if err != nil {
		return provider.Instance{}, err
	}
	if err := provider.Step(ctx, stepPod); err != nil {
		return provider.Instance{}, err
	}
	pod, err = c.core.CoreV1().Pods(p.conf.namespace).Create(ctx, pod, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		// Another operator, or a call whose answer was lost. The next call sees it.
		return provider.Instance{}, fault.Errorf(fault.Conflict, "host %s: Pod %s was made by another call at the same time", p.host, w.name)
	}
	if err != nil {
		return provider.Instance{}, p.failed("make Pod "+w.name, err)
	}
	p.pods.learn(pod)
	return p.instance(pod, svc), nil
}

// complete makes the parts again that a Pod which does not run yet may wait
// for: a Delete or a person may have taken them beside an earlier call.
func (p *Provider) complete(ctx context.Context, c *conn, w *wanted, pod *corev1.Pod, svc *corev1.Service) (provider.Instance, error) {
	there, err := p.part(ctx, c, secrets, w.name)
	if err != nil {
		return provider.Instance{}, err
	}
	if there == nil {
		if err := p.putSecret(ctx, c, w); err != nil {
			return provider.Instance{}, err
		}
	}
	if svc == nil {
		if svc, err = p.putService(ctx, c, w, p.serviceKind(pod)); err != nil {
			return provider.Instance{}, err
		}
	}
	return p.instance(pod, svc), nil
}

// putSecret makes the instance's Secret, or writes it anew.
func (p *Provider) putSecret(ctx context.Context, c *conn, w *wanted) error {
	secret, err := p.secretOf(w)
	if err != nil {
		return err
	}
	if err := provider.Step(ctx, stepSecret); err != nil {
		return err
	}
	api := c.core.CoreV1().Secrets(p.conf.namespace)
	doing := "write Secret " + w.name
	_, err = api.Create(ctx, secret, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return p.failed(doing, err)
	}
	old, err := p.part(ctx, c, secrets, w.name)
	if err != nil {
		return err
	}
	if old == nil {
		return fault.Errorf(fault.Transient, "host %s: Secret %s went while it was written", p.host, w.name)
	}
	if err := p.belongs(old, w.owner); err != nil {
		return err
	}
	secret.ResourceVersion = old.ResourceVersion
	_, err = api.Update(ctx, secret, metav1.UpdateOptions{})
	if missing(err) {
		return fault.Errorf(fault.Transient, "host %s: Secret %s went while it was written", p.host, w.name)
	}
	return p.failed(doing, err)
}

// putService makes the instance's Service of a kind, if any.
func (p *Provider) putService(ctx context.Context, c *conn, w *wanted, kind string) (*corev1.Service, error) {
	if kind == noService {
		return nil, nil
	}
	svc, err := p.service(ctx, c, w.name)
	if err != nil {
		return nil, err
	}
	if svc != nil {
		if err := p.belongs(svc, w.owner); err != nil {
			return nil, err
		}
		if svc.DeletionTimestamp == nil && string(svc.Spec.Type) == kind {
			return svc, nil
		}
		// Of an earlier instance: its address goes with it.
		if _, err := p.deletePart(ctx, c, services, w.name, w.owner); err != nil {
			return nil, err
		}
		return nil, fault.Errorf(fault.Transient, "host %s: Service %s of an earlier instance is still being removed (finalizers: %s); the instance is made when it is gone", p.host, w.name, holders(svc))
	}
	if svc, err = p.newService(w, kind); err != nil {
		return nil, err
	}
	if err := provider.Step(ctx, stepService); err != nil {
		return nil, err
	}
	svc, err = c.core.CoreV1().Services(p.conf.namespace).Create(ctx, svc, metav1.CreateOptions{})
	if err != nil {
		return nil, p.failed("make Service "+w.name, err)
	}
	p.services.learn(svc)
	return svc, nil
}
