package local

import (
	"net/netip"
	"strings"

	"fleetdesk/internal/core/fault"
	"fleetdesk/internal/proxy/provider"
)

const (
	// Host is the single place of this provider.
	Host = "local"
	// Image is the only image there is, and the default.
	Image = "builtin"
	// defaultPort is used for a spec without a port.
	defaultPort = 3128
)

// validate says what of a spec this provider cannot do. Fields are named as in
// the Proxy.
func validate(spec provider.Spec) error {
	if _, err := ownFolder(spec.Owner); err != nil {
		return err
	}
	if err := validatePlace(spec); err != nil {
		return err
	}
	if spec.Image != "" && spec.Image != Image {
		return fault.Errorf(fault.Invalid, "placement.image %q: the local provider has the image %q alone; leave it empty", short(spec.Image), Image)
	}
	switch spec.Protocol {
	case "", provider.HTTP:
	default:
		return fault.Errorf(fault.Unsupported, "protocol %q: a local proxy speaks http alone; use protocol: http or another provider", short(string(spec.Protocol)))
	}
	if spec.Port < 0 || spec.Port > 65535 {
		return fault.Errorf(fault.Invalid, "port %d is not in 1 to 65535", spec.Port)
	}
	if len(spec.UserData) > 0 {
		return fault.New(fault.Unsupported, "cloudInit: the local provider starts a process and has no machine to initialise; remove cloudInit or use another provider")
	}
	if strings.Contains(spec.Credentials.User, ":") {
		return fault.New(fault.Invalid, "authSecretRef: the user name holds a ':', which basic authentication cannot carry")
	}
	return nil
}

func validatePlace(spec provider.Spec) error {
	switch {
	case spec.Host != "" && spec.Host != Host:
		return fault.Errorf(fault.Invalid, "placement.host %q: the local provider has the host %q alone; leave it empty", short(spec.Host), Host)
	case spec.Zone != "":
		return fault.Errorf(fault.Invalid, "placement.zone %q: the local provider has no zones; leave it empty", short(spec.Zone))
	case len(spec.NodeSelector) > 0:
		return fault.New(fault.Invalid, "placement.nodeSelector: the local provider has no nodes; leave it empty")
	}
	return nil
}

// portOf is the port a spec asks for.
func portOf(spec provider.Spec) int {
	if spec.Port == 0 {
		return defaultPort
	}
	return spec.Port
}

// block is where the addresses of local proxies come from. All of 127.0.0.0/8
// is local on Linux without any set-up; the upper part keeps clear of the
// addresses that other programs use (127.0.0.1, 127.0.0.53, 127.0.1.1).
var block = netip.MustParsePrefix("127.64.0.0/10")
