package kubernetes

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

// defaultPort is used for a spec without a port.
const defaultPort = 3128

// wanted is a spec in this provider's terms, checked.
type wanted struct {
	owner       provider.Owner
	name        string
	image       picture
	port        int
	protocol    provider.Protocol
	credentials provider.Credentials
	resources   provider.Resources
	selector    map[string]string
}

// settleSpec says what of a spec this provider cannot do. Fields are named as
// in the Proxy.
func (p *Provider) settleSpec(spec provider.Spec) (*wanted, error) {
	w := &wanted{owner: spec.Owner, port: spec.Port, protocol: spec.Protocol, credentials: spec.Credentials, resources: p.conf.resources}
	var err error
	if w.name, err = nameOf(spec.Owner); err != nil {
		return nil, err
	}
	if spec.Host != "" && spec.Host != p.host {
		return nil, fault.Errorf(fault.Invalid, "placement.host %q: provider %s has the host %q alone; leave it empty", short(spec.Host), p.name, p.host)
	}
	if len(spec.UserData) > 0 {
		return nil, fault.New(fault.Unsupported, "cloudInit: a Pod has no cloud-init; remove cloudInit and put the set-up into the image (placement.image), or use another provider")
	}
	if w.image, err = p.picture(spec.Image); err != nil {
		return nil, err
	}
	if w.port == 0 {
		w.port = defaultPort
	}
	if w.port < 1 || w.port > 65535 {
		return nil, fault.Errorf(fault.Invalid, "port %d is not in 1 to 65535", spec.Port)
	}
	switch w.protocol {
	case "", provider.HTTP:
		w.protocol = provider.HTTP
	case provider.HTTPS, provider.SOCKS5:
		if w.image.squid {
			return nil, fault.Errorf(fault.Unsupported, "protocol %q: the image %s speaks http alone; use protocol: http, or an image of your own", short(string(w.protocol)), w.image.reference)
		}
		if len(w.image.probe) == 0 {
			return nil, fault.Errorf(fault.Invalid, "protocol %q: the usual readiness probe speaks http; put the image into kubernetes.images with a probe of its own", short(string(w.protocol)))
		}
	default:
		return nil, fault.Errorf(fault.Unsupported, "protocol %q: want http, https or socks5", short(string(w.protocol)))
	}
	if err := checkCredentials(w.credentials, !w.image.plain); err != nil {
		return nil, err
	}
	if w.selector, err = p.selector(spec); err != nil {
		return nil, err
	}
	return w, w.size(spec.Resources)
}

// picture is the image that a Proxy names: a key, or a reference.
func (p *Provider) picture(name string) (picture, error) {
	if im, ok := p.conf.images[or(name, p.conf.defaultImage)]; ok {
		return im, nil
	}
	if !strings.ContainsAny(name, "/:@") || !referenceForm.MatchString(name) {
		return picture{}, fault.Errorf(fault.Invalid, "placement.image %q is neither a key of kubernetes.images (%s) nor a reference such as registry.example.com/proxy:1", short(name), listed(p.conf.images))
	}
	return picture{reference: name}, nil
}

// selector is the node selector of section, Proxy and zone.
func (p *Provider) selector(spec provider.Spec) (map[string]string, error) {
	out := maps.Clone(p.conf.nodeSelector)
	if out == nil {
		out = map[string]string{}
	}
	add := func(field, key, value string) error {
		if bads := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(bads) > 0 {
			return fault.Errorf(fault.Invalid, "%s: %s: %s", field, short(key), bads[0])
		}
		if old, ok := out[key]; ok && old != value {
			return fault.Errorf(fault.Invalid, "%s: label %s is to be %q, and elsewhere %q (kubernetes.nodeSelector, placement.nodeSelector and placement.zone must agree)", field, key, short(value), short(old))
		}
		out[key] = value
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(spec.NodeSelector)) {
		if err := add("placement.nodeSelector", key, spec.NodeSelector[key]); err != nil {
			return nil, err
		}
	}
	if spec.Zone != "" {
		if err := add("placement.zone", corev1.LabelTopologyZone, spec.Zone); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// size takes what the Proxy says of its size.
func (w *wanted) size(r provider.Resources) error {
	for _, f := range []struct {
		field string
		want  int64
		into  *int64
	}{
		{"cpus", r.MilliCPUs, &w.resources.MilliCPUs},
		{"memory", r.MemoryBytes, &w.resources.MemoryBytes},
		{"disk", r.DiskBytes, &w.resources.DiskBytes},
	} {
		if f.want < 0 {
			return fault.New(fault.Invalid, fmt.Sprintf("resources.%s is below zero", f.field))
		}
		if f.want > 0 {
			*f.into = f.want
		}
	}
	return nil
}
