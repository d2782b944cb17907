package proxy

import (
	"context"
	"net/netip"
	"time"

	"fleetdesk/api/v1alpha1"
	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/core/health"
	"fleetdesk/internal/proxy/probe"
	"fleetdesk/internal/proxy/provider"
)

// follow has a proxy with an address checked, and takes the last verdict over.
// A stopped or vanished instance is not checked: its state says more.
func (p *pass) follow(ctx context.Context) outcome {
	name := key(p.px)
	if p.px.Status.Address == "" || !p.standing() {
		p.r.o.Prober.Forget(name.String())
		return settled()
	}
	creds, version, err := p.r.Credentials(ctx, p.px)
	p.secret = version
	out := settled()
	switch class := fault.Of(err); {
	case err == nil:
		p.r.pauses.clear(name, reading)
		p.r.o.Prober.Watch(name.String(), p.subject(creds))
	case class == fault.NotFound || class == fault.Denied:
		// Checking without them would only learn that they are needed, and
		// nobody could be given them.
		p.r.o.Prober.Forget(name.String())
		p.troubleReason, p.trouble = referenceReason(err), err.Error()
		return out
	default:
		// The API did not answer. What is being checked goes on being checked.
		p.secret = ""
		out = wait(p.r.pauses.failed(name, reading, p.inputs, err, p.now.Time))
	}
	if snap, ok := p.r.o.Prober.State(name.String()); ok {
		p.verdict = &snap
	}
	return out
}

// subject says how the proxy is checked. Zero values, which admission fills,
// come from objects older than their defaults.
func (p *pass) subject(creds provider.Credentials) probe.Subject {
	hc := p.px.Spec.HealthCheck
	url := hc.URL
	if url == "" {
		url = p.r.o.HealthURL(p.px.Spec.Provider)
	}
	interval := duration(hc.Interval, probe.DefaultInterval)
	return probe.Subject{
		UID: string(p.px.UID),
		Target: probe.Target{
			Address: p.px.Status.Address, Port: int(p.px.Status.Port), Protocol: provider.Protocol(p.px.Spec.Protocol),
			User: creds.User, Password: creds.Password,
		},
		Check: probe.Check{
			URL: url, ExpectedStatus: int(hc.ExpectedStatus),
			Timeout: duration(hc.Timeout, min(probe.DefaultTimeout, interval)),
		},
		Interval: interval,
		Policy: health.Policy{
			FailureThreshold: max(int(hc.FailureThreshold), 1),
			SuccessThreshold: max(int(hc.SuccessThreshold), 1),
		},
		Before: factsOf(&p.px.Status),
	}
}

// factsOf are the facts that a status shows, and showFacts the reverse but for
// the exit IP, which stands in the status until another is known.
func factsOf(st *v1alpha1.ProxyStatus) probe.Facts {
	f := probe.Facts{Latency: time.Duration(st.LatencyMilliseconds) * time.Millisecond}
	if ip, err := netip.ParseAddr(st.ExitIP); err == nil {
		f.ExitIP = ip
	}
	if st.Leaks != nil {
		f.Leaks = probe.LeaksOf(*st.Leaks)
	}
	if st.ChecksPassedPercent != nil {
		f.Passed, f.Counted = int(*st.ChecksPassedPercent), true
	}
	return f
}

func showFacts(st *v1alpha1.ProxyStatus, f probe.Facts) {
	st.LatencyMilliseconds = int32(f.Latency / time.Millisecond)
	st.Leaks, st.ChecksPassedPercent = nil, nil
	if names, known := f.Leaks.Names(); known {
		st.Leaks = &names
	}
	if f.Counted {
		st.ChecksPassedPercent = new(int32(f.Passed))
	}
}

// Suspect has a Ready proxy's provider listed soon, since a check of the proxy
// failed: its machine may have stopped. One that is known not to work is no
// news.
func (r *Reconciler) Suspect(ctx context.Context, namespace, name string) {
	px := &v1alpha1.Proxy{}
	if err := r.o.Client.Get(ctx, nameOf(namespace, name), px); err == nil && px.Status.Phase == v1alpha1.PhaseReady {
		r.o.Inventory.Refresh(px.Spec.Provider)
	}
}

func duration(d v1alpha1.Duration, otherwise time.Duration) time.Duration {
	if v, err := time.ParseDuration(string(d)); err == nil && v > 0 {
		return v
	}
	return otherwise
}
