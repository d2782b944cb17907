package proxy

import (
	"context"
	"time"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/health"
	"fleetdesk/internal/proxy/probe"
	"fleetdesk/internal/proxy/provider"
)

// follow has a proxy with an address checked, and takes the last verdict over.
// A stopped or vanished instance is not checked: its state says more.
func (r *Reconciler) follow(ctx context.Context, px *v1alpha1.Proxy, f *facts) {
	if px.Status.Address == "" || f.state == provider.Stopped || f.state == provider.Deleting {
		r.o.Prober.Forget(key(px))
		return
	}
	creds, _, err := r.credentials(ctx, px)
	if err != nil {
		// Checking without them would only learn that they are needed.
		r.o.Prober.Forget(key(px))
		f.probeTrouble = err.Error()
		return
	}
	r.o.Prober.Watch(key(px), r.subject(px, creds))
	if snap, ok := r.o.Prober.State(key(px)); ok {
		f.verdict = &snap
	}
}

// subject says how the proxy is checked. Zero values, which admission fills,
// come from objects older than their defaults.
func (r *Reconciler) subject(px *v1alpha1.Proxy, creds provider.Credentials) probe.Subject {
	hc := px.Spec.HealthCheck
	url := hc.URL
	if url == "" {
		url = r.o.HealthURL
	}
	return probe.Subject{
		UID: string(px.UID),
		Target: probe.Target{
			Address: px.Status.Address, Port: int(px.Status.Port), Protocol: provider.Protocol(px.Spec.Protocol),
			User: creds.User, Password: creds.Password,
		},
		Check: probe.Check{
			URL: url, ExpectedStatus: int(hc.ExpectedStatus),
			Timeout: duration(hc.Timeout, probe.DefaultTimeout),
		},
		Interval: duration(hc.Interval, probe.DefaultInterval),
		Policy: health.Policy{
			FailureThreshold: max(int(hc.FailureThreshold), 1),
			SuccessThreshold: max(int(hc.SuccessThreshold), 1),
		},
	}
}

func duration(d v1alpha1.Duration, otherwise time.Duration) time.Duration {
	if v, err := time.ParseDuration(string(d)); err == nil && v > 0 {
		return v
	}
	return otherwise
}
